"""Rubrics made from chapters, and grading kits that need no book."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import shutil
import tomllib
from collections.abc import Iterable
from pathlib import Path

from exercises import exercises, preamble
from grading.rubric import Refused, Rubric, Task, fingerprint
from nbformat import NotebookNode
from notebook_files import read
from notebook_form import code_cells, tags

import attention_lib
from attention_lib.checks._report import FORBIDS

ROOT = Path(__file__).resolve().parent.parent
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
TITLE = re.compile(r"^# (\d+)\. (.+)", re.MULTILINE)


def chapter_file(chapter: int, root: Path = ROOT) -> Path:
    """The notebook of a chapter."""
    found = sorted((root / "book").glob(f"{chapter:02}-*.ipynb"))
    if not found:
        raise Refused("no chapter", f"the book has no chapter {chapter}")
    return found[0]


def make_rubric(chapter: Path | NotebookNode) -> Rubric:
    """The rubric of a chapter: stars are points, its cells are what is given."""
    nb = read(chapter) if isinstance(chapter, Path) else chapter
    title = next(
        match
        for cell in nb.cells
        if cell.cell_type == "markdown" and (match := TITLE.search(cell.source))
    )
    number = int(title[1])
    with contextlib.suppress(ModuleNotFoundError):  # a fork's own chapter
        importlib.import_module(f"attention_lib.checks.chapter{number:02}")
    code = code_cells(nb)
    before = preamble(nb)
    solutions = [cell for cell in code if "solution" in tags(cell)]
    given = [cell for cell in code if "solution" not in tags(cell)]
    return Rubric(
        chapter=number,
        title=title[2].strip(),
        package=attention_lib.__version__,
        preamble=before,
        library=_library((cell.source for cell in given), before),
        given=frozenset(fingerprint(cell.source) for cell in given),
        solutions=frozenset(fingerprint(cell.source) for cell in solutions),
        tasks=tuple(
            Task(
                one.number,
                one.title,
                one.stars,
                one.answers,
                one.check,
                FORBIDS.get(one.number, ()),
            )
            for one in exercises(nb)
        ),
    )


def _library(sources: Iterable[str], before: str) -> str:
    """Definitions of a chapter that its exercises do not use, but an answer may."""
    known = {
        node.name for node in ast.parse(before).body if isinstance(node, DEFINITIONS)
    }
    found = {}
    for source in sources:
        try:
            body = ast.parse(source).body
        except SyntaxError:  # a magic of the notebook
            continue
        for node in body:
            if isinstance(node, DEFINITIONS) and node.name not in known:
                stub = ast.unparse(node.body[-1]) == "..."
                if not stub:
                    found[node.name] = ast.unparse(node)
    return "\n\n\n".join(found.values())


def write_kit(
    chapters: Iterable[int | NotebookNode], folder: Path, root: Path = ROOT
) -> None:
    """Write a grader that needs no book: for a laptop, a server or Gradescope.

    Parameters
    ----------
    chapters
        Numbers of the chapters whose rubrics it holds, or their notebooks.
    folder
        Made where it is not there. Files of an older kit are replaced.
    """
    rubrics = [
        make_rubric(chapter_file(one, root) if isinstance(one, int) else one)
        for one in chapters
    ]
    if not rubrics:
        raise Refused("no chapter", "a kit needs at least one")
    (folder / "rubrics").mkdir(parents=True, exist_ok=True)
    for rubric in rubrics:
        path = folder / "rubrics" / f"{rubric.chapter:02}.json"
        path.write_text(rubric.dumps(), encoding="utf-8")
    shutil.copy(root / "tools" / "grade_all.py", folder)
    for package in (root / "tools" / "grading", root / "attention_lib"):
        copy = folder / package.name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "LICENSE", folder)
    chapter = str(rubrics[0].chapter)
    titles = "\n".join(
        f"- {one.chapter}. {one.title}: {len(one.tasks)} exercises, {one.points} points"
        for one in rubrics
    )
    needs = requirements(root)
    for kind in sorted((Path(__file__).parent / "kit").iterdir()):
        text = kind.read_text(encoding="utf-8")
        for mark, words in {
            "@CHAPTER@": chapter,
            "@CHAPTERS@": titles,
            "@REQUIREMENTS@": "\n".join(needs),
            "@QUOTED@": " ".join(f"'{one}'" for one in needs),
        }.items():
            text = text.replace(mark, words)
        (folder / kind.name).write_text(text, encoding="utf-8", newline="\n")
    for name in ("setup.sh", "run_autograder"):
        (folder / name).chmod(0o755)


def requirements(root: Path = ROOT) -> list[str]:
    """What a kit needs beside the copy of the package that it holds."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    plot = project["project"]["optional-dependencies"]["plot"]
    return [*project["project"]["dependencies"], *plot, "ipython", "psutil", "pydantic"]
