"""Tests of an attention module, one for each probe, for pytest.

pytest is imported where it is used: the module itself needs only the package.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn

from attention_lib.doctor import _summary, _text
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.report import Report

__all__ = ["AttentionTests"]

DECLARATIONS = (
    "allow",
    "causal",
    "context",
    "differentiable",
    "dtype",
    "embed_dim",
    "masks",
    "normalization",
    "num_heads",
    "pattern",
    "positions",
    "reference",
    "residual",
    "scale",
    "seed",
    "weights",
)


class AttentionTests:
    """Base of a class of tests: one test for each probe of the doctor.

    Name the subclass ``Test...``, give it :meth:`make`, and declare what the module
    promises as attributes, with the names of ``examine``. The module is examined once.
    A fault fails the tests of its probe and says what the report says. What was not
    checked is skipped, with the reason. A note and an allowed finding pass with a warning.

    Attributes
    ----------
    kind
        What the subject is: ``"attention"``, ``"core"``, ``"encoding"``, ``"rotary"``,
        ``"bias"`` or ``"decoder"``.

    Raises
    ------
    NotImplementedError
        If the subclass has no ``make``.
    TypeError
        If an attribute looks like a declaration with a slip in its name.

    Examples
    --------
    In a file of tests:

    >>> from attention_lib import SelfAttention
    >>> class TestMine(AttentionTests):
    ...     embed_dim = 64
    ...     causal = "flag"
    ...
    ...     def make(self):
    ...         return SelfAttention(64)
    >>> TestMine.declared()
    {'causal': 'flag', 'embed_dim': 64}
    """

    kind: str = "attention"
    _report: ClassVar[Report | BaseException | None] = None

    def make(self) -> Any:
        """Return the module or function to examine."""
        name = type(self).__name__
        raise NotImplementedError(f"{name} needs a method make(self)")

    @classmethod
    def declared(cls) -> dict[str, Any]:
        """What the class declares of its subject, by name."""
        found: dict[str, Any] = {}
        for name in sorted({n for c in cls.__mro__ for n in vars(c)}):
            value = inspect.getattr_static(cls, name)
            if name in DECLARATIONS:
                plain = isinstance(value, (staticmethod, classmethod))
                found[name] = value.__func__ if plain else value
            elif not hasattr(AttentionTests, name) and not name.startswith("_"):
                _check_name(cls, name, value)
        return found

    @classmethod
    def report(cls) -> Report:
        """The report of the examination, which runs once for the class."""
        if cls.__dict__.get("_report") is None:
            try:
                cls._report = cls._examine()
            except Exception as error:  # noqa: BLE001 - raised below, for each test
                cls._report = error
        found = cls.__dict__["_report"]
        if isinstance(found, BaseException):
            raise found
        return found

    @classmethod
    def _examine(cls) -> Report:
        from attention_lib.doctor.examination import examine

        return examine(cls().make(), kind=cls.kind, **cls.declared())

    @classmethod
    def pytest_generate_tests(cls, metafunc: Any) -> None:
        """Give each probe a test of its own; pytest calls this."""
        if "probe" in metafunc.fixturenames:
            names = probe_names()
            metafunc.parametrize("probe", names, ids=names)

    def test_examined(self) -> None:
        """The examination ran, on something, and no fault lies outside the probes."""
        report = self.report()
        examination = report.examination
        if report.exit_code == 2 or _summary.vacuous(examination):
            _fail(report.to_text())
        known = probe_names()
        strays = [f for f in report.findings if f.probe not in known]
        _judge(strays)

    def test_probe(self, probe: str) -> None:
        """One probe found nothing wrong."""
        import pytest

        examination = self.report().examination
        found = _summary.everything(examination.findings)
        of_probe = [f for f in found if probe in (f.probe, *f.also)]
        _judge(of_probe)
        for finding, reason in examination.allowed:
            if probe in (finding.probe, *finding.also):
                said = f"{finding.code} {finding.message} is allowed: {reason}"
                warnings.warn(said, stacklevel=1)
                return
        if of_probe or probe in examination.passed:
            return
        here = [
            skipped for skipped in examination.not_checked if skipped.probe == probe
        ]
        reasons = _summary.skipped_lines(here)
        pytest.skip("; ".join(reasons) or "this probe is not one for such a subject")


def probe_names() -> list[str]:
    """The names of the doctor's probes, in order."""
    from attention_lib.doctor.examination import PROBES

    probes: Iterable[Any] = PROBES
    return list(dict.fromkeys(getattr(probe, "name", probe) for probe in probes))


def _judge(findings: list[Finding]) -> None:
    """Fail with the faults, warn of the notes."""
    faults = [finding for finding in findings if finding.severity == "fault"]
    if faults:
        _fail("\n\n".join(map(_text.finding_text, faults)))
    for finding in findings:
        warnings.warn(f"{finding.code} {finding.message}", stacklevel=1)


def _fail(text: str) -> NoReturn:
    import pytest

    pytest.fail("\n" + text, pytrace=False)


def _check_name(cls: type, name: str, value: Any) -> None:
    """Refuse an attribute that is a declaration but for a slip."""
    if callable(value) or isinstance(value, (property, staticmethod, classmethod)):
        return
    near = difflib.get_close_matches(name, DECLARATIONS, n=1, cutoff=0.8)
    if near:
        said = f"{cls.__name__}.{name} declares nothing; did you mean {near[0]}?"
        raise TypeError(said)
