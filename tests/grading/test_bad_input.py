"""What may lie in a folder of submissions: each is graded or refused by name."""

import json
import os

import nbformat
import pytest
from grading.rubric import Refused
from grading.submission import own_cells
from handing_in import grade, handed_in, rows, text
from rubric import chapter_file, make_rubric


def write(name):
    """Add a maker of a file to the table, under the file's name."""

    def keep(make):
        FILES[name] = make
        return make

    return keep


def changed(path, **fields):
    data = json.loads(text(handed_in(2)))
    path.write_text(json.dumps(data | fields))


FILES = {
    "complete": lambda path: path.write_text(text(handed_in(2))),
    "nothing done": lambda path: path.write_text(text(handed_in(2, leave=ALL))),
    "the book itself": lambda path: path.write_bytes(chapter_file(2).read_bytes()),
    "not json": lambda path: path.write_text("print('hello')"),
    "empty": lambda path: path.touch(),
    "no cells": lambda path: changed(path, cells=[]),
    "not a notebook": lambda path: path.write_text("[1, 2]"),
    "another chapter": lambda path: path.write_text(text(handed_in(6))),
    "format 3": lambda path: changed(path, nbformat=3, worksheets=[], cells=[]),
    "of R": lambda path: changed(path, metadata={"kernelspec": {"language": "R"}}),
    "of Julia": lambda path: changed(
        path, metadata={"language_info": {"name": "julia"}}
    ),
    "cells of numbers": lambda path: changed(path, cells=[1, 2]),
    "source of numbers": lambda path: changed(path, cells=[{"source": 3}]),
    "a folder": lambda path: path.mkdir(),
    "a link": lambda path: path.symlink_to("complete.ipynb"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a pipe": lambda path: os.mkfifo(path),
    "not utf-8": lambda path: path.write_bytes(b'{"nbformat": 4, "x": "\xe9"}'),
    "with a mark": lambda path: path.write_text(
        text(handed_in(2)), encoding="utf-8-sig"
    ),
    "nested deep": lambda path: path.write_text("[" * 10**6),
    "huge source": lambda path: path.write_text(
        text(handed_in(2, first="x = 1\n" * 400_000))
    ),
    "=HYPERLINK(1)": lambda path: path.write_text(text(handed_in(2))),
}
ALL = ("2.1", "2.2", "2.3", "2.4", "2.5")


@write("reordered")
def _(path):
    nb = handed_in(2)
    nb.cells.reverse()
    path.write_text(text(nb))


@write("no metadata")
def _(path):
    nb = handed_in(2)
    nb.metadata.clear()
    for cell in nb.cells:
        cell.metadata.clear()
    path.write_text(text(nb))


@write("bare answers")
def _(path):
    cells = [cell for cell in handed_in(2).cells if "my own" in cell.source]
    path.write_text(text(nbformat.v4.new_notebook(cells=cells)))


@write("50 MB of outputs")
def _(path):
    nb = handed_in(2)
    output = nbformat.v4.new_output("stream", text="x" * 50 * 2**20)
    next(cell for cell in nb.cells if cell.cell_type == "code").outputs = [output]
    path.write_text(text(nb))


@write("one cell broken")
def _(path):
    path.write_text(text(handed_in(2, own={"2.2": "def attend(query, key:"})))


@write("magics")
def _(path):
    nb = handed_in(2, first="%matplotlib inline\n!ls\nimport math as m\ntorch?")
    answer = next(c for c in nb.cells if c.source.startswith("def look_up"))
    answer.source = "%%time\n" + answer.source.replace("math", "m")
    path.write_text(text(nb))


@write("helpers elsewhere")
def _(path):
    answer = "def look_up(q, K, V):\n    return mix(K @ q * ONE / root(len(q)), V)"
    helper = (
        "from math import sqrt as root\nONE = 2 - 1\n"
        "def mix(scores, V):\n    return scores.softmax(0) @ V\n"
        "model = undefined_here.train()"
    )
    nb = handed_in(2, own={"2.1": answer})
    nb.cells.append(nbformat.v4.new_code_cell(helper))
    path.write_text(text(nb))


@write("two answers")
def _(path):
    half = "def look_up(q, K, V):\n    return later(q)"
    nb = handed_in(2, own={"2.1": half}, first="def look_up(*a):\n    1/0")
    last = "later = lambda q: None\ndef look_up(*a):\n    raise ValueError('last')"
    nb.cells.append(nbformat.v4.new_code_cell(last))
    path.write_text(text(nb))


@write("stub again")
def _(path):
    nb = handed_in(2)
    nb.cells.append(nbformat.v4.new_code_cell("def look_up(q, K, V):\n    ..."))
    path.write_text(text(nb))


@write("waits before it defines")
def _(path):
    path.write_text(
        text(
            handed_in(
                2,
                own={
                    "2.1": "n = input()\nimport time\npause = time.sleep(10**6)\n"
                    "def look_up(q, K, V):\n    return n, pause"
                },
            )
        )
    )


# Points, status, and words in the row of the table.
EXPECTED = {
    "complete": (11, "graded", "2.1 passed"),
    "nothing done": (0, "graded", "2.1 missing: no answer: look_up is as it was"),
    "the book itself": (0, "graded", "2.1 missing"),
    "not json": (0, "refused", "is not JSON"),
    "empty": (0, "refused", "is empty"),
    "no cells": (0, "refused", "has no cells"),
    "not a notebook": (0, "refused", "is not a notebook"),
    "another chapter": (0, "refused", "chapter 6, expected chapter 2"),
    "format 3": (0, "refused", "format 3; open it in Jupyter and save it again"),
    "of R": (0, "refused", "has another language: R"),
    "of Julia": (0, "refused", "has another language: julia"),
    "cells of numbers": (0, "refused", "a cell has no source"),
    "source of numbers": (0, "refused", "a cell has no source"),
    "a folder": (0, "refused", "is a folder"),
    "a link": (0, "refused", "is a link"),
    "a link to nothing": (0, "refused", "is a link"),
    "a pipe": (0, "refused", "is not a file"),
    "not utf-8": (0, "refused", "is not UTF-8 text: byte 22"),
    "with a mark": (11, "graded", "passed"),
    "nested deep": (0, "refused", "is nested too deep"),
    "huge source": (0, "refused", "too much code"),
    "'=HYPERLINK(1)": (11, "graded", "passed"),
    "reordered": (11, "graded", "passed"),
    "no metadata": (11, "graded", "passed"),
    "bare answers": (11, "graded", "passed"),
    "50 MB of outputs": (11, "graded", "passed"),
    "one cell broken": (9, "graded", "2.2 failed: does not parse: cell"),
    "magics": (11, "graded", "passed"),
    "helpers elsewhere": (11, "graded", "passed"),
    "two answers": (10, "graded", "look_up raised ValueError: last"),
    "stub again": (11, "graded", "passed"),
    "waits before it defines": (10, "graded", "timed out"),
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    top = tmp_path_factory.mktemp("bad")
    folder = top / "in"
    folder.mkdir()
    for name, make in FILES.items():
        make(folder / f"{name}.ipynb")
    code, said, _ = grade(folder, top / "out", "--chapter", "2", "--seconds", "2")
    assert code == 0, said
    return {row["student"]: row for row in rows(top / "out")}, said


@pytest.mark.parametrize("name", EXPECTED)
def test_each_is_graded_or_refused_by_name(graded, name):
    points, status, words = EXPECTED[name]
    row = graded[0][name]
    assert (int(row["total"]), row["status"]) == (points, status), row["words"]
    assert words in row["words"]


def test_all_are_in_the_table_and_counted(graded):
    table, said = graded
    assert table.keys() == EXPECTED.keys()
    assert f"submissions: {len(FILES)}" in said
    assert "2  refused (is a link)" in said
    assert "1  refused (is of another chapter)" in said


def test_a_file_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "closed.ipynb"
    path.write_text(text(handed_in(2)))
    closed = PermissionError(13, "Permission denied")

    def refuse(*args):
        raise closed

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(Refused, match="cannot be read: Permission denied"):
        own_cells(path, RUBRIC)


RUBRIC = make_rubric(chapter_file(2))
