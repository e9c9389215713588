"""The mistakes that chapter 9 makes still raise what it says, and still keep silent."""

import html
import math
import re

import nbformat
import pytest
import torch
import torch.nn.functional as F
from notebooks import ROOT
from torch import nn

CHAPTER = ROOT / "book" / "09-troubleshooting.ipynb"


def mistakes():
    """The rows of the chapter's own tables, from its cells."""
    names = {
        "torch": torch,
        "F": F,
        "nn": nn,
        "math": math,
        "collect": lambda rows: None,
    }
    nb = nbformat.read(CHAPTER, as_version=4)
    cells = [
        c.source
        for c in nb.cells
        if re.search(r"^\w+ = \[\n    \(", c.source, re.MULTILINE)
    ]
    for source in cells:
        exec(source, names)  # noqa: S102 - the chapter's own cells
    return [row for name in ("SHAPES", "MASKS") for row in names[name]]


ROWS = mistakes()


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_torch_says_what_the_chapter_says(row):
    _, make, phrase, _ = row
    with pytest.raises(Exception, match=re.escape(phrase)):
        make()


def test_every_mistake_is_in_a_table_of_the_page():
    nb = nbformat.read(CHAPTER, as_version=4)
    tables = "".join(
        output.get("data", {}).get("text/html", "")
        for cell in nb.cells
        for output in cell.get("outputs", [])
    )
    assert len(ROWS) == 15
    for words, *_ in ROWS:
        assert html.escape(words).split("`")[0] in tables


def test_silences():
    """Each is a mistake that raises nothing. If one begins to, the chapter changes."""
    square = torch.randn(2, 8, 8)
    assert (square @ square).shape == (2, 8, 8)
    assert bool((~torch.tensor([1, 0])).bool().all())
    assert (torch.zeros(3) + torch.tensor([True, False, True])).tolist() == [1, 0, 1]
    key = torch.eye(5)[None]
    seen = F.scaled_dot_product_attention(key[:, :1], key, key, is_causal=True)
    assert seen[0, 0].tolist() == [1, 0, 0, 0, 0]
    items = torch.randn(2, 5, 8)
    assert nn.MultiheadAttention(8, 2)(items, items, items)[0].shape == items.shape
    half = torch.randn(1, 1, 5, 8).half()
    assert F.scaled_dot_product_attention(
        half, half, half, torch.zeros(5, 5)
    ).dtype == (torch.float16)
