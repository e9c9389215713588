"""The exercises' checks: solutions pass, wrong answers hear the right cause."""

import math

import pytest
import torch
from torch import nn

from attention_lib.checks import chapter02, chapter03


def stub(*args):
    """What a reader starts from."""


def softmax_last(scores, values):
    return scores.softmax(-1) @ values


def scaled(query, key, value):
    return softmax_last(query @ key.mT / math.sqrt(query.shape[-1]), value)


def circle(n, radius=10.0):
    angle = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
    points = radius * torch.stack([angle.cos(), angle.sin()], dim=-1)
    return points, points


def rows_follow(attend, *, sizes=(5, 5)):
    """A sound test: change a query, only its row moves."""
    L, S = sizes
    query, key, value = torch.randn(L, 4), torch.randn(S, 4), torch.randn(S, 4)
    before = attend(query, key, value)
    for i in range(L):
        other = query.clone()
        other[i] = torch.randn(4)
        moved = (attend(other, key, value) - before).abs().amax(-1) > 0
        if moved.nonzero().flatten().tolist() != [i]:
            return False
    return True


def measured_scale(attend, D):
    query, key = torch.zeros(1, D), torch.zeros(2, D)
    query[0, 0] = key[1, 0] = 1.0
    weights = attend(query, key, torch.eye(2))[0]
    return (weights[1] / weights[0]).log().item()


def scale_early(query, key, value):
    return softmax_last((query / query.shape[-1] ** 0.5) @ key.mT, value)


SOLUTIONS = [
    (chapter02.look_up, lambda q, K, V: softmax_last(K @ q / len(q) ** 0.5, V)),
    (chapter02.attend, scaled),
    (chapter02.predicted, lambda: (["1/9", "4/9", "4/9"], ["5/9", "8/9"])),
    (chapter02.own_row_only, rows_follow),
    (chapter02.crowd, lambda: circle(21)),
    (chapter03.predicted_std, lambda D, a, b: math.sqrt(D * a * b)),
    (chapter03.scale_of, measured_scale),
    (chapter03.scale_first, scale_early),
    (chapter03.gain_for, lambda w, S: math.log(w * (S - 1) / (1 - w))),
]
CHECKS = [check for check, _ in SOLUTIONS]


def named(check):
    return check.__name__


@pytest.mark.parametrize(("check", "solution"), SOLUTIONS, ids=lambda x: named(x))
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


WRONG = [
    # chapter 2, exercise 1
    (chapter02.look_up, lambda q, K, V: (K @ q / 3**0.5) @ V, "unnormalised"),
    (chapter02.look_up, lambda q, K, V: (K @ q) @ V, "Raw scores"),
    (chapter02.look_up, lambda q, K, V: (K @ q).softmax(0) @ V, "not scaled"),
    (chapter02.look_up, lambda q, K, V: (K @ q / 3).softmax(0) @ V, "square root"),
    (chapter02.look_up, lambda q, K, V: V[(K @ q).argmax()], "hard look-up"),
    (chapter02.look_up, lambda q, K, V: V.mean(0), "plain mean"),
    (chapter02.look_up, lambda q, K, V: (K @ q).softmax(0), r"shape (5,)"),
    # exercise 2
    (chapter02.attend, lambda q, k, v: (q @ k.mT / 3**0.5).softmax(-2) @ v, "queries"),
    (chapter02.attend, lambda q, k, v: (q @ k.mT / 3**0.5).softmax(0) @ v, "batch"),
    (chapter02.attend, lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "not scaled"),
    (
        chapter02.attend,
        lambda q, k, v: (q @ k.mT / v.shape[-1] ** 0.5).softmax(-1) @ v,
        "width of the values",
    ),
    (
        chapter02.attend,
        lambda q, k, v: (q @ k.mT / k.shape[-2] ** 0.5).softmax(-1) @ v,
        "number of keys",
    ),
    (chapter02.attend, lambda q, k, v: v, "one output row for each key"),
    (
        chapter02.attend,
        lambda q, k, v: scaled(k, q, v) if q.shape == k.shape else scaled(q, k, v),
        "swapped",
    ),
    (
        chapter02.attend,
        lambda q, k, v: (
            (q @ k / 3**0.5).softmax(-1) @ v if q.shape == k.shape else scaled(q, k, v)
        ),
        "not transposed",
    ),
    # exercise 3
    (chapter02.predicted, lambda: ([0, 2, 2], [1, 1]), "Raise 2 to each"),
    (chapter02.predicted, lambda: ([1, 4, 4], [1, 1]), "divide by their sum"),
    (chapter02.predicted, lambda: (["1/3"] * 3, [1, 1]), "not these"),
    (chapter02.predicted, lambda: (["1/2", "1/3", "1/3"], [1, 1]), "add up to 7/6"),
    (chapter02.predicted, lambda: (["1/9", "4/9", "4/9"], [1, 1]), "weights are right"),
    (chapter02.predicted, lambda: (["1/9"], [1, 1]), "3 weights"),
    (chapter02.predicted, lambda: 5, "two lists"),
    # exercise 4
    (chapter02.own_row_only, lambda attend: False, "calls torch's own"),
    (
        chapter02.own_row_only,
        lambda attend: attend(*torch.randn(3, 5, 4)).shape == (5, 4),
        "swapped",
    ),
    (
        chapter02.own_row_only,
        lambda attend: bool(
            (attend(*torch.randn(2, 5, 4), torch.ones(5, 1)) - 1).abs().max() < 1e-5
        ),
        "swapped",
    ),
    (
        chapter02.own_row_only,
        lambda attend: torch.allclose(
            attend(*(x := torch.randn(3, 5, 4))), scaled(*x), atol=1e-5
        ),
        "unscaled",
    ),
    # exercise 5
    (chapter02.crowd, lambda: circle(30), "finds itself with weight"),
    (chapter02.crowd, lambda: circle(21, radius=20), "norm 20"),
    (chapter02.crowd, lambda: circle(8), "at least 16"),
    (chapter02.crowd, lambda: torch.zeros(3), "two tensors"),
    # chapter 3, exercise 1
    (chapter03.predicted_std, lambda D, a, b: D * a * b, "variance"),
    (chapter03.predicted_std, lambda D, a, b: math.sqrt(a * b), "where did D go"),
    (chapter03.predicted_std, lambda D, a, b: D * math.sqrt(a * b), "add in variance"),
    (chapter03.predicted_std, lambda D, a, b: math.sqrt(D), "entries are missing"),
    # exercise 2
    (chapter03.scale_of, lambda attend, D: D**-0.5, "assumed, not measured"),
    (chapter03.scale_of, lambda attend, D: 1.0, "you find 1"),
    (
        chapter03.scale_of,
        lambda attend, D: attend(torch.ones(1, D), torch.eye(2, D), torch.eye(2))[
            0, 0
        ].item(),
        "you find 0.5",
    ),
    # exercise 3
    (chapter03.scale_first, lambda q, k, v: scaled(q, k, v), "not finite"),
    (chapter03.scale_first, lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "at all"),
    (
        chapter03.scale_first,
        lambda q, k, v: scale_early(q.float(), k.float(), v.float()),
        "return float16",
    ),
    (chapter03.scale_first, lambda q, k, v: scale_early(q / 2, k, v), "differs"),
    # exercise 4
    (chapter03.gain_for, lambda w, S: math.log(S), "was asked for"),
    (chapter03.gain_for, lambda w, S: w / (1 - w), "was asked for"),
    (chapter03.gain_for, lambda w, S: math.log(w / (1 - w)) + 9, "was asked for"),
    (chapter03.gain_for, lambda w, S: -1, "positive and finite"),
]


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
