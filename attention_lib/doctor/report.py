"""The report of an examination: read it, print it, or hand it to another tool."""

from __future__ import annotations

import os
import sys
from typing import Any

from attention_lib.doctor import _github, _html, _json, _sarif, _summary, _text
from attention_lib.doctor.findings import Examination, Finding, Skipped

__all__ = ["FaultyAttention", "Report"]


class FaultyAttention(AssertionError):
    """What :meth:`Report.raise_if_faulty` raises; its text is the report.

    Examples
    --------
    >>> from attention_lib.doctor.findings import Examination
    >>> report = Report(Examination("f", "core", "cpu", "float32", 0, error="f hangs"))
    >>> try:
    ...     report.raise_if_faulty()
    ... except FaultyAttention as error:
    ...     print("could not run" in str(error))
    True
    """


class Report:
    """What an examination found. ``print(report)`` shows it.

    A notebook shows it as a table. The text has no colour, so that it can go into a
    file; :meth:`show` prints it with colour where that helps.

    Parameters
    ----------
    examination
        What was seen.

    Raises
    ------
    TypeError
        If ``examination`` is not an ``Examination``.

    Examples
    --------
    >>> from attention_lib.doctor.findings import Examination
    >>> seen = Examination("f", "core", "cpu", "float32", 0, passed=("reach", "rows"))
    >>> report = Report(seen)
    >>> print(report)
    f   cpu   seed 0   2 probes, 0.0 s
    <BLANKLINE>
    healthy as a core; nothing was declared
      probes         reach, rows
    2 ok
    >>> report.healthy, report.exit_code
    (True, 0)
    """

    def __init__(self, examination: Examination) -> None:
        if not isinstance(examination, Examination):
            came = type(examination).__name__
            raise TypeError(f"examination must be an Examination, got {came}")
        self.examination = examination

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Faults and notes, root causes first. Allowed ones are not among them."""
        return self.examination.findings

    @property
    def allowed(self) -> tuple[tuple[Finding, str], ...]:
        """Findings that were allowed, each with the reason given."""
        return self.examination.allowed

    @property
    def not_checked(self) -> tuple[Skipped, ...]:
        """What was not checked or cannot be told from outside, and why."""
        return self.examination.not_checked

    @property
    def healthy(self) -> bool:
        """Whether probes ran and found no fault that is not allowed.

        Never true where nothing ran, or where nothing moves the output.
        """
        return _summary.healthy(self.examination)

    @property
    def exit_code(self) -> int:
        """Status for a command to end with. 0 is healthy, 1 findings, 2 could not run."""
        return _summary.exit_code(self.examination)

    def raise_if_faulty(self) -> None:
        """Raise unless the subject is healthy.

        Raises
        ------
        FaultyAttention
            If there is a fault that is not allowed, or if the examination could not run:
            what was not examined does not pass a test.
        """
        if not self.healthy:
            raise FaultyAttention("\n" + self.to_text())

    def show(self) -> None:
        """Print the report, in colour on a terminal.

        There is no colour where the environment variable ``NO_COLOR`` is set.
        """
        print(self.to_text(color=terminal_has_color(sys.stdout)))

    def to_text(self, *, color: bool = False) -> str:
        """The report in lines of at most 80 columns.

        Parameters
        ----------
        color
            Whether to add the escape sequences that colour a terminal.
        """
        return _text.report_text(self.examination, color=color)

    def to_json(self) -> str:
        """The report as JSON, in the form of ``attention-doctor/1``.

        The form is described in ``report.schema.json``, beside this module. NaN and the
        infinities are written as strings.
        """
        return _json.report_json(self.examination)

    def to_sarif(self, *, file: str | None = None, line: int | None = None) -> str:
        """The report as SARIF 2.1.0, for tools that show findings beside the code.

        Parameters
        ----------
        file, line
            Where the subject is defined, relative to the repository.
        """
        return _sarif.report_sarif(self.examination, file=file, line=line)

    def to_github(self, *, file: str | None = None, line: int | None = None) -> str:
        """The report as workflow commands of GitHub, one a line.

        Parameters
        ----------
        file, line
            Where the subject is defined, relative to the repository.
        """
        return _github.report_github(self.examination, file=file, line=line)

    def to_html(self) -> str:
        """The report as a page of its own."""
        return _html.page(self.examination)

    def _repr_html_(self) -> str:
        return _html.fragment(self.examination)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        codes = ", ".join(finding.code for finding in self.findings)
        said = _summary.tally(self.examination) + (f": {codes}" if codes else "")
        return f"<Report, {'healthy' if self.healthy else 'not healthy'}; {said}>"


def terminal_has_color(stream: Any) -> bool:
    """Whether to colour what goes to this stream."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(stream, "isatty", lambda: False)())
