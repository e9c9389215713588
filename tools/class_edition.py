"""Build the class edition: the book with every solution gone.

Solutions are taken out of a copy of the sources, and the copy is built. What the build
never sees cannot end up in a page, a download or the search index.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from exercises import without_solutions
from notebook_files import Refusal, layout, read
from notebooks import ROOT
from origin import find_origin

TARGET = Path("_build/class-edition")
PAGES = Path("_build/html")  # under the copy
SOURCES = ("_toc.yml", "pyproject.toml", "book", "tools")
NOTICE = (
    "Class edition: exercises without solutions. The download of a chapter is its "
    "notebook, without them too."
)
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*")


def copy(root: Path, target: Path) -> None:
    """Copy the sources of the book without solutions; what was there before goes."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in SOURCES:
        if (root / name).is_dir():
            shutil.copytree(root / name, target / name, ignore=LEFT_OUT)
        else:
            shutil.copy(root / name, target / name)
    for path in sorted((target / "book").glob("*.ipynb")):
        path.write_text(layout(without_solutions(read(path))), encoding="utf-8")
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    config["sphinx"]["config"]["class_edition"] = True
    config["html"]["announcement"] = NOTICE
    text = yaml.safe_dump(config, allow_unicode=True)
    (target / "_config.yml").write_text(text, encoding="utf-8")


def build(root: Path, target: Path) -> int:
    """Build the copy, every warning an error; the exit code of the build."""
    origin = find_origin(root, os.environ)  # the copy itself has no remote
    where = {"ATTENTION_REPOSITORY": origin.address if origin else ""}
    if origin:
        where["ATTENTION_BRANCH"] = origin.branch
    program = Path(sys.executable).with_name("jupyter-book")
    command = [str(program), "build", str(target), "-W", "-n", "--keep-going"]
    return subprocess.run(command, check=False, env=os.environ | where).returncode


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="python tools/class_edition.py", description=__doc__
    )
    parser.add_argument(
        "target",
        nargs="?",
        type=Path,
        default=root / TARGET,
        metavar="FOLDER",
        help=f"made anew on each run; default: {TARGET}",
    )
    target = parser.parse_args(arguments).target
    try:
        if target.exists() and not (target / "_toc.yml").exists():
            raise Refusal(
                f"{target}: exists and is no class edition, so it is not replaced"
            )
        copy(root, target)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    if code := build(root, target):
        return code
    print("\nThe class edition:", (target / PAGES / "index.html").resolve().as_uri())
    return 0


if __name__ == "__main__":
    sys.exit(main())
