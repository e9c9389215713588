"""The page of what the doctor finds, built beside the codes that it links to."""

import json
import re
import shutil
from itertools import pairwise

import pytest
from bs4 import BeautifulSoup
from detection import figures, found_by, outcome, why
from notebooks import ROOT
from small_build import build_pages

from attention_lib.doctor.catalogue import PROBES

BOOK = ROOT / "book"
DATA = json.loads((BOOK / "detection.json").read_text("utf-8"))
CONF = """extensions = ['myst_parser', 'detection', 'doctor_codes']
myst_enable_extensions = ['colon_fence']
"""


def build(folder, data=DATA, page=None):
    folder.mkdir()
    (folder / "conf.py").write_text(CONF)
    (folder / "index.md").write_text("# Book\n\n```{toctree}\ndetection\ncodes\n```\n")
    for name in ("detection.md", "codes.md"):
        shutil.copy(BOOK / name, folder)
    if page:
        (folder / "detection.md").write_text(page)
    (folder / "detection.json").write_text(json.dumps(data), encoding="utf-8")
    complaints = build_pages(folder, folder.parent / "site")
    return complaints, folder.parent / "site" / "detection.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    complaints, path = build(tmp_path_factory.mktemp("detection") / "book")
    assert complaints == ""
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


def heads(table):
    """The words at the head of each row; the stress is on the name."""
    rows = table.select("tbody tr")
    names = [(row.th.strong or row.th).get_text() for row in rows]
    return [name.replace("’", "'") for name in names]


def test_every_fault_and_design_is_listed(page):
    for kind, part in (("found", "faults"), ("missed", "misses"), ("sound", "sound")):
        listed = [
            name for table in page.select(f"table.{kind}") for name in heads(table)
        ]
        assert sorted(listed) == sorted(row["name"] for row in DATA[part])


def test_every_probe_is_listed(page):
    (table,) = page.select("table.probes")
    assert heads(table) == [probe.name.replace("_", " ") for probe in PROBES]


def test_the_matrix_says_what_the_probes_said(page):
    cells = {}
    for table in page.select("table.matrix"):
        columns = [head.get_text() for head in table.select("thead th")][1:]
        for row in table.select("tbody tr"):
            said = [cell.get_text() for cell in row.select("td")]
            cells[row.th.get_text()] = dict(zip(columns, said, strict=True))
    assert len(cells) == sum(map(len, DATA.values()))
    assert cells["softmax twice"]["reproduced"] == "fault"
    assert cells["softmax twice"]["rows"] == "ok"
    assert cells["full row nan"]["empty row"] == "note"
    assert cells["sigmoid (sound)"]["rows"] == "–"
    assert cells["plain (sound)"]["like reference"] == ""


def test_codes_lead_to_what_they_mean(page):
    links = page.select("table.found a, table.missed a, table.sound a")
    assert len(links) > len(DATA["faults"])
    assert all(a["href"] == f"codes.html#{a.get_text().lower()}" for a in links)


def test_headings_are_in_order(page):
    main = page.select_one("[role=main]")
    levels = [int(tag.name[1]) for tag in main.find_all(re.compile("^h[1-6]$"))]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_figures_are_counted():
    planted = len(DATA["faults"]) + len(DATA["misses"])
    found, named, sound = figures(DATA)
    assert found.startswith(f"**{len(DATA['faults'])} of {planted}** planted faults")
    assert named.startswith(f"**{len(DATA['faults'])} of {len(DATA['faults'])}** found")
    assert sound.startswith(f"**{len(DATA['sound'])} of {len(DATA['sound'])}** sound")


def test_failures_are_on_the_page(tmp_path):
    data = json.loads(json.dumps(DATA))
    missed, wrong, accused = *data["faults"][:2], data["sound"][0]
    missed |= {"found": "", "named": "", "probes": {"reach": "ok"}, "twin": ["AT201"]}
    wrong["named"] = "scale"
    accused["faults"] = ["AT101"]
    complaints, path = build(tmp_path / "book", data)
    assert complaints == ""
    page = BeautifulSoup(path.read_text("utf-8"), "html.parser")
    rows = {
        row.strong.get_text(): [cell.get_text() for cell in row.select("td")]
        for row in page.select("table.found tbody tr, table.sound tbody tr")
    }
    failed = [f"{missed['code']} ✗ missed", "none", "✗ none", "✗ accused"]
    assert rows[missed["name"]] == failed
    assert rows[wrong["name"]][2] == "✗ scale"
    assert rows[accused["name"]][0].startswith("✗ false alarm AT101, ")
    counts = [item.get_text() for item in page.select("[role=main] li")[:3]]
    n, m = len(data["faults"]), len(data["misses"])
    assert counts[0].startswith(f"{n - 1} of {n + m} ")
    assert counts[1].startswith(f"{n - 2} of {n - 1} ")
    assert counts[2].startswith(f"{len(data['sound']) - 1} of ")
    assert f"{n + m - 1} of {n + m} correct twins" in counts[2]


ROW = {
    "code": "AT101",
    "found": "fault",
    "probes": {
        "train_reach": {"fault": ["AT101"], "note": ["AT501"]},
        "half": {"note": ["AT101"]},
        "cross": {"not checked": "it has none"},
        "order": {"not checked": "it has none"},
        "reproduced": {"cannot be told": "no weights"},
        "rows": "ok",
    },
}


def test_found_by_tells_the_fault_from_what_stands_beside_it():
    assert found_by(ROW) == "train reach; 1 more"
    assert found_by({**ROW, "probes": {"rows": "ok"}}) == "none"


def test_reasons_are_said_once():
    said = ["cross, order: it has none", "reproduced: no weights (cannot be told)"]
    assert why(ROW) == said


def test_outcomes_are_words():
    said = map(outcome, ROW["probes"].values())
    words = [cell if isinstance(cell, str) else cell[0].astext() for cell in said]
    assert words == ["fault", "note", "–", "–", "–", "ok"]
    assert outcome(None) == ""


def test_unknown_part_is_an_error(tmp_path):
    text = "# Found\n\n:::{detection} all\n:::\n"
    complaints, _ = build(tmp_path / "book", page=text)
    assert "'all' is not one of figures, faults, misses, sound" in complaints
