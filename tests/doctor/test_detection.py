"""Each planted fault is found, by its cause; its correct twin is healthy."""

import pytest
from faults import FAULTS
from other_styles import OTHER_STYLES

from attention_lib.doctor.examination import run_examination

EVERY = [*FAULTS, *OTHER_STYLES]
IDS = [fault.id for fault in EVERY]
NAMES = {fault.id: fault for fault in EVERY}


def faults_in(examination):
    return [f for f in examination.findings if f.severity == "fault"]


@pytest.mark.parametrize("name", IDS)
def test_the_fault_is_found_and_its_cause_named(name):
    fault = NAMES[name]
    examination = run_examination(fault.bad(), fault.kind, **fault.examined())
    found = [f for f in examination.findings if f.code == fault.code]
    assert found, [f.code for f in examination.findings]
    assert found[0].causes[0].kind == fault.cause
    if found[0].severity == "fault":  # the root, and what follows is under it
        assert examination.findings[0] is found[0]


@pytest.mark.parametrize("name", IDS)
def test_the_twin_is_healthy(name):
    fault = NAMES[name]
    examination = run_examination(fault.good(), fault.kind, **fault.examined())
    assert not faults_in(examination)
    assert not [s for s in examination.not_checked if "probe failed" in s.reason]


def one(name):
    fault = NAMES[name]
    return run_examination(fault.bad(), fault.kind, **fault.examined()).findings[0]


def test_a_leak_has_a_map_and_a_smallest_case():
    found = one("causal-sees-next")
    assert found.evidence.measured > 0 and found.evidence.expected == 0
    assert found.evidence.smallest.startswith("length 2")
    assert len(found.evidence.map) <= 6
    forbidden = [
        value
        for row, hidden in zip(
            found.evidence.map, found.evidence.forbidden, strict=True
        )
        for value, hide in zip(row, hidden, strict=True)
        if hide
    ]
    assert max(forbidden) > 0
    assert found.intended == 'pattern="band:1"'


def test_what_follows_is_folded():
    assert "AT202" in [f.code for f in one("causal-sees-next").follows]


def test_the_refit_names_the_scale_and_what_would_make_it_right():
    found = one("scale-by-model-dim")
    assert found.causes[0].sure == "reproduced"
    assert "textbook variants" in found.causes[0].how
    assert found.evidence.measured == pytest.approx(8**-0.5)
    assert found.evidence.expected == pytest.approx(0.5)
    assert found.remedy.mark == "fix"


def test_a_guess_is_marked_as_one():
    found = one("mask-plus-inf")
    assert found.causes[0].sure == "consistent"
    assert found.remedy.mark == "try"


@pytest.mark.parametrize(
    "name",
    ["heads-in-python-list", "scale-missing", "mask-on-query-axis", "softmax twice"],
)
def test_a_function_around_the_module_hides_nothing(name):
    fault = NAMES[name]
    module = fault.bad()
    examination = run_examination(lambda x, **how: module(x, **how), **fault.examined())
    found = [f for f in examination.findings if f.code == fault.code]
    assert found and found[0].causes[0].kind == fault.cause
