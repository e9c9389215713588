"""Exports have the form that nbgrader 0.9 and otter-grader 7 demand, and they grade.

The engines themselves are not among the requirements. Their rules, as far as these
notebooks can break them, are written out here.
"""

import re

import pytest
import yaml
from assignment_engines import nbgrader_source, otter_master
from assignment_source import Chapter, chapters
from exercises import preamble
from notebooks import ROOT, repository
from sample_assignment import REPOSITORY, chapter, four

BOOK = chapters(["all"], ROOT / "book", repository(ROOT))
SLOW = {"3.5"}  # trains for seconds
REGION = re.compile(
    r"^( *)#+ BEGIN SOLUTION\n.*?#+ END SOLUTION$", re.MULTILINE | re.DOTALL
)
HIDDEN = re.compile(r"### BEGIN HIDDEN TESTS\n(.*?)### END HIDDEN TESTS", re.DOTALL)


@pytest.fixture(params=BOOK, ids=lambda one: one.slug)
def assigned(request):
    return request.param


def ids(cells):
    return [cell.metadata.nbgrader.grade_id for cell in cells]


def test_nbgrader_accepts_the_metadata(assigned):
    """The rules of its schema, version 3, and of its validator."""
    nb = nbgrader_source(assigned, seed=7)
    marked = [cell for cell in nb.cells if "nbgrader" in cell.metadata]
    for cell in marked:
        meta = cell.metadata.nbgrader
        required = {"schema_version", "grade", "locked", "solution"}
        assert required <= set(meta) <= required | {"grade_id", "points", "task"}
        assert meta.schema_version == 3
        assert all(type(meta[key]) is bool for key in ("grade", "locked", "solution"))
        assert re.fullmatch(r"[a-zA-Z0-9_\-]+", meta.grade_id)
        assert ("points" in meta) == meta.grade
        assert not (cell.cell_type == "markdown" and meta.grade != meta.solution)
        # A cell without a solution mark must not hold a solution, nor the reverse.
        assert meta.solution == ("### BEGIN SOLUTION" in cell.source)
        assert meta.grade == ("### BEGIN HIDDEN TESTS" in cell.source)
    assert len(set(ids(marked))) == len(marked)
    points = [cell.metadata.nbgrader.get("points", 0) for cell in marked]
    assert sum(points) == sum(one.stars for one in assigned.exercises)


def test_otter_accepts_the_cells(assigned):
    nb = otter_master(assigned, REPOSITORY, seed=7)
    raw = [cell.source for cell in nb.cells if cell.cell_type == "raw"]
    config = raw.pop(0)
    assert config.startswith("# ASSIGNMENT CONFIG\n")
    assert yaml.safe_load(config)["name"] == assigned.slug
    names = set()
    for one, place in zip(assigned.exercises, range(0, len(raw), 6), strict=True):
        opening, *rest = raw[place : place + 6]
        first, _, settings = opening.partition("\n")
        question = yaml.safe_load(settings)
        names.add(question["name"])
        assert first == "# BEGIN QUESTION" and question["points"] == one.stars
        assert [part.lower() for part in rest] == [
            "# begin solution",
            "# end solution",
            "# begin tests",
            "# end tests",
            "# end question",
        ]
    assert len(names) == len(assigned.exercises)


def released(source):
    """A cell as both engines hand it out, and without nbgrader's hidden tests."""
    return HIDDEN.sub("", REGION.sub(r"\1...", source))


@pytest.mark.parametrize("engine", ["nbgrader", "otter"])
def test_solutions_get_all_points_and_stubs_none(assigned, engine):
    if engine == "nbgrader":
        cells = nbgrader_source(assigned, seed=7).cells
        tests = [c.source for c in cells if "### BEGIN HIDDEN TESTS" in c.source]
    else:
        cells = otter_master(assigned, REPOSITORY, seed=7).cells
        places = [i for i, c in enumerate(cells) if c.source == "# BEGIN TESTS"]
        tests = ["\n".join(c.source for c in cells[i + 1 : i + 3]) for i in places]
        assert all(cells[i + 2].source.startswith("# HIDDEN\n") for i in places)
    answers = [c.source for c in cells if REGION.search(c.source)]
    given = run(preamble(assigned.nb), {})
    rows = zip(assigned.exercises, answers, tests, strict=True)
    for one, answer, test in rows:
        assert "with seeded(0)" in test and "with seeded(7)" in test
        assert one.solution not in released(answer)
        if one.number not in SLOW:
            run(test, run(answer, dict(given)))
            with pytest.raises(AssertionError, match=f"Exercise {one.number}: not yet"):
                run(test, run(released(answer), dict(given)))
        run(released(answer), {})


def run(source, names):
    exec(source, names)  # noqa: S102 - the chapters' own code
    return names


def test_a_warning_or_a_bar_costs_no_points_in_nbgrader(capsys):
    """It gives no points to a graded cell that writes to stderr."""
    nb = chapter()
    nb.cells[5].source = nb.cells[5].source.replace("double(4)", "loud(double(4))")
    loud = "def loud(x):\n    print('1%', file=sys.stderr)\n    return x"
    nb.cells[2].source += f"\nimport sys\n\n\n{loud}"
    *_, answer, test = nbgrader_source(Chapter("02-doubling", nb), seed=7).cells[:6]
    names = run(preamble(nb), {})
    run(test.source, run(answer.source, names))
    assert names["result"].passed and capsys.readouterr().err == ""


def test_the_solution_stands_in_the_stub_with_what_it_uses():
    nb = chapter(*four("2.3", "own", "halve(x)\nreturn x", signature="x"))
    nb.cells[-1].source = nb.cells[-1].source.replace(
        "# BEGIN SOLUTION\n", "# BEGIN SOLUTION\ndef aid(x):\n    return x\n\n\n"
    )
    answer = nbgrader_source(Chapter("02-doubling", nb), seed=7).cells[-2].source
    assert answer == (
        'def own(x):\n    """Of x."""\n    ### BEGIN SOLUTION\n    def aid(x):\n'
        "        return x\n\n    halve(x)\n    return x\n    ### END SOLUTION"
    )


def test_a_solution_of_another_signature_follows_the_stub():
    nb = chapter(*four("2.3", "own", "return x"))
    nb.cells[-1].source = nb.cells[-1].source.replace("own(x)", "own(x, y=1)")
    answer = nbgrader_source(Chapter("02-doubling", nb), seed=7).cells[-2].source
    assert released(answer) == 'def own(x):\n    """Of x."""\n    ...\n...'
    run(answer, {})
