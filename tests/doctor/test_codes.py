"""Every code is explained, and what is said of it can be printed and is true of the code."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest
from doctor_codes import explanation as as_markdown
from doctor_codes import linked
from notebooks import ROOT

from attention_lib.doctor import codes
from attention_lib.doctor._wrap import columns
from attention_lib.doctor.codes import SECTIONS, explain, families, find, read_family

KNOWN = codes.codes()
ENTRIES = [entry for family in families() for entry in family.explanations]
CODE = re.compile(r"\bAT[1-9]\d\d\b")
DIFF = re.compile(r"^```diff\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_codes_are_in_order_and_differ():
    assert list(KNOWN) == sorted(set(KNOWN))
    assert len(KNOWN) >= 50


def test_families_hold_their_own_codes():
    for family in families():
        assert re.fullmatch(r"AT\dxx: [a-z ,]+", family.name)
        assert family.introduction
        assert {entry.code[:3] for entry in family.explanations} == {family.name[:3]}


def test_every_code_that_the_package_uses_is_explained():
    used = set()
    for path in (ROOT / "attention_lib" / "doctor").rglob("*.*"):
        if path.suffix in (".py", ".md") and path.name not in ("codes.py",):
            used |= set(CODE.findall(path.read_text("utf-8")))
    assert used - set(KNOWN) == set()


@pytest.mark.parametrize("code", KNOWN)
def test_explanation_can_be_printed(code):
    lines = explain(code).splitlines()
    assert lines[0] == f"{code}: {codes.title(code)}"
    assert [line for line in lines if line in SECTIONS] == list(SECTIONS)
    for line in lines:
        assert columns(line) <= 80
        assert line == line.rstrip()
        line.encode("ascii")


@pytest.mark.parametrize("entry", ENTRIES, ids=KNOWN)
def test_explanation_is_whole(entry):
    said = dict(entry.sections)
    assert entry.title[0].islower() or entry.title.split()[0].isupper()
    assert not entry.title.endswith(".")
    assert said["Usual causes"].startswith("- ")
    for name in SECTIONS:
        prose = DIFF.sub("", said[name]).strip()
        assert not prose or prose.endswith(".")
        assert "TODO" not in prose
        assert prose.count("`") % 2 == 0


@pytest.mark.parametrize("entry", ENTRIES, ids=KNOWN)
def test_fix_shows_code_before_and_after(entry):
    diffs = DIFF.findall(dict(entry.sections)["How to fix it"])
    assert len(diffs) == 1
    lines = diffs[0].splitlines()
    assert all(line[:2] in ("- ", "+ ", "  ") for line in lines)
    assert any(line[0] == "+" for line in lines)
    for other in "-+":
        kept = [line[2:] for line in lines if line[0] != other]
        ast.parse(textwrap.dedent("\n".join(kept)))


@pytest.mark.parametrize("entry", ENTRIES, ids=KNOWN)
def test_allowance_names_its_own_code(entry):
    meant = dict(entry.sections)["When it is meant"]
    assert set(re.findall(r'allow=\{"(\w+)"', meant)) <= {entry.code}


@pytest.mark.parametrize("given", ["AT101", "at101", " At101 ", "101"])
def test_code_may_be_written_in_other_ways(given):
    assert explain(given).startswith("AT101: ")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("AT103", r"no code 'AT103'\. Near it: AT1"),
        ("AT999", r"Near it: AT90"),
        ("AT899", r"no code 'AT899'\. Near it: AT"),
        ("101x", r"Near it: AT101"),
        ("", r"no code ''\. There are AT100 to AT9"),
        ("the mask", r"no code 'the mask'\. There are AT100 to AT9"),
        ("AT1\x1b", r"no code 'AT1\\\\x1b'"),
    ],
)
def test_unknown_code_lists_those_near_it(given, said):
    with pytest.raises(ValueError, match=said):
        explain(given)


def test_near_codes_are_known():
    with pytest.raises(ValueError, match="Near it") as raised:
        explain("AT119")
    assert set(CODE.findall(str(raised.value))) - {"AT119"} <= set(KNOWN)


def test_code_must_be_a_string():
    with pytest.raises(TypeError, match="code must be a string, got int"):
        explain(101)


def test_unknown_code_has_no_title():
    assert find("AT199") is None
    assert codes.title("AT199") == codes.title("../at1xx.md") == ""


# The form of a file.

BODY = "".join(f"### {name}\n\nWords.\n\n" for name in SECTIONS)


def test_family_is_read():
    family = read_family(
        f"# AT1xx: who\n\nIntroduction.\n\n## AT101: a title\n\n{BODY}"
    )
    assert (family.name, family.introduction) == ("AT1xx: who", "Introduction.")
    assert family.explanations[0].sections == tuple(
        (name, "Words.") for name in SECTIONS
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"## AT101 a title\n\n{BODY}", "expected '## AT101: title'"),
        (f"## AT1: a title\n\n{BODY}", "expected '## AT101: title'"),
        (f"## AT101: a title\n\n{BODY[:-40]}", "AT101 has"),
        (f"## AT101: t\n\n{BODY}### More\n\nWords.\n", "AT101 has the sections"),
        (f"## AT101: t\n\n{BODY.replace('Words.', '', 1)}", "AT101 has an empty"),
    ],
)
def test_family_of_another_form_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        read_family(f"# AT1xx: who\n\nIntroduction.\n\n{text}")


# The page.


def test_page_links_other_codes_and_leaves_code_alone():
    text = "See AT101 and `AT102`, not AT110.\n\n```diff\n+ AT103\n```\n"
    assert linked(text, but="AT110") == (
        "See {ref}`AT101 <at101>` and `AT102`, not AT110.\n\n```diff\n+ AT103\n```\n"
    )


@pytest.mark.parametrize("entry", ENTRIES, ids=KNOWN)
def test_page_has_an_anchor_and_all_sections(entry):
    text = as_markdown(entry)
    assert text.startswith(f"({entry.code.lower()})=\n### {entry.code}: ")
    assert re.findall(r"^\*\*(.+?)\.\*\*", text, re.MULTILINE) == list(SECTIONS)
