"""Findings of one code become one: the surest causes, and every probe that saw it."""

from attention_lib.doctor.findings import Cause, Evidence, Finding, Remedy
from attention_lib.doctor.roots import fold

GUESS = Cause("the mask is built wrongly", "consistent", kind="causality")
OTHER = Cause("training builds another mask", "consistent", kind="causality")
SHOWN = Cause("a norm runs over tokens", "shown", kind="axis order")
REFIT = Cause("the triangle is one column late", "reproduced", kind="causality")


def found(probe, *causes, code="AT101", severity="fault", remedy=None):
    seen = Evidence(f"seen by {probe}")
    return Finding(code, probe, severity, "a leak", seen, causes, remedy)


def test_the_surest_causes_stay():
    change = Remedy("fix", ("- triu(2)", "+ triu(1)"))
    findings = [
        found("reach", GUESS),
        found("train_reach", SHOWN),
        found("reproduced", REFIT, GUESS, remedy=change),
    ]
    (leak,) = fold(findings)
    assert leak.causes == (REFIT,)
    assert leak.remedy == change
    assert leak.evidence.text == "seen by reach"
    assert (leak.probe, leak.also) == ("reach", ("train_reach", "reproduced"))


def test_guesses_of_one_probe_stay_and_those_of_others_go():
    (leak,) = fold([found("reach", GUESS, OTHER), found("train_reach", OTHER)])
    assert leak.causes == (GUESS, OTHER)
    (leak,) = fold([found("reach", GUESS), found("train_reach", OTHER)])
    assert leak.causes == (GUESS,)


def test_a_finding_without_a_cause_has_none():
    (leak,) = fold([found("reach"), found("reach")])
    assert leak.causes == leak.also == ()


def test_a_note_and_a_fault_of_one_code_stay_apart():
    fault, note = fold([found("reach", GUESS, severity="note"), found("rows", SHOWN)])
    assert (fault.severity, fault.also) == ("fault", ())
    assert (note.severity, note.also) == ("note", ())
