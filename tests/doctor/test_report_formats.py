"""The report for other tools: JSON, SARIF, GitHub's commands and HTML."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import pytest
import torch
from examinations import (
    DECODING,
    EMPTY_ROW,
    FUTURE,
    HALF,
    ROTARY,
    examination,
    faulty,
)
from test_report import HOSTILE, OUTCOMES, everywhere

from attention_lib.doctor import _github, _sarif
from attention_lib.doctor.findings import Evidence, Skipped
from attention_lib.doctor.report import Report

EVERYTHING = faulty(
    findings=(FUTURE, EMPTY_ROW),
    not_checked=(HALF, ROTARY),
    allowed=((DECODING, "we never decode"),),
    repeat="examine(subject)",
)
SEEN = {name: seen for name, (seen, _, _) in OUTCOMES.items()}
SEEN |= {"everything": EVERYTHING}
SEEN |= {f"hostile {i}": everywhere(said) for i, said in enumerate(HOSTILE)}


def refuse(name):
    raise AssertionError(f"{name} is no JSON")


def strictly(text):
    """The data of a JSON text that holds no NaN."""
    text.encode("ascii")
    return json.loads(text, parse_constant=refuse)


# JSON.


@pytest.fixture(scope="module")
def schema():
    path = resources.files("attention_lib.doctor").joinpath("report.schema.json")
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("name", SEEN)
def test_json_has_the_form_of_its_schema(name, schema):
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    assert list(checker.iter_errors(strictly(Report(SEEN[name]).to_json()))) == []


@pytest.mark.parametrize("name", SEEN)
def test_json_has_the_keys_of_its_schema(name, schema):
    """By hand, so that it is checked where jsonschema is not installed."""
    data = strictly(Report(SEEN[name]).to_json())
    assert list(data) == schema["required"] == list(schema["properties"])
    finding = schema["$defs"]["finding"]
    for found in (*data["findings"], *(entry["finding"] for entry in data["allowed"])):
        assert list(found) == finding["required"] == list(finding["properties"])
        assert list(found["evidence"]) == schema["$defs"]["evidence"]["required"]


def test_schema_refuses_a_field_of_the_wrong_type(schema):
    jsonschema = pytest.importorskip("jsonschema")
    data = strictly(Report(EVERYTHING).to_json())
    data["findings"][0]["severity"] = "error"
    assert not jsonschema.Draft202012Validator(schema).is_valid(data)


def test_json_says_what_was_seen():
    data = strictly(Report(EVERYTHING).to_json())
    assert data["schema"] == "attention-doctor/1"
    assert (data["healthy"], data["exit_code"], data["error"]) == (False, 1, None)
    assert [found["code"] for found in data["findings"]] == ["AT101", "AT501"]
    future, empty = data["findings"]
    assert future["title"] == "the output can see the future"
    assert future["follows"][0]["code"] == "AT601"
    assert future["evidence"]["map"][0] == [0.50, 0.61, 0.0, 0.0]
    assert future["evidence"]["forbidden"][0] == [False, True, True, True]
    assert future["remedy"] == {"mark": "fix", "lines": list(FUTURE.remedy.lines)}
    assert future["see"] == "codes.html#at101"
    assert empty["evidence"]["measured"] == "NaN"
    assert empty["remedy"] is None
    assert data["allowed"][0]["reason"] == "we never decode"
    assert [item["cannot_be_told"] for item in data["not_checked"]] == [False, True]


def test_json_writes_what_is_not_finite_as_strings():
    values = (math.nan, math.inf, -math.inf, 0.0)
    evidence = Evidence("e", math.inf, -math.inf, map=(values,))
    found = replace(FUTURE, evidence=evidence)
    data = strictly(Report(examination(findings=(found,))).to_json())
    said = data["findings"][0]["evidence"]
    assert said["map"] == [["NaN", "Infinity", "-Infinity", 0.0]]
    assert (said["measured"], said["expected"]) == ("Infinity", "-Infinity")


def test_json_of_declarations_is_the_same_in_every_run():
    class Reference:
        pass

    declared = {
        "dtype": torch.float16,
        "reference": Reference(),
        "causal": "flag",
        "scale": math.nan,
        "weights": None,
        "context": True,
        "embed_dim": 64,
        "allow": {"AT501": "why"},
        "function": strictly,
        "sizes": (1, 2.5),
    }
    seen = examination(declared=declared, subject="<f at 0x7f01>")
    data = strictly(Report(seen).to_json())
    assert data["subject"] == "<f>"
    assert "0x" not in json.dumps(data)
    assert data["declared"].pop("reference") == "Reference"
    assert data["declared"] == {
        "dtype": "torch.float16",
        "causal": "flag",
        "scale": "NaN",
        "weights": None,
        "context": True,
        "embed_dim": 64,
        "allow": {"AT501": "why"},
        "function": "strictly",
        "sizes": [1, 2.5],
    }


def test_every_format_says_a_reason_once():
    reason = "it returns no weights"
    alike = (Skipped("AT314", "reported", reason), Skipped("AT315", "rows", reason))
    report = Report(examination(not_checked=alike))
    said = f"AT314 reported, AT315 rows ({reason})"
    for text in (report.to_html(), report.to_github(), report.to_sarif()):
        assert text.count(said) == text.count(reason) == 1


# SARIF.


def run_of(seen, **where):
    log = strictly(Report(seen).to_sarif(**where))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    return run


@pytest.mark.parametrize("name", SEEN)
def test_sarif_results_refer_to_their_rules(name):
    run = run_of(SEEN[name], file="a.py", line=3)
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "note")
        assert result["message"]["text"]
        assert result["locations"]
    assert isinstance(run["invocations"][0]["executionSuccessful"], bool)


def test_sarif_says_what_was_seen():
    run = run_of(EVERYTHING)
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["AT101", "AT501", "AT601"]
    assert rules[0]["shortDescription"]["text"] == "the output can see the future"
    assert "Usual causes" in rules[0]["help"]["text"]
    levels = [(found["ruleId"], found["level"]) for found in run["results"]]
    assert levels == [
        ("AT101", "error"),
        ("AT601", "error"),
        ("AT501", "note"),
        ("AT601", "error"),
    ]
    assert ["suppressions" in found for found in run["results"]] == [False] * 3 + [True]
    suppression = {"kind": "external", "justification": "we never decode"}
    assert run["results"][3]["suppressions"] == [suppression]
    notices = run["invocations"][0]["toolExecutionNotifications"]
    assert [notice["message"]["text"] for notice in notices] == [
        "not checked: AT502 half precision (ask with dtype=torch.float16)",
        "cannot be told: AT211 rotary layout (only a reference settles it)",
    ]


def test_sarif_of_a_run_that_stopped_says_so():
    (invocation,) = run_of(examination(error="no tensor", passed=()))["invocations"]
    assert invocation["executionSuccessful"] is False
    notice = {"level": "error", "message": {"text": "no tensor"}}
    assert invocation["toolExecutionNotifications"] == [notice]


def test_sarif_location_is_a_name_or_a_file():
    place = run_of(EVERYTHING)["results"][0]["locations"][0]
    name = "CausalSelfAttention(embed_dim=32, num_heads=4)"
    assert place == {"logicalLocations": [{"fullyQualifiedName": name}]}
    place = run_of(EVERYTHING, file="src/my file.py", line=7)["results"][0][
        "locations"
    ][0]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "src/my%20file.py"},
        "region": {"startLine": 7},
    }


def test_sarif_fingerprints_outlive_the_numbers():
    other = replace(FUTURE, evidence=Evidence("y[0] moves by 0.3."), message="another")
    marks = [
        run_of(examination(findings=(found,)))["results"][0]["partialFingerprints"]
        for found in (FUTURE, other, replace(FUTURE, code="AT102"))
    ]
    assert marks[0] == marks[1] != marks[2]
    assert list(marks[0]) == ["attentionDoctor/v1"]
    assert _sarif.SCHEMA.startswith("https://")


# GitHub.


def test_github_commands_are_lines_with_levels():
    lines = Report(EVERYTHING).to_github(file="a.py", line=3).splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        "::error",
        "::notice",
        "::notice",
        "::notice",
        "::notice",
        "CausalSelfAttention(embed_dim=32,",
    ]
    assert lines[0].startswith(
        "::error file=a.py,line=3,title=AT101 output can see the future%3A causal mask "
        "is off by one::fault[AT101]: output can see the future: causal mask is off by "
        "one%0A  y[0] moves by 0.61"
    )
    assert "allowed: we never decode%0A" in lines[2]


def test_github_values_are_escaped():
    place = {"file": "a,b:c%.py", "line": None}
    said = _github.command("error", "t:1,2\n", "50%\r\nnext: a,b", place)
    assert said == (
        "::error file=a%2Cb%3Ac%25.py,title=t%3A1%2C2%0A::50%25%0D%0Anext: a,b"
    )


@pytest.mark.parametrize("name", SEEN)
def test_github_lines_are_one_command_each(name):
    seen = SEEN[name]
    *commands, last = Report(seen).to_github(file="a.py").split("\n")
    assert not last.startswith("::")
    assert len([c for c in commands if c.startswith("::error ")]) >= seen_errors(seen)
    for command in commands:
        assert re.match(r"::(error|notice) file=a\.py,title=[^:,\n]*::", command)


def seen_errors(seen):
    return sum(found.severity == "fault" for found in seen.findings)


def test_github_has_an_error_where_nothing_ran():
    said = Report(examination(error="no tensor", passed=())).to_github()
    assert said.startswith("::error title=attention doctor::could not run: no tensor\n")


def test_github_of_a_healthy_run_is_a_plain_line():
    assert Report(examination()).to_github() == (
        "CausalSelfAttention(embed_dim=32, num_heads=4): 9 ok"
    )
    shown = Report(examination(subject="::error::x")).to_github()
    assert shown.startswith(" ::error")


# HTML.

VOID = {"br", "meta"}


class Outline(HTMLParser):
    """Every tag and text, and whether tags are closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts = [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.mark.parametrize("name", SEEN)
def test_html_is_well_formed_and_has_no_scripts(name):
    report = Report(SEEN[name])
    for page in (report.to_html(), report._repr_html_()):
        outline = Outline(page)
        assert not {"script", "img", "link", "iframe", "a"} & set(outline.tags)
        assert not [key for key, _ in outline.attributes if key.startswith("on")]
        page.encode("utf-8")


@pytest.mark.parametrize("level", [1, 3])
def test_html_headings_go_down_by_one(level):
    report = Report(EVERYTHING)
    page = report.to_html() if level == 1 else report._repr_html_()
    found = [int(tag[1]) for tag in Outline(page).tags if re.fullmatch("h[1-6]", tag)]
    assert found == [level] + [level + 1] * 5


def test_html_escapes_everything():
    danger = "<script>alert('x')</script>\"&"
    for page in (
        Report(everywhere(danger)).to_html(),
        Report(everywhere(danger))._repr_html_(),
    ):
        assert "<script" not in page
        assert "alert('x')" not in page
        assert danger in Outline(page).text


def test_html_says_all_that_the_text_says():
    said = Outline(Report(EVERYTHING)._repr_html_()).text
    for part in (
        "fault AT101 output can see the future: causal mask is off by one",
        "y[0] moves by 0.61 when only x[1] changes. It must move by exactly 0.",
        "y0 0.50 [0.61] . .",
        "[ ] = forbidden.",
        "Smallest case length 2, heads 1, head width 2, batch 1 (any seed)",
        "You will see training loss too good, generation poor",
        "Cause 1 the triangle starts one column late. Of 960",
        "Fix - keep = ~torch.ones(L, S).bool().triu(S - L + 2) + keep",
        'Intended? pattern="band:1"',
        "What follows AT601: decoding differs from the full pass",
        'Read on explain("AT101")',
        "note AT501 a query that may see nothing gives NaN",
        "AT502 half precision (ask with dtype=torch.float16)",
        "AT211 rotary layout (only a reference settles it)",
        "AT601 decoding differs from the full pass, because: we never decode",
        "Again: examine(subject)",
        "1 fault, 1 note, 9 ok, 1 allowed, 1 not checked, 1 cannot be told",
    ):
        assert part in said


def test_html_map_is_a_table_with_heads():
    outline = Outline(Report(faulty())._repr_html_())
    assert outline.tags.count("th") == 8
    assert outline.attributes.count(("scope", "col")) == 4
    assert outline.attributes.count(("scope", "row")) == 4
    assert outline.attributes.count(("class", "forbidden")) == 3


def test_html_text_takes_the_colour_around_it():
    """The fragment's own colours are those of borders: no text depends on them."""
    style = re.search(
        r"<style>(.*?)</style>", Report(faulty())._repr_html_(), re.DOTALL
    )[1]
    assert set(re.findall(r"[^-]\bcolor: ([^;]+);", style)) == {"inherit"}


def test_html_fragments_can_stand_side_by_side():
    assert [
        key for key, _ in Outline(Report(EVERYTHING)._repr_html_()).attributes
    ].count("id") == 0


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_html_colours_have_contrast_in_light_and_dark():
    page = Report(EVERYTHING).to_html()
    fragment = Report(EVERYTHING)._repr_html_()
    lines = set(
        re.findall(
            r"#[0-9a-f]{6}", re.search(r"<style>.*</style>", fragment, re.DOTALL)[0]
        )
    )
    assert len(lines) == 3
    for line in lines:
        for ground in ("#ffffff", "#14181d", "#121212"):
            assert contrast(line, ground) >= 3
    pairs = re.findall(r"color: (#\w{6}); background: (#\w{6})", page)
    assert len(pairs) == 2
    assert all(contrast(*pair) >= 7 for pair in pairs)
