"""A small book whose ledger is in order, for tests to build and to spoil.

Two claims are measured in one chapter; the chapter of a third does not exist.
"""

from claims import Claim
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from sample_notebook import stream


def sample_claims() -> list[Claim]:
    """The entries of ``claims.yml``."""
    return [
        Claim("C01", "Rows sum to one.", "01-rows", "holds"),
        Claim("C02", "Columns do, too.", "01-rows", "does not hold"),
        Claim("C03", "So do diagonals.", "02-diagonals"),
    ]


def sample_chapters() -> dict[str, NotebookNode]:
    """The chapters, by their file names."""
    cells = [
        new_markdown_cell("# 1. Rows"),
        *claim_cells("C01", "C01 holds: each of 12 rows sums to 1 ± 1e-6"),
        *claim_cells("C02", "C02 does not hold: sums run from 0.4 to 2.1: no pattern"),
    ]
    language = {"name": "python", "pygments_lexer": "ipython3"}
    return {"01-rows": new_notebook(cells=cells, metadata={"language_info": language})}


def claim_cells(id: str, line: str) -> list[NotebookNode]:
    """The text and the code that measure a claim."""
    label = new_markdown_cell(f"Is it so?\n\n(claim-{id.lower()})=")
    cell = new_code_cell(
        f"error = 0.25\nassert error < 1\nprint({line!r})",
        execution_count=1,
        outputs=[stream(f"a figure was drawn\n{line}\n")],
        metadata={"tags": [f"claim-{id}", "hide-input"]},
    )
    return [label, cell]
