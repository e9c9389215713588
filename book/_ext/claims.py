"""What the book claims to have measured, and whether its cells bear that out.

``claims.yml`` holds the claims and the verdicts; a code cell tagged ``claim-C08``
measures claim C08 and prints ``C08 holds: `` and a sentence. :func:`faults` says where
the two disagree.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import nbformat
import yaml
from nbformat import NotebookNode

# No verdict is told by colour alone: each has a word and a sign.
VERDICTS = {"holds": "✓", "holds with a condition": "◐", "does not hold": "✗"}

ID = re.compile(r"C\d\d")
CHAPTER = re.compile(r"(\d\d)-[a-z0-9]+(?:-[a-z0-9]+)*")
LINE = re.compile(r"(C\d\d) ([^:\n]+): (.+)")
# With any of these the suite does not compare the printed line, or no reader sees it.
UNSEEN = {
    "nbval-ignore-output",
    "nbval-skip",
    "raises-exception",
    "remove-cell",
    "remove-output",
}
UNSEEN_COMMENT = re.compile(r"#\s*(?:NBVAL_|PYTEST_VALIDATE_)\w+")


class Claim(NamedTuple):
    """One entry of ``claims.yml``."""

    id: str
    claim: str
    chapter: str
    verdict: str | None = None

    @property
    def label(self) -> str:
        """Target before the cell that measures the claim."""
        return f"claim-{self.id.lower()}"


class Printed(NamedTuple):
    """The line that a claim's cell prints."""

    id: str
    verdict: str
    sentence: str


def read_claims(path: Path) -> list[Claim]:
    """Every claim, in the order of the file. Unknown or missing fields are errors."""
    return [Claim(**entry) for entry in yaml.safe_load(path.read_text("utf-8"))]


def read_chapters(folder: Path) -> dict[str, NotebookNode]:
    """Every chapter that is in the book, by its file name without the ending."""
    paths = sorted(folder.glob("*.ipynb"))
    return {path.stem: nbformat.read(path, as_version=4) for path in paths}


def printed(cell: NotebookNode) -> list[Printed]:
    """The lines in a cell's stored output that state a verdict."""
    outputs = [out for out in cell.get("outputs", []) if out.output_type == "stream"]
    text = "".join(out.text for out in outputs if out.name == "stdout")
    matches = (LINE.fullmatch(line.strip()) for line in text.splitlines())
    return [Printed(*match.groups()) for match in matches if match]


def claim_cells(nb: NotebookNode) -> Iterator[tuple[str, int]]:
    """The id and the place of every cell that measures a claim."""
    for place, cell in enumerate(nb.cells):
        for tag in cell.metadata.get("tags", []):
            if tag.startswith("claim-"):
                yield tag.removeprefix("claim-"), place


def measured(claim: Claim, chapters: Mapping[str, NotebookNode]) -> Printed | None:
    """What the claim's cell prints, or None where no cell does."""
    nb = chapters.get(claim.chapter)
    for id, place in claim_cells(nb) if nb else ():
        for line in printed(nb.cells[place]):
            if line.id == id == claim.id:
                return line
    return None


def faults(claims: list[Claim], chapters: Mapping[str, NotebookNode]) -> list[str]:
    """Where claims, verdicts and cells disagree, one sentence each."""
    found = [*_entry_faults(claims, chapters)]
    verdicts = {claim.id: claim for claim in claims if claim.verdict}
    seen = []
    for chapter, nb in chapters.items():
        for id, place in claim_cells(nb):
            where = f"{chapter}, cell {place + 1}"
            seen.append(id)
            if id not in verdicts:
                found.append(f"{where}: claims.yml has no verdict for {id}")
            elif verdicts[id].chapter != chapter:
                found.append(f"{where}: {id} belongs to {verdicts[id].chapter}")
            else:
                texts = _cell_faults(verdicts[id], nb.cells, place)
                found += [f"{where}: {text}" for text in texts]
    for id in verdicts:
        if (times := seen.count(id)) != 1:
            found.append(f"{id}: {times} cells are tagged claim-{id}, expected 1")
    return found


def _entry_faults(
    claims: list[Claim], chapters: Mapping[str, NotebookNode]
) -> Iterator[str]:
    """What is wrong with the file alone."""
    for first, second in pairwise(claims):
        if first.id >= second.id:
            yield f"{second.id}: comes after {first.id}; ids are unique and in order"
    names: dict[str, str] = {}
    for id, text, chapter, verdict in claims:
        if not ID.fullmatch(id):
            yield f"{id}: an id is C and two digits"
        if not text.strip():
            yield f"{id}: has no claim"
        match = CHAPTER.fullmatch(chapter)
        if not match:
            yield f"{id}: {chapter!r} is no chapter's name, such as 03-scaling"
        elif names.setdefault(match[1], chapter) != chapter:
            yield f"{id}: {chapter} and {names[match[1]]} have the same number"
        if verdict is not None and verdict not in VERDICTS:
            yield f"{id}: {verdict!r} is no verdict; expected one of {list(VERDICTS)}"
        if verdict and chapter not in chapters:
            yield f"{id}: has a verdict, but {chapter} is not in the book"
        if not verdict and chapter in chapters:
            yield f"{id}: {chapter} is in the book, so it needs a verdict"


def _cell_faults(claim: Claim, cells: list[NotebookNode], place: int) -> Iterator[str]:
    """What keeps a cell from supporting the verdict on its claim."""
    cell = cells[place]
    if cell.cell_type != "code":
        yield "only a code cell can measure a claim"
        return
    if not _asserts(cell.source):
        yield f"measures {claim.id} without asserting anything"
    if unseen := sorted(UNSEEN & set(cell.metadata.tags)):
        yield f"is tagged {unseen[0]}, so its verdict is not compared and shown"
    if UNSEEN_COMMENT.search(cell.source):
        yield "holds a comment that keeps its verdict from being compared"
    if cell.execution_count is None:
        yield "has no execution count, so its verdict is not compared"
    before = cells[place - 1] if place else None
    label = f"({claim.label})="
    if (
        before is None
        or before.cell_type != "markdown"
        or label not in before.source.splitlines()
    ):
        yield f"the cell before it must be text that holds the line {label}"
    lines = printed(cell)
    if [line.id for line in lines] != [claim.id]:
        ids = ", ".join(line.id for line in lines) or "none"
        yield f"must print one verdict, on {claim.id}; it prints {ids}"
    elif lines[0].verdict != claim.verdict:
        yield f"prints {lines[0].verdict!r}, but claims.yml says {claim.verdict!r}"


def _asserts(source: str) -> bool:
    """Whether a cell asserts something that could fail."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return False
    asserts = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return any(not isinstance(test, ast.Constant) for test in asserts)
