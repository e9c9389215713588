"""Grade a folder of notebooks: a table of points, and a file for each student.

A submission is a notebook in the folder, whose name is the student's, or a folder with
the student's name that holds one. Each is graded in a process of its own, with a limit
on time and memory. Whatever it does, it gets its points and its word, and the others are
graded. What is finished is kept: a run that was stopped goes on where it was.

This runs the students' code on this computer. The limits are a fence against accidents
and idle tricks, not a wall: code that is written to break out breaks out. For strangers'
code use a container; README.md beside the kit, and the book's page for instructors, have
a recipe.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One thread a submission; and a process forks safely while it has one thread.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.update(TQDM_DISABLE="", CUDA_VISIBLE_DEVICES="", MPLBACKEND="agg")

from grading import pool, reports
from grading.rubric import Refused, Rubric, load
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
SKIPPED = (".ipynb_checkpoints", "__MACOSX")


@dataclass(frozen=True)
class Submission:
    """A notebook, whose it is, and the file of its result."""

    student: str
    path: Path
    result: Path


def submissions(folder: Path, out: Path) -> list[Submission]:
    """Everything that is handed in, in the order of names."""
    if not folder.is_dir():
        raise Refused("nothing to grade", f"{folder} is not a folder")
    found = []
    for path in sorted(_notebooks(folder)):
        inner = path.relative_to(folder)
        student = inner.parts[0] if len(inner.parts) > 1 else inner.stem
        name = "__".join(inner.parts).removesuffix(".ipynb")
        found.append(Submission(student, path, out / "students" / f"{name}.json"))
    if not found:
        raise Refused("nothing to grade", f"{folder} holds no notebook (.ipynb)")
    return found


def _notebooks(folder: Path) -> list[Path]:
    found = []
    for entry in os.scandir(folder):
        path = Path(entry.path)
        if entry.name in SKIPPED or entry.name.startswith("._"):
            continue
        if path.suffix.lower() == ".ipynb":
            found.append(path)
        elif entry.is_dir(follow_symlinks=False):
            found += _notebooks(path)
    return found


def students(path: Path) -> list[str]:
    """The class: the first column of a CSV, without a head that says "student"."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            names = [
                row[0].strip() for row in csv.reader(file) if row and row[0].strip()
            ]
    except (OSError, ValueError) as error:
        raise Refused("no roster", f"{path}: {error}") from None
    return names[1:] if names[:1] and names[0].lower() == "student" else names


def rubric_of(given: argparse.Namespace) -> tuple[Rubric, Path]:
    """The rubric that was asked for, and a file that holds it."""
    path = given.rubric
    if path is None:
        kept = sorted((HERE / "rubrics").glob("*.json"))
        if given.chapter is not None:
            kept = [one for one in kept if one.stem == f"{given.chapter:02}"]
        if len(kept) > 1:
            names = ", ".join(str(int(one.stem)) for one in kept)
            raise Refused("no chapter", f"name one with --chapter: {names}")
        if not kept:
            return _from_book(given.chapter, given.out)
        path = kept[0]
    return load(path), path


def _from_book(chapter: int | None, out: Path) -> tuple[Rubric, Path]:
    if chapter is None:
        raise Refused(
            "no chapter", "name one with --chapter, or a rubric with --rubric"
        )
    try:
        from rubric import chapter_file, make_rubric
    except ImportError:
        raise Refused("no rubric", f"this kit has none for chapter {chapter}") from None
    rubric, path = make_rubric(chapter_file(chapter)), out / "rubric.json"
    reports.store(path, rubric.dumps())
    return rubric, path


def run(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Grade what is not graded yet, store each result, and give all of them."""
    rubric, rubric_file = rubric_of(given)
    found = submissions(given.submissions, given.out)
    names = None if given.roster is None else students(given.roster)
    options = pool.Options(
        workers=given.workers,
        seconds=given.seconds,
        memory=given.memory * 2**20,
        seed=given.seed,
        solutions=given.count_solutions,
    )
    if not options.fork:
        print(
            "This system cannot fork: each submission loads PyTorch anew, seconds each."
        )
    stamps, kept, left = {}, {}, {}
    for one in found:
        stamps[one.path] = reports.stamp(
            one.path,
            rubric,
            given.seed,
            given.seconds,
            given.memory,
            given.count_solutions,
        )
        old = None if given.again else reports.load(one.result)
        if old and stamps[one.path] and old["extra_data"]["stamp"] == stamps[one.path]:
            kept[one.path] = old
        else:
            left[one.path] = one
    if kept:
        print(f"{len(kept)} of {len(found)} were graded before and stay as they are.")
    try:
        with tqdm(total=len(left), unit="notebook", disable=given.quiet or None) as bar:
            for graded in pool.grade(left, rubric, rubric_file, options):
                one = left[graded.path]
                bar.set_postfix_str(one.student[:20], refresh=False)
                result = reports.record(
                    graded, one.student, rubric, stamps[graded.path]
                )
                reports.store(one.result, json.dumps(result, indent=1) + "\n")
                kept[graded.path] = result
                bar.update()
    finally:
        records = [kept[one.path] for one in found if one.path in kept]
        rows = reports.table(_with_class(records, names, rubric), rubric)
        reports.as_csv(rows, given.out / "grades.csv")
    return records


def _with_class(
    records: list[dict[str, Any]], names: list[str] | None, rubric: Rubric
) -> list[dict[str, Any]]:
    """Records with a word on who handed in twice, not at all, or is not in the class."""
    handed = [one["extra_data"]["student"] for one in records]
    for one, student in zip(records, handed, strict=True):
        if handed.count(student) > 1:
            one["extra_data"]["words"] = [
                f"{student} handed in {handed.count(student)} notebooks",
                *one["extra_data"]["words"],
            ]
    if names is None:
        return records
    for one, student in zip(records, handed, strict=True):
        if student not in names:
            one["extra_data"]["words"].insert(0, f"{student} is not in the roster")
    missing = []
    for name in names:
        if name not in handed:
            graded = pool.Graded(Path(), status="missing", reason="handed in nothing")
            missing.append(reports.record(graded, name, rubric, ""))
    return records + missing


def one_for_gradescope(given: argparse.Namespace) -> None:
    """Grade the one notebook of a folder and write Gradescope's results.json."""
    rubric, rubric_file = rubric_of(given)
    try:
        found = submissions(given.submissions, given.out)
        if len(found) > 1:
            names = ", ".join(one.path.name for one in found)
            raise Refused("several notebooks", f"{names}; hand in one")
        options = pool.Options(
            seconds=given.seconds,
            memory=given.memory * 2**20,
            seed=given.seed,
            solutions=given.count_solutions,
        )
        (graded,) = pool.grade([found[0].path], rubric, rubric_file, options)
    except Refused as refused:
        graded = pool.Graded(Path(), "refused", refused.reason, [str(refused)])
    result = reports.record(graded, "", rubric, "")
    reports.store(given.gradescope, json.dumps(result, indent=1) + "\n")


def parser() -> argparse.ArgumentParser:
    about, _, more = __doc__.partition("\n\n")
    top = argparse.ArgumentParser(
        prog="grade_all.py",
        description=about,
        epilog=more + "\nExit code: 0 graded; 2 refused, with the reason; 130 stopped.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add("submissions", type=Path, metavar="SUBMISSIONS", help="a folder of notebooks")
    which = top.add_mutually_exclusive_group()
    which.add_argument("--chapter", type=int, metavar="N", help="the chapter's number")
    which.add_argument("--rubric", type=Path, metavar="FILE", help="a rubric, as JSON")
    add(
        "--out",
        type=Path,
        default=Path("grades"),
        metavar="FOLDER",
        help="where grades.csv and students/*.json go; default: grades",
    )
    add(
        "--seed",
        type=_at_least(0),
        default=1,
        metavar="N",
        help="of the draws that the checks use; in a notebook it is 0. Choose your own "
        "and keep it to yourself; default: 1",
    )
    add(
        "--workers",
        type=_at_least(1),
        default=os.cpu_count() or 1,
        metavar="N",
        help="notebooks at a time; default: one a core",
    )
    add(
        "--seconds",
        type=_at_least(1),
        default=20,
        metavar="N",
        help="limit on one exercise of one student; default: 20",
    )
    add(
        "--memory",
        type=_at_least(1),
        default=2048,
        metavar="MB",
        help="limit on what a submission takes beyond PyTorch; default: 2048",
    )
    add(
        "--roster",
        type=Path,
        metavar="FILE",
        help="a CSV with the students in its first column: who is missing is listed too",
    )
    add("--again", action="store_true", help="grade also what is graded already")
    add(
        "--count-solutions",
        action="store_true",
        help="count the book's own solution cells as answers, to try an answer key",
    )
    add(
        "--gradescope",
        type=Path,
        metavar="FILE",
        help="grade the one notebook in SUBMISSIONS and write Gradescope's results.json",
    )
    add("--quiet", action="store_true", help="no progress bar")
    return top


def _at_least(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if not text.strip().lstrip("-").isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text} must be a whole number, and must be at least {least}"
            )
        return int(text)

    return whole


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    tqdm.monitor_interval = 0  # a thread, which a fork would leave behind
    try:
        if given.gradescope:
            one_for_gradescope(given)
            return 0
        records = run(given)
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 2
    except OSError as error:  # the folder is read-only, the table is open elsewhere
        where = error.filename2 or error.filename or given.out
        print(f"{where}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"\nstopped: what was graded is in {given.out}; the same command goes on",
            file=sys.stderr,
        )
        return 130
    print(reports.summary(records))
    print(f"{given.out / 'grades.csv'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
