"""Slides and the PDF of one chapter: all of it is there, whole, and without a network."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pdf
import pytest
import slides
from browsing import ARGUMENTS, NAMES, find_chromium
from bs4 import BeautifulSoup
from notebooks import ROOT
from one_document import join, read_pages
from site_tools import clean_environment, outside_loads
from slide_cutting import CODE_LINES, cut
from small_build import copy_settings

CHAPTER = ROOT / "book" / "06-masking.ipynb"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of a book with one chapter, built beside them."""
    root = tmp_path_factory.mktemp("book")
    copy_settings(root, CHAPTER.stem, CHAPTER.read_text("utf-8"))
    program = Path(sys.executable).with_name("jupyter-book")
    # Not strictly: the chapter cites pages that are not in this book.
    subprocess.run(
        [program, "build", root], check=True, env=clean_environment(), stdout=-3
    )
    return root


@pytest.fixture(scope="module")
def site(book: Path) -> Path:
    return book / "_build" / "html"


@pytest.fixture(scope="module")
def shown(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The slides of the chapter."""
    target = tmp_path_factory.mktemp("slides")
    assert slides.main(["6", "--site", str(site), "--to", str(target)]) == 0
    return target / "06-masking.html"


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    """A headless Chromium without a network."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is missing")
    path = find_chromium()
    if path is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is on the path")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


# Slides.


def page(body: str) -> str:
    return f"<article><section><h1>6. Masking</h1>{body}</section></article>"


def cell(code: str, output: str = "", tags: str = "") -> str:
    return (
        f'<div class="cell {tags}"><div class="cell_input"><pre>{code}</pre></div>'
        f'<div class="cell_output">{output}</div></div>'
    )


def test_long_prose_is_for_the_notes() -> None:
    (slide,) = cut(page(f"<p>Short.</p><p>{'long ' * 40}</p>"))
    assert slide.parts == ["<p>Short.</p>"]
    assert len(slide.notes) == 1 and "long long" in slide.notes[0]


def test_a_section_of_prose_alone_shows_it() -> None:
    (slide,) = cut(page(f"<p>{'long ' * 40}</p>"))
    assert len(slide.parts) == 1 and slide.notes == []


def test_headings_open_columns() -> None:
    found = cut(page("<section><h2>One</h2></section><section><h2>Two</h2></section>"))
    assert [(slide.title, slide.opens) for slide in found] == [
        ("6. Masking", True),
        ("One", True),
        ("Two", True),
    ]


@pytest.mark.parametrize("tags", ["tag_solution", "tag_check", "tag_install"])
def test_solutions_checks_and_installation_are_left_out(tags: str) -> None:
    (slide,) = cut(page(cell("secret = 1", "<div>42</div>", tags)))
    assert slide.parts == []


@pytest.mark.parametrize(
    ("code", "output", "tags"),
    [
        ("hidden = 1", "<div>42</div>", "tag_hide-input"),
        ("ax.plot(x)", '<figure><img alt="42"></figure>', ""),
        ("import a\nimport b", "<div>42</div>", ""),
    ],
)
def test_results_stay_where_code_is_left_out(code: str, output: str, tags: str) -> None:
    (slide,) = cut(page(cell(code, output, tags)))
    assert len(slide.parts) == 1
    assert "42" in slide.parts[0] and code not in slide.parts[0]


def test_long_code_goes_on_in_pieces_that_add_up() -> None:
    functions = [f"def f{n}():\n" + "    pass\n" * 8 for n in range(6)]
    code = "\n\n".join(functions)
    found = cut(page(cell(code)))
    pieces = [BeautifulSoup(s.parts[0], "html.parser").get_text() for s in found]
    assert len(pieces) > 2
    assert all(len(piece.splitlines()) <= CODE_LINES for piece in pieces)
    assert all(piece.startswith("def ") for piece in pieces)
    assert " ".join(pieces).split() == code.split()


def test_a_question_stands_alone_with_its_answer_hidden() -> None:
    found = cut(
        page(
            '<p>Before.</p><div class="predict admonition"><p>Which?</p></div>'
            "<details><summary>Answer</summary><p>This.</p></details><p>So it is.</p>"
        )
    )
    assert len(found) == 3  # what was before and what follows may give it away
    assert "Which?" in found[1].parts[0]
    assert 'class="answer fragment"' in found[1].parts[1]
    assert "Answer" not in found[1].parts[1]


def test_slides_show_every_figure_in_words_too(shown: Path, site: Path) -> None:
    def pictures(path: Path) -> list[str]:
        soup = BeautifulSoup(path.read_text("utf-8"), "html.parser")
        for solution in soup.select(".tag_solution, .tag_check"):
            solution.decompose()
        where = soup.select(".slides img") or soup.select("article img")
        return [image["alt"] for image in where]

    found = pictures(shown)
    assert len(found) >= 5 and all(found)
    assert found == pictures(site / "book" / "06-masking.html")


def test_slides_have_no_markup_left_and_no_solution(shown: Path) -> None:
    soup = BeautifulSoup(shown.read_text("utf-8"), "html.parser")
    text = soup.select_one(".slides").get_text()
    assert not re.search(r":::|\{\w+(:\w)?\}`|^```", text, re.MULTILINE)
    assert "BEGIN SOLUTION" not in text and "Exercise 6.1" in text


def test_slides_load_nothing_from_outside(shown: Path) -> None:
    kinds = (".html", ".css", ".js")
    files = [path for path in shown.parent.rglob("*") if path.suffix in kinds]
    assert {
        path.name: outside_loads(path) for path in files if outside_loads(path)
    } == {}
    licence = (shown.parent / "_static/reveal/LICENSE.txt").read_text("utf-8")
    assert "Hakim El Hattab" in licence


def test_every_slide_fits_the_screen(shown: Path, chromium) -> None:
    page = chromium.new_page(viewport={"width": 1280, "height": 720})
    faults = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("requestfailed", lambda request: faults.append(request.url))
    page.goto(shown.as_uri())
    page.wait_for_function("() => window.Reveal && Reveal.isReady()")
    assert faults == []
    sizes = page.evaluate(
        """() => Reveal.getSlides().map((slide) => {
          Reveal.slide(...Object.values(Reveal.getIndices(slide)));
          const box = slide.querySelector(".screen").getBoundingClientRect();
          return [slide.querySelector("h2").textContent, box.bottom, box.right,
                  +slide.querySelector(".screen").dataset.size];
        })"""
    )
    assert len(sizes) > 30
    assert [size for size in sizes if size[1] > 721 or size[2] > 1281] == []
    assert [size for size in sizes if size[3] < 65] == []  # too small to read
    page.close()


def test_unknown_chapter_and_missing_pages_in_words(site: Path, tmp_path, capsys):
    assert slides.main(["7", "--site", str(site), "--to", str(tmp_path)]) == 1
    assert "no chapter 7, expected one of: 06-masking" in capsys.readouterr().err
    assert slides.main(["7", "--site", str(tmp_path / "none")]) == 1
    assert "run `make class` first" in capsys.readouterr().err


# The PDF.


def test_one_document_has_everything_open(book: Path, site: Path) -> None:
    pages = read_pages(book / "_toc.yml", site)
    assert [page.title for page in pages] == ["Book", "6. Masking"]
    soup = BeautifulSoup(join(pages, "A book", {"06-masking": 17}), "html.parser")
    assert soup.select("details") and not soup.select("details:not([open])")
    assert soup.select_one(".contents a[href='#06-masking']").get_text().endswith("17")
    names = [tag["id"] for tag in soup.find_all(id=True)]
    assert len(names) == len(set(names))
    assert {"06-masking", "06-masking--ex-6-1", "06-masking--fig-masking-cache"} <= set(
        names
    )


LINKS = {  # on the page `one`
    "#here": "#one--here",
    "two.html": "#two",
    "two.html#there": "#two--there",
    "../book/two.html#there": "#two--there",
    "three.html": "three.html",
    "https://example.org/two.html": "https://example.org/two.html",
}


@pytest.mark.parametrize(("href", "wanted"), LINKS.items())
def test_links_between_pages_stay_in_the_document(tmp_path, href, wanted) -> None:
    text = "<head><title></title><link></head><article><h1>{}</h1><a href='{}'></a>"
    for name in ("index", "one", "two"):
        (tmp_path / f"{name}.html").write_text(text.format(name, href))
    toc = tmp_path / "_toc.yml"
    toc.write_text("root: index\nchapters: [{file: one}, {file: two}]\n")
    soup = BeautifulSoup(join(read_pages(toc, tmp_path), "T", {}), "html.parser")
    assert soup.select_one("article#one a")["href"] == wanted


def test_pdf_has_an_outline_and_right_page_numbers(book, site, tmp_path, chromium):
    pikepdf = pytest.importorskip("pikepdf")
    target = tmp_path / "book.pdf"
    pdf.make(chromium, site, book / "_toc.yml", "A small book", target)
    with pikepdf.open(target) as printed, printed.open_outline() as outline:
        assert str(printed.docinfo.Title) == "A small book"
        starts = pdf.first_pages(printed, read_pages(book / "_toc.yml", site))
        assert [item.title for item in outline.root] == ["Book", "6. Masking"]
        assert len(outline.root[1].children) > 10
        assert starts == {"index": 3, "06-masking": 4}
        contents = printed.pages[1].Annots
        assert len(contents) == 2  # a link to each chapter


def test_a_long_table_begins_where_it_stands(book, site, tmp_path, chromium) -> None:
    pages = read_pages(book / "_toc.yml", site)
    soup = BeautifulSoup(join(pages, "A book", {}), "html.parser")
    row = "<tr><td>row</td></tr>"
    table = BeautifulSoup(f"<table>{80 * row}</table>", "html.parser")
    soup.select_one("article").append(table)
    page = chromium.new_page()
    page.emulate_media(media="print")
    whole = site / "whole.html"
    whole.write_text(str(soup), "utf-8")
    page.goto(whole.as_uri())
    breaks = "() => getComputedStyle(document.querySelector('table')).breakInside"
    assert page.evaluate(breaks) == "auto"
    page.close()
    whole.unlink()


def test_what_is_missing_is_said(tmp_path, capsys) -> None:
    assert pdf.main(["--site", str(tmp_path)]) == 1
    assert "no built pages there; run `make book` first" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(site: Path, tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("")
    for command, name in [(slides.main, "file/slides"), (pdf.main, "file/x/book.pdf")]:
        given = ["--site", str(site), "--to", str(tmp_path / name)]
        assert command(["6", *given] if command is slides.main else given) == 1
        assert f"{tmp_path / 'file'}" in capsys.readouterr().err
