"""Every chapter has exercises of each kind: to predict, with a planted fault, open."""

from collections import Counter

import nbformat
import pytest
import yaml
from notebook_faults import KINDS
from notebook_form import tags
from notebooks import ROOT


def walk() -> list[str]:
    """The chapters of the table of contents that are numbered."""
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))["parts"]
    files = [entry["file"] for part in parts for entry in part["chapters"]]
    return [file for file in files if (ROOT / f"{file}.ipynb").exists()]


def kinds(cells) -> Counter[str]:
    """How many exercises there are, and how many of each kind."""
    return Counter(
        tag for cell in cells if "exercise" in tags(cell) for tag in tags(cell)
    )


def test_the_walk_is_not_empty() -> None:
    assert len(walk()) >= 12


@pytest.mark.parametrize("file", walk())
def test_chapter_has_exercises_of_each_kind(file: str) -> None:
    found = kinds(nbformat.read(ROOT / f"{file}.ipynb", as_version=4).cells)
    assert found["exercise"] >= 3
    missing = sorted(kind for kind in KINDS if not found[kind])
    assert not missing, f"no exercise is tagged {' or '.join(missing)}"
