"""An instructor's seed changes a check's examples, and never its verdict."""

import runpy
from pathlib import Path

import pytest
import torch
from test_checks import named

from attention_lib.checks import chapter06
from attention_lib.checks._report import draws, seeded

SEEDS = (1, 2, 3, 4)
# Read anew: some wrong answers remember what they were asked.
ANSWERS = [
    runpy.run_path(str(path))
    for path in sorted(Path(__file__).parent.glob("answers/chapter*.py"))
]
SOLUTIONS = [row for chapter in ANSWERS for row in chapter["SOLUTIONS"]]
WRONG = [row for chapter in ANSWERS for row in chapter["WRONG"]]


@pytest.mark.parametrize(
    ("check", "solution"), SOLUTIONS, ids=[named(check) for check, _ in SOLUTIONS]
)
def test_the_solution_passes_on_other_draws(check, solution):
    for seed in SEEDS:
        torch.manual_seed(0)
        with seeded(seed):
            found = check(solution)
        assert found.passed, (seed, found)


@pytest.mark.parametrize(("check", "answer"), [row[:2] for row in WRONG])
def test_a_wrong_answer_fails_on_other_draws(check, answer):
    for seed in SEEDS:
        torch.manual_seed(0)
        with seeded(seed):
            found = check(answer)
        assert not found.passed, (seed, found)


def test_an_answer_that_knows_the_notebook_s_draws_fails_on_others():
    torch.manual_seed(0)
    known = torch.randn(2, 3, 4)

    def learnt(scores, keep):
        if not torch.equal(scores[1], known[1]):
            return torch.zeros_like(scores)
        return scores.masked_fill(~keep, -1e30).softmax(-1) * keep

    assert chapter06.masked_softmax(learnt).passed
    with seeded(1):
        assert not chapter06.masked_softmax(learnt).passed


def test_without_a_seed_the_draws_are_those_of_the_notebook():
    assert list(draws(3)) == [0, 1, 2]
    with seeded(2):
        assert list(draws(2)) == [2000, 2001]
    assert list(draws(1)) == [0]
