"""Run the chapters, check their form, and say where the book lives.

The outputs stored in book/*.ipynb are the book: the build shows them and the tests
compare them with fresh ones.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import tomllib
from pathlib import Path

from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from notebook_faults import faults
from notebook_files import Refusal, layout, read, write
from notebook_form import code_cells, first_line, normalise
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "book" / "_ext"))
from origin import git, web_address

CELL_SECONDS = 600
CLAIMED = re.compile(r"\brun\b\W*(?:about\s+)?(\d+)\s*s(?:econds)?\b", re.IGNORECASE)


class ThisPython(AsyncKernelManager):
    """Kernels of the interpreter that runs this file, whatever is registered."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict())


def repository(root: Path) -> str:
    """Address of the repository, from pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return project["project"]["urls"]["Repository"]


def notebooks(paths: list[Path], root: Path) -> list[Path]:
    """Notebooks named, those of folders named, or else the chapters."""
    book = root / "book"
    if book.is_relative_to(Path.cwd()):
        book = book.relative_to(Path.cwd())
    found = []
    for path in paths or [book]:
        found += sorted(path.glob("*.ipynb")) if path.is_dir() else [path]
    if not found:
        raise Refusal(f"no notebooks in {', '.join(map(str, paths or [book]))}")
    return found


def execute(path: Path, nb: NotebookNode) -> None:
    """Run the cells of a notebook in a fresh kernel, and keep what they give."""
    code = code_cells(nb)
    for cell in code:
        cell.execution_count, cell.outputs = None, []
    running = nb.cells[0]

    # Bars are for whoever watches, not for the page; figures are drawn inline.
    env = {**os.environ, "TQDM_DISABLE": "1"}
    env.pop("MPLBACKEND", None)
    with tqdm(
        total=len(code), desc=path.name, unit="cell", leave=False, disable=None
    ) as bar:

        def started(cell: NotebookNode, cell_index: int) -> None:
            nonlocal running
            running = cell
            bar.set_postfix_str(first_line(cell)[:40])

        client = NotebookClient(
            nb,
            timeout=CELL_SECONDS,
            record_timing=False,
            kernel_manager_class=ThisPython,
            extra_arguments=["--log-level=CRITICAL"],
            resources={"metadata": {"path": str(path.parent)}},
            on_cell_execute=started,
            on_cell_executed=lambda **_: bar.update(),
        )
        try:
            client.execute(env=env)
        except CellExecutionError as error:
            reason = f"{error.ename}: {error.evalue}{_line_of(error)}"
        except CellTimeoutError:
            reason = f"took longer than {CELL_SECONDS} s"
        except (DeadKernelError, AssertionError):
            # On a signal nbclient stops the kernel, and then misses it.
            if hasattr(client, "_async_cleanup_kernel_future"):
                raise KeyboardInterrupt from None
            reason = "the kernel died"
        else:
            return
    raise Refusal(
        f"{path}: cell {nb.cells.index(running) + 1}, `{first_line(running)}`, failed\n"
        f"  {reason}\n  The stored notebook is as it was."
    )


def _line_of(error: CellExecutionError) -> str:
    """The line of the cell that raised, for errors that say nothing."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", error.traceback)
    found = re.search(r"^-+> \d+ (.*)$", plain, re.MULTILINE)
    return f"\n  in `{found[1].strip()}`" if found else ""


def claimed_seconds(nb: NotebookNode) -> int | None:
    """Seconds that the box at the head of a chapter promises."""
    text = "\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
    found = CLAIMED.search(text)
    return int(found[1]) if found else None


def run(paths: list[Path], root: Path) -> int:
    address = repository(root)
    for path, nb in [(path, read(path)) for path in paths]:
        normalise(nb, address)
        start = time.perf_counter()
        execute(path, nb)
        seconds = time.perf_counter() - start
        normalise(nb, address)
        stored = "stored" if write(path, layout(nb)) else "unchanged"
        print(f"{path}: {seconds:.1f} s, {stored}", flush=True)
        claimed = claimed_seconds(nb)
        if claimed and not claimed / 3 - 2 <= seconds <= 2 * claimed + 2:
            print(f"  the box at its head says {claimed} s", flush=True)
    return 0


def check(paths: list[Path], root: Path) -> int:
    address = repository(root)
    number = 0
    for path in paths:
        for fault in form_faults(path, address):
            number += 1
            print(fault)
    print(f"notebooks: {len(paths)}, faults: {number}")
    return 1 if number else 0


def form_faults(path: Path, address: str) -> list[str]:
    """Faults of a stored notebook, each with its file."""
    try:
        nb = read(path)
    except Refusal as refusal:
        return [str(refusal)]
    chapter = re.match(r"\d+", path.name)
    found = faults(nb, address, int(chapter[0]) if chapter else None)
    if not found and layout(nb).encode() != path.read_bytes():
        found = ["is not laid out as `clean` writes it"]
    return [f"{path}: {fault}" for fault in found]


def clean(paths: list[Path], root: Path) -> int:
    address = repository(root)
    for path, nb in [(path, read(path)) for path in paths]:
        normalise(nb, address)
        if write(path, layout(nb)):
            print(f"{path}: cleaned")
    return 0


def set_address(url: str | None, root: Path) -> int:
    """Write where the book lives to every file that says it."""
    old, new = repository(root), public_address(url, root)
    paths = notebooks([], root)
    for path in paths:
        read(path)  # refuse before anything is written
    pages = [*sorted(root.glob("*.md")), *sorted((root / "book").glob("*.md"))]
    for path in [root / "pyproject.toml", *pages, *paths]:
        text = path.read_text(encoding="utf-8")
        if write(path, text.replace(old, new)):
            print(f"{path.name}: {new}")
    return clean(paths, root)


def public_address(url: str | None, root: Path) -> str:
    """Address that anybody can install from: the one given, or the remote's."""
    remote = url or git(root, "remote", "get-url", "origin")
    if not remote:
        raise Refusal(
            "this checkout has no remote named origin: give the address, as in\n"
            "  python tools/notebooks.py address https://github.com/OWNER/NAME"
        )
    address = web_address(remote)
    if address is None:
        raise Refusal(
            f"{remote}: nobody else can install from there, "
            "expected an address like https://github.com/OWNER/NAME"
        )
    return address


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python tools/notebooks.py", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str, more: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=text, description=f"{text.capitalize()}. {more}"
        )

    on_paths = [
        add(
            "run",
            "execute notebooks and store their outputs",
            "Each runs from top to bottom in a kernel of its own. A second run on the "
            "same machine stores the same bytes, except in cells that are not compared. "
            "A cell that fails stops the command and leaves its notebook as it was.",
        ),
        add(
            "check",
            "list what is out of form, without executing",
            "Exits with 1 when a notebook has a fault.",
        ),
        add(
            "clean",
            "bring notebooks into the stored form, without executing",
            "Keeps outputs and execution counts; drops what an editor leaves behind.",
        ),
    ]
    for command in on_paths:
        command.add_argument(
            "paths",
            nargs="*",
            type=Path,
            metavar="PATH",
            help="a notebook or a folder of notebooks; default: book/",
        )
    address = add(
        "address",
        "write the repository's address where it is said",
        "In pyproject.toml, in the pages, and in the cell of each notebook that installs "
        "the package. For a fork, or when the repository moves.",
    )
    address.add_argument(
        "url", nargs="?", metavar="URL", help="default: the remote named origin"
    )
    return top


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    given = parser().parse_args(arguments)
    try:
        if given.command == "address":
            return set_address(given.url, root)
        command = {"run": run, "check": check, "clean": clean}[given.command]
        return command(notebooks(given.paths, root), root)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped: the notebook in work is as it was", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
