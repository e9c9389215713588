"""The exercises of a chapter, read from its cells: the one source of all a class gets.

An exercise is four cells: the text, the stub, the check, the solution. CONTRIBUTING.md
says how they are written.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
import symtable
from dataclasses import dataclass

from nbformat import NotebookNode
from notebook_files import Refusal
from notebook_form import KINDS, code_cells, tags

ORDER = ("exercise", "stub", "check", "solution")

# After these a name may still have the value that it had before.
MAY_KEEP = (ast.AugAssign, ast.For, ast.If, ast.Try, ast.While)

HEAD = re.compile(r"\{exercise\} (\d+\.\d+) (.+)")
STARS = re.compile(r"★+")
MINUTES = re.compile(r"(\d+) minutes")


@dataclass(frozen=True)
class Exercise:
    """One exercise of a chapter.

    Attributes
    ----------
    number, title
        Such as "6.1" and "Compare positions".
    stars, minutes
        How hard, 1 to 3, and how long; 0 minutes where the text names none.
    kinds
        Of `KINDS`.
    text, stub, check, solution
        Sources of the four cells.
    answers
        Names that the stub defines and the reader fills in.
    """

    number: str
    title: str
    stars: int
    minutes: int
    kinds: frozenset[str]
    text: str
    stub: str
    check: str
    solution: str
    answers: tuple[str, ...]


def exercises(nb: NotebookNode) -> list[Exercise]:
    """The exercises of a chapter, in order."""
    found = []
    for place, cell in enumerate(nb.cells):
        if "exercise" in tags(cell):
            four = nb.cells[place : place + len(ORDER)]
            if [_role(one) for one in four] != list(ORDER):
                raise Refusal(
                    f"cell {place + 1} opens an exercise, "
                    f"expected the cells {', '.join(ORDER)} in this order"
                )
            found.append(_exercise(*four))
    return found


def _exercise(
    text: NotebookNode, stub: NotebookNode, check: NotebookNode, solution: NotebookNode
) -> Exercise:
    head = HEAD.search(text.source)
    if head is None:
        raise Refusal(f"no exercise directive with a number in: {text.source[:60]!r}")
    for cell in (stub, check, solution):
        try:
            ast.parse(cell.source)
        except SyntaxError as error:
            raise Refusal(
                f"exercise {head[1]}: a {_role(cell)} that is not Python, "
                f"line {error.lineno}: {error.msg}"
            ) from None
    stars, minutes = STARS.search(text.source), MINUTES.search(text.source)
    defined = {
        node.name
        for node in ast.parse(stub.source).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    return Exercise(
        number=head[1],
        title=head[2].strip(),
        stars=len(stars[0]) if stars else 0,
        minutes=int(minutes[1]) if minutes else 0,
        kinds=frozenset(tags(text)) & frozenset(KINDS),
        text=text.source,
        stub=stub.source,
        check=check.source,
        solution=solution.source,
        answers=tuple(sorted(defined)),
    )


def without_solutions(nb: NotebookNode) -> NotebookNode:
    """A copy of a chapter without its solution cells and what was computed with them."""
    bare = copy.deepcopy(nb)
    solved: set[str] = set()
    for cell in code_cells(bare):
        names = {name for node in _statements(cell.source) for name in _bound(node)}
        if _role(cell) == "solution":
            solved |= names
        elif _used(cell.source) & solved:
            cell.outputs = []
            solved |= names
        else:
            solved -= names
    bare.cells = [cell for cell in bare.cells if _role(cell) != "solution"]
    return bare


def preamble(nb: NotebookNode) -> str:
    """Code of the chapter that its exercises rest on, and what this rests on in turn.

    All imports, and those statements that bind a name which is used, in the chapter's
    order. The answer is a module that runs by itself.
    """
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    kept: list[str] = []
    wanted: set[str] = set()
    for cell in reversed(code):
        if _role(cell) is not None:
            wanted |= _used(cell.source)
            if _role(cell) == "stub":
                wanted -= {
                    name for node in _statements(cell.source) for name in _bound(node)
                }
        elif "install" not in tags(cell):
            for node in reversed(_statements(cell.source)):
                names = _bound(node)
                if names & wanted or isinstance(node, ast.Import | ast.ImportFrom):
                    kept.append(_text(cell.source, node))
                    if not isinstance(node, MAY_KEEP):
                        wanted -= names
                    wanted |= _used(ast.unparse(node))
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(reversed(kept))).strip()


def _text(source: str, node: ast.stmt) -> str:
    """A statement as it is written, comments and all; definitions stand apart."""
    lines = source.splitlines()
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return "\n".join(lines[node.lineno - 1 : node.end_lineno])
    first = min(part.lineno for part in (node, *node.decorator_list))
    return "\n\n" + "\n".join(lines[first - 1 : node.end_lineno]) + "\n\n"


def _role(cell: NotebookNode) -> str | None:
    return next((role for role in ORDER if role in tags(cell)), None)


def _statements(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError:  # a magic of the notebook
        return []


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement of a cell binds or changes in place."""
    top = symtable.symtable(ast.unparse(node), "cell", "exec")
    bound = {name.get_name() for name in top.get_symbols() if name.is_assigned()}
    bound |= {name.get_name() for name in top.get_symbols() if name.is_imported()}
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store):
            bound |= {
                name.id for name in ast.walk(part.value) if isinstance(name, ast.Name)
            }
    return bound


def _used(source: str) -> set[str]:
    """Names that code takes from outside and Python itself does not define."""
    try:
        tables = [symtable.symtable(source, "cell", "exec")]
    except SyntaxError:
        return set()
    used, first = set(), tables[0]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {
            name.get_name()
            for name in table.get_symbols()
            if name.is_referenced() and (name.is_global() or table is first)
        }
    return used - set(dir(builtins))
