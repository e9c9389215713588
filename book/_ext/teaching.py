"""The directive ``teaching``: what the chapters ask of a class, in their own words.

Its argument chooses a part: ``totals``, ``chapters``, ``exercises`` or ``plan``. The
content of a plan is a line for each week: the numbers of its chapters.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
from exercises import HEAD, MINUTES, STARS

PARTS = ("totals", "chapters", "exercises", "plan")
TITLE = re.compile(r"# (\d+)\. (.+)")
ROW = r"^- \*\*{}\*\* (.+)$"
KINDS = {
    "planted-fault": "finds a fault",
    "predict": "predicts, then runs",
    "open": "open-ended",
}


@dataclass(frozen=True)
class Task:
    """An exercise, as its text announces it."""

    number: str
    title: str
    kinds: str
    stars: str
    minutes: int

    @property
    def link(self) -> str:
        """A reference to it, with its title."""
        label = f"ex-{self.number.replace('.', '-')}"
        return f"{{ref}}`{self.number} {self.title} <{label}>`"


@dataclass(frozen=True)
class Chapter:
    """A chapter, as the box at its head announces it, and its exercises."""

    name: str
    number: int
    title: str
    goal: str
    needs: str
    reading: int
    tasks: list[Task]

    @property
    def link(self) -> str:
        """A link to it, with its number and title."""
        return f"[{self.number}. {self.title}]({self.name})"

    @property
    def working(self) -> int:
        """Minutes for all exercises."""
        return sum(task.minutes for task in self.tasks)


def read_chapter(path: Path) -> Chapter:
    """Read a chapter's head and exercises from its cells."""
    cells = nbformat.read(path, as_version=4).cells
    head = cells[0].source
    title = TITLE.match(head)
    if title is None:
        raise ValueError(f"{path.name}: does not open with a line like `# 3. Scaling`")
    rows = {}
    for name in ("You will", "Before", "Read"):
        row = re.search(ROW.format(name), head, re.MULTILINE)
        if row is None:
            raise ValueError(f"{path.name}: the box at its head has no row {name!r}")
        rows[name] = row[1]
    minutes = MINUTES.search(rows["Read"])
    if minutes is None:
        raise ValueError(f"{path.name}: the row 'Read' names no minutes")
    texts = (cell for cell in cells if "exercise" in cell.metadata.get("tags", []))
    return Chapter(
        name=path.stem,
        number=int(title[1]),
        title=title[2],
        goal=rows["You will"],
        needs=rows["Before"],
        reading=int(minutes[1]),
        tasks=[read_task(cell) for cell in texts],
    )


def read_task(cell: nbformat.NotebookNode) -> Task:
    """Read what the first lines of an exercise say of it."""
    head, stars = HEAD.search(cell.source), STARS.search(cell.source)
    minutes = MINUTES.search(cell.source)
    if not (head and stars):
        raise ValueError(f"no number or no stars in {cell.source[:60]!r}")
    kinds = [text for tag, text in KINDS.items() if tag in cell.metadata.tags]
    return Task(
        head[1],
        head[2].strip(),
        "; ".join(kinds),
        stars[0],
        int(minutes[1]) if minutes else 0,
    )


def table(head: str, rows: list[tuple]) -> str:
    """A table in Markdown; ``head`` names the columns."""
    columns = head.split(" | ")
    lines = [columns, ["--:" if "min" in name else ":--" for name in columns], *rows]
    cells = ([str(cell).replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def chapters_table(chapters: list[Chapter]) -> str:
    """What each chapter teaches and needs, and how long it takes."""
    return table(
        "Chapter, and what students learn | They need | Reading, min | Exercises, min",
        [(f"{c.link}<br>To {c.goal}", c.needs, c.reading, c.working) for c in chapters],
    )


def exercises_table(chapters: list[Chapter]) -> str:
    """Every exercise with its kind, stars and minutes."""
    return table(
        "Exercise | Kind | Stars | min",
        [
            (task.link, task.kinds, task.stars, task.minutes or "open")
            for chapter in chapters
            for task in chapter.tasks
        ],
    )


def totals(chapters: list[Chapter]) -> str:
    """What the whole book asks for, in a sentence."""
    reading = sum(chapter.reading for chapter in chapters) / 60
    working = sum(chapter.working for chapter in chapters) / 60
    count = sum(len(chapter.tasks) for chapter in chapters)
    return (
        f"{len(chapters)} chapters take about {reading:.0f} hours to read, and their "
        f"{count} exercises about {working:.0f} hours to do."
    )


def plan(chapters: list[Chapter], weeks: list[str]) -> str:
    """The chapters of each week, with the minutes that they take."""
    known = {chapter.number: chapter for chapter in chapters}
    rows = []
    for week, line in enumerate(weeks, 1):
        numbers = [int(number) for number in line.split()]
        there = [known[number] for number in numbers if number in known]
        names = [
            known[n].link if n in known else f"{n} (not in this book)" for n in numbers
        ]
        reading = sum(chapter.reading for chapter in there)
        working = sum(chapter.working for chapter in there)
        rows.append((week, "<br>".join(names), reading, working))
    return table("Week | Chapters | Reading, min | Exercises, min", rows)


class Teaching(SphinxDirective):
    """Write one part of the page for instructors from the chapters' cells."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the part's nodes."""
        part = self.arguments[0]
        if part not in PARTS:
            raise self.error(f"teaching: {part!r} is not one of {', '.join(PARTS)}")
        folder = Path(self.env.doc2path(self.env.docname)).parent
        paths = sorted(folder.glob("[0-9]*.ipynb"))
        for path in paths:
            self.env.note_dependency(str(path))
        try:
            chapters = [read_chapter(path) for path in paths]
        except ValueError as error:
            raise self.error(f"teaching: {error}") from None
        if part == "plan":
            text = plan(chapters, list(self.content))
        else:
            writers = {
                "totals": totals,
                "chapters": chapters_table,
                "exercises": exercises_table,
            }
            text = writers[part](chapters)
        node = nodes.Element()
        node.document = self.state.document
        lines = StringList(text.splitlines(), source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset, node)
        return node.children


def setup(app):
    """Register the extension with Sphinx."""
    app.add_directive("teaching", Teaching)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
