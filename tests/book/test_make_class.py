"""One command makes what a class needs, or says in words why not and writes nothing."""

import json
import zipfile

import make_class
import pytest
from answers import chapter06
from assignment_source import chapters
from exercises import preamble
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_files import layout, read
from notebooks import ROOT, repository
from sample_assignment import REPOSITORY, book, chapter, four


@pytest.fixture
def root(tmp_path):
    return book(tmp_path)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def made(out):
    files = (p.relative_to(out) for p in out.rglob("*") if p.is_file())
    return {path.as_posix() for path in files}


def run(root, out, *words):
    return make_class.main([*words, "--output", str(out)], root)


def notebook_in(path):
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".ipynb"))
        return archive.read(name).decode()


@pytest.mark.parametrize("word", ["2", "02", "02-doubling", "all"])
def test_a_chapter_is_named_by_number_slug_or_all(root, out, word, capsys):
    assert run(root, out, word) == 0
    assert made(out) >= {
        "student/02-doubling.zip",
        "key/02-doubling.ipynb",
        "nbgrader/nbgrader_config.py",
        "nbgrader/source/02-doubling/02-doubling.ipynb",
        "otter/02-doubling.ipynb",
        "grader/rubrics/02.json",
        "grader/grade_all.py",
    }
    said = capsys.readouterr().out
    assert "02-doubling                 2 exercises, 3 points" in said
    assert "nbgrader generate_assignment --create 02-doubling" in said


def test_a_path_is_a_chapter_and_each_is_made_once(root, out):
    path = root / "book" / "02-doubling.ipynb"
    assert run(root, out, str(path), "2") == 0


def test_the_zip_holds_the_notebook_and_a_page_and_the_same_bytes_each_time(root, out):
    assert run(root, out, "2") == 0
    path = out / "student" / "02-doubling.zip"
    first = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        names = ["02-doubling/README.md", "02-doubling/02-doubling.ipynb"]
        assert archive.namelist() == names
        page = archive.read(names[0]).decode()
    assert "| 2.2 Write twofold | 2 | 5 |" in page and REPOSITORY in page
    assert notebook_in(path).index("%pip install") < notebook_in(path).index("def of")
    assert run(root, out, "2") == 0
    assert path.read_bytes() == first


def test_the_key_says_what_wrong_answers_hear(tmp_path):
    assert run(ROOT, tmp_path, "6") == 0
    nb = read(tmp_path / "key" / "06-masking.ipynb")
    text = "\n".join(cell.source for cell in nb.cells)
    assert "## Exercise 6.1: " in text and "#@title Solution 6.1" in text
    assert "{exercise}" not in text
    for _, _, cause in chapter06.WRONG:
        assert cause in text


@pytest.mark.parametrize(
    "one", chapters(["all"], ROOT / "book", repository(ROOT)), ids=lambda c: c.slug
)
def test_no_check_raises_on_an_empty_stub(one):
    given = {}
    exec(preamble(one.nb), given)  # noqa: S102 - the chapters' own code
    for exercise in one.exercises:
        if exercise.number != "3.5":  # trains for seconds
            names = dict(given)
            exec(exercise.stub, names)  # noqa: S102
            exec(exercise.check, names)  # noqa: S102


def variants(path, *cells):
    path.write_text(layout(new_notebook(cells=list(cells))))
    return str(path)


def test_variants_replace_by_number_and_are_put_after_the_last(root, out, tmp_path):
    own = variants(
        tmp_path / "own.ipynb",
        new_markdown_cell("# For me alone"),
        new_code_cell("def mine(x):\n    return x"),
        *four("2.1", "replaced", "return mine(2 * x)", stars=3),
        *four("2.7", "added", "return mine(x * 2)"),
    )
    assert run(root, out, "2", "--variants", own) == 0
    nb = read(out / "nbgrader" / "source" / "02-doubling" / "02-doubling.ipynb")
    ids = [c.metadata.nbgrader.grade_id for c in nb.cells if "nbgrader" in c.metadata]
    graded = [i for i in ids if i.startswith("check")]
    assert graded == ["check-2-1", "check-2-2", "check-2-7"]
    rubric = json.loads((out / "grader" / "rubrics" / "02.json").read_text())
    assert [task["points"] for task in rubric["tasks"]] == [3, 2, 1]
    text = notebook_in(out / "student" / "02-doubling.zip")
    assert "def replaced" in text and "def double" not in text
    assert text.index("def mine") < text.index("def replaced") < text.index("def added")
    assert "For me alone" not in text and "mine(2 * x)" not in text


def spoiled(nb, change):
    change(nb)
    return nb


def drop_title(nb):
    nb.cells[0].source = "# Doubling"


def drop_star(nb):
    nb.cells[3].source = nb.cells[3].source.replace("★", "")


def drop_marks(nb):
    nb.cells[6].source = nb.cells[6].source.replace("# BEGIN SOLUTION", "")


def leave_it_in_metadata(nb):
    nb.cells[0].metadata["mystnb"] = {"note": "twice_of_it = x + x"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda nb: nb.cells.pop(4), "cell 4 opens an exercise, expected the cells"),
        (lambda nb: nb.cells.extend(nb.cells[3:7]), "exercise 2.1 is there twice"),
        (lambda nb: nb.update(cells=nb.cells[:3]), "holds no exercise"),
        (lambda nb: nb.cells[4].update(source="double = ..."), "defines no function"),
        (lambda nb: nb.cells[4].update(source="def"), "a stub that is not Python"),
        (lambda nb: nb.cells[5].update(source="x = 1"), "does not end with a call"),
        (drop_title, "no title of the form `# N. Title` in the first cell"),
        (drop_star, "exercise 2.1: no stars, and they are its points"),
        (drop_marks, "no lines `# BEGIN SOLUTION` and `# END SOLUTION`"),
        (leave_it_in_metadata, "cell 1, metadata, mystnb, note: solution 2.1: twice"),
    ],
)
def test_a_chapter_out_of_form_or_that_leaks_writes_nothing(
    tmp_path, out, change, said, capsys
):
    root = book(tmp_path, spoiled(chapter(), change))
    assert run(root, out, "2") == 2
    assert said in capsys.readouterr().err
    assert not out.exists() or not any(out.iterdir())


def test_outputs_of_solutions_do_not_reach_students(tmp_path, out):
    later = new_code_cell(
        "double(4)", outputs=[new_output("stream", text="It is 8.\n")]
    )
    root = book(tmp_path, chapter(later))
    assert run(root, out, "2") == 0
    text = notebook_in(out / "student" / "02-doubling.zip")
    assert "nobody saw it" not in text and "It is 8." not in text


@pytest.mark.parametrize("word", ["9", "03-scaling", "double"])
def test_a_chapter_that_is_not_there_is_refused_with_those_that_are(
    root, out, word, capsys
):
    assert run(root, out, word) == 2
    said = capsys.readouterr().err
    assert f"there is no chapter '{word}'; there are\n  02-doubling" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("{", "is not JSON"), ("{}", "not a notebook")],
)
def test_a_path_that_is_no_notebook_is_refused(root, out, tmp_path, text, said, capsys):
    path = tmp_path / "own.ipynb"
    if text:
        path.write_text(text)
    assert run(root, out, str(path)) == 2
    assert run(root, out, "2", "--variants", str(path)) == 2
    assert capsys.readouterr().err.count(said) == 2


def test_variants_of_another_chapter_or_of_several_are_refused(
    root, out, tmp_path, capsys
):
    other = variants(tmp_path / "a.ipynb", *four("3.1", "own", "return x"))
    assert run(root, out, "2", "--variants", other) == 2
    assert "exercises of chapter 3, assigned: 02-doubling" in capsys.readouterr().err
    both = variants(
        tmp_path / "b.ipynb",
        *four("2.1", "own", "return x"),
        *four("3.1", "other", "return x"),
    )
    assert run(root, out, "2", "--variants", both) == 2
    assert "exercises of chapters 2, 3, expected one" in capsys.readouterr().err


def test_a_seed_reaches_every_grader_and_seed_1_is_said_to_be_known(root, out, capsys):
    assert run(root, out, "2") == 0
    assert "Everybody knows seed 1" in capsys.readouterr().out
    assert run(root, out, "2", "--seed", "4711") == 0
    said = capsys.readouterr().out
    assert "--chapter 2 --seed 4711" in said and "Everybody" not in said
    assert "SEED=4711 " in (out / "grader" / "run_autograder").read_text()
    assert (out / "grader" / "README.md").read_text().count("--seed 4711") == 2
    for place in ("nbgrader/source/02-doubling/02-doubling", "otter/02-doubling"):
        assert "seeded(4711)" in (out / f"{place}.ipynb").read_text()


def test_the_seed_of_the_chapters_is_refused(root, out, capsys):
    assert run(root, out, "2", "--seed", "0") == 2
    assert "--seed 0: expected 1 or more" in capsys.readouterr().err


def test_an_output_folder_that_is_a_file_is_refused(root, out, capsys):
    out.write_text("mine")
    assert run(root, out, "2") == 2
    assert f"{out}: is a file, expected a folder" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_a_disk_that_refuses_is_said_in_words(root, out, capsys, monkeypatch):
    def full(place, data):
        raise OSError(28, "No space left on device", str(place))

    monkeypatch.setattr(make_class, "_write", full)
    assert run(root, out, "2") == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not any(out.iterdir())


def test_a_folder_in_the_way_stops_before_anything_is_replaced(root, out, capsys):
    (out / "student" / "02-doubling.zip").mkdir(parents=True)
    assert run(root, out, "2") == 2
    assert "is a folder, expected a file" in capsys.readouterr().err
    assert made(out) == set()


def test_other_files_and_a_changed_config_stay(root, out):
    assert run(root, out, "2") == 0
    (out / "nbgrader" / "gradebook.db").write_text("grades")
    (out / "nbgrader" / "nbgrader_config.py").write_text("mine")
    (out / "key" / "02-doubling.ipynb").unlink()
    assert run(root, out, "2") == 0
    assert (out / "nbgrader" / "gradebook.db").read_text() == "grades"
    assert (out / "nbgrader" / "nbgrader_config.py").read_text() == "mine"
    assert (out / "key" / "02-doubling.ipynb").exists()
