"""Chapters in the forms of the engines that many schools have: nbgrader and Otter."""

from __future__ import annotations

from assignment_sheet import filled, opening, points, sheet, test, text
from assignment_source import Chapter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell

NBGRADER_CONFIG = """\
c = get_config()  # noqa: F821 - nbgrader defines it
c.CourseDirectory.course_id = "attention"
c.ClearSolutions.code_stub = {"python": "..."}
c.ExecutePreprocessor.timeout = 300
"""


def nbgrader_source(chapter: Chapter, seed: int) -> NotebookNode:
    """The source notebook of an nbgrader assignment."""
    cells = opening(chapter, "exercises")
    _mark(cells[-1], "given", locked=True)
    for one in chapter.exercises:
        name = one.number.replace(".", "-")
        answer = filled(one, "### BEGIN SOLUTION", "### END SOLUTION")
        check = (
            f"# {points(one)}\n{test(chapter, one, 0)}\nprint(result)\n"
            "### BEGIN HIDDEN TESTS\n"
            f"{test(chapter, one, seed)}\n### END HIDDEN TESTS"
        )
        cells += [
            _mark(new_markdown_cell(text(one)), f"text-{name}", locked=True),
            _mark(new_code_cell(answer), f"answer-{name}", solution=True),
            _mark(new_code_cell(check), f"check-{name}", locked=True, points=one.stars),
        ]
    return sheet(cells)


def _mark(
    cell: NotebookNode,
    grade_id: str,
    *,
    locked: bool = False,
    solution: bool = False,
    points: int | None = None,
) -> NotebookNode:
    """Give a cell nbgrader's metadata, schema version 3."""
    cell.metadata["nbgrader"] = {
        "schema_version": 3,
        "grade_id": grade_id,
        "grade": points is not None,
        "locked": locked,
        "solution": solution,
        "task": False,
        **({} if points is None else {"points": points}),
    }
    return cell


def otter_master(chapter: Chapter, repository: str, seed: int) -> NotebookNode:
    """The master notebook for `otter assign`."""
    config = f"""\
# ASSIGNMENT CONFIG
name: {chapter.slug}
generate: true
requirements:
  - "attention-lib[plot] @ git+{repository}"
  - pydantic
export_cell:
  pdf: false
"""
    cells = [new_raw_cell(config), *opening(chapter, "exercises")]
    for one in chapter.exercises:
        name = one.number.replace(".", "_")
        cells += [
            new_raw_cell(
                f"# BEGIN QUESTION\nname: q{name}\npoints: {one.stars}\n"
                "all_or_nothing: true"
            ),
            new_markdown_cell(text(one)),
            new_raw_cell("# BEGIN SOLUTION"),
            new_code_cell(filled(one, "# BEGIN SOLUTION", "# END SOLUTION")),
            new_raw_cell("# END SOLUTION"),
            new_raw_cell("# BEGIN TESTS"),
            new_code_cell(test(chapter, one, 0)),
            new_code_cell(f"# HIDDEN\n{test(chapter, one, seed)}"),
            new_raw_cell("# END TESTS"),
            new_raw_cell("# END QUESTION"),
        ]
    return sheet(cells)
