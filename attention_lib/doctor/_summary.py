"""What every format says of an examination: the verdict, the counts, the words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from attention_lib.doctor._wrap import clean
from attention_lib.doctor.findings import Cause, Examination, Finding, Skipped

VACUOUS = "AT100"  # nothing moves the output, so every probe passed on nothing
PAGE = "codes.html"
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # it differs from run to run
SURE = {
    "reproduced": "Reproduces your output with your own weights",
    "shown": "A probe singles it out",
    "consistent": "Consistent with what was seen; not proven",
}


def faults(examination: Examination) -> tuple[Finding, ...]:
    """The root causes that are faults; allowed ones are not among the findings."""
    return tuple(f for f in examination.findings if f.severity == "fault")


def notes(examination: Examination) -> tuple[Finding, ...]:
    """The findings that are a choice and no fault."""
    return tuple(f for f in examination.findings if f.severity != "fault")


def vacuous(examination: Examination) -> bool:
    """Whether the positive control failed, allowed or not."""
    seen: list[Finding | Skipped] = [*everything(examination.findings)]
    seen += [finding for finding, _ in examination.allowed]
    seen += examination.not_checked
    return any(item.code == VACUOUS for item in seen)


def healthy(examination: Examination) -> bool:
    """Whether probes ran, on something, and found no fault that is not allowed."""
    ran = bool(examination.passed) and not examination.error
    return ran and not vacuous(examination) and not _any_fault(examination)


def _any_fault(examination: Examination) -> bool:
    return any(f.severity == "fault" for f in everything(examination.findings))


def exit_code(examination: Examination) -> int:
    """0 healthy, 1 findings, 2 could not run."""
    if healthy(examination):
        return 0
    return 1 if _any_fault(examination) and not examination.error else 2


def everything(findings: tuple[Finding, ...]) -> Iterator[Finding]:
    """The findings and all that follows from them, roots first."""
    for finding in findings:
        yield finding
        yield from everything(finding.follows)


def probe_count(examination: Examination) -> int:
    """How many probes there were, those that did not run included."""
    found = (*examination.findings, *(finding for finding, _ in examination.allowed))
    names = {name for f in everything(found) for name in (f.probe, *f.also)}
    names |= {skipped.probe for skipped in examination.not_checked}
    return len(names | set(examination.passed))


def tally(examination: Examination) -> str:
    """The counts in a line, such as ``1 fault, 9 ok, 1 not checked``."""
    untold = sum(skipped.cannot_be_told for skipped in examination.not_checked)
    counts = [
        (len(faults(examination)), "fault", "faults"),
        (len(notes(examination)), "note", "notes"),
        (len(set(examination.passed)), "ok", "ok"),
        (len(examination.allowed), "allowed", "allowed"),
        (len(examination.not_checked) - untold, "not checked", "not checked"),
        (untold, "cannot be told", "cannot be told"),
    ]
    said = [f"{n} {one if n == 1 else many}" for n, one, many in counts if n]
    return ", ".join(said) or "nothing was checked"


def verdict(examination: Examination) -> str:
    """The outcome in a line; empty where the findings say it themselves."""
    if examination.error:
        return f"could not run: {clean(examination.error)}"
    if healthy(examination):
        return f"healthy {scope(examination)}"
    if _any_fault(examination):
        return ""
    if vacuous(examination):
        return (
            "not examined: nothing moves the output, so every probe passes on nothing"
        )
    return "not examined: no probe ran to its end"


def scope(examination: Examination) -> str:
    """As what the subject was examined: its kind and what was declared of it."""
    article = "an" if examination.kind[:1] in "aeiou" else "a"
    said = f"as {article} {examination.kind}"
    if not examination.declared:
        return f"{said}; nothing was declared"
    return f"{said}, declared {declarations(examination)}"


def declarations(examination: Examination) -> str:
    """What was declared, as it would be written in a call."""
    pairs = examination.declared.items()
    return ", ".join(f"{name}={spoken(value)}" for name, value in pairs)


def spoken(value: Any) -> str:
    """A declared value in a few words; strings in double quotes."""
    if isinstance(value, str):
        return f'"{clean(value)}"'
    if value is None or isinstance(value, (bool, int, float, list, tuple, dict)):
        return clean(repr(value))
    name = getattr(value, "__name__", "") if callable(value) else ""
    said = clean(ADDRESS.sub("", str(name or value)))
    return said if len(said) <= 60 else type(value).__name__


def subject(examination: Examination) -> str:
    """The subject in a line, without its address in memory."""
    return clean(ADDRESS.sub("", examination.subject)) or "(a subject without a name)"


def setting(examination: Examination) -> str:
    """Where and how it ran, in the order of a report's first line."""
    dtype = examination.dtype.removeprefix("torch.")
    number = probe_count(examination)
    probes = f"{number} probe{'' if number == 1 else 's'}, {examination.seconds:.1f} s"
    parts = [examination.device, "" if dtype == "float32" else dtype]
    parts += [f"seed {examination.seed}", probes]
    return "   ".join(clean(part) for part in parts if part)


def established(cause: Cause) -> str:
    """A cause with how it was established, in a line."""
    text, how = (clean(part).rstrip(".") for part in (cause.text, cause.how))
    said = f"{text}{': ' if how[:1].islower() else '. '}{how}" if how else text
    if not how or cause.sure == "consistent":
        said += f". {SURE.get(cause.sure, cause.sure)}"
    return said


def see(finding: Finding) -> str:
    """Where to read on, relative to the book."""
    return clean(finding.see) or f"{PAGE}#{finding.code.lower()}"


def explained(code: str) -> str:
    """The call that explains a code."""
    return f'explain("{clean(code)}")'


def skipped_lines(skipped: Iterable[Skipped]) -> list[str]:
    """Probes that did not run, those with the same reason in one line."""
    names: dict[str, list[str]] = {}
    for one in skipped:
        probe = clean(one.probe).replace("_", " ")
        name = " ".join(filter(None, (clean(one.code), probe)))
        names.setdefault(clean(one.reason) or "no reason given", []).append(name)
    return [f"{', '.join(these)} ({reason})" for reason, these in names.items()]


def not_checked(examination: Examination) -> dict[str, list[str]]:
    """What was not checked and what cannot be told, a line for each reason."""
    words: dict[str, list[Skipped]] = {"not checked": [], "cannot be told": []}
    for one in examination.not_checked:
        words["cannot be told" if one.cannot_be_told else "not checked"].append(one)
    return {word: skipped_lines(skipped) for word, skipped in words.items()}
