"""Each planted fault is found, by its cause; its correct twin is healthy.

The page of what the doctor finds says the same as these examinations.
"""

import pytest
from faults import FAULTS, Plain
from further_faults import FURTHER
from in_words import WRONG
from misses import MISSES
from other_styles import OTHER_STYLES
from record_detection import (
    COMMAND,
    PLANTED,
    SOUND,
    STORED,
    bad,
    beside_twin,
    fault_row,
    faults_in,
    good,
    sound,
    sound_row,
    stored,
    text_of,
)

from attention_lib.doctor.examination import run_examination

EVERY = [*FAULTS, *OTHER_STYLES, *FURTHER]
IDS = [fault.id for fault in EVERY]
MISSED = [fault.id for fault in MISSES]
ROWS = {row["name"]: row for rows in stored().values() for row in rows}


@pytest.mark.parametrize("name", IDS)
def test_the_fault_is_found_and_its_cause_named(name):
    fault, examination = PLANTED[name], bad(name)
    found = [f for f in examination.findings if f.code == fault.code]
    assert found, [f.code for f in examination.findings]
    assert found[0].causes[0].kind == fault.cause
    if found[0].severity == "fault":  # the root, and what follows is under it
        assert examination.findings[0] is found[0]


@pytest.mark.parametrize("name", PLANTED)
def test_the_twin_is_healthy(name):
    assert faults_in(good(name)) == []
    assert not [s for s in good(name).not_checked if "probe failed" in s.reason]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_design_is_not_accused(name):
    assert faults_in(sound(name)) == []
    assert not [s for s in sound(name).not_checked if "probe failed" in s.reason]


@pytest.mark.parametrize("name", MISSED)
def test_behaviour_does_not_show_it_and_a_reference_may(name):
    assert faults_in(bad(name)) == []
    wanted = [PLANTED[name].code] if PLANTED[name].code else []
    assert faults_in(beside_twin(name)) == wanted


# The page.


def test_every_fault_is_said_in_words():
    assert list(WRONG) == list(PLANTED)
    phrases = [WRONG[name] for name in PLANTED]
    assert all(phrase and phrase[-1] not in ".!" for phrase in phrases)


@pytest.mark.parametrize("name", PLANTED)
def test_the_page_has_the_fresh_result(name):
    row = fault_row(PLANTED[name])
    assert ROWS.get(row["name"]) == row, f"book/detection.json is old: run {COMMAND}"


@pytest.mark.parametrize("name", SOUND)
def test_the_page_has_the_fresh_result_of_a_sound_design(name):
    row = sound_row(SOUND[name])
    assert ROWS.get(name) == row, f"book/detection.json is old: run {COMMAND}"


def test_the_page_has_no_others():
    rows = stored()
    assert STORED.read_text("utf-8") == text_of(rows), f"run {COMMAND}"
    names = [[row["name"] for row in part] for part in rows.values()]
    plain = [[name.replace("-", " ") for name in part] for part in (IDS, MISSED)]
    assert names == [*plain, list(SOUND)], f"run {COMMAND}"


# What a report says.


def one(name):
    return bad(name).findings[0]


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


def test_other_probes_that_found_the_same_are_named():
    found = one("causal-sees-next")
    assert found.probe == "reach"
    assert found.also == ("train_reach", "scattered_causal", "reproduced")


def test_what_follows_is_folded():
    assert "AT202" in [f.code for f in one("causal-sees-next").follows]


def test_the_refit_names_the_scale_and_what_would_make_it_right():
    found = one("scale-by-model-dim")
    assert found.causes[0].sure == "reproduced"
    assert "textbook variants" in found.causes[0].how
    assert found.evidence.measured == pytest.approx(8**-0.5)
    assert found.evidence.expected == pytest.approx(0.5)
    assert found.remedy.mark == "fix"


class SplitAlone(Plain):
    def split(self, t):
        return t.reshape(t.shape[0], self.heads, t.shape[1], self.width)


class MergedAlone(Plain):
    def merge(self, t):
        return t.reshape(t.shape[0], t.shape[2], -1)


def test_the_change_repairs_the_split_the_merge_or_both():
    split, merge = "- q = q.view(B, H, L, D)", "- out = out.reshape(B, L, H * D)"
    both = one("heads-split-by-view")
    assert [line for line in both.remedy.lines if line[0] == "-"] == [split, merge]
    declared = PLANTED["heads-split-by-view"].examined()
    for made, line in ((SplitAlone, split), (MergedAlone, merge)):
        found = run_examination(made().double().eval(), **declared).findings[0]
        assert found.code == "AT311"
        assert [line for line in found.remedy.lines if line[0] == "-"] == [line]


def test_nothing_weaker_stands_beside_a_cause_that_is_established():
    for name in IDS:
        causes = one(name).causes
        assert len({cause.sure for cause in causes}) == 1, name
    assert len(one("causal-sees-next").causes) == 1


def test_a_guess_is_marked_as_one():
    found = one("mask-plus-inf")
    assert found.causes[0].sure == "consistent"
    assert found.remedy.mark == "try"


@pytest.mark.parametrize(
    "name",
    ["heads-in-python-list", "scale-missing", "mask-on-query-axis", "softmax twice"],
)
def test_a_function_around_the_module_hides_nothing(name):
    fault = PLANTED[name]
    module = fault.bad()
    examination = run_examination(lambda x, **how: module(x, **how), **fault.examined())
    found = [f for f in examination.findings if f.code == fault.code]
    assert found and found[0].causes[0].kind == fault.cause
