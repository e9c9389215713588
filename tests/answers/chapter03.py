"""Right and wrong answers to the exercises of chapter 3."""

import math

import torch
from answers.chapter02 import scaled, softmax_last

from attention_lib.checks import chapter03 as check


def measured_scale(attend, D):
    query, key = torch.zeros(1, D), torch.zeros(2, D)
    query[0, 0] = key[1, 0] = 1.0
    weights = attend(query, key, torch.eye(2))[0]
    return (weights[1] / weights[0]).log().item()


def scale_early(query, key, value):
    return softmax_last((query / query.shape[-1] ** 0.5) @ key.mT, value)


SOLUTIONS = [
    (check.predicted_std, lambda D, a, b: math.sqrt(D * a * b)),
    (check.scale_of, measured_scale),
    (check.scale_first, scale_early),
    (check.gain_for, lambda w, S: math.log(w * (S - 1) / (1 - w))),
]

WRONG = [
    # exercise 1
    (check.predicted_std, lambda D, a, b: D * a * b, "variance"),
    (check.predicted_std, lambda D, a, b: math.sqrt(a * b), "where did D go"),
    (check.predicted_std, lambda D, a, b: D * math.sqrt(a * b), "add in variance"),
    (check.predicted_std, lambda D, a, b: math.sqrt(D), "entries are missing"),
    # exercise 2
    (check.scale_of, lambda attend, D: D**-0.5, "assumed, not measured"),
    (check.scale_of, lambda attend, D: 1.0, "you find 1"),
    (
        check.scale_of,
        lambda attend, D: attend(torch.ones(1, D), torch.eye(2, D), torch.eye(2))[
            0, 0
        ].item(),
        "you find 0.5",
    ),
    # exercise 3
    (check.scale_first, lambda q, k, v: scaled(q, k, v), "not finite"),
    (check.scale_first, lambda q, k, v: (q @ k.mT).softmax(-1) @ v, "at all"),
    (
        check.scale_first,
        lambda q, k, v: scale_early(q.float(), k.float(), v.float()),
        "return float16",
    ),
    (check.scale_first, lambda q, k, v: scale_early(q / 2, k, v), "differs"),
    # exercise 4
    (check.gain_for, lambda w, S: math.log(S), "was asked for"),
    (check.gain_for, lambda w, S: w / (1 - w), "was asked for"),
    (check.gain_for, lambda w, S: math.log(w / (1 - w)) + 9, "was asked for"),
    (check.gain_for, lambda w, S: -1, "positive and finite"),
]
