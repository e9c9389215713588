"""A notebook as a student hands it in: which of its cells are the student's own."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grading.rubric import Refused, Rubric, fingerprint

MOST_BYTES = 200 * 2**20
MOST_CODE = 2**20

HEADING = re.compile(r"^# (\d+)\. ", re.MULTILINE)
CHECKS = re.compile(r"attention_lib\.checks(?: import |\.)chapter(\d+)")


@dataclass(frozen=True)
class Cell:
    """A code cell, with its place in the notebook, from 1."""

    place: int
    source: str


def own_cells(path: Path, rubric: Rubric, *, solutions: bool = False) -> list[Cell]:
    """Code cells that the student wrote: those that the chapter does not hold.

    The chapter's solutions count as its own cells unless `solutions` says otherwise.
    """
    cells = _cells(_notebook(path))
    _of_chapter(cells, rubric)
    given = rubric.given if solutions else rubric.given | rubric.solutions
    own = [
        Cell(place, source)
        for place, (kind, source) in enumerate(cells, start=1)
        if kind == "code" and fingerprint(source) not in given
    ]
    size = sum(len(cell.source) for cell in own)
    if size > MOST_CODE:
        raise Refused("too much code", f"{size:,} characters, at most {MOST_CODE:,}")
    return own


def _notebook(path: Path) -> dict[str, Any]:
    try:
        about = path.lstat()
        if stat.S_ISLNK(about.st_mode):
            raise Refused("is a link", "hand in the notebook itself")
        if stat.S_ISDIR(about.st_mode):
            raise Refused("is a folder")
        if not stat.S_ISREG(about.st_mode):
            raise Refused("is not a file")
        if about.st_size > MOST_BYTES:
            raise Refused("too large", f"{about.st_size / 2**20:.0f} MB")
        with open(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except OSError as error:
        raise Refused("cannot be read", os.strerror(error.errno or 0)) from None
    except UnicodeDecodeError as error:
        raise Refused("is not UTF-8 text", f"byte {error.start}") from None
    if not text.strip():
        raise Refused("is empty")
    try:
        found = json.loads(text)
    except RecursionError:
        raise Refused("is nested too deep") from None
    except ValueError as error:
        raise Refused("is not JSON", str(error)) from None
    if not isinstance(found, dict) or not isinstance(found.get("nbformat"), int):
        raise Refused("is not a notebook")
    if found["nbformat"] != 4:
        words = f"format {found['nbformat']}; open it in Jupyter and save it again"
        raise Refused("has another notebook format", words)
    _in_python(found.get("metadata"))
    return found


def _in_python(metadata: Any) -> None:
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        part = metadata.get(key) if isinstance(metadata, dict) else None
        language = part.get(name) if isinstance(part, dict) else None
        if isinstance(language, str) and not language.lower().startswith("python"):
            raise Refused("has another language", language)


def _cells(notebook: dict[str, Any]) -> list[tuple[str, str]]:
    """Kind and source of every cell, whatever else it holds."""
    found = []
    cells = notebook.get("cells")
    for cell in cells if isinstance(cells, list) else []:
        source = cell.get("source", "") if isinstance(cell, dict) else None
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise Refused("is not a notebook", "a cell has no source")
        found.append((str(cell.get("cell_type")), source))
    if not any(source.strip() for _, source in found):
        raise Refused("has no cells")
    return found


def _of_chapter(cells: list[tuple[str, str]], rubric: Rubric) -> None:
    """Refuse the notebook of another chapter, by its title or the checks it imports."""
    titles = "\n".join(source for kind, source in cells if kind == "markdown")
    code = "\n".join(source for kind, source in cells if kind == "code")
    found = [int(n) for n in HEADING.findall(titles)] or [
        int(n) for n in CHECKS.findall(code)
    ]
    if found and rubric.chapter not in found:
        words = f"chapter {found[0]}, expected chapter {rubric.chapter}"
        raise Refused("is of another chapter", words)
    names = [name for task in rubric.tasks for name in task.answers]
    if not found and not re.search(rf"\b({'|'.join(map(re.escape, names))})\b", code):
        raise Refused("holds no exercise", f"of chapter {rubric.chapter}")
