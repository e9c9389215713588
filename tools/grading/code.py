"""Statements of notebook cells, and those that an answer needs."""

from __future__ import annotations

import ast
import builtins
import copy
import re
import symtable
from collections.abc import Iterable
from dataclasses import dataclass

from grading.submission import Cell

# The chapter's training, its figures and its printing are not run again.
KEPT = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
)
MAGIC = re.compile(r"^\s*(?:[%!].*|.*\?)$", re.MULTILINE)


@dataclass(frozen=True)
class Statement:
    """A definition, an import of one name, or an assignment."""

    place: int
    node: ast.stmt
    binds: frozenset[str]
    uses: frozenset[str]


def statements(cells: Iterable[Cell]) -> tuple[list[Statement], dict[int, str]]:
    """What cells define, and words for each cell that is not Python."""
    found: list[Statement] = []
    broken = {}
    for cell in cells:
        try:
            found += [
                Statement(cell.place, node, *_names(node))
                for part in _parse(cell.source).body
                for node in _one_name_each(part)
                if isinstance(node, KEPT)
            ]
        except SyntaxError as error:
            broken[cell.place] = f"cell {cell.place}, line {error.lineno}: {error.msg}"
        except (ValueError, RecursionError, MemoryError) as error:
            broken[cell.place] = f"cell {cell.place}: {type(error).__name__}: {error}"
    return _without_late_stubs(found), broken


def needed(names: Iterable[str], found: list[Statement]) -> list[Statement]:
    """Statements that names rest on, and what these rest on in turn, in order."""
    wanted, kept = set(names), set[int]()
    grown = True
    while grown:
        grown = False
        for index, one in enumerate(found):
            if index not in kept and one.binds & wanted:
                kept.add(index)
                wanted |= one.uses
                grown = True
    return [found[index] for index in sorted(kept)]


def is_stub(node: ast.stmt) -> bool:
    """Whether a function has no body but words and dots."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and all(
        isinstance(line, ast.Pass)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        for line in node.body
    )


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError:  # a magic of the notebook, maybe: numbers of lines stay
        return ast.parse(MAGIC.sub("", source))


def _one_name_each(node: ast.stmt) -> list[ast.stmt]:
    """An import of several names as imports of one, so that each can be left out."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return [node]
    parts: list[ast.stmt] = []
    for alias in node.names:
        part = copy.copy(node)
        part.names = [alias]
        parts.append(part)
    return parts


def _names(node: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    """Names that a statement binds or changes, and names that it takes from outside."""
    tables = [symtable.symtable(ast.unparse(node), "cell", "exec")]
    top = tables[0]
    binds = {
        name.get_name()
        for name in top.get_symbols()
        if name.is_assigned() or name.is_imported()
    }
    for target in getattr(node, "targets", [getattr(node, "target", None)]):
        if isinstance(target, ast.Subscript | ast.Attribute):
            base = target.value
            if isinstance(base, ast.Name):
                binds.add(base.id)
    uses = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        uses |= {
            name.get_name()
            for name in table.get_symbols()
            if name.is_referenced() and (table is top or name.is_global())
        }
    return frozenset(binds), frozenset(uses - set(dir(builtins)))


def _without_late_stubs(found: list[Statement]) -> list[Statement]:
    """The last definition of a name counts, but no stub after an answer."""
    filled = {name for one in found if not is_stub(one.node) for name in one.binds}
    return [one for one in found if not (is_stub(one.node) and one.binds & filled)]
