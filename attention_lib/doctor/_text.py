"""A report as text: 80 columns, nothing said by colour alone."""

from __future__ import annotations

from attention_lib.doctor import _map, _summary
from attention_lib.doctor._wrap import WIDTH, clean, columns, shorten, wrap
from attention_lib.doctor.findings import Evidence, Examination, Finding, Remedy

LABEL = 15  # columns of "smallest case  "
RESET = "\033[0m"
STYLES = {
    "fault": "\033[1;31m",
    "note": "\033[1;36m",
    "good": "\033[1;32m",
    "label": "\033[2m",
    "-": "\033[31m",
    "+": "\033[32m",
}


class Page:
    """Lines of a report, coloured or not."""

    def __init__(self, *, color: bool) -> None:
        self.lines: list[str] = []
        self._color = color

    def add(self, text: object, first: str = "", rest: str = "") -> None:
        """Add a text, wrapped."""
        self.lines += wrap(text, first, rest)

    def paint(self, style: str, start: int, length: int, line: int) -> None:
        """Colour a part of one line."""
        if self._color:
            text = self.lines[line]
            part = text[start : start + length]
            painted = f"{STYLES[style]}{part}{RESET}"
            self.lines[line] = text[:start] + painted + text[start + length :]

    def field(self, label: str, text: object, style: str = "label") -> None:
        """Add a labelled line of a finding."""
        at = len(self.lines)
        self.add(text, f"  {label:<{LABEL - 1}} ", " " * (LABEL + 2))
        self.paint(style, 2, len(label), at)


def report_text(examination: Examination, *, color: bool = False) -> str:
    """The whole report.

    Parameters
    ----------
    examination
        What to show.
    color
        Whether to add colour, as escape sequences of a terminal.
    """
    page = Page(color=color)
    _header(page, examination)
    page.add("")
    _verdict(page, examination)
    found = (*_summary.faults(examination), *_summary.notes(examination))
    for number, finding in enumerate(found):
        if number:
            page.add("")
        _finding(page, finding)
    _rest(page, examination)
    page.add(_summary.tally(examination))
    return "\n".join(page.lines)


def finding_text(finding: Finding, *, color: bool = False) -> str:
    """One finding with all that it says."""
    page = Page(color=color)
    _finding(page, finding)
    return "\n".join(page.lines)


def _header(page: Page, examination: Examination) -> None:
    subject = _summary.subject(examination)
    setting = _summary.setting(examination)
    line = f"{subject}   {setting}"
    if columns(line) <= WIDTH:
        page.lines.append(line)
    else:
        page.lines.append(shorten(subject))
        page.lines.append("  " + shorten(setting, WIDTH - 2))


def _verdict(page: Page, examination: Examination) -> None:
    said = _summary.verdict(examination)
    if not said:
        return
    at = len(page.lines)
    page.add(said, "", "  ")
    healthy = _summary.healthy(examination)
    page.paint("good" if healthy else "fault", 0, len(said.split(maxsplit=1)[0]), at)
    if healthy:
        probes = ", ".join(name.replace("_", " ") for name in examination.passed)
        page.field("probes", probes)
    if examination.findings:
        page.add("")


def _finding(page: Page, finding: Finding) -> None:
    head = f"{finding.severity}[{clean(finding.code)}]:"
    at = len(page.lines)
    page.add(f"{head} {finding.message}", "", "  ")
    style = "fault" if finding.severity == "fault" else "note"
    page.paint(style, 0, len(head), at)
    if finding.evidence.text:
        page.add(finding.evidence.text, "  ", "  ")
    page.add("")
    _dependencies(page, finding.evidence)
    _fields(page, finding)
    if finding.follows:
        names = ", ".join(_names(finding.follows))
        page.add(f"follows from {clean(finding.code)}: {names}", "", "  ")


def _names(follows: tuple[Finding, ...]) -> list[str]:
    """What follows, in a flat list: what follows from that as well."""
    found = _summary.everything(follows)
    return [f"{clean(f.code)} ({clean(f.message)})" for f in found]


def _fields(page: Page, finding: Finding) -> None:
    if finding.evidence.smallest:
        page.field("smallest case", finding.evidence.smallest)
    if finding.effect:
        page.field("you will see", finding.effect)
    for rank, cause in enumerate(finding.causes, start=1):
        page.field(f"cause {rank}", _summary.established(cause))
    if finding.remedy:
        _remedy(page, finding.remedy)
    if finding.intended:
        page.field("intended?", finding.intended)
    page.field(
        "read on", f"{_summary.explained(finding.code)}, {_summary.see(finding)}"
    )


def _remedy(page: Page, remedy: Remedy) -> None:
    label: str = remedy.mark
    for line in remedy.lines:
        at, sign = len(page.lines), line[:1]
        start = f"  {label:<{LABEL - 1}} "
        if sign in ("-", "+"):
            body = line[1:]
            indent = len(body) - len(body.lstrip(" "))
            blank = " " * min(indent, 20)
            page.add(body, f"{start}{sign}{blank}", " " * (LABEL + 2) + blank + "    ")
            for painted in range(at, len(page.lines)):
                page.paint(sign, LABEL + 2, WIDTH, painted)
        else:
            page.add(line, start, " " * (LABEL + 2))
        if label:
            page.paint("label", 2, len(label), at)
        label = ""


def _dependencies(page: Page, evidence: Evidence) -> None:
    rows = _map.cells(evidence)
    if not rows:
        return
    plain = [[_plain(cell) for cell in row] for row in rows]
    size = max(6, *(len(text) for row in plain for text in row))
    count = max(len(row) for row in rows)
    page.lines.append("     " + "".join(f"{f'x{j} ':>{size}}" for j in range(count)))
    page.lines[-1] = page.lines[-1].rstrip()
    lines = [
        f"  y{i} " + "".join(f"{text:>{size}}" for text in row)
        for i, row in enumerate(plain)
    ]
    marks = _map.legend(rows)
    beside = len(marks) <= len(lines) and 5 + size * count + 5 + 28 <= WIDTH
    for i, line in enumerate(lines):
        said = "     " + marks[i] if beside and i < len(marks) else ""
        page.lines.append((line + said).rstrip())
    if not beside:
        page.lines += [f"  {mark}" for mark in marks]
    page.add("")


def _plain(cell: _map.Cell) -> str:
    """The cell with a blank or a bracket on each side, the same for all."""
    text = cell.text if cell.mark == "forbidden" else f" {cell.text} "
    return f" {text} " if len(cell.text) == 1 else text


def _rest(page: Page, examination: Examination) -> None:
    """What was not checked, cannot be told or was allowed, and how to run it again."""
    for word, lines in _summary.not_checked(examination).items():
        for line in lines:
            page.add(line, f"{word}: ", "  ")
    for finding, reason in examination.allowed:
        said = f"{finding.code} {finding.message}, because: {reason}"
        page.add(said, "allowed: ", "  ")
    if examination.repeat:
        page.add(examination.repeat, "again: ", "  ")
