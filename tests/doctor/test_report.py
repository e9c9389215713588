"""The report as its reader sees it: the layout, the width, and what counts as healthy."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from examinations import (
    DECODING,
    EMPTY_ROW,
    FUTURE,
    HALF,
    PASSED,
    ROTARY,
    examination,
    faulty,
)
from hypothesis import given
from hypothesis import strategies as st

from attention_lib.doctor import _map, _text
from attention_lib.doctor._wrap import clean, columns, shorten, wrap
from attention_lib.doctor.findings import (
    Cause,
    Evidence,
    Finding,
    Remedy,
    Skipped,
)
from attention_lib.doctor.report import FaultyAttention, Report, terminal_has_color

EXAMPLE = """\
CausalSelfAttention(embed_dim=32, num_heads=4)   cpu   seed 0   12 probes, 0.4 s

fault[AT101]: output can see the future: causal mask is off by one
  y[0] moves by 0.61 when only x[1] changes. It must move by exactly 0.

        x0    x1    x2    x3
  y0  0.50 [0.61]   .     .       [ ] = forbidden
  y1  0.31  0.47 [0.21]   .
  y2  0.22  0.35  0.24 [0.22]
  y3  0.21  0.30  0.17  0.36

  smallest case  length 2, heads 1, head width 2, batch 1 (any seed)
  you will see   training loss too good, generation poor
  cause 1        the triangle starts one column late. Of 960 textbook variants
                 run with your weights only this one gives your output (1.5e-08;
                 next 2.5e-02)
  fix            - keep = ~torch.ones(L, S).bool().triu(S - L + 2)
                 + keep = ~torch.ones(L, S).bool().triu(S - L + 1)
  intended?      pattern="band:1"
  read on        explain("AT101"), codes.html#at101
follows from AT101: AT601 (decoding differs from the full pass)
not checked: AT502 half precision (ask with dtype=torch.float16)
1 fault, 9 ok, 1 not checked"""

HEALTHY = """\
CausalSelfAttention(embed_dim=32, num_heads=4)   cpu   seed 0   9 probes, 0.4 s

healthy as an attention, declared embed_dim=32, num_heads=4, causal="always"
  probes         control, reach, padding, rows, scale, batch, repeatability,
                 strides, gradients
9 ok"""

BARE = Finding("AT101", "p", "fault", "m", Evidence("e"))


def text(**changes):
    return str(Report(examination(**changes)))


# Layout.


def test_example_is_laid_out_as_designed():
    assert str(Report(faulty())) == EXAMPLE


def test_healthy_run_is_short_and_says_its_scope():
    assert text() == HEALTHY


def test_nothing_declared_is_said():
    assert "healthy as an attention; nothing was declared" in text(declared={})


def test_order_is_faults_notes_not_checked_untold_allowed_again_tally():
    shown = text(
        findings=(EMPTY_ROW, FUTURE),
        not_checked=(ROTARY, HALF),
        allowed=((DECODING, "we never decode"),),
        repeat="examine(subject, seed=0)",
    )
    starts = ["fault[AT101]", "follows from AT101", "note[AT501]", "not checked: AT502"]
    starts += ["cannot be told: AT211 rotary layout (only a reference settles it)"]
    starts += ["allowed: AT601 decoding differs from the full pass, because: we never"]
    starts += ["again: examine(subject, seed=0)"]
    tally = "1 fault, 1 note, 9 ok, 1 allowed, 1 not checked, 1 cannot be told"
    places = [shown.index(f"\n{start}") for start in (*starts, tally)]
    assert places == sorted(places)
    assert shown.endswith(f"\n{tally}")


def test_probes_that_did_not_run_for_the_same_reason_share_a_line():
    reason = "it returns no weights"
    alike = [
        Skipped("AT314", "reported", reason),
        Skipped("AT315", "same_output", reason),
    ]
    shown = text(not_checked=(alike[0], HALF, ROTARY, alike[1]))
    said = [line for line in shown.splitlines() if "checked: " in line]
    assert said == [
        "not checked: AT314 reported, AT315 same output (it returns no weights)",
        "not checked: AT502 half precision (ask with dtype=torch.float16)",
    ]
    assert "\ncannot be told: AT211 rotary layout (only a reference" in shown
    assert "3 not checked, 1 cannot be told" in shown


def test_a_reason_that_cannot_be_told_stays_apart():
    told = Skipped("AT203", "scale", "no weights", True)
    shown = text(not_checked=(replace(told, cannot_be_told=False, code="AT314"), told))
    assert "not checked: AT314 scale (no weights)" in shown
    assert "cannot be told: AT203 scale (no weights)" in shown


def test_findings_stand_apart():
    shown = text(findings=(BARE, replace(BARE, code="AT102")))
    assert "\n\nfault[AT102]" in shown


def test_consequences_are_folded_however_deep():
    deep = replace(FUTURE, follows=(replace(DECODING, follows=(EMPTY_ROW,)),))
    shown = text(findings=(deep,))
    assert "follows from AT101: AT601 (decoding" in shown
    assert "AT501 (a query that may see nothing gives NaN)" in " ".join(shown.split())
    assert shown.count("fault[") == 1
    assert "1 fault, 9 ok" in shown


def test_long_subject_has_a_line_of_its_own():
    first, second, *_ = text(subject="Attention" * 20).splitlines()
    assert len(first) == 80
    assert first.endswith("...")
    assert second == "  cpu   seed 0   9 probes, 0.4 s"


def test_dtype_is_said_unless_it_is_the_usual_one():
    assert "cpu   float16   seed 0" in text(dtype="torch.float16")
    assert "float32" not in text(dtype="torch.float32")


def test_address_in_memory_is_left_out():
    assert text(subject="<function f at 0x7f00beef>").startswith("<function f>   cpu")


def test_probes_are_counted_once_each():
    found = examination(findings=(BARE, replace(BARE, code="AT102")), passed=("a", "a"))
    assert "2 probes" in str(Report(found))
    assert "2 faults, 1 ok" in str(Report(found))


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            Cause("late", "reproduced", "Only this one fits."),
            "late. Only this one fits",
        ),
        (
            Cause("late", "shown", "with one head it goes"),
            "late: with one head it goes",
        ),
        (Cause("late.", "reproduced"), "late. Reproduces your output with your own"),
        (Cause("late", "shown"), "late. A probe singles it out"),
        (
            Cause("late", "consistent"),
            "late. Consistent with what was seen; not proven",
        ),
        (Cause("late", "consistent", "it fits"), "late: it fits. Consistent with what"),
    ],
)
def test_cause_says_how_it_was_established(cause, said):
    shown = " ".join(text(findings=(replace(BARE, causes=(cause,)),)).split())
    assert f"cause 1 {said}" in shown


def test_causes_keep_their_rank():
    causes = (Cause("first", "shown"), Cause("second", "consistent"))
    shown = text(findings=(replace(BARE, causes=causes),))
    assert re.findall(r"cause (\d) +(\w+)", shown) == [("1", "first"), ("2", "second")]


def test_guess_is_marked_try():
    guess = replace(BARE, remedy=Remedy("try", ("use a mask", "and test it")))
    assert "  try            use a mask\n                 and test it\n" in text(
        findings=(guess,)
    )


def test_long_line_of_a_diff_keeps_sign_and_indentation():
    line = "-     keep = " + "very_long_name + " * 8 + "x"
    shown = text(findings=(replace(BARE, remedy=Remedy("fix", (line,))),))
    first, second = re.findall(
        r"^(?:  fix            | {17}).*very.*$", shown, re.MULTILINE
    )[:2]
    assert first.startswith("  fix            -     keep =")
    assert second.startswith(" " * 26 + "very_long_name")


# The map.


def test_map_shows_what_may_move_and_does_not():
    still = ((0.5, 0.0), (0.0, 0.4))
    causal = ((False, True), (False, False))
    evidence = Evidence("e", map=still, forbidden=causal)
    shown = text(findings=(replace(BARE, evidence=evidence),))
    assert "  y0  0.50    .        0  = does not move, and may\n" in shown
    assert "  y1    0   0.40\n" in shown
    assert "forbidden" not in shown


def test_map_without_promises_marks_nothing():
    evidence = Evidence("e", map=((0.5, 0.0), (0.2, 0.4)))
    shown = text(findings=(replace(BARE, evidence=evidence),))
    assert "  y0  0.50    .\n  y1  0.20  0.40\n" in shown
    assert "=" not in shown.partition("fault[")[2].partition("read on")[0]


def test_map_is_at_most_six_by_six():
    grid = tuple((1.0,) * 9 for _ in range(9))
    shown = text(findings=(replace(BARE, evidence=Evidence("e", map=grid)),))
    assert "x5" in shown
    assert "y5" in shown
    assert "x6" not in shown
    assert "y6" not in shown


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.61, "0.61"),
        (0.00994, "1e-2"),
        (0.0042, "4e-3"),
        (1.6e-8, "2e-8"),
        (12.34, "12.3"),
        (9.996, "10.0"),
        (99.96, "100"),
        (999.6, "1e3"),
        (3.2e12, "3e12"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-0.5, "-0.50"),
    ],
)
def test_number_is_short_and_never_rounded_to_nothing(value, said):
    assert _map.number(value) == said


def test_nan_that_is_forbidden_is_marked():
    evidence = Evidence("e", map=((math.nan,),), forbidden=((True,),))
    assert "[nan]" in text(findings=(replace(BARE, evidence=evidence),))


# Width, and texts that would disturb a terminal.

HOSTILE = (
    "",
    " ",
    "x" * 300,
    "two\nlines\r\n\ttab",
    "\x1b[31mred\x1b[0m \x07",
    "注意力机制" * 30,
    "e\u0301" * 200,
    "\u202egnirts\u202c",
    "\ud800 lone",
    "🙂 " * 60,
    "nan inf %0A ::error:: <script>",
)


def everywhere(said: str):
    """An examination that has this text in every place."""
    evidence = Evidence(
        said,
        math.nan,
        -math.inf,
        map=tuple((math.nan, -1e300, 1e-300, math.inf, 0.0, 1.0) for _ in range(6)),
        forbidden=tuple((True,) * 6 for _ in range(6)),
        smallest=said,
    )
    finding = Finding(
        code=said,
        probe=said,
        severity="fault",
        message=said,
        evidence=evidence,
        causes=(Cause(said, "consistent", said),),
        remedy=Remedy("try", (f"- {said}", f"+{said}", said)),
        see=said,
        effect=said,
        intended=said,
    )
    return examination(
        subject=said,
        device=said,
        findings=(replace(finding, follows=(finding,)), EMPTY_ROW),
        passed=(said,),
        not_checked=(Skipped(said, said, said), Skipped(said, said, said, True)),
        allowed=((finding, said),),
        repeat=said,
        declared={"reference": said, "scale": math.nan},
    )


def check_lines(shown: str) -> None:
    for line in shown.splitlines():
        assert columns(line) <= 80, line
        assert line == line.rstrip()
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", line)


@pytest.mark.parametrize("said", HOSTILE)
def test_hostile_text_stays_in_eighty_columns(said):
    check_lines(str(Report(everywhere(said))))
    check_lines(str(Report(examination(subject=said, error=said or "e", passed=()))))
    check_lines(str(Report(examination(subject=said, passed=(said,) * 3))))


@given(st.text(max_size=200))
def test_any_text_stays_in_eighty_columns(said):
    check_lines(str(Report(everywhere(said))))


@given(st.text(max_size=200), st.integers(20, 80))
def test_wrapping_loses_nothing(said, width):
    lines = wrap(said, "> ", "  ", width)
    assert all(columns(line) <= width for line in lines)
    kept = "".join("".join(lines).removeprefix(">").split())
    assert kept == "".join(clean(said).split())


def test_widths_are_those_of_a_terminal():
    assert columns("abc") == 3
    assert columns("注意") == 4
    assert columns("e\u0301") == 1
    assert shorten("注意" * 30, 11) == "注意注意..."


# Colour.


def test_text_has_no_colour_by_itself():
    assert "\033" not in str(Report(faulty()))


def test_colour_adds_nothing_else():
    for seen in (
        faulty(findings=(FUTURE, EMPTY_ROW)),
        examination(),
        everywhere("x y"),
    ):
        report = Report(seen)
        colored = report.to_text(color=True)
        assert colored != str(report)
        assert re.sub(r"\033\[[\d;]*m", "", colored) == str(report)


class Stream:
    def __init__(self, terminal):
        self.isatty = lambda: terminal


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal_has_color(Stream(True))
    assert not terminal_has_color(Stream(False))
    assert not terminal_has_color(object())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal_has_color(Stream(True))
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not terminal_has_color(Stream(True))


def test_show_prints_plainly_where_there_is_no_terminal(capsys):
    Report(faulty()).show()
    assert capsys.readouterr().out == EXAMPLE + "\n"


# What counts as healthy.

VACUOUS = replace(BARE, code="AT100", probe="control", message="nothing moves")
NOTE_ON_TOP = replace(EMPTY_ROW, follows=(DECODING,))

OUTCOMES = {
    "sound": (examination(), True, 0),
    "a note": (examination(findings=(EMPTY_ROW,)), True, 0),
    "not everything checked": (examination(not_checked=(HALF, ROTARY)), True, 0),
    "an allowed fault": (examination(allowed=((FUTURE, "an encoder"),)), True, 0),
    "a fault": (faulty(), False, 1),
    "one fault allowed, one not": (
        faulty(allowed=((DECODING, "we never decode"),)),
        False,
        1,
    ),
    "a fault under a note": (examination(findings=(NOTE_ON_TOP,)), False, 1),
    "vacuous": (examination(findings=(VACUOUS,)), False, 1),
    "vacuous, as a note": (
        examination(findings=(replace(VACUOUS, severity="note"),)),
        False,
        2,
    ),
    "vacuous, not checked": (
        examination(not_checked=(Skipped("AT100", "control", "it is 0"),)),
        False,
        2,
    ),
    "vacuous, allowed": (examination(allowed=((VACUOUS, "new"),)), False, 2),
    "nothing ran": (examination(passed=()), False, 2),
    "everything skipped": (examination(passed=(), not_checked=(HALF,)), False, 2),
    "stopped": (examination(error="no tensor came out"), False, 2),
    "stopped after a fault": (faulty(error="it hangs"), False, 2),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_healthy_and_exit_code(name):
    seen, healthy, code = OUTCOMES[name]
    report = Report(seen)
    assert report.healthy is healthy
    assert report.exit_code == code
    assert ("healthy as" in str(report)) is healthy


@pytest.mark.parametrize("name", OUTCOMES)
def test_raises_unless_healthy(name):
    seen, healthy, _ = OUTCOMES[name]
    report = Report(seen)
    if healthy:
        report.raise_if_faulty()
        return
    with pytest.raises(FaultyAttention) as raised:
        report.raise_if_faulty()
    assert str(raised.value) == f"\n{report}"
    assert isinstance(raised.value, AssertionError)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stopped", "could not run: no tensor came out"),
        ("nothing ran", "not examined: no probe ran to its end"),
        ("vacuous, allowed", "not examined: nothing moves the output, so every probe"),
    ],
)
def test_why_it_is_not_healthy_is_said(name, said):
    assert said in str(Report(OUTCOMES[name][0]))


def test_report_hands_on_the_data():
    seen = faulty(allowed=((DECODING, "why"),))
    report = Report(seen)
    assert report.findings == (FUTURE,)
    assert report.allowed == ((DECODING, "why"),)
    assert report.not_checked == (HALF,)
    assert report.examination is seen
    assert repr(report) == (
        "<Report, not healthy; 1 fault, 9 ok, 1 allowed, 1 not checked: AT101>"
    )
    assert repr(Report(examination())) == "<Report, healthy; 9 ok>"
    assert len(PASSED) == 9


def test_report_refuses_what_is_no_examination():
    with pytest.raises(TypeError, match="must be an Examination, got dict"):
        Report({})


def test_finding_alone_is_its_part_of_the_report():
    part = _text.finding_text(FUTURE)
    assert part in EXAMPLE
    assert part.startswith("fault[AT101]")
