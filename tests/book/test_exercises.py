"""Every chapter has exercises of each kind, read from its cells with what they rest on."""

import ast

import pytest
from exercises import KINDS, exercises, preamble, without_solutions
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_files import Refusal, read
from notebooks import ROOT

CHAPTERS = sorted((ROOT / "book").glob("[0-9]*.ipynb"))


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def nb(request):
    return read(request.param)


def test_every_exercise_has_a_number_stars_and_an_answer(nb):
    found = exercises(nb)
    for one in found:
        assert 1 <= one.stars <= 3 and one.title and one.answers


def test_chapter_has_exercises_of_each_kind(nb):
    found = exercises(nb)
    assert len(found) >= 3
    missing = set(KINDS).difference(*(one.kinds for one in found))
    assert not missing, f"no exercise is tagged {' or '.join(sorted(missing))}"


def test_solutions_pass_their_checks_on_the_preamble_alone(nb):
    """A grader has the preamble and one answer, and nothing else of the chapter."""
    given = {}
    run(preamble(nb), given)
    for one in exercises(nb):
        if one.number == "3.5":  # trains for seconds
            continue
        names = dict(given)
        run(_but_last(one.solution), names)
        run(_but_last(one.check), names)
        result = eval(ast.unparse(ast.parse(one.check).body[-1]), names)
        assert result.passed, result


def run(source, names):
    exec(source, names)  # noqa: S102 - the chapters' own code


def _but_last(source):
    return ast.unparse(ast.Module(ast.parse(source).body[:-1], []))


def test_without_solutions_nothing_else_is_gone(nb):
    bare = without_solutions(nb)
    assert len(nb.cells) - len(bare.cells) == len(exercises(nb))
    assert not any("BEGIN SOLUTION" in cell.source for cell in bare.cells)


def made(*roles):
    cells = []
    for role in roles:
        if role == "exercise":
            cells.append(
                new_markdown_cell("::::{exercise} 1.1 Add\n★ 5 minutes.\n::::")
            )
        else:
            cells.append(new_code_cell("def add(a): ...\ncheck.add(add, shift)"))
        cells[-1].metadata["tags"] = [role]
    return new_notebook(cells=cells)


def test_cells_out_of_order_are_refused():
    with pytest.raises(Refusal, match="cell 1 opens an exercise, expected the cells"):
        exercises(made("exercise", "check", "stub", "solution"))


def test_the_preamble_holds_what_is_used_and_no_more():
    nb = made("exercise", "stub", "check", "solution")
    for source in (
        "import math",
        "%pip install nothing",
        "base = 2\nunused = print('no')",
        "@cache\ndef shift(x):\n    base_of_x = x  # kept\n    return base_of_x + base",
        "add = None  # the reader's own, defined by the stub",
    ):
        nb.cells.insert(-4, new_code_cell(source))
    assert preamble(nb) == (
        "import math\nbase = 2\n\n\n"
        "@cache\ndef shift(x):\n    base_of_x = x  # kept\n    return base_of_x + base"
    )


def test_outputs_that_rest_on_a_solution_go_with_it():
    nb = made("exercise", "stub", "check", "solution")
    nb.cells[3].source = "def add(a): return a"
    for source in ("print(1)", "three = add(3)\nthree", "three + 1"):
        nb.cells.append(new_code_cell(source, outputs=[new_output("stream")]))
    bare = without_solutions(nb)
    assert [len(cell.outputs) for cell in bare.cells[3:]] == [1, 0, 0]


def test_a_stub_that_is_not_python_is_refused_by_name():
    nb = made("exercise", "stub", "check", "solution")
    nb.cells[1].source = "def add(a:"
    with pytest.raises(
        Refusal, match="exercise 1.1: a stub that is not Python, line 1"
    ):
        exercises(nb)


def test_the_preamble_holds_what_a_branch_may_leave_as_it_was():
    nb = made("exercise", "stub", "check", "solution")
    nb.cells.insert(0, new_code_cell("size = 1\nif len(str()) > 2:\n    size = 3"))
    nb.cells[2].source = "def answer():\n    return size + ..."
    names = {}
    run(preamble(nb), names)
    assert names["size"] == 1
