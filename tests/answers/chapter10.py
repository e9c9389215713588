"""Right and wrong answers to the exercises of chapter 10."""

import math

import torch
from answers.chapter02 import scaled

from attention_lib.checks import chapter10 as check


def running(query, chunks, *, stable=True, shrink=True):
    top, total, mixed = -math.inf, 0.0, 0.0
    for keys, values in chunks:
        scores = keys @ query / math.sqrt(len(query))
        above = max(top, scores.max().item()) if stable else 0.0
        factor = math.exp(top - above) if shrink and top > -math.inf and stable else 1.0
        powers = (scores - above).exp()
        total = total * factor + powers.sum()
        mixed = mixed * factor + powers @ values
        top = above
    return mixed / total


def gradients_differ(attend):
    inputs = [torch.randn(6, 4, dtype=torch.float64, requires_grad=True) for _ in "qkv"]
    torch.manual_seed(1)
    output = attend(*inputs)
    # With values as unknowns the output is linear: its gradient must give it back.
    (grad,) = torch.autograd.grad(output.sum(), inputs[2])
    return not torch.allclose((grad * inputs[2]).sum(), output.sum())


def by_rows(query, key, value, rows=64):
    parts = [scaled(part, key, value) for part in query.split(rows, dim=-2)]
    return torch.cat(parts, dim=-2)


SOLUTIONS = [
    (check.saved, lambda H, L, S, D: 4 * H * L * (S + D)),
    (check.streamed, running),
    (check.reach, lambda window, layers: 1 + layers * (window - 1)),
    (check.redraws, gradients_differ),
    (check.frugal, by_rows),
]

WRONG = [
    # exercise 1
    (check.saved, lambda H, L, S, D: 4 * H * L * S, "scaled queries are new"),
    (
        check.saved,
        lambda H, L, S, D: 8 * H * L * S + 4 * H * L * D,
        "scores are not kept",
    ),
    (check.saved, lambda H, L, S, D: 4 * L * (S + D) * (H > 1) + 8, "Which tensors"),
    (
        check.saved,
        lambda H, L, S, D: 4 * H * (L * S + (L + 2 * S) * D),
        "are arguments",
    ),
    # exercise 2
    (
        check.streamed,
        lambda q, chunks: running(q, chunks, stable=False),
        "large ones overflow",
    ),
    (
        check.streamed,
        lambda q, chunks: torch.stack(
            [scaled(q[None], k, v)[0] for k, v in chunks]
        ).mean(0),
        "averaged",
    ),
    (
        check.streamed,
        lambda q, chunks: [scaled(q[None], k, v)[0] for k, v in chunks][-1],
        "Only the last chunk",
    ),
    (
        check.streamed,
        lambda q, chunks: sum((k @ q / 2).exp() @ v for k, v in chunks),
        "not divided",
    ),
    # exercise 3
    (check.reach, lambda window, layers: window * layers, "not new a second time"),
    (check.reach, lambda window, layers: window, "depends on 5 tokens"),
    (check.reach, lambda window, layers: 1 + window * layers, "depends on 3 tokens"),
    # exercise 4
    (check.redraws, lambda attend: True, "accuses an attention that keeps"),
    (check.redraws, lambda attend: False, "clears an attention whose"),
    (
        check.redraws,
        lambda attend: (
            not torch.equal(attend(*(x := torch.randn(3, 6, 4))), attend(*x))
        ),
        "accuses an attention that keeps",
    ),
    # exercise 5
    (check.frugal, scaled, "Take fewer queries at a time"),
    (check.frugal, lambda q, k, v: by_rows(q * math.sqrt(8), k, v), "not scaled"),
    (check.frugal, lambda q, k, v: by_rows(q, k, v, rows=512), "Right, but"),
]
