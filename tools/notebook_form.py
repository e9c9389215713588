"""The form in which a chapter is stored: what stays the same when nothing changed.

A notebook that is run twice on one machine is stored with the same bytes. So the
file holds the text, the code, what the code gave, and nothing about who ran it where.
"""

from __future__ import annotations

import re

from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_code_cell

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
CELL_METADATA = {"tags", "mystnb"}
# A solution is folded away in Colab and in JupyterLab, as `hide-cell` does in the book.
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}}

KINDS = ("planted-fault", "predict", "open")  # of an exercise, beside its first tag

CELL_ID = re.compile(r"cell-([1-9]\d*)")
CLIP_ID = re.compile(r'<clipPath id="(p[0-9a-f]{10})"')

INSTALL_TAGS = ["hide-cell", "install"]
INSTALL = """\
try:
    import attention_lib
except ModuleNotFoundError:  # a notebook opened alone, in Colab say
    %pip install -q --no-deps git+{repository}"""


def tags(cell: NotebookNode) -> list[str]:
    """Tags of a cell."""
    return list(cell.metadata.get("tags", []))


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    """Code cells of a notebook, in order."""
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def first_line(cell: NotebookNode) -> str:
    """First line of a cell that says something."""
    lines = (line.strip() for line in cell.source.splitlines())
    return next((line for line in lines if line), "")


def normalise(nb: NotebookNode, repository: str) -> None:
    """Bring a notebook into the stored form, in place.

    Sources, outputs and execution counts stay. The cell that installs the package is
    written from `repository`, and put before the first code cell where there is none.
    """
    nb.nbformat, nb.nbformat_minor = 4, 5
    nb.metadata = from_dict(METADATA)
    _write_install_cell(nb, repository)
    _number_cells(nb.cells)
    for cell in nb.cells:
        cell.metadata = _cell_metadata(cell)
        if cell.cell_type == "code":
            cell.setdefault("execution_count", None)
            cell.outputs = _outputs(cell)


def _write_install_cell(nb: NotebookNode, repository: str) -> None:
    code = code_cells(nb)
    if not code:
        return
    if not code[0].source.startswith(INSTALL.partition("except")[0]):
        nb.cells.insert(nb.cells.index(code[0]), new_code_cell())
        code = code_cells(nb)
    code[0].source = INSTALL.format(repository=repository)
    code[0].metadata["tags"] = list(INSTALL_TAGS)


def _number_cells(cells: list[NotebookNode]) -> None:
    """Give an id of the form cell-N to every cell that has none.

    Ids already given stay, so that a new cell changes no other cell in a diff.
    """
    taken: set[int] = set()
    unnumbered = []
    for cell in cells:
        match = CELL_ID.fullmatch(cell.get("id", ""))
        if match and int(match[1]) not in taken:
            taken.add(int(match[1]))
        else:
            unnumbered.append(cell)
    for number, cell in enumerate(unnumbered, max(taken, default=0) + 1):
        cell["id"] = f"cell-{number}"


def _cell_metadata(cell: NotebookNode) -> NotebookNode:
    kept = {key: cell.metadata[key] for key in CELL_METADATA if cell.metadata.get(key)}
    return from_dict({**kept, **(FOLDED if "solution" in tags(cell) else {})})


def _outputs(cell: NotebookNode) -> list[NotebookNode]:
    outputs: list[NotebookNode] = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            last = outputs[-1] if outputs else {}
            if last.get("name") == output.name:
                last["text"] += output.text
            elif output.text:
                outputs.append(output)
            continue
        if output.output_type == "error":
            # The frames name files of the machine and lines of its libraries.
            output.traceback = [f"{output.ename}: {output.evalue}"]
        else:
            # Sizes of images belong to a media type; the rest is an editor's.
            sizes = {key: val for key, val in output.metadata.items() if "/" in key}
            output.metadata = from_dict(sizes)
            if svg := output.data.get("image/svg+xml"):
                output.data["image/svg+xml"] = _number_clips(svg)
        if output.output_type == "execute_result":
            output.execution_count = cell.execution_count
        outputs.append(output)
    return outputs


def _number_clips(svg: str) -> str:
    """Count a drawing's clip paths: their ids are hashes of unrounded sizes."""
    for number, name in enumerate(CLIP_ID.findall(svg), 1):
        svg = svg.replace(name, f"clip{number}")
    return svg
