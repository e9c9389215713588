"""Right and wrong answers to the exercises of chapter 4."""

import math

import torch

from attention_lib.checks import chapter04 as check
from attention_lib.checks._bfloat16 import exact


def stable(scores):
    largest = scores.amax(dim=-1, keepdim=True)
    hidden = largest == -torch.inf
    powers = (scores - largest.masked_fill(hidden, 0)).exp()
    return powers / powers.sum(dim=-1, keepdim=True).masked_fill(hidden, 1)


def less_the(largest):
    def softmax(scores):
        powers = (scores - largest(scores)).exp()
        return powers / powers.sum(dim=-1, keepdim=True)

    return softmax


def bisected(scores, keys, low=1e-6, high=1e6, count=None):
    count = count or (lambda entropy: entropy.exp())
    for _ in range(100):
        T = math.sqrt(low * high)
        entropy = torch.special.entr((scores / T).softmax(dim=-1)).sum()
        low, high = (T, high) if count(entropy) < keys else (low, T)
    return T


def axis_of(attend, sizes=(2, 3, 4, 5), names=("keys", "queries", "heads", "batch")):
    B, H, L, S = sizes
    query, key = torch.randn(B, H, L, 6), torch.randn(B, H, S, 6)
    weights = attend(query, key, torch.eye(S).expand(B, H, S, S))
    dims = {"keys": -1, "queries": -2, "heads": 1, "batch": 0}
    for name in names:
        if (weights.sum(dim=dims[name]) - 1).abs().max() < 1e-4:
            return name


def by_matrix(w, g):
    bracket = torch.diag_embed(w) - w[..., :, None] * w[..., None, :]
    return (bracket @ g[..., None])[..., 0]


def mean_of(w, g):
    return (w * g).sum(-1, keepdim=True)


RIGHT = ["1/2", "2/3", "1/5", "1/4", "2/5", "4/7"]


def but(edit, weight):
    """The right weights, and one wrong."""
    return [weight if n == edit else right for n, right in enumerate(RIGHT, 1)]


def in_blocks(numbers, size=64):
    starts = range(0, len(numbers), size)
    return sum(sum(numbers[start : start + size]) for start in starts)


def in_pairs(numbers):
    while len(numbers) > 1:
        numbers = [a + b for a, b in zip(numbers[::2], numbers[1::2], strict=True)]
    return numbers[0]


def with_what_was_lost(numbers):
    """Kahan: what an addition loses is added to the next number."""
    total = lost = 0
    for number in numbers:
        wanted = number - lost
        after = total + wanted
        lost, total = (after - total) - wanted, after
    return total


SOLUTIONS = [
    (check.stable_softmax, stable),
    (check.temperature_for, bisected),
    (check.edited_row, lambda: RIGHT),
    (check.edited_row, lambda: [0.5, "0.667", "0.2", "1/4", "0.4", 4 / 7]),
    (check.softmax_axis, axis_of),
    (check.scores_grad, lambda w, g: w * (g - mean_of(w, g))),
    (check.total, in_blocks),
    (check.total, in_pairs),
    (check.total, with_what_was_lost),
]

WRONG = [
    # exercise 1
    (check.stable_softmax, less_the(lambda scores: 0), "Scores around 500 give NaN"),
    (check.stable_softmax, less_the(torch.amax), "subtract its own largest"),
    (
        check.stable_softmax,
        less_the(lambda scores: scores.mean(dim=-1, keepdim=True)),
        "Minus infinity beside other scores",
    ),
    (
        check.stable_softmax,
        less_the(lambda scores: scores.amax(dim=-1, keepdim=True)),
        "A row of minus infinities gives NaN",
    ),
    (
        check.stable_softmax,
        lambda scores: scores.clamp(min=-1e4).softmax(dim=-1),
        "minus infinities gets weight",
    ),
    (check.stable_softmax, lambda scores: scores.softmax(dim=1), "along axis 1"),
    (check.stable_softmax, lambda scores: scores.log_softmax(-1), "log-softmax"),
    (check.stable_softmax, lambda s: (s - s.amax(-1, True)).exp(), "not divided"),
    (check.stable_softmax, lambda scores: stable(scores.float()), "return float16"),
    (
        check.stable_softmax,
        lambda scores: stable(scores.clamp(max=100)),
        "rows far apart",
    ),
    (
        check.stable_softmax,
        lambda scores: stable(scores.masked_fill(scores == -torch.inf, 0)),
        "some scores at minus infinity",
    ),
    # exercise 2
    (check.temperature_for, lambda s, keys: 1.0, "were asked for"),
    (check.temperature_for, lambda s, keys: 1 / bisected(s, keys), "one over"),
    (
        check.temperature_for,
        lambda s, keys: bisected(s, keys, count=lambda entropy: entropy),
        "e to the entropy",
    ),
    (
        check.temperature_for,
        lambda s, keys: bisected(s, keys, low=0.01, high=10),
        "reach far enough",
    ),
    (check.temperature_for, lambda s, keys: -1.0, "positive and finite"),
    # exercise 3
    (check.edited_row, lambda: but(1, "1"), "changes no difference"),
    (check.edited_row, lambda: but(2, "1"), "squares its power"),
    (check.edited_row, lambda: but(3, "-1/2"), "turns a power over"),
    (check.edited_row, lambda: but(4, "1/2"), "Six powers"),
    (check.edited_row, lambda: but(5, "1/2"), "takes its part"),
    (check.edited_row, lambda: but(6, "2/3"), "hides nothing"),
    (check.edited_row, lambda: RIGHT[:5], "you gave 5"),
    (check.edited_row, lambda: ["a half"] * 6, "six fractions"),
    # exercise 4
    (check.softmax_axis, lambda attend: "keys", "runs over the queries is called"),
    (check.softmax_axis, lambda attend: -1, "Return one of"),
    (
        check.softmax_axis,
        lambda attend: axis_of(attend, names=("keys", "queries")) or "batch",
        "runs over the heads is called 'batch'",
    ),
    (
        check.softmax_axis,
        lambda attend: axis_of(attend, sizes=(1, 2, 3, 4), names=("batch",)),
        "returns nothing",
    ),
    (
        check.softmax_axis,
        lambda attend: axis_of(attend, sizes=(2, 3, 1, 4), names=("keys", "heads")),
        "returns nothing",
    ),
    # exercise 5
    (check.scores_grad, lambda w, g: w * (1 - w) * g, "diagonal alone"),
    (check.scores_grad, lambda w, g: w * g, "first half alone"),
    (check.scores_grad, lambda w, g: w * (g - g.mean(-1, True)), "must be weighted"),
    (check.scores_grad, lambda w, g: w * (g - g.sum(-1, True)), "not its sum"),
    (check.scores_grad, lambda w, g: g - mean_of(w, g), "multiply it by the weights"),
    (check.scores_grad, lambda w, g: w * (g - (w * g).sum()), "all rows"),
    (check.scores_grad, by_matrix, "the matrix"),
    # exercise 6
    (check.total, sum, "Add numbers of like size"),
    (check.total, lambda numbers: sum(sorted(numbers)), "Add numbers of like size"),
    (check.total, lambda numbers: in_blocks(numbers, 16), "is off by"),
    (check.total, lambda numbers: numbers[0], "each counts once"),
    (check.total, lambda numbers: sum(exact(x) for x in numbers), "not float"),
    (check.total, lambda numbers: in_blocks(numbers) + 1, "adds its own numbers"),
]
