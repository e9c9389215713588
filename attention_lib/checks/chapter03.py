"""Checks for the exercises of chapter 3, scaling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.checks._report import (
    READY_ATTENTION,
    NotYet,
    check,
    demand_number,
    demand_tensor,
    same,
)

__all__ = ["gain_for", "predicted_std", "rescue", "scale_first", "scale_of"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@check("3.1")
def predicted_std(answer: Callable[[int, float, float], float]) -> str:
    """Check ``predicted_std(D, var_q, var_k)`` against a sample of dot products.

    Examples
    --------
    >>> predicted_std(lambda D, var_q, var_k: D * var_q * var_k)
    Exercise 3.1: not yet. This is the variance. The standard deviation is its root.
    """
    for D, var_q, var_k in ((16, 3.0, 1.0), (64, 4.0, 1.0), (50, 0.5, 3.0)):
        found = demand_number(answer(D, var_q, var_k), positive=True)
        query = torch.randn(100_000, D) * var_q**0.5
        key = torch.randn(100_000, D) * var_k**0.5
        measured = (query * key).sum(-1).std().item()
        if abs(found / measured - 1) < 0.02:
            continue
        for cause, wrong in (
            ("This is the variance. The standard deviation is its root.", measured**2),
            ("The variances of the entries are missing.", math.sqrt(D)),
            (
                "Variances multiply: one root over their product and D together.",
                math.sqrt(D) * var_q * var_k,
            ),
            ("A sum of D terms: where did D go?", math.sqrt(var_q * var_k)),
            (
                "Independent terms add in variance, not in standard deviation.",
                D * math.sqrt(var_q * var_k),
            ),
        ):
            if abs(found / wrong - 1) < 0.02:
                raise NotYet(cause)
        raise NotYet(
            f"For D={D} and variances {var_q} and {var_k} you say {found:.3g}; "
            f"100,000 dot products give {measured:.3g}."
        )
    return "The prediction holds for three widths and three pairs of variances."


@check("3.2")
def scale_of(answer: Callable[[Attend, int], float]) -> str:
    """Check a function that finds the scale an attention uses, from outside.

    Examples
    --------
    >>> scale_of(lambda attend, D: D**-0.5)  # doctest: +ELLIPSIS
    Exercise 3.2: not yet. For an attention that divides by the square root of ...
    """
    for D, E in ((8, 64), (16, 48)):
        for words, scale in (
            ("the square root of the head's width", D**-0.5),
            ("the square root of the model's width", E**-0.5),
            ("the head's width", 1 / D),
            ("nothing", 1.0),
        ):
            found = demand_number(answer(_scaled_by(scale), D), positive=True)
            if not math.isclose(found, scale, rel_tol=1e-2):
                guess = (
                    " It looks as if the answer was assumed, not measured."
                    if math.isclose(found, D**-0.5, rel_tol=1e-6)
                    else ""
                )
                raise NotYet(
                    f"For an attention that divides by {words} (D={D}) you find "
                    f"{found:.4g}; it is {scale:.4g}.{guess}"
                )
    return "Eight attentions, four scales, each read from the outside."


@check("3.3", forbids=READY_ATTENTION)
def scale_first(answer: Attend) -> str:
    """Check an attention that stays finite in float16 where raw scores do not.

    Examples
    --------
    >>> def late(query, key, value):
    ...     return ((query @ key.mT) / query.shape[-1] ** 0.5).softmax(-1) @ value
    >>> scale_first(late)  # doctest: +ELLIPSIS
    Exercise 3.3: not yet. The output is not finite: some q·k is over 65504 ...
    """
    query, key = torch.randn(2, 5, 64), torch.randn(2, 7, 64)
    value = torch.randn(2, 7, 3)
    wanted = (query @ key.mT / 8).softmax(-1) @ value
    found = demand_tensor(answer(query, key, value), (2, 5, 3), "The output")
    if same(found, (query @ key.mT).softmax(-1) @ value):
        raise NotYet("The scores are not scaled at all.")
    if not same(found, wanted):
        raise NotYet("In float32 the output differs from scaled attention.")
    factor = 2 * 65504 / (query @ key.mT).max()  # twice what float16 holds
    big_query, big_key = (query * 40).half(), (key * (factor / 40)).half()
    found = answer(big_query, big_key, value.half())
    if not isinstance(found, Tensor) or found.dtype != torch.float16:
        raise NotYet("For float16 inputs return float16.")
    if not bool(torch.isfinite(found).all()):
        raise NotYet(
            "The output is not finite: some q·k is over 65504 before it is divided. "
            "Scale the queries first."
        )
    return "The same attention, finite where raw scores pass 65504."


@check("3.4")
def gain_for(answer: Callable[[float, int], float]) -> str:
    """Check the gain that gives the right key a weight among S orthonormal keys.

    Examples
    --------
    >>> gain_for(lambda weight, S: math.log(weight * (S - 1) / (1 - weight))).passed
    True
    """
    for weight, S in ((0.5, 100), (0.9, 32), (0.99, 1000)):
        found = demand_number(answer(weight, S), positive=True)
        keys = torch.eye(S, dtype=torch.float64)
        reached = (found * keys[0] @ keys.mT).softmax(-1)[0].item()
        if abs(reached - weight) > 1e-3:
            raise NotYet(
                f"With gain {found:.3g} the right one of {S} keys gets weight "
                f"{reached:.3f}; {weight} was asked for."
            )
    return "Unit vectors need a gain that grows with the logarithm of S."


@check("3.5")
def rescue(
    answer: Callable[[nn.Module], Any], train: Callable[[Callable[..., Any]], float]
) -> str:
    """Check a change that lets the unscaled model learn: train it and see.

    ``train(prepare)`` builds the unscaled model, calls ``prepare(model)``, trains it and
    returns the share of right answers.

    Examples
    --------
    >>> rescue(lambda model: model, lambda prepare: 0.31)
    Exercise 3.5: not yet. The prepared model answers 31% correctly; 95% is asked for.
    """
    accuracy = train(answer)
    if accuracy < 0.95:
        raise NotYet(
            f"The prepared model answers {accuracy:.0%} correctly; 95% is asked for."
        )
    return "The unscaled model learns: the same cure in another place."


def _scaled_by(scale: float) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT * scale).softmax(-1) @ value

    return attend
