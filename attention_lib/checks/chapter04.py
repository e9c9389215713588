"""Checks for the exercises of chapter 4, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_lib.checks._report import (
    NotYet,
    check,
    demand_number,
    demand_tensor,
    explain,
    same,
)

__all__ = ["merge", "scores_grad", "softmax_axis", "stable_softmax", "temperature_for"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

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
def merge(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
) -> str:
    """Check a merge of two partial attentions by their log-sum-exps.

    Examples
    --------
    >>> merge(lambda out_a, lse_a, out_b, lse_b: ((out_a + out_b) / 2, lse_a + lse_b))
    Exercise 4.3: not yet. A plain mean: the half with the larger sum must count more.
    """
    scores, value = 2 * torch.randn(4, 9), torch.randn(9, 3)
    a, la, b, lb = parts = _halves(scores, value)
    output, lse = _pair(answer(*(part.clone() for part in parts)))
    total = (la + lb)[:, None]
    mistakes = {
        "A plain mean: the half with the larger sum must count more.": (a + b) / 2,
        "A plain sum: the shares of the two halves must add up to 1.": a + b,
        "The halves are weighted by their log-sum-exps; take e to them first.": (
            (la[:, None] * a + lb[:, None] * b) / total
        ),
        "The shares are swapped between the halves.": _share(lb, la) * a
        + _share(la, lb) * b,
        "The outputs are weighted but not divided by the sum of both.": (
            la.exp()[:, None] * a + lb.exp()[:, None] * b
        ),
    }
    explain(output, scores.softmax(-1) @ value, mistakes)
    if same(lse, la + lb):
        raise NotYet("Log-sum-exps do not add: the sums inside them do.")
    if not same(lse, scores.logsumexp(-1)):
        raise NotYet("The output is right, the log-sum-exp is not.")
    far = scores + torch.tensor([1000.0, -1000.0, 0.0, 300.0])[:, None]
    output, lse = _pair(answer(*_halves(far, value)), finite=False)
    if not bool((output.isfinite().all() & lse.isfinite().all()).item()):
        raise NotYet(
            "Log-sum-exps near 1000 give NaN or infinity: only their difference counts, "
            "so subtract before the exponential."
        )
    if not same(output, far.softmax(-1) @ value):
        raise NotYet("With log-sum-exps near 1000 the output differs.")
    return "Two halves, one attention, also where the sums themselves would overflow."


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


def _halves(scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output and log-sum-exp over the first four keys, and over the others."""
    first, second = scores[:, :4], scores[:, 4:]
    return (
        first.softmax(-1) @ value[:4],
        first.logsumexp(-1),
        second.softmax(-1) @ value[4:],
        second.logsumexp(-1),
    )


def _share(mine: Tensor, other: Tensor) -> Tensor:
    return (mine - other).sigmoid()[:, None]


def _pair(found: object, finite: bool = True) -> tuple[Tensor, Tensor]:
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(found, tuple) or len(found) != 2:
        raise NotYet("Return two tensors: the output and its log-sum-exp.")
    if not finite:
        return found
    output = demand_tensor(found[0], (4, 3), "The output")
    return output, demand_tensor(found[1], (4,), "The log-sum-exp")


def _finite(found: Tensor, cause: str) -> None:
    if bool(found.isnan().any()):
        raise NotYet(cause)


def _effective(scores: Tensor) -> float:
    return torch.special.entr(scores.double().softmax(-1)).sum().exp().item()
