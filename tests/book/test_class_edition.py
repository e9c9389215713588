"""The class edition holds no line of a solution, in no file of any kind."""

import html
import io
import re
import zipfile
from pathlib import Path

import class_edition
import pytest
from leaks import Leak, leaks, solution_lines
from notebook_files import layout, read
from notebooks import ROOT
from sample_notebook import chapter
from site_tools import clean_environment
from small_build import copy_settings

FORK = "https://github.com/someone/fork"
SOLUTION = "return 2 * x"
CHAPTERS = sorted((ROOT / "book").glob("[0-9]*.ipynb"))


def leaks_in(paths: list[Path]) -> list[Leak]:
    """Lines of the chapters' solutions in these files."""
    nbs = [read(path) for path in CHAPTERS]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in paths:
            archive.write(path, path.name)
        return leaks(archive, solution_lines(nbs), nbs)


def test_what_is_built_has_no_solution(copied: Path) -> None:
    chapters = [copied / "book" / path.name for path in CHAPTERS]
    assert len(chapters) >= 12
    assert leaks_in(chapters) == []
    assert leaks_in(CHAPTERS[:1]) != []  # the search would find them


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the class edition."""
    target = tmp_path_factory.mktemp("class") / "edition"
    class_edition.copy(ROOT, target)
    return target


@pytest.fixture(scope="module")
def small_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of a book of one chapter."""
    nb = chapter()
    nb.cells[-4].source = "::::{exercise} 2.1 Double\n★ 5 minutes. Build it.\n::::"
    return copy_settings(tmp_path_factory.mktemp("small"), "02", layout(nb))


def files_with(text: str, folder: Path) -> list[str]:
    """Names of files that hold a text, in pages also across their markup."""
    return [
        path.name
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        for data in [path.read_bytes().decode("utf-8", "replace")]
        if text in data or text in html.unescape(re.sub("<[^>]*>", "", data))
    ]


@pytest.fixture(scope="module")
def site(small_book: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the small book's class edition, built as a fork's."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clean_environment(ATTENTION_REPOSITORY=FORK).items():
            patch.setenv(name, value)
        target = tmp_path_factory.mktemp("built") / "class"
        assert class_edition.main([str(target)], small_book) == 0
    return target / class_edition.PAGES


def test_no_file_of_the_site_has_the_solution(small_book: Path, site: Path) -> None:
    assert files_with(SOLUTION, small_book) == ["02.ipynb"]
    assert files_with(SOLUTION, site) == []
    assert files_with("def double(x):", site) == ["02.ipynb", "02.html"]  # the stub


def test_pages_say_what_they_are_and_open_nothing_complete(site: Path) -> None:
    page = (site / "book/02.html").read_text("utf-8")
    assert class_edition.NOTICE in page
    assert "_sources/book/02.ipynb" in page  # the download
    assert "colab" not in page and "btn-repository" not in page


def test_another_folder_is_not_replaced(tmp_path: Path, capsys) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert class_edition.main([str(tmp_path)]) == 1
    assert "is no class edition" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").exists()
