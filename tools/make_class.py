"""Make what a class needs from chapters of the book: one command, one source.

Everything is made from the cells of the chapters. A star is a point. Exercises of your
own, in a notebook with the same four cells for each, come in with --variants: an exercise
with a number of the chapter takes its place, another is put after the last one.

Every zip for students is searched for lines of the solutions. Where there is one, nothing
is written.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from zipfile import ZipFile

from assignment_engines import NBGRADER_CONFIG, nbgrader_source, otter_master
from assignment_sheet import answer_key
from assignment_source import Chapter, chapters, with_variants
from assignment_student import student_zip
from leaks import leaks, solution_lines
from notebook_files import Refusal, layout
from notebooks import ROOT, repository
from rubric import write_kit
from tqdm import tqdm

OUTPUT = ROOT / "_build" / "class"
LOSES = "\n`make clean` empties _build: do not keep submissions or grades there."
KNOWN = (
    "\nEverybody knows seed 1: for graded work make this again with a --seed of yours."
)
CONFIG = Path("nbgrader", "nbgrader_config.py")


def files(chapter: Chapter, address: str, seed: int) -> Iterator[tuple[Path, bytes]]:
    """Files of one chapter, by their place in the output folder."""
    slug, notebook = chapter.slug, f"{chapter.slug}.ipynb"
    yield Path("student", f"{slug}.zip"), student_zip(chapter, address)
    yield Path("key", notebook), layout(answer_key(chapter)).encode()
    source = layout(nbgrader_source(chapter, seed)).encode()
    yield Path("nbgrader", "source", slug, notebook), source
    master = layout(otter_master(chapter, address, seed)).encode()
    yield Path("otter", notebook), master


def make(assigned: list[Chapter], output: Path, address: str, seed: int) -> None:
    """Write everything, or nothing: what is there is replaced when all is made."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=output) as folder:
            new = Path(folder)
            if not (output / CONFIG).exists():  # it may have been changed since
                _write(new / CONFIG, NBGRADER_CONFIG.encode())
            for chapter in tqdm(assigned, unit="chapter", leave=False, disable=None):
                for place, data in files(chapter, address, seed):
                    _write(new / place, data)
            write_kit([one.nb for one in assigned], new / "grader", seed=seed)
            _demand_no_leak(new, assigned)
            _move(new, output)
    except FileExistsError as error:
        raise Refusal(f"{error.filename}: is a file, expected a folder") from None
    except OSError as error:
        raise Refusal(f"{error.filename or output}: {error.strerror}") from None


def _move(new: Path, output: Path) -> None:
    """Move files to a folder; whatever is in their way is found before the first."""
    made = [path.relative_to(new) for path in sorted(new.rglob("*")) if path.is_file()]
    for path in made:
        (output / path).parent.mkdir(parents=True, exist_ok=True)
        if (output / path).is_dir():
            raise Refusal(f"{output / path}: is a folder, expected a file")
    for path in made:
        os.replace(new / path, output / path)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _demand_no_leak(folder: Path, assigned: list[Chapter]) -> None:
    lines = solution_lines(chapter.nb for chapter in assigned)
    found = []
    for chapter in assigned:
        with ZipFile(folder / "student" / f"{chapter.slug}.zip") as archive:
            found += leaks(archive, lines, [chapter.nb])
    if found:
        raise Refusal(
            "students could read solutions, so nothing was written:\n"
            + "\n".join(f"  {leak}" for leak in found[:20])
        )


def summary(assigned: list[Chapter], output: Path, seed: int) -> str:
    """What was made, where, and what to do next."""
    rows = []
    for chapter in assigned:
        stars = sum(one.stars for one in chapter.exercises)
        rows.append(
            f"  {chapter.slug:28}{len(chapter.exercises)} exercises, {stars} points"
        )
    slug = assigned[0].slug
    number = assigned[0].exercises[0].number.partition(".")[0]
    nbgrader, otter, grader = (
        quote(str(output / name)) for name in ("nbgrader", "otter", "grader")
    )
    return "\n".join(
        [
            f"Made in {output}:",
            *rows,
            "",
            "  student/   a zip for each chapter; no line of a solution is in it",
            "  key/       solutions, points, and what the checks say: keep it to yourself",
            "  nbgrader/  a course folder for nbgrader 0.9",
            "  otter/     master notebooks for otter assign 7",
            "  grader/    a grader that needs no engine and no book",
            "",
            "Next: hand out the zips. To grade what comes back, one of",
            f"  python {grader}/grade_all.py SUBMISSIONS --chapter {number} --seed {seed}",
            f"  cd {nbgrader} && nbgrader generate_assignment --create {slug}",
            f"  cd {otter} && otter assign {slug}.ipynb dist",
            *([KNOWN] if seed == 1 else []),
            *([LOSES] if output.resolve().is_relative_to(ROOT / "_build") else []),
        ]
    )


def parser() -> argparse.ArgumentParser:
    opening, *rest = (__doc__ or "").split("\n\n")
    top = argparse.ArgumentParser(
        prog="python tools/make_class.py",
        description=opening,
        epilog="\n\n".join(rest),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        "chapters",
        nargs="+",
        metavar="CHAPTER",
        help="a number (6), a name (06-masking), a path, or all",
    )
    top.add_argument(
        "--output",
        type=Path,
        default=OUTPUT,
        metavar="FOLDER",
        help="default: _build/class; its other files stay",
    )
    top.add_argument(
        "--variants",
        type=Path,
        action="append",
        default=[],
        metavar="NOTEBOOK",
        help="your own exercises for one of the chapters; may be given again",
    )
    top.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="N",
        help="of the hidden tests, in all that is made, 1 or more; keep it to yourself "
        "(default: 1)",
    )
    return top


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    given = parser().parse_args(arguments)
    try:
        if given.seed < 1:
            raise Refusal(
                f"--seed {given.seed}: expected 1 or more, 0 is the chapters'"
            )
        address = repository(root)
        assigned = chapters(given.chapters, root / "book", address)
        assigned = with_variants(assigned, given.variants, address)
        make(assigned, given.output, address, given.seed)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped: what was there is as it was", file=sys.stderr)
        return 130
    print(summary(assigned, given.output, given.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
