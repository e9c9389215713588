"""The base class of tests: what fails, what is skipped, what passes with a warning."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest
import torch
from examinations import DECODING, EMPTY_ROW, FUTURE, HALF, examination

from attention_lib.doctor import testing
from attention_lib.doctor.findings import Evidence, Finding
from attention_lib.doctor.report import Report
from attention_lib.doctor.testing import AttentionTests

pytest_plugins = ["pytester"]

NAMES = ["control", "causality", "cached_decoding", "empty_rows", "half precision"]
NAMES += ["rows", "tables"]
VACUOUS = Finding("AT100", "control", "fault", "nothing moves", Evidence("It is 0."))
CASES = {
    "sound": examination(passed=tuple(NAMES)),
    "faulty": examination(
        findings=(FUTURE, EMPTY_ROW),
        passed=("control", "rows"),
        not_checked=(HALF,),
    ),
    "seen twice": examination(
        findings=(replace(FUTURE, follows=(), also=("tables",)),),
        passed=("control", "rows"),
    ),
    "allowed": examination(passed=("rows",), allowed=((FUTURE, "an encoder"),)),
    "stopped": examination(passed=(), error="no tensor came out"),
    "vacuous": examination(passed=("rows",), findings=(VACUOUS,)),
    "stray": examination(
        passed=("rows",), findings=(replace(FUTURE, probe="other", follows=()),)
    ),
}


class Probe:
    """Stands for one of the doctor's probes."""

    def __init__(self, name):
        self.name = name


@pytest.fixture
def examined(monkeypatch):
    """Puts a module in the place of the doctor's; what it was asked is returned."""
    calls = []

    def examine(subject, kind="attention", **declared):
        calls.append((subject, kind, declared))
        if isinstance(subject, Exception):
            raise subject
        return Report(CASES[subject])

    name = "attention_lib.doctor.examination"
    stand_in = types.ModuleType(name)
    stand_in.PROBES = tuple(map(Probe, NAMES))
    stand_in.examine = examine
    monkeypatch.setitem(sys.modules, name, stand_in)
    return calls


def run(pytester, case, *arguments, more=""):
    pytester.makepyfile(
        test_mine=f"""
        from attention_lib.doctor.testing import AttentionTests

        class TestMine(AttentionTests):
            causal = "always"
            {more}

            def make(self):
                return {case!r}
        """
    )
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-v", *arguments)


def test_one_test_for_each_probe_and_one_examination(pytester, examined):
    result = run(pytester, "sound")
    result.assert_outcomes(passed=len(NAMES) + 1)
    result.stdout.fnmatch_lines(["*TestMine::test_probe?causality? PASSED*"])
    assert examined == [("sound", "attention", {"causal": "always"})]


def test_fault_fails_its_probe_and_what_follows(pytester, examined):
    result = run(pytester, "faulty")
    result.assert_outcomes(passed=4, failed=2, skipped=2, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*test_probe?causality? FAILED*",
            "*test_probe?cached_decoding? FAILED*",
            "fault?AT101?: output can see the future*",
            "  fix            - keep = *",
            "fault?AT601?: decoding differs from the full pass",
            "*AT501 a query that may see nothing gives NaN*",
        ]
    )
    result.stdout.no_fnmatch_line("*def test_probe*")


def test_skips_say_why(pytester, examined):
    result = run(pytester, "faulty", "-rs")
    result.stdout.fnmatch_lines(
        [
            "SKIPPED*AT502 half precision (ask with dtype=torch.float16)",
            "SKIPPED*this probe is not one for such a subject",
        ]
    )


def test_fault_fails_every_probe_that_found_it(pytester, examined):
    result = run(pytester, "seen twice")
    result.assert_outcomes(passed=3, failed=2, skipped=3)
    lines = [f"*test_probe?{name}? FAILED*" for name in ("causality", "tables")]
    result.stdout.fnmatch_lines(lines)


def test_allowed_fault_passes_with_a_warning(pytester, examined):
    result = run(pytester, "allowed")
    result.assert_outcomes(passed=3, skipped=5, warnings=1)
    result.stdout.fnmatch_lines(["*AT101*is allowed: an encoder*"])


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("stopped", "could not run: no tensor came out"),
        ("vacuous", "fault?AT100?: nothing moves"),
        ("stray", "fault?AT101?: output can see the future*"),
    ],
)
def test_what_was_not_examined_does_not_pass(pytester, examined, case, said):
    result = run(pytester, case)
    result.stdout.fnmatch_lines(["*::test_examined FAILED*", said])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_one_probe_can_be_run_alone(pytester, examined):
    result = run(pytester, "faulty", "-k", "causality")
    result.assert_outcomes(failed=1, deselected=len(NAMES))


def test_base_is_not_collected_itself(pytester, examined):
    pytester.makepyfile("from attention_lib.doctor.testing import AttentionTests")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_slip_in_a_declaration_is_refused(pytester, examined):
    result = run(pytester, "sound", more="casual = 'flag'")
    result.stdout.fnmatch_lines(
        ["*TestMine.casual declares nothing; did you mean causal*"]
    )
    assert examined == []


def reference(x):
    return x


class Whole(AttentionTests):
    kind = "decoder"
    dtype = torch.float16
    weights = None
    reference = reference
    allow = {"AT501": "why"}  # noqa: RUF012
    tolerance = 3
    _own = 4

    def make(self):
        return "sound"

    def helper(self):
        return None


class Inherited(Whole):
    reference = staticmethod(reference)
    scale = 2.0


def test_declarations_are_the_attributes(examined):
    assert Whole.declared() == {
        "allow": {"AT501": "why"},
        "dtype": torch.float16,
        "reference": reference,
        "weights": None,
    }
    assert Inherited.declared() == Whole.declared() | {"scale": 2.0}
    assert Whole.report() is Whole.report() is not Inherited.report()
    assert [kind for _, kind, _ in examined] == ["decoder", "decoder"]


def test_examination_that_raises_is_raised_for_each_test(examined):
    class Odd(AttentionTests):
        def make(self):
            return ValueError("an unknown signature")

    for _ in range(2):
        with pytest.raises(ValueError, match="an unknown signature"):
            Odd.report()
    assert len(examined) == 1


def test_make_is_demanded():
    class Empty(AttentionTests):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty needs a method make\(self\)"):
        Empty().make()


def test_probes_may_be_named_in_other_ways(examined, monkeypatch):
    module = sys.modules["attention_lib.doctor.examination"]
    monkeypatch.setattr(module, "PROBES", {"a": reference, "b": reference})
    assert testing.probe_names() == ["a", "b"]
    assert DECODING.probe in NAMES
