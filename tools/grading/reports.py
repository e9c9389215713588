"""What grading gives: a table, a file for each student, and a summary that counts."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grading.pool import Graded
from grading.rubric import Rubric


def score(graded: Graded, rubric: Rubric) -> dict[str, int]:
    """Points for each exercise. Who tampers gets none, until a person has looked."""
    counts = graded.status == "graded"
    return {
        task.number: task.points
        if counts
        and task.number in graded.outcomes
        and graded.outcomes[task.number].status == "passed"
        else 0
        for task in rubric.tasks
    }


def record(graded: Graded, student: str, rubric: Rubric, stamp: str) -> dict[str, Any]:
    """A submission's result in Gradescope's form.

    The form is described at
    https://gradescope-autograders.readthedocs.io/en/latest/specs/. What only this
    grader uses is under `extra_data`.
    """
    points, tests = score(graded, rubric), []
    for task in rubric.tasks:
        outcome = graded.outcomes.get(task.number)
        passed = points[task.number] == task.points
        said = f"{outcome.status}: {outcome.words}" if outcome else "not graded"
        tests.append(
            {
                "name": f"{task.number} {task.title}",
                "number": task.number,
                "score": points[task.number],
                "max_score": task.points,
                "status": "passed" if passed else "failed",
                "output": said,
                "output_format": "text",
                "visibility": "visible",
            }
        )
    return {
        "score": sum(points.values()),
        "execution_time": round(graded.seconds, 2),
        "output": "\n".join([headline(graded), *graded.words]),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
        "extra_data": {
            "student": student,
            "file": graded.path.name,
            "status": graded.status,
            "reason": graded.reason,
            "words": graded.words,
            "outcomes": {
                number: [one.status, one.words]
                for number, one in graded.outcomes.items()
            },
            "stamp": stamp,
        },
    }


def headline(graded: Graded) -> str:
    """One line on what became of a submission."""
    if graded.status == "graded":
        return "Graded."
    ending = {"tampered": " Nothing counts until a person has looked at it."}
    return (
        f"{graded.status.capitalize()}: {graded.reason}.{ending.get(graded.status, '')}"
    )


def stamp(path: Path, rubric: Rubric, *options: int) -> str:
    """What a stored result must share with a new one to stand for it.

    The options are all that a result may depend on: the seed, the limits, and whether
    solutions count.
    """
    digest = hashlib.sha256(f"{rubric.dumps()}{options}".encode())
    try:
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                while block := file.read(2**20):
                    digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()[:32]


def store(path: Path, text: str) -> None:
    """Write a file at once, so that an interruption leaves the old one or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    with open(beside, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    os.replace(beside, path)


def table(records: Iterable[dict[str, Any]], rubric: Rubric) -> list[list[str]]:
    """Rows of the table of grades, the head first."""
    numbers = [task.number for task in rubric.tasks]
    rows = [["student", "total", "maximum", *numbers, "status", "words", "file"]]
    for one in records:
        more = one["extra_data"]
        points = {test["number"]: test["score"] for test in one["tests"]}
        words = [f"{test['number']} {test['output']}" for test in one["tests"]]
        lead = [more["reason"]] if more["reason"] else []
        rows.append(
            [
                _cell(more["student"]),
                str(one["score"]),
                str(rubric.points),
                *(str(points[number]) for number in numbers),
                more["status"],
                _cell(" | ".join(lead + more["words"] + words)),
                _cell(more["file"]),
            ]
        )
    return rows


def as_csv(rows: list[list[str]], path: Path) -> None:
    """Store rows; spreadsheets read the mark at the head as UTF-8."""
    import io

    text = io.StringIO()
    csv.writer(text).writerows(rows)
    store(path, "\ufeff" + text.getvalue())


def _cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def summary(records: Iterable[dict[str, Any]]) -> str:
    """What became of all submissions, counted."""
    found, exercises = Counter[str](), Counter[str]()
    for one in records:
        more = one["extra_data"]
        reason = (
            f" ({more['reason']})" if more["status"] in ("refused", "crashed") else ""
        )
        found[more["status"] + reason] += 1
        exercises.update(status for status, _ in more["outcomes"].values())
    lines = [f"submissions: {sum(found.values())}"]
    lines += [f"  {count:5d}  {what}" for what, count in _ordered(found)]
    lines += ["exercises:"] + [f"  {n:5d}  {what}" for what, n in _ordered(exercises)]
    return "\n".join(lines)


def _ordered(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def load(path: Path) -> dict[str, Any] | None:
    """A stored result, if there is a whole one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if "stamp" in found["extra_data"] else None
    except (OSError, ValueError, TypeError, KeyError):
        return None
