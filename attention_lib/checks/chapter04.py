"""Checks for the exercises of chapter 4, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_lib.checks._bfloat16 import BFloat16, exact
from attention_lib.checks._report import (
    NotYet,
    check,
    demand_number,
    demand_tensor,
    explain,
    same,
)

__all__ = [
    "edited_row",
    "scores_grad",
    "softmax_axis",
    "stable_softmax",
    "temperature_for",
    "total",
]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# C's scores in units of ln 2 after each edit, C's place, and what the edit does.
_EDITS = (
    ([101, 101, 102], 2, "The same number on every score changes no difference."),
    ([2, 2, 4], 2, "Doubling a score squares its power: 4, 4 and 16."),
    ([-1, -1, -2], 2, "Turning the sign turns a power over: 1/2, 1/2 and 1/4."),
    ([1, 1, 2] * 2, 2, "Six powers now share the 1, and either C has one of them."),
    ([1, 1, 2, 0, 0], 2, "A score of 0 has the power 1: it takes its part."),
    ([0, 1, 2], 2, "A score of 0 hides nothing: its power is 1. Minus infinity has 0."),
)
_AXES = {"keys": -1, "queries": -2, "heads": 1, "batch": 0}


@check("4.1", forbids=("softmax", "softmin"))
def stable_softmax(answer: Callable[[Tensor], Tensor]) -> str:
    """Check a softmax over the last axis that needs no luck with its scores.

    Examples
    --------
    >>> stable_softmax(lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True))
    Exercise 4.1: not yet. Scores around 500 give NaN: subtract the largest of each row.
    """
    scores = torch.randn(2, 3, 5)
    found = demand_tensor(answer(scores.clone()), (2, 3, 5), "The weights")
    mistakes = {
        f"The softmax runs along axis {dim}; the last one was asked for.": (
            scores.softmax(dim)
        )
        for dim in (0, 1)
    }
    mistakes["This is the log-softmax."] = scores.log_softmax(-1)
    mistakes["The exponentials are not divided by their sum."] = (
        scores - scores.amax(-1, keepdim=True)
    ).exp()
    explain(found, scores.softmax(-1), mistakes)

    large = scores + 500
    _finite(
        answer(large), "Scores around 500 give NaN: subtract the largest of each row."
    )
    apart = scores + torch.tensor([0.0, 400.0, 800.0])[:, None]  # rows far apart
    words = "A row far below the others gives NaN: subtract its own largest score."
    _finite(answer(apart), words)
    if not same(answer(apart), apart.softmax(-1)):
        raise NotYet("With rows far apart the weights differ from torch's softmax.")
    if (kind := answer(scores.half()).dtype) != torch.float16:
        raise NotYet(f"For float16 scores return float16, not {kind}.")

    some = scores.masked_fill(torch.arange(5) > 2, -math.inf)
    words = "Minus infinity beside other scores gives NaN; its weight should be 0."
    _finite(answer(some), words)
    if not same(answer(some), some.softmax(-1)):
        raise NotYet("With some scores at minus infinity the weights are not right.")
    some[1, 2] = -math.inf
    words = "A row of minus infinities gives NaN; zeros were asked for."
    _finite(answer(some), words)
    if bool((answer(some)[1, 2] != 0).any()):
        raise NotYet("A row of minus infinities gets weight; zeros were asked for.")
    return "Right for every size of scores, and for a row with nothing in it."


@check("4.2")
def temperature_for(answer: Callable[[Tensor, float], float]) -> str:
    """Check the temperature that gives a wanted effective number of keys.

    Examples
    --------
    >>> temperature_for(lambda scores, keys: 1.0)  # doctest: +ELLIPSIS
    Exercise 4.2: not yet. At your temperature 1 the row has ...
    """
    row = torch.tensor(
        [0.9, -1.3, 0.2, 1.7, -0.4, 0.5, -2.0, 1.1, 0.0, -0.8, 0.3, -1.0]
    )
    for size, keys in ((1.0, 2.0), (1.0, 8.0), (100.0, 3.0), (0.001, 11.5)):
        scores = size * row
        T = demand_number(answer(scores.clone(), keys), positive=True)
        reached = _effective(scores / T)
        if abs(reached / keys - 1) < 0.01:
            continue
        if abs(_effective(scores * T) / keys - 1) < 0.01:
            raise NotYet("This is one over the temperature: scores are divided by T.")
        if abs(math.log(reached) / keys - 1) < 0.01:
            raise NotYet(
                "The entropy is right; the number of keys is e to the entropy."
            )
        hint = "" if size == 1 else " Does your search reach far enough?"
        raise NotYet(
            f"At your temperature {T:.3g} the row has {reached:.1f} effective keys; "
            f"{keys:g} were asked for, with scores of size {size:g}.{hint}"
        )
    return "Four rows, each as sharp as it was ordered."


@check("4.3")
def edited_row(answer: Callable[[], Sequence[object]]) -> str:
    """Check C's weight, predicted for six edits of its row of scores.

    Examples
    --------
    >>> edited_row(lambda: ["1/2", "1/2", "1/2", "1/4", "1/2", "1/2"])
    Exercise 4.3: not yet. Edit 2 does not give 1/2. Doubling a score squares its power: 4, 4 and 16.
    """
    found = answer()
    if found is None:
        raise NotYet("The function returns nothing yet.")
    try:
        weights = [Fraction(str(x)) for x in found]
    except (TypeError, ValueError, ZeroDivisionError):
        raise NotYet('Return six fractions, such as "1/2".') from None
    if len(weights) != len(_EDITS):
        raise NotYet(f"There are six edits; you gave {len(weights)} weights.")
    for n, (said, (scores, place, cause)) in enumerate(
        zip(weights, _EDITS, strict=True), 1
    ):
        row = math.log(2) * torch.tensor(scores, dtype=torch.float64)
        measured = row.softmax(-1)[place].item()
        if abs(float(said) - measured) > 5e-4:
            raise NotYet(f"Edit {n} does not give {said}. {cause}")
    return "Six edits, six weights, and torch's softmax gives the same."


@check("4.4")
def softmax_axis(answer: Callable[[Attend], str]) -> str:
    """Check a function that finds the axis along which an attention normalises.

    Examples
    --------
    >>> softmax_axis(lambda attend: "keys")
    Exercise 4.4: not yet. An attention whose softmax runs over the queries is called 'keys'.
    """
    for name, dim in _AXES.items():
        for gain in (1.0, 3.0):  # a sharp one too
            found = answer(_along(dim, gain))
            if found is None:
                raise NotYet("The function returns nothing yet.")
            if found not in _AXES:
                raise NotYet(f"Return one of {list(_AXES)}, not {found!r}.")
            if found != name:
                raise NotYet(
                    f"An attention whose softmax runs over the {name} is called {found!r}."
                )
    return "Eight attentions, four axes, each found from outside."


@check("4.5", forbids=("softmax_backward", "autograd", "backward"))
def scores_grad(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check the gradient with respect to scores, without an S x S matrix.

    Examples
    --------
    >>> scores_grad(lambda w, g: w * (g - (w * g).sum(-1, keepdim=True))).passed
    True
    """
    scores = torch.randn(2, 3, 40, requires_grad=True)
    grad = torch.randn(2, 3, 40)
    weights = scores.softmax(-1)
    (wanted,) = torch.autograd.grad(weights, scores, grad)
    w = weights.detach()
    dot = (w * grad).sum(-1, keepdim=True)
    with _Largest() as largest:
        found = answer(w.clone(), grad.clone())
    found = demand_tensor(found, (2, 3, 40), "The gradient")
    mistakes = {
        "The diagonal alone: the other weights fall when one rises.": w
        * (1 - w)
        * grad,
        "The first half alone: subtract what the other weights lose.": w * grad,
        "The mean of grad must be weighted by the weights.": (
            w * (grad - grad.mean(-1, keepdim=True))
        ),
        "Subtract the weighted mean of grad, not its sum.": (
            w * (grad - grad.sum(-1, keepdim=True))
        ),
        "The bracket is right; multiply it by the weights.": grad - dot,
        "The sum runs over all rows; each row has its own.": w
        * (grad - (w * grad).sum()),
    }
    explain(found, wanted, mistakes)
    if largest.numel > 4 * found.numel():
        raise NotYet(
            f"Right, but a tensor with {largest.numel} entries was built on the way: the "
            "matrix. Multiply it out on paper first."
        )
    return "The gradient, in memory that grows with S and not with its square."


@check("4.6")
def total(answer: Callable[[list[BFloat16]], BFloat16]) -> str:
    """Check a sum of 4096 numbers, every step of which is rounded to bfloat16.

    Examples
    --------
    >>> total(sum)
    Exercise 4.6: not yet. 4096 ones add up to 256: there the next one is less than half \
the gap between two numbers, and is lost. Add numbers of like size.
    """
    worst, where, rounding = 0.0, "", 0.0
    for words, powers in _rows_of_powers():
        numbers = [BFloat16(power) for power in powers.tolist()]
        true = math.fsum(map(exact, numbers))
        found = answer(list(numbers))
        if found is None:
            raise NotYet("The function returns nothing yet.")
        if not isinstance(found, BFloat16):
            raise NotYet(f"Return one of the numbers, not {type(found).__name__}.")
        if not words and exact(found) != true:  # the ones
            lost = "there the next one is less than half the gap between two numbers, "
            lost += "and is lost. Add numbers of like size."
            rest = lost if exact(found) == 256 else "each counts once."
            raise NotYet(f"4096 ones add up to {exact(found):g}: {rest}")
        off = abs(exact(found) / true - 1)
        rounding = max(rounding, abs(exact(BFloat16(true)) / true - 1))
        if off >= worst:
            worst, where = off, words
    if worst > 0.05:
        raise NotYet(f"The sum of {where} is off by {worst:.1%}; 5% is allowed.")
    return (
        f"Off by at most {worst:.2%}. The nearest numbers that bfloat16 has are off by "
        f"{rounding:.2%}."
    )


def _rows_of_powers() -> list[tuple[str, Tensor]]:
    """Rows of 4096 powers, at most 1: equal ones, drawn ones, one large and a tail."""
    S = 4096
    rows = [("", torch.ones(S))]
    for size in (1, 2):
        scores = size * torch.randn(S)
        words = f"the powers of normal scores of size {size}"
        rows.append((words, (scores - scores.max()).exp()))
    tail = torch.full((S,), 0.003)
    tail[0] = 1.0
    return [*rows, ("a 1 and 4095 times 0.003", tail)]


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation inside it returns."""

    numel = 0

    def __torch_dispatch__(  # type: ignore[no-untyped-def]
        self, func, types, args=(), kwargs=None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numel = max(self.numel, result.numel())
        return result


def _along(dim: int, gain: float) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT * (gain / math.sqrt(query.shape[-1]))
        return scores.softmax(dim) @ value

    return attend


def _finite(found: Tensor, cause: str) -> None:
    if bool(found.isnan().any()):
        raise NotYet(cause)


def _effective(scores: Tensor) -> float:
    return torch.special.entr(scores.double().softmax(-1)).sum().exp().item()
