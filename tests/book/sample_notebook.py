"""A small chapter in good form, for tests to run and to spoil."""

from nbformat import NotebookNode
from nbformat.v4 import (
    new_code_cell,
    new_markdown_cell,
    new_notebook,
    new_output,
)
from notebook_form import INSTALL, normalise

REPOSITORY = "https://example.org/someone/book"
STEPPER = """<style>.stepper { transition: .2s }</style><div class="stepper">
<figure><img src="data:image/svg+xml,M 1.5 s" alt="one dot"><figcaption>1. One</figcaption>
</figure></div>"""


def code(source: str, *tags: str, outputs=(), **metadata) -> NotebookNode:
    """A code cell that was never run, or whose outputs are given."""
    cell = new_code_cell(source, outputs=list(outputs), metadata=metadata)
    if tags:
        cell.metadata["tags"] = list(tags)
    return cell


def stream(text: str, name: str = "stdout") -> NotebookNode:
    """What a cell prints."""
    return new_output("stream", name=name, text=text)


def display(**data: str) -> NotebookNode:
    """A drawing or a page, with the text that stands for it."""
    kinds = {
        "html": "text/html",
        "png": "image/png",
        "svg": "image/svg+xml",
        "text": "text/plain",
    }
    return new_output("display_data", {kinds[key]: val for key, val in data.items()})


def chapter() -> NotebookNode:
    """The chapter, with the outputs that running its cells would give."""
    verdict = "print(double(2) == 4)"
    cells = [
        new_markdown_cell("# 2. Doubling\n\nRun: about 3 s"),
        code(INSTALL.format(repository=REPOSITORY), "hide-cell", "install"),
        code("print('0s and 1s')", outputs=[stream("0s and 1s\n")]),
        code(
            "figure",
            outputs=[display(png="aGVsbG8=", text="<Figure size 640x320>")],
            mystnb={"figure": {"caption": "It rises."}, "image": {"alt": "a line"}},
        ),
        code("stepper", outputs=[display(html=STEPPER, text="Stepper with 1 step")]),
        code("import time\n\nstart = time.perf_counter()"),
        code(
            "# not compared: the time differs everywhere\n"
            "print(f'{time.perf_counter() - start:.3f} s')",
            "nbval-ignore-output",
            outputs=[stream("0.001 s\n")],
        ),
        new_markdown_cell("Build double.", metadata={"tags": ["exercise"]}),
        code("def double(x):\n    ...", "stub"),
        code(verdict, "check", outputs=[stream("False\n")]),
        code(
            "#@title Solution 2.1\ndef double(x):\n    # BEGIN SOLUTION\n"
            f"    return 2 * x\n    # END SOLUTION\n\n\n{verdict}",
            "solution",
            "hide-cell",
            outputs=[stream("True\n")],
        ),
    ]
    nb = new_notebook(cells=cells)
    numbered = (cell for cell in cells if cell.cell_type == "code")
    for count, cell in enumerate(numbered, 1):
        cell.execution_count = count
    normalise(nb, REPOSITORY)
    return nb
