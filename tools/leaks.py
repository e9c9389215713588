"""Search what students get for lines of the solutions.

A line of a solution counts when at least 12 of its characters say something and it
stands in no cell that the student sees anyway. Spaces, line breaks, quotes, commas and
round brackets say nothing, so a solution that was laid out anew is found too. Every file
of a zip is searched, and in notebooks every string: sources, outputs, attachments and
metadata, also with HTML tags taken out and base64 decoded.
"""

from __future__ import annotations

import argparse
import ast
import base64
import binascii
import html
import io
import json
import re
import sys
import tokenize
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from exercises import exercises
from nbformat import NotebookNode
from notebook_files import Refusal, read
from notebook_form import tags
from notebooks import ROOT

ENOUGH = 12
SILENT = b" \t\r\n\f\v'\"(),\\"
# They open a solution, whatever its cell is tagged.
MARKS = ("# BEGIN SOLUTION", "# END SOLUTION", "#@title Solution")

TAG = re.compile(r"<[^<>]*>")
EMBEDDED = re.compile(r"base64,([A-Za-z0-9+/=]+)")
BASE64 = re.compile(r"[A-Za-z0-9+/\s]{16,}=*\s*")


@dataclass(frozen=True)
class Line:
    """A line of a solution, or a statement of it in another layout."""

    exercise: str
    text: str
    bare: bytes


@dataclass(frozen=True)
class Leak:
    """A line of a solution, and where a student can read it."""

    file: str
    place: str
    line: Line

    def __str__(self) -> str:
        where = f"{self.file}, {self.place}" if self.place else self.file
        return f"{where}: solution {self.line.exercise}: {self.line.text}"


def bare(text: str) -> bytes:
    """A text without what says nothing."""
    return text.replace("\xa0", " ").encode(errors="replace").translate(None, SILENT)


def solution_lines(chapters: Iterable[NotebookNode]) -> list[Line]:
    """What must not be found: all that the solutions of these chapters consist of."""
    found: dict[bytes, Line] = {}
    for nb in chapters:
        for one in exercises(nb):
            for text in (*_written(one.solution), *_statements(one.solution)):
                found.setdefault(bare(text), Line(one.number, text, bare(text)))
    marks = [Line("of some exercise", mark, bare(mark)) for mark in MARKS]
    return marks + [line for line in found.values() if len(line.bare) >= ENOUGH]


def _written(source: str) -> Iterator[str]:
    """Code and comments of the lines, apart."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(MARKS):
            row, column = token.start
            yield token.string.lstrip("# ")
            lines[row - 1] = lines[row - 1][:column]
    for line in lines:
        if not line.startswith("#"):
            yield line.strip()


def _statements(source: str) -> Iterator[str]:
    """Each statement on one line: it may have been wrapped elsewhere."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            yield ast.unparse(node).partition("\n")[0]


def seen(chapters: Iterable[NotebookNode]) -> bytes:
    """What a student reads in the cells of these chapters anyway."""
    return b"\n".join(
        bare(cell.source)
        for nb in chapters
        for cell in nb.cells
        if "solution" not in tags(cell)
        and not any(mark in cell.source for mark in MARKS)
    )


def leaks(
    archive: zipfile.ZipFile, lines: list[Line], shown: list[NotebookNode]
) -> list[Leak]:
    """Lines of solutions in a zip that holds these chapters."""
    visible = seen(shown)
    hidden = [line for line in lines if line.bare not in visible]
    found: dict[tuple[str, str, str], Leak] = {}
    for file, place, text in _texts(archive):
        for line in hidden:
            if line.bare in text:
                found.setdefault((file, place, line.text), Leak(file, place, line))
    return list(found.values())


def _texts(archive: zipfile.ZipFile) -> Iterator[tuple[str, str, bytes]]:
    """Every text of a zip: its file, the place within, and the text, bare."""
    yield "the zip itself", "comment", bare(archive.comment.decode(errors="replace"))
    for member in archive.infolist():
        yield member.filename, "name", bare(member.filename)
        yield member.filename, "comment", bare(member.comment.decode(errors="replace"))
        data = archive.read(member)
        if zipfile.is_zipfile(io.BytesIO(data)):
            with zipfile.ZipFile(io.BytesIO(data)) as inner:
                for file, place, packed in _texts(inner):
                    yield f"{member.filename}/{file}", place, packed
        text = data.decode(errors="replace")
        try:
            strings = list(_strings(json.loads(text)))
        except ValueError:
            strings = [("", text)]
        for place, string in strings:
            for view in _views(string):
                yield member.filename, place, bare(view)


def _strings(value: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a JSON value, keys too, with its place in words."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        if all(isinstance(part, str) for part in value):  # a text in lines
            yield place, "".join(value)
        else:
            for number, part in enumerate(value, 1):
                name = f"cell {number}" if place == "cells" else f"{place} {number}"
                yield from _strings(part, name)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield place, key
            yield from _strings(part, f"{place}, {key}" if place else key)


def _views(text: str) -> Iterator[str]:
    """A text as it stands, as a browser shows it, and what it holds in base64."""
    yield text
    if "<" in text or "&" in text:
        yield html.unescape(TAG.sub("", text))
    packed = EMBEDDED.findall(text)
    if BASE64.fullmatch(text):
        packed.append(text)
    for part in packed:
        try:
            inner = base64.b64decode(part + "==").decode(errors="replace")
        except binascii.Error:
            continue
        yield from _views(inner)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python tools/leaks.py",
        description="Search zips for students for lines of the book's solutions. "
        "Exits with 1 when there is one, with 2 when a zip cannot be read.",
    )
    parser.add_argument(
        "zips", nargs="+", type=Path, metavar="ZIP", help="made by make_class.py"
    )
    given = parser.parse_args(arguments)
    try:
        book = {
            path.name: read(path)
            for path in sorted((ROOT / "book").glob("[0-9]*.ipynb"))
        }
        lines, number = solution_lines(book.values()), 0
        for path in given.zips:
            with zipfile.ZipFile(path) as archive:
                names = {Path(name).name for name in archive.namelist()}
                shown = [nb for name, nb in book.items() if name in names]
                for leak in leaks(archive, lines, shown or list(book.values())):
                    number += 1
                    print(f"{path}: {leak}")
    except (OSError, zipfile.BadZipFile) as error:
        print(f"{path}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 2
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    print(f"zips: {len(given.zips)}, leaks: {number}")
    return 1 if number else 0


if __name__ == "__main__":
    sys.exit(main())
