"""A small book of one chapter with two exercises, to assign and to spoil."""

from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_files import layout
from notebook_form import normalise

REPOSITORY = "https://example.org/someone/book"
CHECK = """\
from attention_lib.checks import Result


def of(number, passed):
    return Result(number, passed, "Right." if passed else "Not the double.")


def halve(x):
    # halves are exact
    return x / 2
"""


def four(
    number: str, name: str, body: str, *, stars: int = 1, signature: str = "x"
) -> list[NotebookNode]:
    """The cells of an exercise."""
    head = f'def {name}({signature}):\n    """Of x."""\n'
    check = f"of({number!r}, {name}(4) == halve(16))"
    inside = "\n".join(f"    {line}" for line in body.splitlines())
    sources = {
        "exercise": f"::::{{exercise}} {number} Write {name}\n:label: ex\n:nonumber:\n\n"
        f"{'★' * stars} 5 minutes. See {{eq}}`two`.\n::::",
        "stub": f"{head}    ...",
        "check": check,
        "solution": f"#@title Solution {number}\n# BEGIN SOLUTION\n{head}{inside}\n\n\n"
        f"# END SOLUTION\n{check}",
    }
    cells = []
    for role, source in sources.items():
        new = new_markdown_cell if role == "exercise" else new_code_cell
        cells.append(new(source, metadata={"tags": [role]}))
    cells[3].outputs = [new_output("stream", text="Right, and nobody saw it.\n")]
    return cells


def chapter(*more: NotebookNode) -> NotebookNode:
    """The chapter; `more` stands at its end."""
    cells = [
        new_markdown_cell("# 2. Doubling\n\nTwice as much."),
        new_code_cell(CHECK),
        *four(
            "2.1", "double", "twice_of_it = x + x  # the same twice\nreturn twice_of_it"
        ),
        *four("2.2", "twofold", "shifted_left = x << 1\nreturn shifted_left", stars=2),
        *more,
    ]
    nb = new_notebook(cells=cells)
    normalise(nb, REPOSITORY)
    return nb


def book(folder: Path, nb: NotebookNode | None = None) -> Path:
    """The root of a book that holds the chapter."""
    (folder / "book").mkdir()
    (folder / "pyproject.toml").write_text(
        f'[project.urls]\nRepository = "{REPOSITORY}"\n'
    )
    path = folder / "book" / "02-doubling.ipynb"
    path.write_text(layout(nb or chapter()))
    return folder
