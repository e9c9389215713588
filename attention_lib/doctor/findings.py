"""What an examination finds, as data: no probe and no formatting here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["fault", "note"]
Sure = Literal["reproduced", "shown", "consistent"]


@dataclass(frozen=True)
class Cause:
    """One explanation of a finding, and how it was established.

    Attributes
    ----------
    text
        The cause in words.
    sure
        ``"reproduced"``: a textbook variant with this fault and the subject's own weights
        gives the subject's output; ``"shown"``: a probe singles it out; ``"consistent"``:
        it would look like this, and so may others.
    how
        The evidence in words, such as ``"reproduces your output to 1.5e-08, next 2.5e-02"``.
    kind
        Class of root cause, such as ``"causality"`` or ``"mask semantics"``.
    """

    text: str
    sure: Sure
    how: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Remedy:
    """What to change: ``fix`` where the cause is sure, ``try`` where it is a guess."""

    mark: Literal["fix", "try"]
    lines: tuple[str, ...]  # of a small diff: "- old", "+ new", or a plain sentence


@dataclass(frozen=True)
class Evidence:
    """The number that settles it beside what it should be, and the smallest case.

    ``map`` is a dependency map of at most 6 x 6: how much each output row moves when each
    input token is replaced; ``forbidden`` marks the entries that must be 0.
    """

    text: str  # "y[0] moves by 0.61 when only x[1] changes. It must move by exactly 0."
    measured: float | None = None
    expected: float | None = None
    map: tuple[tuple[float, ...], ...] | None = None
    forbidden: tuple[tuple[bool, ...], ...] | None = None
    smallest: str = ""  # "length 2, heads 1, head width 2, batch 1 (any seed)"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or a choice worth knowing about.

    Attributes
    ----------
    code
        Stable code such as ``"AT101"``.
    probe
        Name of the probe that found it.
    severity
        ``"fault"``: a promise broken; ``"note"``: a choice that sound makers make differently.
    message
        The effect in plain words, in a line.
    evidence
        What shows it.
    causes
        What explains it, most likely first.
    remedy
        What to do.
    see
        Where to read on: a page of the book.
    effect
        What one will see in training or generation, in a line.
    intended
        The declaration that makes it right if it is meant, such as ``pattern="band:1"``.
    follows
        Findings that are consequences of this one, folded under it.
    also
        Names of other probes that found the same.
    """

    code: str
    probe: str
    severity: Severity
    message: str
    evidence: Evidence
    causes: tuple[Cause, ...] = ()
    remedy: Remedy | None = None
    see: str = ""
    effect: str = ""
    intended: str = ""
    follows: tuple[Finding, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Skipped:
    """A probe that did not run, or a question that cannot be answered from outside."""

    code: str
    probe: str
    reason: str
    cannot_be_told: bool = False


@dataclass(frozen=True)
class Examination:
    """Everything one examination saw; `Report` shows it.

    Attributes
    ----------
    subject
        What was examined, as its own ``repr`` in a line.
    kind
        As what it was examined.
    device
        Where it ran.
    dtype
        Of the subject's own numbers.
    seed
        Of the inputs.
    findings
        Root causes first; consequences are folded into them.
    passed
        Names of the probes that ran and found nothing.
    not_checked
        What was not, and why.
    allowed
        Findings suppressed by ``allow``, with the reason given: code to reason.
    error
        What stopped the examination, in words, where it could not run.
    seconds
        How long it took.
    repeat
        A line of Python that runs it again.
    """

    subject: str
    kind: str
    device: str
    dtype: str
    seed: int
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    not_checked: tuple[Skipped, ...] = ()
    allowed: tuple[tuple[Finding, str], ...] = ()
    error: str = ""
    seconds: float = 0.0
    repeat: str = ""
    declared: dict[str, Any] = field(default_factory=dict)
