"""What the benchmarks share: their options, their tables and their JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from pathlib import Path

import torch


def options(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes and two rounds: does it run?"
    )
    parser.add_argument("--rounds", type=int, help="measurements of each call")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch (default: 1)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        help="a .json file to write, or a folder for one named after the benchmark",
    )
    return parser


def environment() -> dict[str, object]:
    """What the numbers depend on."""
    packages = ("attention-lib", "torch", "triton", "x-transformers")
    return {
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in packages},
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def table(columns: list[str], rows: list[list[str]]) -> str:
    """Columns of text, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]

    def line(cells: list[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        aligned = [first[0].ljust(first[1])]
        return "  ".join(aligned + [cell.rjust(width) for cell, width in others])

    rule = ["-" * width for width in widths]
    return "\n".join(line(cells) for cells in (columns, rule, *rows))


def write(path: Path | None, benchmark: str, **results: object) -> None:
    """Results as JSON, with what they depend on; nothing without a path."""
    if path is None:
        return
    if path.suffix != ".json":
        path = path / f"{benchmark}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": benchmark, "environment": environment()} | results
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"\nWritten to {path}")
