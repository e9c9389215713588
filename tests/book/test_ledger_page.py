"""The page of the ledger, built from a small book."""

import os
import time

import nbformat
import pytest
import yaml
from bs4 import BeautifulSoup
from sample_claims import sample_chapters, sample_claims
from small_build import build_pages

PAGE = """# Ledger

:::{ledger} counts
:::

:::{ledger} measured
:::

:::{ledger} unmeasured
:::

```{toctree}
01-rows
```
"""


@pytest.fixture
def claims():
    return sample_claims()


@pytest.fixture
def chapters():
    return sample_chapters()


@pytest.fixture
def folder(tmp_path, claims, chapters):
    """The small book's sources."""
    return sources(tmp_path / "book", claims, chapters)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The small book, built once for those who only read it."""
    folder = tmp_path_factory.mktemp("ledger") / "book"
    complaints, html = page(sources(folder, sample_claims(), sample_chapters()))
    assert complaints == ""
    return folder.parent / "site", html


def sources(folder, claims, chapters):
    folder.mkdir()
    (folder / "conf.py").write_text(
        "extensions = ['myst_nb', 'ledger']\n"
        "myst_enable_extensions = ['colon_fence']\n"
        "nb_execution_mode = 'off'\n"
    )
    (folder / "index.md").write_text(PAGE)
    write(folder, claims, chapters)
    return folder


def write(folder, claims, chapters):
    entries = [
        {key: val for key, val in claim._asdict().items() if val} for claim in claims
    ]
    (folder / "claims.yml").write_text(yaml.safe_dump(entries), encoding="utf-8")
    for name, nb in chapters.items():
        nbformat.write(nb, folder / f"{name}.ipynb")


def page(folder):
    """What the build complains about, and the built ledger."""
    site = folder.parent / "site"
    complaints = build_pages(folder, site)
    html = (site / "index.html").read_text("utf-8")
    return complaints, BeautifulSoup(html, "html.parser")


def text_of(tag):
    return " ".join(tag.get_text(" ").split())


def test_the_page_says_what_the_cells_print(built):
    _, html = built
    counts = text_of(html.select_one(".ledger-counts"))
    assert counts == (
        "Measured so far: 2 of 3 claims. "
        "✓ holds: 1, ◐ holds with a condition: 0, ✗ does not hold: 1."
    )
    table = html.select_one("table.ledger")
    head, *rows = table.select("tr")
    assert [text_of(cell) for cell in head.select("th")] == [
        "No.",
        "Claim",
        "Verdict",
        "What was measured",
    ]
    assert [[text_of(cell) for cell in row.select("th, td")] for row in rows] == [
        ["C01", "Rows sum to one.", "✓ holds", "each of 12 rows sums to 1 ± 1e-6"],
        [
            "C02",
            "Columns do, too.",
            "✗ does not hold",
            "sums run from 0.4 to 2.1: no pattern",
        ],
    ]
    assert [text_of(item) for item in html.select(".ledger-open li")] == [
        "C03. So do diagonals."
    ]


def test_a_number_leads_to_its_cell(built):
    site, html = built
    links = [link["href"] for link in html.select("table.ledger th a")]
    assert links == ["01-rows.html#claim-c01", "01-rows.html#claim-c02"]
    chapter = (site / "01-rows.html").read_text("utf-8")
    target = BeautifulSoup(chapter, "html.parser").find(id="claim-c02")
    after = target if "cell" in target["class"] else target.find_next(class_="cell")
    assert "C02 does not hold" in after.get_text()


def test_the_page_follows_the_cells(folder, claims, chapters):
    page(folder)
    nb = chapters["01-rows"]
    nb.cells[2].outputs[0].text = "C01 holds: each of 99 rows sums to 1\n"
    write(folder, claims, chapters)
    later = time.time() + 5
    os.utime(folder / "01-rows.ipynb", (later, later))
    complaints, html = page(folder)
    assert complaints == ""
    assert "each of 99 rows" in text_of(html.select_one("table.ledger"))


def test_a_fault_fails_the_build(folder, claims, chapters):
    chapters["01-rows"].cells[2].execution_count = None
    write(folder, claims, chapters)
    complaints, _ = page(folder)
    assert "01-rows, cell 3: has no execution count" in complaints


def test_an_unknown_part_fails_the_build(folder):
    path = folder / "index.md"
    path.write_text(path.read_text().replace("{ledger} counts", "{ledger} sums"))
    complaints, _ = page(folder)
    assert "'sums' is not one of counts, measured" in complaints
