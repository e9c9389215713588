"""The exercises' checks: solutions pass, wrong answers hear the right cause.

`answers/` has one module a chapter: SOLUTIONS are pairs of a check and a right answer,
WRONG are a check, a wrong answer and words of the cause it should hear.
"""

import importlib
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from attention_lib.checks import chapter03

ANSWERS = [
    importlib.import_module(f"answers.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("answers/chapter*.py"))
]
SOLUTIONS = [row for chapter in ANSWERS for row in chapter.SOLUTIONS]
WRONG = [row for chapter in ANSWERS for row in chapter.WRONG]
CHECKS = [check for check, _ in SOLUTIONS]


def stub(*args):
    """What a reader starts from."""


def named(check):
    return f"{check.__module__.rpartition('.')[2]}.{check.__name__}"


@pytest.mark.parametrize(
    ("check", "solution"), SOLUTIONS, ids=[named(check) for check in CHECKS]
)
def test_the_solution_passes(check, solution):
    assert check(solution).passed, check(solution)


@pytest.mark.parametrize("check", CHECKS, ids=named)
def test_the_empty_stub_is_told_so(check):
    found = check(stub)
    assert not found.passed and "returns nothing yet" in found.message


@pytest.mark.parametrize("check", CHECKS, ids=named)
def test_a_check_never_raises(check):
    def broken(*args):
        raise ZeroDivisionError("oh dear")

    assert "broken raised ZeroDivisionError: oh dear" in check(broken).message
    assert "Pass the function itself, not int" in check(3).message
    assert not check(lambda *args: "words").passed
    assert not check(lambda *args: torch.full((2, 2), math.nan)).passed


@pytest.mark.parametrize("check", CHECKS, ids=named)
def test_a_check_leaves_the_reader_s_random_numbers_alone(check):
    torch.manual_seed(1)
    check(stub)
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(3))


@pytest.mark.parametrize(("check", "answer", "cause"), WRONG)
def test_a_wrong_answer_hears_its_cause(check, answer, cause):
    found = check(answer)
    assert not found.passed
    assert cause in found.message


def test_rescue_reports_the_share_and_passes_what_learns():
    seen = []

    def train(prepare):
        model = nn.Linear(2, 2)
        prepare(model)
        seen.append(model)
        return 0.97 if hasattr(model, "cured") else 0.4

    assert "answers 40%" in chapter03.rescue(lambda model: None, train).message
    assert chapter03.rescue(lambda m: setattr(m, "cured", True), train).passed
    assert len(seen) == 2


def test_every_exercise_has_three_wrong_answers():
    for check in CHECKS:
        assert sum(row[0] is check for row in WRONG) >= 3, check.__name__
