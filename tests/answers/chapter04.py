"""Right and wrong answers to the exercises of chapter 4."""

import math

import torch

from attention_lib.checks import chapter04 as check


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


def merged(output_a, lse_a, output_b, lse_b):
    lse = torch.logaddexp(lse_a, lse_b)
    shares = [(part - lse).exp()[:, None] for part in (lse_a, lse_b)]
    return shares[0] * output_a + shares[1] * output_b, lse


def merged_by_powers(output_a, lse_a, output_b, lse_b):
    a, b = lse_a.exp()[:, None], lse_b.exp()[:, None]
    return (a * output_a + b * output_b) / (a + b), (a + b)[:, 0].log()


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


SOLUTIONS = [
    (check.stable_softmax, stable),
    (check.temperature_for, bisected),
    (check.merge, merged),
    (check.softmax_axis, axis_of),
    (check.scores_grad, lambda w, g: w * (g - mean_of(w, g))),
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
    (check.merge, lambda a, la, b, lb: ((a + b) / 2, la), "A plain mean"),
    (check.merge, lambda a, la, b, lb: (a + b, la), "A plain sum"),
    (
        check.merge,
        lambda a, la, b, lb: (merged(a, la, b, lb)[0], la + lb),
        "do not add",
    ),
    (check.merge, lambda a, la, b, lb: (merged(a, la, b, lb)[0], la), "is not"),
    (check.merge, merged_by_powers, "only their difference counts"),
    (check.merge, lambda a, la, b, lb: merged(a, lb, b, la), "swapped"),
    (check.merge, lambda a, la, b, lb: merged(a, la, b, lb)[0], "Return two tensors"),
    (
        check.merge,
        lambda a, la, b, lb: (
            (la[:, None] * a + lb[:, None] * b) / (la + lb)[:, None],
            torch.logaddexp(la, lb),
        ),
        "take e to them first",
    ),
    (
        check.merge,
        lambda a, la, b, lb: (la.exp()[:, None] * a + lb.exp()[:, None] * b, la),
        "not divided by the sum",
    ),
    (
        check.merge,
        lambda a, la, b, lb: merged(a, la.clamp(max=200), b, lb.clamp(max=200)),
        "near 1000 the output differs",
    ),
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
]
