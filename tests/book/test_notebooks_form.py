"""Every chapter is stored in form, and every fault of form is found."""

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_output
from notebook_faults import KINDS, faults
from notebooks import ROOT, form_faults, repository
from sample_notebook import REPOSITORY, chapter, display, stream

CHAPTERS = sorted((ROOT / "book").glob("*.ipynb"))


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter_is_in_form(path: Path) -> None:
    found = form_faults(path, repository(ROOT))
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_good_notebook_has_no_fault() -> None:
    assert faults(chapter(), REPOSITORY, chapter=2) == []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_exercise_may_say_its_kind(kind: str) -> None:
    nb = chapter()
    tagged(8, "exercise", kind)(nb)
    assert faults(nb, REPOSITORY, chapter=2) == []


def spoil(**changes):
    """A change to the first plain code cell, the third of the chapter."""

    def change(nb):
        for key, value in changes.items():
            nb.cells[2][key] = value

    return change


def at(number, action):
    """An action on one cell."""
    return lambda nb: action(nb.cells[number - 1])


def prints(text, **more):
    return spoil(outputs=[stream(text, **more)])


def tagged(number, *names):
    return at(number, lambda cell: cell.metadata.update(tags=list(names)))


def new_source(number, old, new):
    def change(cell):
        assert old in cell.source
        cell.source = cell.source.replace(old, new)

    return at(number, change)


def raised(traceback: str = "E: bad"):
    return new_output("error", ename="E", evalue="bad", traceback=[traceback])


SPOILED = {
    "format": (
        lambda nb: nb.update(nbformat_minor=4),
        "has format 4.4, expected 4.5",
    ),
    "kernel of one machine": (
        lambda nb: nb.metadata.kernelspec.update(display_name="dev"),
        "has stale metadata of the notebook",
    ),
    "version of one Python": (
        lambda nb: nb.metadata.language_info.update(version="3.11.7"),
        "has stale metadata of the notebook",
    ),
    "cell metadata": (
        at(3, lambda cell: cell.metadata.update(collapsed=True)),
        "cell 3: stale metadata: collapsed",
    ),
    "solution not folded": (
        at(11, lambda cell: cell.metadata.pop("cellView")),
        "cell 11: stale metadata: cellView",
    ),
    "random id": (
        spoil(id="a87e7b71"),
        "cell 3: id is not of the form cell-N",
    ),
    "id twice": (
        spoil(id="cell-2"),
        "cell 3: id is that of an earlier cell",
    ),
    "split stream": (
        spoil(outputs=[stream("0s "), stream("and 1s\n")]),
        "cell 3: outputs are not as `clean` stores them",
    ),
    "frames of a traceback": (
        lambda nb: (
            tagged(3, "raises-exception")(nb),
            spoil(outputs=[raised("File lib.py, line 7")])(nb),
        ),
        "cell 3: outputs are not as `clean` stores them",
    ),
    "another address": (
        new_source(2, "someone", "stranger"),
        "cell 2: is not the cell that installs the package",
    ),
    "never run": (
        spoil(execution_count=None, outputs=[]),
        "cell 3: no execution count: run the notebook",
    ),
    "run out of order": (
        spoil(execution_count=7),
        "cell 3: execution count 7, expected 2",
    ),
    "empty cell": (spoil(source=" \n", outputs=[]), "cell 3: code cell is empty"),
    "error": (spoil(outputs=[raised()]), "cell 3: stores an error: E: bad"),
    "no alt text": (
        at(4, lambda cell: cell.metadata.mystnb.image.update(alt=" ")),
        "cell 4: figure without alt text",
    ),
    "no caption": (
        at(4, lambda cell: cell.metadata.mystnb.pop("figure")),
        "cell 4: figure without a caption",
    ),
    "step without alt text": (
        at(
            5,
            lambda cell: cell.outputs[0].data.update(
                {"text/html": "<img src='x'><figcaption>1. One</figcaption>"}
            ),
        ),
        "cell 5: figure without alt text",
    ),
    "step without caption": (
        at(
            5,
            lambda cell: cell.outputs[0].data.update(
                {"text/html": "<img alt='a dot'><figcaption> </figcaption>"}
            ),
        ),
        "cell 5: figure without a caption",
    ),
    "widget": (
        spoil(
            outputs=[
                new_output(
                    "display_data", {"application/vnd.jupyter.widget-view+json": {}}
                )
            ]
        ),
        "cell 3: output is a widget, which a stored page cannot show",
    ),
    "progress bar": (
        prints("2\n", name="stderr"),
        "cell 3: writes to stderr: a warning or a progress bar",
    ),
    "address of an object": (
        prints("<function f at 0x7f01ab>\n"),
        "cell 3: compared output holds a memory address: '<function f at 0x7f01ab>'",
    ),
    "no reason": (
        new_source(7, "# not compared: ", "# "),
        "cell 7: not compared, without a comment `# not compared: ` that says why",
    ),
    "skipped without reason": (
        lambda nb: (tagged(7)(nb), prints("1")(nb), tagged(3, "nbval-skip")(nb)),
        "cell 3: not compared, without a comment `# not compared: ` that says why",
    ),
    "nbval comment": (
        spoil(source="print(1)  # fine\n# NBVAL_IGNORE_OUTPUT"),
        "cell 3: a comment steers nbval: use a tag",
    ),
    "too few compared": (
        lambda nb: (
            spoil(source="# not compared: trial")(nb),
            tagged(3, "nbval-skip")(nb),
        ),
        "2 of 9 code cells are not compared: at most a fifth",
    ),
    "wide code": (
        spoil(source="x = 1\n" + "y" * 87),
        "cell 3: line 2 has 87 columns, at most 86",
    ),
    "misspelt tag": (tagged(3, "hide_input"), "cell 3: unknown tag 'hide_input'"),
    "misspelt kind": (
        tagged(8, "exercise", "planted_fault"),
        "cell 8: unknown tag 'planted_fault'",
    ),
    "kind without an exercise": (
        tagged(1, "predict"),
        "cell 1: tagged predict, which is a kind of exercise, but not exercise",
    ),
    "solution before check": (
        lambda nb: nb.cells.insert(9, nb.cells.pop()),
        "cell 10: tagged solution where the check of an exercise belongs",
    ),
    "no solution": (
        lambda nb: nb.cells.pop(),
        "cell 10: the last exercise has no solution",
    ),
    "exercise in code": (
        tagged(3, "exercise"),
        "cell 3: a code cell cannot be tagged exercise",
    ),
    "no mark": (
        new_source(11, "    # END SOLUTION\n", ""),
        "cell 11: solution is not between `# BEGIN SOLUTION`, `# END SOLUTION`",
    ),
    "number of another chapter": (
        new_source(11, "2.1", "3.1"),
        "cell 11: the first line is not `#@title Solution 2.1`",
    ),
    "number of another exercise": (
        new_source(11, "2.1", "2.2"),
        "cell 11: the first line is not `#@title Solution 2.1`",
    ),
    "solution in sight": (
        tagged(11, "solution"),
        "cell 11: solution is not tagged hide-cell",
    ),
}


@pytest.mark.parametrize("change, fault", SPOILED.values(), ids=SPOILED.keys())
def test_fault_is_found(change, fault: str) -> None:
    nb = chapter()
    change(nb)
    assert fault in faults(nb, REPOSITORY, chapter=2)


@pytest.mark.parametrize(
    "text",
    [
        "took 12.3 ms",
        "0.41 s",
        "7 s",
        "3.2s",
        "15 µs",
        "5 seconds",
        "31.5it/s",
        "120 tokens/s",
        "Wall time: 3",
    ],
)
def test_timing_is_found(text: str) -> None:
    nb = chapter()
    prints(text)(nb)
    assert any("holds a timing" in fault for fault in faults(nb, REPOSITORY))


@pytest.mark.parametrize(
    "text", ["0s and 1s", "3 steps", "x / s", "5 small", "S = 4\ns = 2", "min 3 max 5"]
)
def test_plain_number_is_no_timing(text: str) -> None:
    nb = chapter()
    prints(text)(nb)
    assert faults(nb, REPOSITORY) == []


@pytest.mark.parametrize(
    "path",
    [
        "/home/ada/book/x.py",
        "/tmp/ipykernel_12/3.py:1: UserWarning",
        "File ~/book/x.py:3",
        r"C:\Users\ada",
        "lib/python3.11/site-packages/torch",
        str(ROOT / "book"),
    ],
)
def test_path_of_a_machine_is_found(path: str) -> None:
    nb = chapter()
    prints(f"from {path}")(nb)
    assert any("path of" in fault for fault in faults(nb, REPOSITORY))


def test_missing_install_cell_is_found() -> None:
    nb = chapter()
    nb.cells[1] = new_code_cell("x = 1", id="cell-2", execution_count=1)
    assert faults(nb, REPOSITORY) == [
        "cell 2: is not the cell that installs the package"
    ]


def test_cells_with_the_same_fault_come_together() -> None:
    nb = chapter()
    nb.nbformat_minor = 4
    nb.cells[10].outputs = [display(text="1.5 s")]
    for cell in nb.cells[2:4]:
        cell.execution_count = None
    assert faults(nb, REPOSITORY) == [
        "has format 4.4, expected 4.5",
        "cells 3, 4: no execution count: run the notebook",
        "cell 11: compared output holds a timing: '1.5 s'",
    ]
