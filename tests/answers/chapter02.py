"""Right and wrong answers to the exercises of chapter 2."""

import math

import torch

from attention_lib.checks import chapter02 as check


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


SOLUTIONS = [
    (check.look_up, lambda q, K, V: softmax_last(K @ q / len(q) ** 0.5, V)),
    (check.attend, scaled),
    (check.predicted, lambda: (["1/9", "4/9", "4/9"], ["5/9", "8/9"])),
    (check.own_row_only, rows_follow),
    (check.crowd, lambda: circle(21)),
]

WRONG = [
    # exercise 1
    (check.look_up, lambda q, K, V: (K @ q / 3**0.5) @ V, "unnormalised"),
    (check.look_up, lambda q, K, V: (K @ q) @ V, "Raw scores"),
    (check.look_up, lambda q, K, V: (K @ q).softmax(0) @ V, "not scaled"),
    (check.look_up, lambda q, K, V: (K @ q / 3).softmax(0) @ V, "square root"),
    (check.look_up, lambda q, K, V: V[(K @ q).argmax()], "hard look-up"),
    (check.look_up, lambda q, K, V: V.mean(0), "plain mean"),
    (check.look_up, lambda q, K, V: (K @ q).softmax(0), r"shape (5,)"),
    # exercise 2
    (check.attend, lambda q, k, v: (q @ k.mT / 3**0.5).softmax(-2) @ v, "queries"),
    (check.attend, lambda q, k, v: (q @ k.mT / 3**0.5).softmax(0) @ v, "batch"),
    (check.attend, lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "not scaled"),
    (
        check.attend,
        lambda q, k, v: (q @ k.mT / v.shape[-1] ** 0.5).softmax(-1) @ v,
        "width of the values",
    ),
    (
        check.attend,
        lambda q, k, v: (q @ k.mT / k.shape[-2] ** 0.5).softmax(-1) @ v,
        "number of keys",
    ),
    (check.attend, lambda q, k, v: v, "one output row for each key"),
    (
        check.attend,
        lambda q, k, v: scaled(k, q, v) if q.shape == k.shape else scaled(q, k, v),
        "swapped",
    ),
    (
        check.attend,
        lambda q, k, v: (
            (q @ k / 3**0.5).softmax(-1) @ v if q.shape == k.shape else scaled(q, k, v)
        ),
        "not transposed",
    ),
    # exercise 3
    (check.predicted, lambda: ([0, 2, 2], [1, 1]), "Raise 2 to each"),
    (check.predicted, lambda: ([1, 4, 4], [1, 1]), "divide by their sum"),
    (check.predicted, lambda: (["1/3"] * 3, [1, 1]), "not these"),
    (check.predicted, lambda: (["1/2", "1/3", "1/3"], [1, 1]), "add up to 7/6"),
    (check.predicted, lambda: (["1/9", "4/9", "4/9"], [1, 1]), "weights are right"),
    (check.predicted, lambda: (["1/9"], [1, 1]), "3 weights"),
    (check.predicted, lambda: 5, "two lists"),
    # exercise 4
    (check.own_row_only, lambda attend: False, "calls torch's own"),
    (
        check.own_row_only,
        lambda attend: attend(*torch.randn(3, 5, 4)).shape == (5, 4),
        "swapped",
    ),
    (
        check.own_row_only,
        lambda attend: bool(
            (attend(*torch.randn(2, 5, 4), torch.ones(5, 1)) - 1).abs().max() < 1e-5
        ),
        "swapped",
    ),
    (
        check.own_row_only,
        lambda attend: torch.allclose(
            attend(*(x := torch.randn(3, 5, 4))), scaled(*x), atol=1e-5
        ),
        "unscaled",
    ),
    # exercise 5
    (check.crowd, lambda: circle(30), "finds itself with weight"),
    (check.crowd, lambda: circle(21, radius=20), "norm 20"),
    (check.crowd, lambda: circle(8), "at least 16"),
    (check.crowd, lambda: torch.zeros(3), "two tensors"),
]
