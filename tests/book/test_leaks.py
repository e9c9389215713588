"""No line of a solution is in what students get; leaks of every kind are found."""

import base64
import copy
import io
import json
import zipfile

import leaks as tool
import pytest
from assignment_source import chapters
from assignment_student import student_zip
from exercises import exercises, without_solutions
from leaks import bare, leaks, seen, solution_lines
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from notebook_files import layout
from notebooks import ROOT, repository
from sample_assignment import chapter, four

LINE = "twice_of_it = x + x"


@pytest.fixture(scope="module")
def book():
    return chapters(["all"], ROOT / "book", repository(ROOT))


def test_no_chapter_leaks(book):
    lines = solution_lines(one.nb for one in book)
    for one in book:
        data = io.BytesIO(student_zip(one, repository(ROOT)))
        with zipfile.ZipFile(data) as archive:
            assert leaks(archive, lines, [one.nb]) == []


def test_every_solution_has_a_line_that_would_be_found(book):
    for one in book:
        visible = seen([one.nb])
        hidden = {x.exercise for x in solution_lines([one.nb]) if x.bare not in visible}
        assert {e.number for e in one.exercises} <= hidden


def test_every_solution_of_the_book_is_found_when_it_stays(book):
    for one in book:
        kept = copy.deepcopy(one.nb)
        for cell in kept.cells:
            cell.metadata["tags"] = []
            cell.source = cell.source.replace("SOLUTION", "").replace("#@title", "")
        found = {leak.line.exercise for leak in searched(kept, one.nb)}
        assert {e.number for e in one.exercises} <= found


def searched(nb, source=None, extra=(), comment=b""):
    """Leaks of a zip that holds this notebook and more files."""
    source = source or chapter()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("02-doubling.ipynb", layout(nb))
        for name, data in extra:
            archive.writestr(name, data)
        archive.comment = comment
    return leaks(zipfile.ZipFile(file), solution_lines([source]), [source])


def with_cell(cell):
    nb = without_solutions(chapter())
    nb.cells.append(cell)
    return nb


def shown(**data):
    kinds = {"html": "text/html", "png": "image/png", "text": "text/plain"}
    return new_output("display_data", {kinds[k]: v for k, v in data.items()})


def packed(text):
    return base64.b64encode(text.encode()).decode()


def test_a_wrapped_solution_is_found_in_one_line():
    source = chapter(*four("2.3", "other", "y = max(\n    x + x,\n    2 * x - 1,\n)"))
    leaking = with_cell(new_code_cell("y = max(x + x, 2 * x - 1)"))
    assert [leak.line.exercise for leak in searched(leaking, source)] == ["2.3"]


def test_a_clean_zip_has_no_leak():
    assert searched(without_solutions(chapter())) == []


COLOURED = "<b>twice_of_it</b> <i>=</i>&nbsp;<i>x</i> <i>+</i> <i>x</i>"
PLANTED = {
    "code": new_code_cell(f"def f(x):\n    {LINE}"),
    "text": new_markdown_cell(f"Write `{LINE}`."),
    "other layout": new_code_cell("twice_of_it=(\n    x\n    +x)"),
    "comment": new_markdown_cell("It is the same twice."),
    "stream": new_code_cell("1", outputs=[new_output("stream", text=LINE)]),
    "html": new_code_cell("1", outputs=[shown(html=COLOURED)]),
    "image": new_code_cell("1", outputs=[shown(png=packed(f"PNG{LINE}"))]),
    "embedded": new_code_cell(
        "1", outputs=[shown(html=f"<img src='data:text/plain;base64,{packed(LINE)}'>")]
    ),
    "error": new_code_cell(
        "1", outputs=[new_output("error", ename="E", evalue="", traceback=[LINE])]
    ),
    "metadata": new_code_cell("1", metadata={"answer": {"deep": [LINE]}}),
    "metadata key": new_code_cell("1", metadata={"answer": {LINE: 1}}),
    "attachment": new_markdown_cell(
        "![](a.png)", attachments={"a.png": {"image/png": packed(LINE)}}
    ),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_leak_is_found_with_its_place(kind):
    found = searched(with_cell(PLANTED[kind]))
    assert [leak.line.exercise for leak in found] == ["2.1"]
    assert "02-doubling.ipynb, cell 10" in str(found[0])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("notes.txt", LINE),
        ("notes.json", json.dumps({"a": [1, LINE]})),
        ("old.ipynb", layout(chapter())),
        ("twice_of_it = x + x", ""),
    ],
)
def test_a_leak_in_another_file_is_found(name, data):
    found = searched(without_solutions(chapter()), extra=[(name, data)])
    assert found and found[0].file == name


def test_a_leak_in_a_zip_within_or_a_comment_is_found():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("notes.txt", 9 * f"{LINE}\n")
    bare_nb = without_solutions(chapter())
    found = searched(bare_nb, extra=[("inner.zip", file.getvalue())])
    assert [leak.file for leak in found] == ["inner.zip/notes.txt"]
    assert searched(bare_nb, comment=LINE.encode())[0].place == "comment"


def test_a_solution_under_another_tag_is_found():
    nb = chapter()
    again = copy.deepcopy(nb.cells[6])
    assert "solution" in again.metadata["tags"]
    again.metadata["tags"] = ["answer"]
    nb.cells.append(again)
    found = searched(without_solutions(nb), nb)
    assert {leak.line.text for leak in found} > {LINE, "# BEGIN SOLUTION"}


def test_what_the_student_sees_anyway_and_what_is_trivial_is_no_leak():
    nb = chapter(new_markdown_cell(f"Here {LINE}."))
    texts = {line.text for line in solution_lines([nb])}
    assert LINE in texts and "return x" not in texts
    assert searched(without_solutions(nb), nb) == []


def test_bare_keeps_what_says_something():
    assert bare('f( a,\n "b")\t+ c') == b"fab+c"


def test_the_command_names_the_zip_and_exits_with_1(tmp_path, capsys, book):
    path = tmp_path / "some.zip"
    one = book[0]
    path.write_bytes(student_zip(one, repository(ROOT)))
    assert tool.main([str(path)]) == 0
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("help.txt", exercises(one.nb)[0].solution)
    assert tool.main([str(path)]) == 1
    assert "some.zip: help.txt: solution 1.1" in capsys.readouterr().out


@pytest.mark.parametrize("data", [None, b"no zip"])
def test_the_command_refuses_what_is_no_zip(tmp_path, capsys, data):
    path = tmp_path / "some.zip"
    if data:
        path.write_bytes(data)
    assert tool.main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err
