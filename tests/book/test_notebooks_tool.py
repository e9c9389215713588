"""The commands of tools/notebooks.py, and how strict the comparison is."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_notebook
from notebook_form import INSTALL, _number_clips, code_cells
from notebooks import ROOT, main
from sample_notebook import REPOSITORY, chapter, code, display, stream


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one chapter that was never run and left by an editor."""
    (tmp_path / "book").mkdir()
    pyproject = f'[project.urls]\nRepository = "{REPOSITORY}"\n'
    (tmp_path / "pyproject.toml").write_text(pyproject)
    (tmp_path / "README.md").write_text(f"pip install git+{REPOSITORY}\n")
    nb = chapter()
    nb.metadata["colab"] = {"name": "trial"}
    for cell in code_cells(nb):
        cell.execution_count, cell.outputs = None, []
        cell.metadata["collapsed"] = False
    nb.cells[3].source = "'a result'"
    nb.cells[4].source = (
        "import sys\n\nfrom tqdm import tqdm\n\n"
        "for text in tqdm(['one', 'two']):\n    print(text)"
    )
    nb.cells[
        5
    ].source = "import os, time\n\nstart = time.perf_counter()\nos.getcwd()[-4:]"
    store(tmp_path / "book" / "02-doubling.ipynb", nb)
    return tmp_path


@pytest.fixture
def foreign_kernel(tmp_path: Path, monkeypatch) -> None:
    """A kernel that somebody registered under the name the notebooks use."""
    spec = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["no-such-python"], "display_name": "Other"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))


def store(path: Path, nb: NotebookNode) -> None:
    path.write_text(nbformat.v4.writes_json(nb), encoding="utf-8")


def only(root: Path) -> Path:
    return root / "book" / "02-doubling.ipynb"


def command(root: Path, *arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments], root=root)


def outputs(nb: NotebookNode, number: int) -> list[dict]:
    return nb.cells[number - 1].outputs


def test_run_stores_the_same_bytes_again(root, capsys, foreign_kernel):
    # Without the cell whose output is not compared, every byte is the same.
    nb = nbformat.v4.reads_json(only(root).read_text())
    del nb.cells[6]
    store(only(root), nb)

    assert command(root, "run") == 0
    assert " s, stored" in capsys.readouterr().out
    first = only(root).read_bytes()
    nb = nbformat.v4.reads_json(first.decode())
    assert nb.metadata.keys() == {"kernelspec", "language_info"}
    assert [c.execution_count for c in code_cells(nb)] == list(range(1, 9))
    assert outputs(nb, 3) == [stream("0s and 1s\n")]
    assert outputs(nb, 4)[0].data == {"text/plain": "'a result'"}
    assert outputs(nb, 4)[0].execution_count == 3
    assert outputs(nb, 5) == [stream("one\ntwo\n")], "a bar must not be stored"
    assert outputs(nb, 6)[0].data["text/plain"] == "'book'", "runs in its folder"
    assert all("collapsed" not in cell.metadata for cell in nb.cells)

    assert command(root, "check") == 0
    assert command(root, "run") == 0
    assert " s, unchanged" in capsys.readouterr().out
    assert only(root).read_bytes() == first
    assert [path.name for path in only(root).parent.iterdir()] == [only(root).name]


def test_failing_cell_stops_and_leaves_the_file(root, capsys):
    nb = nbformat.v4.reads_json(only(root).read_text())
    nb.cells[2].source = "# a comment\nx = 0\nassert x == 1"
    store(only(root), nb)
    before = only(root).read_bytes()
    assert command(root, "run") == 1
    said = capsys.readouterr().err
    assert "02-doubling.ipynb: cell 3, `# a comment`, failed" in said
    assert "AssertionError: \n  in `assert x == 1`" in said
    assert only(root).read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="sends a Unix signal")
def test_interrupted_run_leaves_the_file(tmp_path):
    path, running = tmp_path / "slow.ipynb", tmp_path / "running"
    wait = f"import time\n\nopen({str(running)!r}, 'w').close()\ntime.sleep(60)"
    store(path, new_notebook(cells=[code(wait)]))
    before = path.read_bytes()
    command = [sys.executable, ROOT / "tools" / "notebooks.py", "run", path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not running.exists():
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert "stopped: the notebook in work is as it was" in said
    assert path.read_bytes() == before


def test_run_says_when_the_box_is_wrong(root, capsys):
    install = INSTALL.format(repository=REPOSITORY)
    nb = chapter()
    nb.cells = [nb.cells[0], code(install, "hide-cell", "install")]
    nb.cells[0].source = "**Run**: about 90 s on two cores"
    store(only(root), nb)
    assert command(root, "run") == 0
    assert "the box at its head says 90 s" in capsys.readouterr().out


def test_clean_keeps_outputs_and_is_idempotent(root):
    nb = chapter()
    nb.metadata["colab"] = {}
    nb.cells[2].outputs = [stream("0s "), stream("and 1s\n")]
    nb.cells[2].id = "a87e7b71"
    nb.cells[2].metadata["executionInfo"] = {"elapsed": 3}
    store(only(root), nb)
    assert command(root, "check") == 1
    assert command(root, "clean") == 0
    cleaned = only(root).read_bytes()
    nb = nbformat.v4.reads_json(cleaned.decode())
    assert outputs(nb, 3) == [stream("0s and 1s\n")]
    assert nb.cells[2].execution_count == 2
    assert command(root, "check") == 0
    assert command(root, "clean") == 0
    assert only(root).read_bytes() == cleaned


def test_new_cell_leaves_the_ids_of_others(root):
    nb = chapter()
    before = [cell.id for cell in nb.cells]
    nb.cells.insert(3, code("x = 1"))
    store(only(root), nb)
    assert command(root, "clean") == 0
    after = [cell.id for cell in nbformat.v4.reads_json(only(root).read_text()).cells]
    assert after == [*before[:3], "cell-12", *before[3:]]


def test_clean_adds_the_install_cell_and_ids(root):
    nb = chapter()
    del nb.cells[1]
    for cell in nb.cells:
        del cell["id"]
    nb.nbformat_minor = 4
    store(only(root), nb)
    assert command(root, "clean") == 0
    nb = nbformat.v4.reads_json(only(root).read_text())
    assert nb.cells[1].source == INSTALL.format(repository=REPOSITORY)
    assert nb.cells[1].metadata.tags == ["hide-cell", "install"]
    assert [cell.id for cell in nb.cells] == [f"cell-{n}" for n in range(1, 12)]


BARE_CELL = (
    '{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"source": ""}]}'
)
BROKEN = {
    "cut off": ('{"cells": [', "is not JSON"),
    "binary": ("\xff", "is not JSON"),
    "list": ("[]", "is JSON but not a notebook"),
    "old": ('{"nbformat": 3}', "has notebook format 3, expected 4"),
    "empty": ('{"nbformat": 4, "cells": []}', "has no cells"),
    "bare cell": (BARE_CELL, "is not a valid notebook: cells/0"),
}


@pytest.mark.parametrize("text, reason", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("name", ["run", "check", "clean", "address"])
def test_what_is_no_notebook_is_named(root, capsys, name, text, reason):
    broken = root / "book" / "03-broken.ipynb"
    broken.write_bytes(text.encode("latin-1"))
    # The good chapter comes first: it is not touched either.
    files = [only(root), broken, root / "pyproject.toml", root / "README.md"]
    before = [file.read_bytes() for file in files]
    arguments = [f"{REPOSITORY}2"] if name == "address" else files[:2]
    assert command(root, name, *arguments) == 1
    said = capsys.readouterr()
    assert f"03-broken.ipynb: {reason}" in said.out + said.err
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize("name", ["run", "check", "clean"])
def test_missing_file_is_named(root, capsys, name):
    assert command(root, name, root / "04.ipynb") == 1
    said = capsys.readouterr()
    assert "04.ipynb: No such file or directory" in said.out + said.err


def test_no_notebooks_is_said(root, capsys):
    only(root).unlink()
    assert command(root, "check") == 1
    assert "no notebooks in" in capsys.readouterr().err


def test_clean_completes_an_install_cell_begun_by_hand(root):
    nb = chapter()
    nb.cells[1] = code("try:\n    import attention_lib\nexcept ImportError:\n    pass")
    store(only(root), nb)
    assert command(root, "clean") == 0
    cells = nbformat.v4.reads_json(only(root).read_text()).cells
    assert len(cells) == len(nb.cells)
    assert cells[1].source == INSTALL.format(repository=REPOSITORY)


@pytest.mark.parametrize(
    "given, address",
    [
        ("https://github.com/ada/book", "https://github.com/ada/book"),
        ("https://github.com/ada/book.git", "https://github.com/ada/book"),
        ("git@github.com:ada/book.git", "https://github.com/ada/book"),
        ("https://ada:secret@github.com/ada/book", "https://github.com/ada/book"),
    ],
)
def test_address_is_written_everywhere(root, given, address):
    (root / "book" / "index.md").write_text(f"[source]({REPOSITORY})\n")
    assert command(root, "address", given) == 0
    assert f'Repository = "{address}"\n' in (root / "pyproject.toml").read_text()
    assert (root / "README.md").read_text() == f"pip install git+{address}\n"
    assert (root / "book" / "index.md").read_text() == f"[source]({address})\n"
    nb = nbformat.v4.reads_json(only(root).read_text())
    assert code_cells(nb)[0].source == INSTALL.format(repository=address)


def test_address_comes_from_the_remote(root, capsys):
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)

    git("init")
    assert command(root, "address") == 1
    assert "no remote named origin: give the address" in capsys.readouterr().err
    git("remote", "add", "origin", "git@github.com:ada/fork.git")
    assert command(root, "address") == 0
    assert "https://github.com/ada/fork" in (root / "pyproject.toml").read_text()


def test_address_nobody_can_reach_is_refused(root, capsys):
    before = (root / "pyproject.toml").read_text()
    assert command(root, "address", "/srv/git/book") == 1
    assert "/srv/git/book: nobody else can install" in capsys.readouterr().err
    assert (root / "pyproject.toml").read_text() == before


def test_comparison_is_strict(tmp_path: Path, foreign_kernel) -> None:
    """What a reader would see change fails the tests; the bytes of drawings do not."""
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><g id="{}"/></svg>'
    img = '<img src="data:image/svg+xml,{}" alt="{}">'
    draw = (
        "from IPython.display import HTML, SVG, display\n\n"
        f"display(SVG('{svg.format(1)}'))\ndisplay(HTML('{img.format(1, 'a dot')}'))"
    )
    drawn = [
        display(svg=svg.format(2), text="<IPython.core.display.SVG object>"),
        display(html=img.format(2, "a dot"), text="<IPython.core.display.HTML object>"),
    ]
    other = display(html=img.format(1, "two"), text=drawn[1].data["text/plain"])
    stored = {
        "same": ("print('one')", [stream("one\n")]),
        "bar": ("from tqdm import tqdm\n\n_ = list(tqdm([1]))", []),
        "drawing": (draw, drawn),
        "other_word": ("print('one')", [stream("two\n")]),
        "line_more": ("print('one')\nprint('two')", [stream("one\n")]),
        "line_less": ("print('one')", [stream("one\ntwo\n")]),
        "none_stored": ("print('one')", []),
        "raises": ("print('one')\n1 / 0", [stream("one\n")]),
        "warns": ("import sys\n\n_ = sys.stderr.write('x')", []),
        "drawing_gone": (draw, drawn[1:]),
        "other_alt": (draw, [drawn[0], other]),
    }
    cells = [code(source, outputs=found) for source, found in stored.values()]
    for cell in cells:
        cell.execution_count = 1
    store(tmp_path / "trial.ipynb", new_notebook(cells=cells))

    # Each cell is a test; they run from another folder, with a backend that would
    # draw nothing.
    command = [sys.executable, "-m", "pytest", "trial.ipynb", "-rA", "-q", "-n", "0"]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, "-p", "conftest"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
    )
    passed = re.findall(r"^PASSED trial.ipynb::Cell (\d+)", done.stdout, re.MULTILINE)
    names = list(stored)
    assert {names[int(number)] for number in passed} == {"same", "bar", "drawing"}
    assert f"{len(stored) - 3} failed, 3 passed" in done.stdout, done.stdout


def test_clip_paths_are_counted_so_that_hashes_of_sizes_do_not_matter():
    def drawing(first, second):
        return (
            f'<g clip-path="url(#{second})"/><clipPath id="{first}"><rect/></clipPath>'
            f'<clipPath id="{second}"><rect/></clipPath>'
        )

    once = _number_clips(drawing("p0123456789", "pabcdef0123"))
    assert once == _number_clips(drawing("p9876543210", "p00000fffff"))
    assert once == drawing("clip1", "clip2") == _number_clips(once)
