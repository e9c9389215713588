"""The page for instructors says what the chapters say, and plans for all of them."""

import dataclasses
import re

import pytest
import teaching
from bs4 import BeautifulSoup
from exercises import exercises
from nbformat.v4 import new_markdown_cell, new_notebook
from notebook_files import layout, read
from notebooks import ROOT
from small_build import build_pages

PAGE = (ROOT / "book" / "instructors.md").read_text("utf-8")
CHAPTERS = sorted((ROOT / "book").glob("[0-9]*.ipynb"))
HEAD = """# 3. Scaling

:::{admonition} At a glance
- **You will** divide.
- **Before** [Chapter 2](02-keys), and | bars.
- **Read** 20 minutes
:::
"""
TASK = "::::{exercise} 3.1 Divide\n:label: ex-3-1\n\n★★ 15 minutes. Divide.\n::::"


def plans() -> list[list[list[int]]]:
    """Each plan of the page: the chapters of each week."""
    found = re.findall(r":::\{teaching\} plan\n(.*?):::", PAGE, re.DOTALL)
    return [[list(map(int, w.split())) for w in plan.splitlines()] for plan in found]


def test_plans_are_for_12_8_and_4_weeks_and_leave_no_chapter_out():
    assert [len(plan) for plan in plans()] == [12, 8, 4]
    for plan in plans():
        assert [n for week in plan for n in week] == list(range(1, 15))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapters_are_read_as_the_graders_read_them(path):
    found = teaching.read_chapter(path)
    wanted = exercises(read(path))
    assert found.name == path.stem and found.title and found.goal and found.needs
    assert 5 <= found.reading <= 120
    assert [(t.number, t.title, t.minutes, len(t.stars)) for t in found.tasks] == [
        (one.number, one.title, one.minutes, one.stars) for one in wanted
    ]


def test_an_exercise_without_minutes_is_open_and_counts_none():
    task = teaching.read_task(
        new_markdown_cell(
            TASK.replace("15 minutes", "Open"), metadata={"tags": ["exercise"]}
        )
    )
    chapter = teaching.read_chapter(CHAPTERS[0])
    chapter = dataclasses.replace(chapter, tasks=[task])
    assert chapter.working == 0
    assert teaching.exercises_table([chapter]).endswith("| open |")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A small book with one chapter and every part of the page."""
    folder = tmp_path_factory.mktemp("teaching") / "book"
    folder.mkdir()
    (folder / "conf.py").write_text(
        "extensions = ['myst_nb', 'sphinx_exercise', 'teaching']\n"
        "myst_enable_extensions = ['colon_fence']\nnb_execution_mode = 'off'\n"
    )
    parts = "".join(f":::{{teaching}} {p}\n:::\n\n" for p in teaching.PARTS[:3])
    toc = "```{toctree}\n02-keys\n03-scaling\n```\n"
    plan = ":::{teaching} plan\n3 13\n:::\n"
    (folder / "index.md").write_text(f"# Teach\n\n{parts}{plan}\n{toc}")
    (folder / "02-keys.md").write_text("# Keys\n")
    cells = [new_markdown_cell(HEAD), new_markdown_cell(TASK)]
    cells[1].metadata["tags"] = ["exercise", "predict", "open"]
    chapter = folder / "03-scaling.ipynb"
    chapter.write_text(layout(new_notebook(cells=cells)), encoding="utf-8")
    site = folder.parent / "site"
    assert build_pages(folder, site) == ""
    return BeautifulSoup((site / "index.html").read_text("utf-8"), "html.parser")


def rows(page, number):
    body = page.select("table")[number].select("tbody tr")
    return [
        [" ".join(c.get_text(" ").split()) for c in row.select("td")] for row in body
    ]


def test_chapters_table(page):
    assert rows(page, 0) == [
        ["3. Scaling To divide.", "Chapter 2 , and | bars.", "20", "15"]
    ]
    assert page.select_one("table a")["href"] == "03-scaling.html"


def test_exercises_table(page):
    assert rows(page, 1) == [
        ["3.1 Divide", "predicts, then runs; open-ended", "★★", "15"]
    ]
    assert page.select("table")[1].a["href"] == "03-scaling.html#ex-3-1"


def test_plan_adds_up_and_says_what_is_not_there(page):
    assert rows(page, 2) == [["1", "3. Scaling 13 (not in this book)", "20", "15"]]


@pytest.mark.parametrize(
    ("head", "word"),
    [
        ("Scaling", "does not open with a line like"),
        (HEAD.replace("Before", "After"), "has no row 'Before'"),
        (HEAD.replace("minutes", "pages"), "names no minutes"),
    ],
)
def test_chapter_out_of_form_is_refused(tmp_path, head, word):
    path = tmp_path / "03-scaling.ipynb"
    path.write_text(layout(new_notebook(cells=[new_markdown_cell(head)])))
    with pytest.raises(ValueError, match=word):
        teaching.read_chapter(path)
