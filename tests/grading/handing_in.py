"""Notebooks as students hand them in, and a run of the grader on a folder of them."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
from exercises import exercises, without_solutions
from notebook_files import read
from rubric import ROOT, chapter_file

GRADER = ROOT / "tools" / "grade_all.py"


def handed_in(chapter, *, own=None, leave=(), first=""):
    """A chapter whose stubs hold the book's solutions, in a student's hand.

    Parameters
    ----------
    own
        Sources by exercise number, in place of the solution.
    leave
        Numbers of exercises whose stub stays as it is.
    first
        Source of a cell before all others.
    """
    nb = read(chapter_file(chapter))
    answers = iter(exercises(nb))
    bare = without_solutions(nb)
    for cell in bare.cells:
        if cell.cell_type == "code":
            cell.outputs = []
        if "stub" in cell.metadata.get("tags", []):
            one = next(answers)
            if one.number not in leave:
                cell.source = (own or {}).get(one.number) or solution(one)
    if first:
        bare.cells.insert(1, nbformat.v4.new_code_cell(first))
    return bare


def solution(exercise):
    """The solution as a student would have written it."""
    body = exercise.solution.partition("# BEGIN SOLUTION\n")[2]
    return body.partition("# END SOLUTION")[0].strip() + "\n# my own"


def text(nb):
    return nbformat.v4.writes_json(nb)


def grade(folder, out, *arguments, timeout=120):
    """Run the command; its exit code, what it said, and the results by file."""
    done = subprocess.run(
        [sys.executable, GRADER, folder, "--out", out, "--quiet", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    results = {
        path.stem: json.loads(path.read_text())
        for path in Path(out, "students").glob("*.json")
    }
    return done.returncode, done.stdout + done.stderr, results


def rows(out):
    with open(Path(out) / "grades.csv", encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))
