"""What an instructor assigns: chapters of the book, with exercises of their own."""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from exercises import ORDER, Exercise, exercises
from nbformat import NotebookNode
from notebook_files import Refusal, read
from notebook_form import code_cells, normalise, tags

SOLUTION = re.compile(r"(?ms)^# BEGIN SOLUTION$\n(.*?)^# END SOLUTION$")
TITLE = re.compile(r"^# (\d+\. .+)$", re.MULTILINE)


@dataclass(frozen=True)
class Chapter:
    """A chapter to assign: its slug, such as "06-masking", and its notebook."""

    slug: str
    nb: NotebookNode

    @property
    def title(self) -> str:
        return TITLE.search(self.nb.cells[0].source)[1]  # type: ignore[index]

    @property
    def exercises(self) -> list[Exercise]:
        return exercises(self.nb)


def chapters(words: list[str], book: Path, repository: str) -> list[Chapter]:
    """Chapters named by number, slug or path; "all" names each one of the book."""
    stored = sorted(book.glob("[0-9]*.ipynb"))
    paths: dict[str, Path] = {}
    for word in words:
        for path in stored if word == "all" else [_path(word, stored)]:
            paths.setdefault(path.stem, path)
    return [_chapter(path, repository) for path in paths.values()]


def _path(word: str, stored: list[Path]) -> Path:
    if word.endswith(".ipynb"):
        return Path(word)
    for path in stored:
        if word == path.stem or (
            word.isdecimal() and path.name.startswith(f"{int(word):02}-")
        ):
            return path
    there = "\n".join(f"  {path.stem}" for path in stored)
    raise Refusal(f"there is no chapter {word!r}; there are\n{there}")


def _chapter(path: Path, repository: str) -> Chapter:
    nb = read(path)
    normalise(nb, repository)
    _demand_form(path, nb)
    if not TITLE.search(nb.cells[0].source):
        raise Refusal(f"{path}: no title of the form `# N. Title` in the first cell")
    return Chapter(path.stem, nb)


def with_variants(
    assigned: list[Chapter], paths: list[Path], repository: str
) -> list[Chapter]:
    """The chapters with an instructor's own exercises.

    An exercise with a number of the chapter takes its place; another comes after the
    last. Other code of the notebook that holds them comes before the first exercise;
    its other text is for the instructor alone.
    """
    for path in paths:
        own = read(path)
        _demand_form(path, own)
        numbers = {one.number.partition(".")[0] for one in exercises(own)}
        if len(numbers) > 1:
            raise Refusal(
                f"{path}: exercises of chapters {', '.join(sorted(numbers))}, "
                "expected one chapter for each file of variants"
            )
        place = next(
            (i for i, one in enumerate(assigned) if _number(one) in numbers), None
        )
        if place is None:
            raise Refusal(
                f"{path}: exercises of chapter {numbers.pop()}, "
                f"assigned: {', '.join(one.slug for one in assigned)}"
            )
        assigned = list(assigned)
        nb = _merged(assigned[place].nb, own)
        normalise(nb, repository)
        assigned[place] = Chapter(assigned[place].slug, nb)
    return assigned


def _number(chapter: Chapter) -> str:
    return chapter.exercises[0].number.partition(".")[0]


def _merged(chapter: NotebookNode, own: NotebookNode) -> NotebookNode:
    nb, own = copy.deepcopy(chapter), copy.deepcopy(own)
    for number, place in _places(own).items():
        four = own.cells[place : place + len(ORDER)]
        there = _places(nb)
        if number in there:
            nb.cells[there[number] : there[number] + len(ORDER)] = four
        else:
            after = max(there.values()) + len(ORDER)
            nb.cells[after:after] = four
    first = min(_places(nb).values())
    apart = {*ORDER, "install"}
    nb.cells[first:first] = [c for c in code_cells(own) if not apart & {*tags(c)}]
    return nb


def _places(nb: NotebookNode) -> dict[str, int]:
    """Where each exercise begins."""
    places = [i for i, cell in enumerate(nb.cells) if "exercise" in tags(cell)]
    return dict(zip((one.number for one in exercises(nb)), places, strict=True))


def _demand_form(path: Path, nb: NotebookNode) -> None:
    """Refuse a notebook whose exercises cannot be assigned."""
    try:
        found = exercises(nb)
    except Refusal as refusal:
        raise Refusal(f"{path}: {refusal}") from None
    if not found:
        raise Refusal(f"{path}: holds no exercise")
    twice = [n for n, times in Counter(e.number for e in found).items() if times > 1]
    if twice:
        raise Refusal(f"{path}: exercise {twice[0]} is there twice")
    for one in found:
        if wrong := _fault(one):
            raise Refusal(f"{path}: exercise {one.number}: {wrong}")


def _fault(one: Exercise) -> str | None:
    if not one.stars:
        return "no stars, and they are its points"
    if not one.answers:
        return "the stub defines no function"
    if not SOLUTION.search(one.solution):
        return "no lines `# BEGIN SOLUTION` and `# END SOLUTION`"
    if not isinstance(ast.parse(one.check).body[-1], ast.Expr):
        return "the check does not end with a call of a check"
    return None
