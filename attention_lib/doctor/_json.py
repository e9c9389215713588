"""A report as JSON: the form ``attention-doctor/1``, which only grows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from attention_lib.doctor import _summary
from attention_lib.doctor.codes import title
from attention_lib.doctor.findings import (
    Cause,
    Evidence,
    Examination,
    Finding,
    Remedy,
    Skipped,
)

SCHEMA = "attention-doctor/1"


def report_json(examination: Examination) -> str:
    """The examination as a JSON text, in a fixed order."""
    data = report_data(examination)
    return json.dumps(data, indent=2, ensure_ascii=True, allow_nan=False)


def report_data(examination: Examination) -> dict[str, Any]:
    """The examination in dictionaries, lists, strings and finite numbers."""
    declared = examination.declared
    return {
        "schema": SCHEMA,
        "subject": _string(examination.subject),
        "kind": _string(examination.kind),
        "device": _string(examination.device),
        "dtype": _string(examination.dtype),
        "seed": examination.seed,
        "seconds": _number(round(examination.seconds, 3)),
        "repeat": _string(examination.repeat),
        "declared": {str(name): _plain(value) for name, value in declared.items()},
        "healthy": _summary.healthy(examination),
        "exit_code": _summary.exit_code(examination),
        "error": _string(examination.error) or None,
        "tally": _summary.tally(examination),
        "findings": [_finding(finding) for finding in examination.findings],
        "allowed": [
            {"reason": _string(reason), "finding": _finding(finding)}
            for finding, reason in examination.allowed
        ],
        "passed": [_string(name) for name in examination.passed],
        "not_checked": [_skipped(skipped) for skipped in examination.not_checked],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": _string(finding.code),
        "title": title(finding.code),
        "probe": _string(finding.probe),
        "also": [_string(name) for name in finding.also],
        "severity": finding.severity,
        "message": _string(finding.message),
        "effect": _string(finding.effect),
        "evidence": _evidence(finding.evidence),
        "causes": [_cause(cause) for cause in finding.causes],
        "remedy": _remedy(finding.remedy),
        "intended": _string(finding.intended),
        "see": _summary.see(finding),
        "follows": [_finding(follower) for follower in finding.follows],
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "text": _string(evidence.text),
        "measured": _number(evidence.measured),
        "expected": _number(evidence.expected),
        "map": _rows(evidence.map, _number),
        "forbidden": _rows(evidence.forbidden, bool),
        "smallest": _string(evidence.smallest),
    }


def _rows(rows: Iterable[Iterable[Any]] | None, convert: Any) -> list[Any] | None:
    return None if rows is None else [[convert(value) for value in row] for row in rows]


def _cause(cause: Cause) -> dict[str, str]:
    return {
        "text": _string(cause.text),
        "sure": cause.sure,
        "how": _string(cause.how),
        "kind": _string(cause.kind),
    }


def _remedy(remedy: Remedy | None) -> dict[str, Any] | None:
    if remedy is None:
        return None
    return {"mark": remedy.mark, "lines": [_string(line) for line in remedy.lines]}


def _skipped(skipped: Skipped) -> dict[str, Any]:
    return {
        "code": _string(skipped.code),
        "probe": _string(skipped.probe),
        "reason": _string(skipped.reason),
        "cannot_be_told": bool(skipped.cannot_be_told),
    }


def _number(value: Any) -> float | str | None:
    """A finite number as it is; the others as ``"NaN"`` and ``"-Infinity"``."""
    if value is None:
        return None
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _string(text: Any) -> str:
    """The text without addresses in memory and without lone surrogates."""
    safe = str(text).encode("utf-8", "backslashreplace").decode("utf-8")
    return _summary.ADDRESS.sub("", safe)


def _plain(value: Any) -> Any:
    """A declared value as JSON has it; what has no such form as its name."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        return {_string(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return _string(value) if isinstance(value, str) else _summary.spoken(value)
