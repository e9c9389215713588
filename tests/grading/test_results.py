"""Tables, files, rubrics and kits; every chapter's solutions get all their points."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from grading import reports
from grading import rubric as rubrics
from grading.rubric import Refused
from handing_in import GRADER, grade, handed_in, rows, text
from rubric import ROOT, chapter_file, make_rubric, write_kit

EVERY_CHAPTER = """
import sys, tempfile
from pathlib import Path
sys.path[:0] = sys.argv[1:]
from grading import pool
from handing_in import handed_in, text
from rubric import ROOT, make_rubric
for chapter in sorted((ROOT / "book").glob("[0-9]*.ipynb")):
    rubric = make_rubric(chapter)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "all.ipynb")
        path.write_text(text(handed_in(rubric.chapter)))
        options = pool.Options(seconds=60, seed=7)
        (graded,) = pool.grade([path], rubric, path, options)
    print(rubric.chapter, graded.status, graded.reason)
    for number, one in graded.outcomes.items():
        print(number, one.status, one.words)
"""


def test_solutions_of_every_chapter_get_all_points():
    done = subprocess.run(
        [sys.executable, "-c", EVERY_CHAPTER, ROOT / "tools", ROOT / "tests/grading"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    status = [line.split()[1] for line in done.stdout.splitlines()]
    chapters = len(list((ROOT / "book").glob("[0-9]*.ipynb")))
    assert status.count("graded") == chapters, done.stdout
    assert set(status) == {"graded", "passed"}, done.stdout


def test_annotations_are_values_as_in_a_notebook(tmp_path):
    typed = (
        "import dataclasses\n@dataclasses.dataclass\nclass Row:\n    size: int\n"
        "def look_up(query, keys, values):\n"
        "    assert dataclasses.fields(Row)[0].type is int\n"
        "    return (keys @ query / len(query) ** 0.5).softmax(0) @ values\n"
    )
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "ada.ipynb").write_text(text(handed_in(2, own={"2.1": typed})))
    _, _, results = grade(folder, tmp_path / "out", "--chapter", "2")
    assert results["ada"]["score"] == 11, results


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "in"
    (folder / "carol").mkdir(parents=True)
    (folder / ".ipynb_checkpoints").mkdir()
    full, half = text(handed_in(2)), text(handed_in(2, leave=("2.4", "2.5")))
    (folder / "alice.ipynb").write_text(full)
    (folder / "bob.ipynb").write_text(half)
    (folder / "carol" / "work.ipynb").write_text(full)
    (folder / ".ipynb_checkpoints" / "alice.ipynb").write_text(half)
    (folder / "notes.txt").write_text("not a notebook")
    return folder


def test_a_run_is_kept_and_goes_on_where_it_was(folder, tmp_path):
    out = tmp_path / "out"
    roster = tmp_path / "roster.csv"
    roster.write_text("student\nalice\nbob\ndave\n")
    code, said, results = grade(
        folder, out, "--chapter", "2", "--roster", str(roster), "--workers", "2"
    )
    assert code == 0 and "3  graded" in said
    table = {row["student"]: row for row in rows(out)}
    assert [table[name]["total"] for name in ("alice", "bob", "carol", "dave")] == [
        "11",
        "5",
        "11",
        "0",
    ]
    assert table["bob"]["2.4"] == "0" and table["bob"]["2.1"] == "1"
    assert "handed in nothing" in table["dave"]["words"]
    assert "carol is not in the roster" in table["carol"]["words"]

    gradescope = results["bob"]
    assert gradescope["score"] == 5
    assert [test["max_score"] for test in gradescope["tests"]] == [1, 2, 2, 3, 3]
    assert [test["status"] for test in gradescope["tests"]] == ["passed"] * 3 + [
        "failed"
    ] * 2
    assert gradescope["tests"][4]["name"] == "2.5 How crowded can two dimensions be?"

    (folder / "bob.ipynb").write_text((folder / "alice.ipynb").read_text())
    (folder / "carol" / "again.ipynb").write_text("{}")
    (out / "students" / "alice.json").write_text('{"score": ')  # was interrupted
    code, said, _ = grade(folder, out, "--chapter", "2")
    assert "1 of 4 were graded before and stay as they are" in said
    table = rows(out)
    assert [row["total"] for row in table] == ["11", "11", "0", "11"]
    assert "carol handed in 2 notebooks" in table[3]["words"]


def test_a_result_is_kept_for_the_same_file_rubric_and_options_alone(folder):
    one, two = make_rubric(chapter_file(2)), make_rubric(chapter_file(4))
    kept = {
        reports.stamp(folder / name, rubric, seed, seconds, solutions)
        for name in ("alice.ipynb", "bob.ipynb")
        for rubric in (one, two)
        for seed in (1, 2)
        for seconds in (20, 60)
        for solutions in (False, True)
    }
    assert len(kept) == 32


def test_an_interruption_loses_nothing_that_was_graded(folder, tmp_path):
    slow = "import time\ndef look_up(*a): time.sleep(100)"
    (folder / "zoe.ipynb").write_text(text(handed_in(2, own={"2.1": slow})))
    out = tmp_path / "out"
    run = subprocess.Popen(
        [sys.executable, GRADER, folder, "--chapter", "2", "--out", out]
        + ["--workers", "1", "--quiet"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    for _ in range(600):
        if len(list(out.glob("students/*.json"))) == 3:
            break
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=20)
    assert run.returncode == 130 and "the same command goes on" in said
    assert [row["student"] for row in rows(out)] == ["alice", "bob", "carol"]


def test_a_kit_grades_without_the_book(folder, tmp_path):
    kit = tmp_path / "kit"
    write_kit([2, 6], kit)
    one = tmp_path / "submission"
    one.mkdir()
    (one / "anything.ipynb").write_text((folder / "bob.ipynb").read_text())
    results = tmp_path / "results" / "results.json"
    for arguments, ending in (
        (["--chapter", "2", "--gradescope", str(results)], 0),
        (["--chapter", "3"], 2),
        ([], 2),
    ):
        done = subprocess.run(
            [sys.executable, kit / "grade_all.py", one, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(kit)},
        )
        assert done.returncode == ending, done.stderr
    assert "name one with --chapter: 2, 6" in done.stderr
    assert json.loads(results.read_text())["score"] == 5
    assert os.access(kit / "run_autograder", os.X_OK)
    for name in ("README.md", "requirements.txt", "run_autograder", "setup.sh"):
        assert "@" not in (kit / name).read_text()
    assert not list(kit.rglob("__pycache__"))


def test_gradescope_hears_what_is_wrong_with_what_was_handed_in(folder, tmp_path):
    results = tmp_path / "results.json"
    code, _, _ = grade(
        folder, tmp_path / "out", "--chapter=2", "--gradescope", str(results)
    )
    assert code == 0
    found = json.loads(results.read_text())
    assert found["score"] == 0 and "several notebooks" in found["output"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--chapter", "77"], "the book has no chapter 77"),
        (["--chapter", "2", "--roster", "nowhere.csv"], "no roster"),
        (["--rubric", "nowhere.json"], "no rubric: nowhere.json"),
        ([], "name one with --chapter, or a rubric with --rubric"),
        (["--chapter", "2", "--seconds", "0"], "must be at least 1"),
        (["--chapter", "2", "--seed", "-1"], "must be at least 0"),
    ],
)
def test_a_mistake_is_refused_in_words(folder, tmp_path, arguments, words):
    code, said, _ = grade(folder, tmp_path / "out", *arguments)
    assert code == 2 and words in said and "Traceback" not in said


def test_a_roster_is_read_before_anything_is_graded(folder, tmp_path):
    out = tmp_path / "out"
    code, _, results = grade(folder, out, "--chapter=2", "--roster", "nowhere.csv")
    assert code == 2 and not results


def test_more_time_grades_anew_who_had_too_little(folder, tmp_path):
    out = tmp_path / "out"
    grade(folder, out, "--chapter", "2", "--seconds", "19")
    _, said, _ = grade(folder, out, "--chapter", "2", "--seconds", "20")
    assert "stay as they are" not in said


def test_grades_that_cannot_be_written_are_told_in_words(folder, tmp_path):
    (tmp_path / "out").write_text("a file")
    code, said, _ = grade(folder, tmp_path / "out", "--chapter", "2")
    assert code == 2 and "Traceback" not in said and "out" in said


def test_an_empty_folder_is_refused(tmp_path):
    code, said, _ = grade(tmp_path, tmp_path / "out", "--chapter", "2")
    assert code == 2 and "holds no notebook" in said
    code, said, _ = grade(tmp_path / "none", tmp_path / "out", "--chapter", "2")
    assert code == 2 and "is not a folder" in said


def test_a_rubric_comes_back_as_it_was_written(tmp_path):
    rubric, path = make_rubric(chapter_file(2)), tmp_path / "rubric.json"
    path.write_text(rubric.dumps())
    assert rubrics.load(path) == rubric
    assert rubric.points == sum(task.points for task in rubric.tasks) == 11
    for broken in ("{}", "[]", '{"tasks": 3}', "no"):
        path.write_text(broken)
        with pytest.raises(Refused, match="not a rubric"):
            rubrics.load(path)


def test_without_fork_each_submission_is_graded_all_the_same(folder, tmp_path):
    code = (
        "import sys; from pathlib import Path; from grading import pool, rubric\n"
        "path = Path(sys.argv[1]); r = rubric.load(path)\n"
        "options = pool.Options(fork=False, seconds=60)\n"
        "(g,) = pool.grade([Path(sys.argv[2])], r, path, options)\n"
        "print(g.status, *(one.status for one in g.outcomes.values()))"
    )
    path = tmp_path / "rubric.json"
    path.write_text(make_rubric(chapter_file(2)).dumps())
    done = subprocess.run(
        [sys.executable, "-c", code, path, folder / "bob.ipynb"],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tools"), str(ROOT)]),
        },
    )
    assert done.stdout.split() == ["graded", "missing", "missing"] + ["passed"] * 3, (
        done.stderr
    )
