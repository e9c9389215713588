"""The page of the doctor's codes, built alone."""

import re
import shutil
from itertools import pairwise

import pytest
from bs4 import BeautifulSoup
from notebooks import ROOT
from small_build import build_pages

from attention_lib.doctor.codes import codes, title

CONF = """extensions = ['myst_parser', 'doctor_codes']
myst_enable_extensions = ['colon_fence']
"""


def build(folder, page):
    folder.mkdir()
    (folder / "conf.py").write_text(CONF)
    (folder / "index.md").write_text(page, encoding="utf-8")
    (folder / "detection.md").write_text("---\norphan: true\n---\n# Found\n")
    complaints = build_pages(folder, folder.parent / "site")
    return complaints, folder.parent / "site" / "index.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    text = (ROOT / "book" / "codes.md").read_text("utf-8")
    complaints, path = build(tmp_path_factory.mktemp("codes") / "book", text)
    assert complaints == ""
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


def test_every_code_has_its_anchor_and_heading(page):
    for code in codes():
        (anchor,) = page.select(f"[id={code.lower()}]")
        heading = anchor.find_next("h3").get_text()
        assert heading.startswith(f"{code}: {title(code)[:8]}")


def test_every_code_is_listed(page):
    rows = page.select("table tbody tr")
    listed = [row.a.get_text() for row in rows]
    assert listed == list(codes())
    assert [row.a["href"] for row in rows] == [f"#{code.lower()}" for code in codes()]


def test_headings_are_in_order(page):
    main = page.select_one("[role=main]")
    levels = [int(tag.name[1]) for tag in main.find_all(re.compile("^h[1-6]$"))]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert set(levels) == {1, 2, 3}


def test_unknown_part_is_an_error(tmp_path):
    complaints, _ = build(tmp_path / "book", "# Codes\n\n:::{doctor-codes} all\n:::\n")
    assert "'all' is not one of list, explanations" in complaints
    shutil.rmtree(tmp_path / "site", ignore_errors=True)
