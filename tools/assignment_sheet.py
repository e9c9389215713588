"""The exercises of a chapter alone: for the answer key and for grading engines.

They need no more of the chapter than its imports and a few definitions, so that a
submission runs in seconds.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import textwrap

from assignment_source import SOLUTION, Chapter
from exercises import Exercise, preamble
from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from notebook_form import METADATA, code_cells, tags
from notebooks import ROOT

FENCE = re.compile(r"^(?::{3,}.*|:\w+:.*)\n?", re.MULTILINE)
ROLE = re.compile(r"\{\w+\}`([^`]*)`")
# Engines take what a test writes to stderr, a warning or a progress bar, for a failure.
TEST = """\
import contextlib
import io
from attention_lib.checks._report import seeded
{needs}
with seeded({seed}), contextlib.redirect_stderr(io.StringIO()):
    result = {call}
assert result.passed, result"""


def sheet(cells: list[NotebookNode]) -> NotebookNode:
    """A notebook of these cells, the same bytes each time."""
    for number, cell in enumerate(cells, 1):
        cell["id"] = f"cell-{number}"
    return new_notebook(cells=cells, metadata=from_dict(METADATA))


def opening(chapter: Chapter, purpose: str) -> list[NotebookNode]:
    """Title, the cell that installs the package, and what the exercises rest on."""
    install = [cell for cell in code_cells(chapter.nb) if "install" in tags(cell)]
    return [
        new_markdown_cell(f"# {chapter.title}: {purpose}"),
        *(new_code_cell(cell.source) for cell in install),
        new_code_cell(preamble(chapter.nb)),
    ]


def text(one: Exercise) -> str:
    """The exercise in plain Markdown, with its points."""
    body = ROLE.sub(r"`\1` of the chapter", FENCE.sub("", one.text).strip())
    return f"## Exercise {one.number}: {one.title} ({points(one)})\n\n{body}"


def points(one: Exercise) -> str:
    """Its points in words: a star is a point."""
    return "1 point" if one.stars == 1 else f"{one.stars} points"


def filled(one: Exercise, begin: str, end: str) -> str:
    """The stub with its solution between two marks, which an engine takes out again."""
    head, body = _in_stub(one) or (one.stub.rstrip(), _solution(one))
    margin = re.match(r"\s*", body.partition("\n")[0])[0]  # type: ignore[index]
    return f"{head}\n{margin}{begin}\n{body}\n{margin}{end}"


def _solution(one: Exercise) -> str:
    return SOLUTION.search(one.solution)[1].strip("\n")  # type: ignore[index]


def _in_stub(one: Exercise) -> tuple[str, str] | None:
    """Lines of the stub and those that replace its `...`.

    None where the solution is more than one function that takes what the stub takes,
    and what this function uses.
    """
    stub, whole = ast.parse(one.stub).body, _solution(one)
    answer = ast.parse(whole).body[-1]
    if len(stub) != 1 or not (
        isinstance(stub[0], ast.FunctionDef) and isinstance(answer, ast.FunctionDef)
    ):
        return None
    if answer.decorator_list or ast.dump(stub[0].args) != ast.dump(answer.args):
        return None
    if ast.unparse(stub[0].body[-1]) != "...":
        return None
    lines = whole.splitlines()
    first = answer.body[0]
    documented = ast.get_docstring(answer) is not None
    opens = (first.end_lineno or 0) + 1 if documented else first.lineno
    helpers = textwrap.indent("\n".join(lines[: answer.lineno - 1]).strip(), " " * 4)
    body = "\n".join(lines[opens - 1 : answer.end_lineno])
    head = "\n".join(one.stub.splitlines()[: stub[0].body[-1].lineno - 1])
    return head, f"{helpers}\n\n{body}" if helpers else body


def test(chapter: Chapter, one: Exercise, seed: int) -> str:
    """Code that raises with the words of the check unless the answer passes.

    It takes the check from the package again, whatever the notebook has made of its
    name. A seed of 0 draws the examples that the chapter shows.
    """
    before, call = ast.parse(one.check).body[:-1], ast.parse(one.check).body[-1]
    used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    imports = [
        node
        for node in ast.parse(preamble(chapter.nb)).body
        if isinstance(node, ast.ImportFrom)
        and used & {name.asname or name.name for name in node.names}
    ]
    needs = "\n".join(map(ast.unparse, [*imports, *before]))
    return TEST.format(needs=needs, call=ast.unparse(call), seed=seed)


def heard(chapter: Chapter) -> dict[str, list[str]]:
    """What the checks say to the wrong answers that the book's tests try."""
    sys.path.append(str(ROOT / "tests"))
    try:
        known = importlib.import_module(f"answers.chapter{chapter.slug[:2]}")
    except ModuleNotFoundError:
        return {}
    finally:
        sys.path.pop()
    said: dict[str, list[str]] = {}
    for check, answer, _ in known.WRONG:
        for one in chapter.exercises:
            if f".{check.__name__}(" in one.check:
                message = check(answer).message
                if message not in said.setdefault(one.number, []):
                    said[one.number].append(message)
    return said


def answer_key(chapter: Chapter) -> NotebookNode:
    """Exercises with solutions, points, and what the check says to wrong answers."""
    cells, said = opening(chapter, "answer key"), heard(chapter)
    for one in chapter.exercises:
        cells += [new_markdown_cell(text(one)), new_code_cell(one.solution)]
        if messages := said.get(one.number):
            wrong = "\n".join(f"- {message}" for message in messages)
            cells.append(new_markdown_cell(f"Wrong answers hear:\n\n{wrong}"))
    total = sum(one.stars for one in chapter.exercises)
    cells[0].source += f"\n\n{total} points, one for each star."
    return sheet(cells)
