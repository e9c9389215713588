"""One attempt at a submission, in a process that may be lost.

The parent learns what happened from lines in a file. Each is sealed with a key that
only the two know, so that a line which a submission writes is told from ours.
"""

from __future__ import annotations

import ast
import contextlib
import hmac
import json
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grading import bans, fence
from grading.code import Statement, is_stub, needed, statements
from grading.rubric import Refused, Rubric, Task, load
from grading.submission import Cell, own_cells
from grading.watch import Watch

LONGEST = 400
CLOSED = 71  # exit code of an attempt that can no longer say anything


@dataclass(frozen=True)
class Job:
    """What to grade and how; `skip` are exercises that are settled."""

    submission: str
    folder: str
    seed: int
    memory: int
    seconds: int
    solutions: bool
    skip: tuple[str, ...] = ()


class Marker:
    """All that is made once and used for every submission of a chapter."""

    def __init__(self, rubric: Rubric) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        import torch
        import torch._dynamo  # optimizers load it late, and it rewraps parts of torch

        from attention_lib.checks import Result
        from attention_lib.checks._report import seeded

        torch.set_num_threads(1)
        self.rubric, self.result, self.seeded = rubric, Result, seeded
        self.given = _given(rubric)
        source = [Cell(0, rubric.library), Cell(0, rubric.preamble)]
        self.definitions, _ = statements(source)
        for task in rubric.tasks:  # what a check loads late, load now
            names = dict(self.given) | dict.fromkeys(task.answers, _nothing)
            if task.points and not _defines(task.check):
                _value(task.check, names)
        self.watch = Watch()

    def attempt(self, job: Job, key: bytes, out: int) -> None:
        """Grade one submission and say so in sealed lines."""
        say = _sealed(key, out)
        fence.limit(job.memory, job.seconds * len(self.rubric.tasks))
        os.chdir(job.folder)
        say("begin", os.path.basename(job.submission))
        try:
            cells = own_cells(
                Path(job.submission), self.rubric, solutions=job.solutions
            )
        except Refused as refused:
            say("refused", refused.reason, str(refused))
            return
        own, broken = statements(cells)
        for place in sorted(broken):
            say("note", broken[place])
        tasks = [task for task in self.rubric.tasks if task.number not in job.skip]
        left = []
        for task in tasks:
            status, words = self._before(task, own, cells, broken)
            if status:
                say("result", task.number, status, words)
            else:
                left.append(task)
        for name in [one for one in sys.modules if one.partition(".")[0] == "grading"]:
            del sys.modules[name]
        tried = fence.refuse(Path(job.folder))
        for task in left:
            say("start", task.number)
            status, words = self._mark(task, own, job.seed)
            if status == "tampered":
                say("tampered", task.number, words)
                return
            if tried and status != "passed":
                words = f"{words} (It tried to {', '.join(tried)}.)"
            tried.clear()
            say("result", task.number, status, words)
        say("done")

    def _before(
        self,
        task: Task,
        own: list[Statement],
        cells: list[Cell],
        broken: dict[int, str],
    ) -> tuple[str, str]:
        """What can be said without running anything; no status where nothing is."""
        for name in task.answers:
            nodes = [one.node for one in own if name in one.binds]
            if nodes and not all(map(is_stub, nodes)):
                continue
            for cell in cells:
                if cell.place in broken and name in cell.source:
                    return "failed", f"does not parse: {broken[cell.place]}"
            return "missing", f"no answer: {name} is as it was given, or gone"
        found = bans.violation(task.answers, task.forbids, own, self.definitions)
        return ("forbidden", f"it {found}") if found else ("", "")

    def _mark(self, task: Task, own: list[Statement], seed: int) -> tuple[str, str]:
        """Run an answer with all it needs, and its check on it."""
        space, names = _module("submission", self.given), dict(self.given)
        note, found, error = "", None, None
        try:
            for one in needed(task.answers, own):
                failed = _run(one, space)
                note = note or failed
            self.watch.look()
            for name in task.answers:
                names[name] = self.watch.plain(space[name])
            with self.seeded(seed):
                found = _value(task.check, names)
        except BaseException as raised:  # noqa: BLE001 - a submission may raise anything
            error = raised
        what = self.watch.end()  # at once: the rest relies on what it watches
        if what:
            return "tampered", f"changed {what}"
        if error is not None:
            return "failed", _bounded(note or f"It raised {type(error).__name__}.")
        if type(found) is not self.result:
            return "failed", "the check gave no result"
        if found.passed is True:
            return "passed", _bounded(found.message)
        return "failed", _bounded(f"{found.message} {note}".strip())


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What the stub of an exercise returns."""


def _given(rubric: Rubric) -> dict[str, Any]:
    """What the chapter defines before its exercises."""
    space = _module("chapter")
    exec(_compiled(rubric.preamble, "<chapter>"), space)  # noqa: S102
    for node in ast.parse(rubric.library).body:
        # A definition may need what the preamble leaves out; then it is no help here.
        with contextlib.suppress(Exception):
            exec(_compiled(ast.Module([node], []), "<chapter>"), space)  # noqa: S102
    return space


def _compiled(source: str | ast.Module | ast.Expression, name: str) -> types.CodeType:
    """Code as a notebook compiles it: without the `__future__` of this file."""
    mode = "eval" if isinstance(source, ast.Expression) else "exec"
    return compile(source, name, mode, dont_inherit=True)


def _module(name: str, names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The names of a module that others can look up, as a dataclass does its own."""
    module = sys.modules[name] = types.ModuleType(name)
    space = vars(module)
    space |= dict(names or {}) | {"__name__": name}
    return space


def _run(one: Statement, space: dict[str, Any]) -> str:
    """Run a statement of the student's; words if it fails, as a notebook goes on."""
    try:
        code = _compiled(ast.Module([one.node], []), f"<cell {one.place}>")
        exec(code, space)  # noqa: S102
    except BaseException as error:  # noqa: BLE001 - as above
        line = getattr(one.node, "lineno", 0)
        return f"Cell {one.place}, line {line}: {type(error).__name__}: {error}"
    return ""


def _defines(source: str) -> bool:
    return any(isinstance(node, ast.FunctionDef) for node in ast.parse(source).body)


def _value(source: str, names: dict[str, Any]) -> Any:
    """Run a check cell; its last line is an expression, and this is its value."""
    *before, last = ast.parse(source).body
    exec(_compiled(ast.Module(before, []), "<check>"), names)  # noqa: S102
    assert isinstance(last, ast.Expr)
    return eval(_compiled(ast.Expression(last.value), "<check>"), names)


def _bounded(words: str) -> str:
    kept = "".join(c if c.isprintable() else " " for c in words[: 2 * LONGEST])
    return kept if len(kept) <= LONGEST else kept[: LONGEST - 1] + "…"


def _sealed(key: bytes, out: int) -> Callable[..., None]:
    """A function that writes a line which the parent can trust to be ours."""
    count, write, dumps, digest = 0, os.write, json.dumps, hmac.digest
    end = os._exit

    def say(*words: str) -> None:
        nonlocal count
        line = dumps([count, *words]).encode()
        count += 1
        try:
            write(out, digest(key, line, "sha256").hex().encode() + b" " + line + b"\n")
        except OSError:
            end(CLOSED)

    return say


def opened(line: bytes, key: bytes, count: int) -> list[str] | None:
    """Words of a sealed line, or None if it is not the next one of ours."""
    seal, _, text = line.partition(b" ")
    if not hmac.compare_digest(hmac.digest(key, text, "sha256").hex().encode(), seal):
        return None
    number, *words = json.loads(text)
    return words if number == count else None


def silence() -> None:
    """Nothing to read, and nowhere to write, for this process and what it starts."""
    for stream in (0, 1, 2):
        null = os.open(os.devnull, os.O_RDONLY if stream == 0 else os.O_WRONLY)
        os.dup2(null, stream)
        if null > 2:
            os.close(null)


def main() -> None:
    """An attempt in a fresh Python, where a process cannot be forked."""
    order = json.load(sys.stdin)
    out = os.open(order["out"], os.O_WRONLY | os.O_APPEND)
    silence()
    marker = Marker(load(Path(order["rubric"])))
    job = Job(**{**order["job"], "skip": tuple(order["job"]["skip"])})
    marker.attempt(job, bytes.fromhex(order["key"]), out)
    os._exit(0)


def order(job: Job, rubric: Path, key: bytes, out: Path) -> bytes:
    """What `main` reads."""
    text = {
        "job": asdict(job),
        "rubric": str(rubric),
        "key": key.hex(),
        "out": str(out),
    }
    return json.dumps(text).encode()


if __name__ == "__main__":
    main()
