"""Reading and writing notebooks, with a clear word for what is not one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.validator import iter_validate


class Refusal(Exception):
    """What stops a command, in words for the person who gave it."""


def read(path: Path) -> NotebookNode:
    """Read a notebook of format 4 and make sure that it is one."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text)
    except OSError as error:
        raise Refusal(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise Refusal(f"{path}: is not JSON: {error}") from None
    if not isinstance(data, dict) or "nbformat" not in data:
        raise Refusal(f"{path}: is JSON but not a notebook")
    if data["nbformat"] != 4:
        raise Refusal(f"{path}: has notebook format {data['nbformat']}, expected 4")
    if not data.get("cells"):
        raise Refusal(f"{path}: has no cells")
    _validate(path, data)
    return nbformat.v4.reads_json(text)


def _validate(path: Path, data: dict) -> None:
    # Format 4.4 is 4.5 without cell ids, which `clean` gives to a cell that has none.
    bare = json.loads(json.dumps(data))
    for cell in bare["cells"]:
        if isinstance(cell, dict):
            cell.pop("id", None)
    for error in iter_validate(bare, version=4, version_minor=4):
        where = "/".join(str(part) for part in error.relative_path)
        raise Refusal(f"{path}: is not a valid notebook: {where}: {error.message}")


def layout(nb: NotebookNode) -> str:
    """The text of the file that holds a notebook."""
    return nbformat.v4.writes_json(nb) + "\n"


def write(path: Path, text: str) -> bool:
    """Replace a file at once, so that an interruption loses nothing.

    Says whether the file changed.
    """
    if path.read_bytes() == text.encode():
        return False
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(text.encode())
    os.replace(beside, path)
    return True
