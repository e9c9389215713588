"""A report as workflow commands of GitHub: annotations beside the code."""

from __future__ import annotations

from attention_lib.doctor import _summary, _text
from attention_lib.doctor._wrap import clean
from attention_lib.doctor.findings import Examination, Finding


def report_github(
    examination: Examination, *, file: str | None = None, line: int | None = None
) -> str:
    """One command a finding, and one for a run that is not healthy for want of probes.

    A fault is an error, a note a notice; what was not checked is a notice as well.
    """
    place = {"file": file, "line": None if file is None else line}
    commands = []
    said = _summary.verdict(examination)
    if not _summary.healthy(examination) and said:
        commands.append(command("error", "attention doctor", said, place))
    for finding in examination.findings:
        level = "error" if finding.severity == "fault" else "notice"
        commands.append(command(level, _title(finding), _body(finding), place))
    for finding, reason in examination.allowed:
        body = f"allowed: {clean(reason)}\n{clean(finding.message)}"
        commands.append(command("notice", _title(finding), body, place))
    for word, reasons in _summary.not_checked(examination).items():
        for reason in reasons:
            said = f"{word}: {reason}"
            commands.append(command("notice", "attention doctor", said, place))
    commands.append(
        _neutral(f"{_summary.subject(examination)}: {_summary.tally(examination)}")
    )
    return "\n".join(commands)


def command(
    level: str, title: str, body: str, place: dict[str, str | int | None]
) -> str:
    """A workflow command, with all that it would misread escaped."""
    properties = {**place, "title": title}
    said = ",".join(
        f"{name}={escape_property(str(value))}"
        for name, value in properties.items()
        if value is not None
    )
    return f"::{level} {said}::{escape(body)}"


def escape(text: str) -> str:
    """The text in one line, as the body of a command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """The text as the value of a property: a colon or a comma would end it."""
    return escape(text).replace(":", "%3A").replace(",", "%2C")


def _title(finding: Finding) -> str:
    return f"{clean(finding.code)} {clean(finding.message)}"


def _body(finding: Finding) -> str:
    return _text.finding_text(finding)


def _neutral(line: str) -> str:
    """A plain line of the log; one that would be a command is moved in by a blank."""
    return f" {line}" if line.startswith(("::", "##[")) else line
