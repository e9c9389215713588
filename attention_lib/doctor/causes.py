"""Findings whose causes are told by name."""

from __future__ import annotations

from collections.abc import Iterable

from attention_lib.doctor.findings import (
    Cause,
    Evidence,
    Finding,
    Remedy,
    Severity,
    Sure,
)
from attention_lib.doctor.known_causes import CAUSES, Known

__all__ = ["CAUSES", "Known", "because", "finding"]


def because(key: str, sure: Sure, how: str = "") -> Cause:
    """The cause of that name, with how it was established."""
    known = CAUSES[key]
    return Cause(known.text, sure, how, known.kind)


def finding(
    code: str,
    probe: str,
    message: str,
    text: str,
    *,
    key: str = "",
    sure: Sure = "consistent",
    how: str = "",
    kind: str = "",
    why: str = "",
    causes: Iterable[Cause] = (),
    severity: Severity = "fault",
    measured: float | None = None,
    expected: float | None = None,
    seen: tuple[tuple[float, ...], ...] | None = None,
    forbidden: tuple[tuple[bool, ...], ...] | None = None,
    smallest: str = "",
    remedy: tuple[str, ...] = (),
    effect: str = "",
    intended: str = "",
) -> Finding:
    """A finding whose first cause is the one of that ``key``, or told by ``why``."""
    known = CAUSES.get(key)
    first = []
    if known is not None:
        first = [because(key, sure, how)]
    elif why:
        first = [Cause(why, sure, how, kind)]
    lines = remedy or (known.remedy if known else ())
    return Finding(
        code=code,
        probe=probe,
        severity=severity,
        message=message,
        evidence=Evidence(text, measured, expected, seen, forbidden, smallest),
        causes=(*first, *causes),
        remedy=Remedy("try" if sure == "consistent" else "fix", lines)
        if lines
        else None,
        effect=effect or (known.effect if known else ""),
        intended=intended,
    )
