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

from attention_lib import MultiHeadAttention
from attention_lib.checks import chapter03, chapter09, chapter14
from attention_lib.checks._bfloat16 import BFloat16, exact

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


@pytest.mark.parametrize(("check", "solution"), SOLUTIONS)
def test_what_an_answer_does_to_its_inputs_does_not_move_the_target(check, solution):
    emptied = []

    def empties(*args):
        for one in args:
            if isinstance(one, torch.Tensor):
                emptied.append(one.detach().zero_())
        return solution(*args)

    found = check(empties)
    assert not (emptied and found.passed)


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


def test_rescue_of_a_run_counts_the_steps_and_wants_a_change():
    def relearn(rescue):
        model = rescue(nn.Linear(2, 2))
        return 60 if float(model.bias.detach().abs().sum()) == 0 else 90

    def said(answer):
        return chapter14.rescue(answer, relearn)

    def zero(model):
        nn.init.zeros_(model.bias)
        return model

    def ruin(model):
        nn.init.constant_(model.bias, math.nan)
        return model

    def double(model):
        with torch.no_grad():
            model.bias.mul_(2)
        return model

    assert said(zero).passed
    assert "returns nothing yet" in said(stub).message
    assert "takes 90 steps; at most 75" in said(double).message
    assert "No parameter has changed" in said(lambda model: model).message
    assert "in place" in said(lambda model: nn.Linear(2, 2)).message
    assert "NaN or infinite" in said(ruin).message


def test_planted_runs_the_checks_and_then_the_doctor():
    class Leaks(MultiHeadAttention):
        """Forgets its mask in training."""

        E, H = 8, 2

        def forward(self, query, *args, is_causal=False, **kwargs):
            is_causal = is_causal and not self.training
            return super().forward(query, *args, is_causal=is_causal, **kwargs)

    def finite(module):
        return bool(module(torch.ones(2, 5, 8)).isfinite().all())

    def never(module):
        return False

    def said(answer, *checks):
        return chapter09.planted(answer, checks)

    found = said(lambda: Leaks(8, 2).eval(), finite)
    assert found.passed and "AT101" in found.message
    assert "does not pass never" in said(lambda: Leaks(8, 2), finite, never).message
    assert "finds it healthy" in said(lambda: MultiHeadAttention(8, 2)).message
    assert "returns nothing yet" in said(lambda: None).message
    assert "Return a module, not int" in said(lambda: 3).message


def test_the_patient_passes_for_causal_and_sees_only_its_third():
    torch.manual_seed(0)
    x = torch.randn(2, 6, 24)
    for causal in (True, False):
        patient = chapter09.patient(causal)
        before = patient(x)
        for j in range(6):
            other = x.clone()
            other[:, j] = torch.randn(2, 24)
            moved = (patient(other) != before).any(-1).all(0)
            third = torch.arange(6) // 2 == j // 2
            assert not bool((moved & ~third).any()) and bool(moved[j])
            assert not causal or not bool(moved[:j].any())


def test_the_machine_of_bfloat16_rounds_as_torch_does():
    torch.manual_seed(0)
    sizes = torch.logspace(-6, 6, 500, base=2)
    a, b = (torch.randn(2, 500) * sizes).bfloat16()
    a[:3], b[:3] = torch.tensor([256, 258, 2]), torch.tensor([1, 1, 2**-8])  # ties
    pairs = [
        (BFloat16(x), BFloat16(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert [exact(x + y) for x, y in pairs] == (a + b).tolist()
    assert [exact(x - y) for x, y in pairs] == (a - b).tolist()
    assert [x < y for x, y in pairs] == (a < b).tolist()
    assert [exact(0 - x) for x, _ in pairs] == (-a).tolist()


def test_every_exercise_has_three_wrong_answers():
    for check in CHECKS:
        assert sum(row[0] is check for row in WRONG) >= 3, check.__name__
