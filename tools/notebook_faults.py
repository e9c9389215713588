"""What is wrong with a stored notebook, said in words, without running it."""

from __future__ import annotations

import copy
import html
import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode
from notebook_form import CELL_ID, INSTALL, KINDS, code_cells, normalise, tags

COLUMNS = 86
NOT_COMPARED = {"nbval-ignore-output", "nbval-skip"}
EXERCISE = ("exercise", "stub", "check", "solution")
KNOWN_TAGS = {
    *EXERCISE,
    *KINDS,
    *NOT_COMPARED,
    *("install", "raises-exception"),
    *(f"{act}-{part}" for act in ("hide", "remove") for part in ("cell", "input")),
    *("hide-output", "remove-output", "full-width", "margin", "popout"),
}
CLAIM_TAG = re.compile(r"claim-C\d\d")

TIMING = re.compile(
    r"\d ?(?:ns|[µμu]s|ms|secs?|seconds?|minutes?|hours?)\b"
    r"|\d\.\d+ ?s\b|\d s\b"  # but not the ones of "0s and 1s"
    r"|\d ?[A-Za-z]+/s\b|\bs/it\b"
    r"|\bCPU times\b|\bWall time\b"
)
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
MACHINE_PATH = re.compile(
    r"(?<![\w/.])/(?:home|Users|root|tmp|private|var|opt|usr|mnt|content)/[\w.]"
    r"|(?<![\w/])~/\w|\b[A-Za-z]:\\\w|site-packages|ipykernel_\d"
)
NBVAL_COMMENT = re.compile(
    r"^\s*#+\s*(?:NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)\s*$", re.MULTILINE
)

NOTEBOOK = 0
Fault = tuple[int, str]  # number of the cell, from 1, or NOTEBOOK; what is wrong


def faults(nb: NotebookNode, repository: str, chapter: int | None = None) -> list[str]:
    """Every fault of a notebook in words, those of the first cells first."""
    found = [
        *_stale(nb, repository),
        *_install_cell(nb, repository),
        *_execution_counts(nb),
        *_exercises(nb, chapter),
        *_comparison(nb),
    ]
    for number, cell in enumerate(nb.cells, 1):
        found += [(number, text) for text in _cell_faults(cell)]
    return _grouped(found)


def _grouped(found: list[Fault]) -> list[str]:
    """One sentence for each kind of fault, with the cells that have it."""
    cells: dict[str, list[int]] = {}
    for cell, text in sorted(found, key=lambda fault: fault[0]):
        cells.setdefault(text, []).append(cell)
    sentences = []
    for text, numbers in cells.items():
        where = ", ".join(str(number) for number in numbers if number != NOTEBOOK)
        plural = "s" if len(numbers) > 1 else ""
        sentences.append(f"cell{plural} {where}: {text}" if where else text)
    return sentences


def compared(cell: NotebookNode) -> bool:
    """Whether the stored output of a cell is compared with a fresh one."""
    return not NOT_COMPARED & set(tags(cell))


def _stale(nb: NotebookNode, repository: str) -> Iterator[Fault]:
    """What `clean` would change."""
    normal = copy.deepcopy(nb)
    normalise(normal, repository)
    if (nb.nbformat, nb.nbformat_minor) != (4, 5):
        yield NOTEBOOK, f"has format {nb.nbformat}.{nb.nbformat_minor}, expected 4.5"
    if nb.metadata != normal.metadata:
        yield NOTEBOOK, "has stale metadata of the notebook"
    if len(normal.cells) > len(nb.cells):  # `clean` would add the install cell
        normal.cells.remove(code_cells(normal)[0])
    for number, (cell, clean) in enumerate(zip(nb.cells, normal.cells, strict=True), 1):
        if not CELL_ID.fullmatch(cell.get("id", "")):
            yield number, "id is not of the form cell-N"
        elif cell.id != clean.id:
            yield number, "id is that of an earlier cell"
        if cell.metadata != clean.metadata:
            keys = sorted({*cell.metadata} ^ {*clean.metadata}) or ["tags"]
            yield number, f"stale metadata: {', '.join(keys)}"
        if cell.get("outputs") != clean.get("outputs"):
            yield number, "outputs are not as `clean` stores them"


def _install_cell(nb: NotebookNode, repository: str) -> Iterator[Fault]:
    code = code_cells(nb)
    if code and code[0].source != INSTALL.format(repository=repository):
        yield nb.cells.index(code[0]) + 1, "is not the cell that installs the package"


def _execution_counts(nb: NotebookNode) -> Iterator[Fault]:
    expected = 0
    for number, cell in enumerate(nb.cells, 1):
        if cell.cell_type != "code":
            continue
        expected += 1
        count = cell.get("execution_count")
        if not cell.source.strip():
            yield number, "code cell is empty"
        elif count is None:
            yield number, "no execution count: run the notebook"
        elif count != expected:
            yield number, f"execution count {count}, expected {expected}"


def _exercises(nb: NotebookNode, chapter: int | None) -> Iterator[Fault]:
    """Exercise, stub, check, solution: in this order, each in its form."""
    done = 0  # steps met so far, over all exercises
    number = 0
    for number, cell in enumerate(nb.cells, 1):
        step = next((tag for tag in EXERCISE if tag in tags(cell)), None)
        if step is None:
            continue
        expected = EXERCISE[done % len(EXERCISE)]
        if step != expected:
            yield number, f"tagged {step} where the {expected} of an exercise belongs"
            return
        done += 1
        if (cell.cell_type == "markdown") != (step == "exercise"):
            yield number, f"a {cell.cell_type} cell cannot be tagged {step}"
        if step == "solution":
            yield from _solution(number, cell, chapter, done // len(EXERCISE))
    if done % len(EXERCISE):
        expected = EXERCISE[done % len(EXERCISE)]
        yield number, f"the last exercise has no {expected}"


def _solution(
    number: int, cell: NotebookNode, chapter: int | None, exercise: int
) -> Iterator[Fault]:
    lines = [line.strip() for line in cell.source.splitlines()] or [""]
    title = re.fullmatch(r"#@title Solution (\d+)\.(\d+)", lines[0])
    wanted = f"{'N' if chapter is None else chapter}.{exercise}"
    if (
        title is None
        or int(title[2]) != exercise
        or chapter not in (None, int(title[1]))
    ):
        yield number, f"the first line is not `#@title Solution {wanted}`"
    marks = [line for line in lines if line in ("# BEGIN SOLUTION", "# END SOLUTION")]
    if marks != ["# BEGIN SOLUTION", "# END SOLUTION"]:
        yield number, "solution is not between `# BEGIN SOLUTION`, `# END SOLUTION`"
    if "hide-cell" not in tags(cell):
        yield number, "solution is not tagged hide-cell"


def _comparison(nb: NotebookNode) -> Iterator[Fault]:
    code = code_cells(nb)
    ignored = sum(not compared(cell) for cell in code)
    if 5 * ignored > len(code):
        yield (
            NOTEBOOK,
            f"{ignored} of {len(code)} code cells are not compared: at most a fifth",
        )


def _cell_faults(cell: NotebookNode) -> Iterator[str]:
    for tag in tags(cell):
        if tag not in KNOWN_TAGS and not CLAIM_TAG.fullmatch(tag):
            yield f"unknown tag {tag!r}"
        if tag in KINDS and "exercise" not in tags(cell):
            yield f"tagged {tag}, which is a kind of exercise, but not exercise"
    if cell.cell_type != "code":
        return
    if "install" not in tags(cell):
        for line, text in enumerate(cell.source.splitlines(), 1):
            if len(text) > COLUMNS:
                yield f"line {line} has {len(text)} columns, at most {COLUMNS}"
    if NBVAL_COMMENT.search(cell.source):
        yield "a comment steers nbval: use a tag"
    if not compared(cell) and "# not compared: " not in cell.source:
        yield "not compared, without a comment `# not compared: ` that says why"
    for output in cell.get("outputs", []):
        yield from _output_faults(cell, output)


def _output_faults(cell: NotebookNode, output: NotebookNode) -> Iterator[str]:
    if output.output_type == "error" and "raises-exception" not in tags(cell):
        yield f"stores an error: {output.ename}: {output.evalue}"
    text = _visible_text(output)
    paths = [str(Path.home()), str(Path(__file__).parent.parent)]
    if found := MACHINE_PATH.search(text):
        yield f"output holds a path of one machine: {_around(text, found)}"
    elif any(path in text for path in paths if len(path) > 1):
        yield "output holds a path of this machine"
    if compared(cell):
        if found := TIMING.search(text):
            yield f"compared output holds a timing: {_around(text, found)}"
        if found := ADDRESS.search(text):
            yield f"compared output holds a memory address: {_around(text, found)}"
        if output.get("name") == "stderr":
            yield "writes to stderr: a warning or a progress bar"
    data = output.get("data", {})
    if any("widget" in kind for kind in data):
        yield "output is a widget, which a stored page cannot show"
    yield from _figure_faults(cell, data)


def _figure_faults(cell: NotebookNode, data: NotebookNode) -> Iterator[str]:
    mystnb = cell.metadata.get("mystnb", {})
    caption = mystnb.get("figure", {}).get("caption", "").strip()
    page = data.get("text/html", "")
    images = re.findall(r"<img\b[^>]*>", page)
    if any(kind.startswith("image/") for kind in data):
        alts = [mystnb.get("image", {}).get("alt", "")]
    elif images:
        found = (re.search(r"""\balt=(["'])(.*?)\1""", image) for image in images)
        alts = [match[2] if match else "" for match in found]
        captions = re.findall(r"(?s)<figcaption\b[^>]*>(.*?)</figcaption>", page)
        if len(captions) == len(images) and all(text.strip() for text in captions):
            caption = "each frame has its own"
    else:
        return
    if not all(alt.strip() for alt in alts):
        yield "figure without alt text"
    if not caption:
        yield "figure without a caption"


def _visible_text(output: NotebookNode) -> str:
    """What a reader sees of an output as text."""
    data = output.get("data", {})
    page = re.sub(
        r"(?s)<(style|script)\b.*?</\1>|<[^>]*>", " ", data.get("text/html", "")
    )
    parts = [output.get("text", ""), output.get("evalue", "")]
    parts += [data.get("text/plain", ""), data.get("text/markdown", "")]
    return "\n".join([*parts, html.unescape(page)])


def _around(text: str, found: re.Match[str]) -> str:
    """The words around a match, on one line."""
    start, end = max(found.start() - 20, 0), found.end() + 20
    return repr(" ".join(text[start:end].split()))
