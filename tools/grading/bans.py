"""What an answer must not call, read from its syntax tree.

A ban is a part of a name, in lower case. The answer is read together with all that it
calls, the chapter's own definitions included.
"""

from __future__ import annotations

import ast

from grading.code import Statement, needed

# These hide what is called, or look where an answer has no business.
HIDING = frozenset(
    ["eval", "exec", "compile", "__import__", "globals", "locals", "vars", "breakpoint"]
)
BY_NAME = frozenset(["getattr", "setattr", "delattr", "attrgetter", "methodcaller"])
PRIVATE = frozenset(
    [
        "__dict__",
        "__closure__",
        "__code__",
        "__globals__",
        "__builtins__",
        "__subclasses__",
        "__wrapped__",
        "__getattribute__",
        "cell_contents",
        "f_back",
        "f_locals",
        "f_globals",
        "tb_frame",
        "gi_frame",
        "cr_frame",
        "_getframe",
        "_current_frames",
        "__loader__",
        "__spec__",
    ]
)
MODULES = frozenset(
    [
        "importlib",
        "inspect",
        "gc",
        "ctypes",
        "builtins",
        "subprocess",
        "socket",
        "multiprocessing",
        "pickle",
        "dis",
        "runpy",
        "code",
        "codeop",
        "marshal",
        "grading",
    ]
)
DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS = (ast.Import, ast.ImportFrom)


def violation(
    answers: tuple[str, ...],
    forbids: tuple[str, ...],
    own: list[Statement],
    given: list[Statement],
) -> str | None:
    """The first thing called that must not be, in words, or None."""
    bound = {name for one in own for name in one.binds}
    reached = needed(answers, own + [one for one in given if not one.binds & bound])
    defined = {
        name
        for one in reached
        if not isinstance(one.node, IMPORTS)
        for name in one.binds
    }
    mine = {id(one) for one in own}
    for one in reached:
        reader = _Reader(forbids, defined, strict=id(one) in mine)
        reader.visit(one.node)
        if reader.found:
            return reader.found
    return None


class _Reader(ast.NodeVisitor):
    """Reads a statement up to the first name that is banned."""

    def __init__(self, forbids: tuple[str, ...], own: set[str], strict: bool) -> None:
        self.forbids, self.own, self.strict = forbids, own, strict
        self.found: str | None = None

    def visit(self, node: ast.AST) -> None:
        if self.found is None:
            super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.Lambda) -> None:
        outer, arguments = self.own, node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [one for one in (arguments.vararg, arguments.kwarg) if one]
        local = {one.arg for one in every}
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                local.add(part.id)
            elif isinstance(part, DEFINES):
                local.add(part.name)
        self.own = outer | local
        self.generic_visit(node)
        self.own = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]
    visit_Lambda = visit_FunctionDef

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._imported(alias.name, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._imported(node.module or "", f"{node.module}.{alias.name}")

    def _imported(self, module: str, name: str) -> None:
        if self.strict and module.partition(".")[0] in MODULES:
            self.found = f"imports {module}"
        elif self.strict and ".checks" in module and "._" in name:
            self.found = "looks into its own check"
        elif self.strict and name.rpartition(".")[2] in BY_NAME:
            self.found = f"imports {name}, which hides what it calls"
        else:
            self._called(name)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.own or not isinstance(node.ctx, ast.Load):
            return
        if self.strict and node.id in HIDING:
            self.found = f"calls {node.id}, which hides what it does"
        elif self.strict and node.id in BY_NAME:
            self.found = f"hands on {node.id}, which hides what it calls"
        elif self.strict and node.id in PRIVATE:
            self.found = f"looks inside with {node.id}"
        else:
            self._called(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        base = node.value.id if isinstance(node.value, ast.Name) else ""
        if self.strict and node.attr in PRIVATE:
            self.found = f"looks inside with {node.attr}"
        elif self.strict and base == "check" and node.attr.startswith("_"):
            self.found = "looks into its own check"
        elif base not in ("self", "cls") and isinstance(node.ctx, ast.Load):
            self._called(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if not self.strict or name not in BY_NAME or name in self.own:
            self.generic_visit(node)
            return
        named = node.args[1] if len(node.args) > 1 else None
        text = named.value if isinstance(named, ast.Constant) else None
        if not isinstance(text, str):
            self.found = f"calls {name} with a name that is made while it runs"
        elif text in PRIVATE:
            self.found = f"looks inside with {text}"
        else:
            self._called(text)
        for part in node.args:
            self.visit(part)

    def _called(self, name: str) -> None:
        if self.found is None and any(part in name.lower() for part in self.forbids):
            self.found = f"uses {name}, which this exercise asks to do by hand"
