"""Checks for the exercises of chapter 2, queries, keys and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from attention_lib.checks._report import (
    READY_ATTENTION,
    NotYet,
    check,
    copies,
    demand_tensor,
    draws,
    explain,
)
from attention_lib.functional import scaled_dot_product_attention

__all__ = ["attend", "crowd", "look_up", "own_row_only", "predicted"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@check("2.1", forbids=READY_ATTENTION)
def look_up(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str:
    """Check ``look_up(query, keys, values)``: one query (D,) against S keys (S, D).

    Examples
    --------
    >>> look_up(lambda query, keys, values: None)
    Exercise 2.1: not yet. The function returns nothing yet.
    """
    query, keys, values = torch.randn(3), torch.randn(5, 3), torch.randn(5, 4)
    found = demand_tensor(answer(*copies(query, keys, values)), (4,), "The output")
    scores = keys @ query  # (S,)
    scaled = scores / math.sqrt(3)
    explain(
        found,
        scaled.softmax(0) @ values,
        {
            "The scores are mixed in unnormalised: put them through a softmax.": scaled
            @ values,
            "Raw scores are mixed in: scale them, then take the softmax.": scores
            @ values,
            "The scores are not scaled: divide them by the square root of the "
            "query's width.": scores.softmax(0) @ values,
            "The scores are divided by the width itself: take its square root.": (
                scores / 3
            ).softmax(0)
            @ values,
            "The weights do not reach the values: this is a plain mean of them.": (
                values.mean(0)
            ),
            "Only the best value is returned: that is a hard look-up, mix them "
            "by their weights instead.": values[scores.argmax()],
        },
    )
    return "One query, five keys, the right mixture."


@check("2.2", forbids=READY_ATTENTION)
def attend(answer: Attend) -> str:
    """Check ``attend(query, key, value)`` on batches with L, S, D, Dv all different.

    Examples
    --------
    >>> attend(scaled_dot_product_attention).passed
    True
    """
    query, key = torch.randn(2, 4, 3), torch.randn(2, 6, 3)
    value = torch.randn(2, 6, 5)
    found = answer(*copies(query, key, value))
    if isinstance(found, Tensor) and found.shape == (2, 6, 5):
        raise NotYet(
            "There is one output row for each key. The queries ask: there must be "
            "one row for each query."
        )
    found = demand_tensor(found, (2, 4, 5), "The output")
    scores = query @ key.mT / math.sqrt(3)  # (B, L, S)
    explain(
        found,
        scores.softmax(-1) @ value,
        {
            "The softmax runs over the queries: each row of weights must sum to 1, "
            "so take it over the last axis.": scores.softmax(-2) @ value,
            "The softmax runs over the batch: take it over the last axis.": (
                scores.softmax(0) @ value
            ),
            "The scores are not scaled: divide by the square root of the width of "
            "the queries.": (query @ key.mT).softmax(-1) @ value,
            "The scale uses the width of the values: it belongs to the queries and "
            "keys.": (query @ key.mT / math.sqrt(5)).softmax(-1) @ value,
            "The scale uses the number of keys: it is the width of the queries.": (
                query @ key.mT / math.sqrt(6)
            ).softmax(-1)
            @ value,
        },
    )
    query = torch.randn(3, 3)  # L = S = D = 3: every axis could be taken for another
    key, value = torch.randn(3, 3), torch.randn(3, 3)
    found = demand_tensor(
        answer(*copies(query, key, value)), (3, 3), "The output without batch"
    )
    explain(
        found,
        (query @ key.mT / math.sqrt(3)).softmax(-1) @ value,
        {
            "Queries and keys are swapped. It shows only now that L = S.": (
                key @ query.mT / math.sqrt(3)
            ).softmax(-1)
            @ value,
            "The keys are not transposed. It shows only now that S = D.": (
                query @ key / math.sqrt(3)
            ).softmax(-1)
            @ value,
        },
    )
    return (
        "Four queries, six keys, values of their own width, and it holds when square."
    )


@check("2.3")
def predicted(answer: Callable[[], tuple[Sequence[object], Sequence[object]]]) -> str:
    """Check the weights and the output worked out for the token (0, 2).

    Examples
    --------
    >>> predicted(lambda: ([0, 2, 2], [0, 0]))
    Exercise 2.3: not yet. These are the scores in units of ln 2. Raise 2 to each.
    """
    found = answer()
    if found is None:
        raise NotYet("The function returns nothing yet.")
    try:
        weights, output = ([Fraction(str(x)) for x in part] for part in found)
    except (TypeError, ValueError):
        raise NotYet(
            'Return two lists of fractions, such as ["1/3", "2/3", "0"] and ["1", "0"].'
        ) from None
    if len(weights) != 3 or len(output) != 2:
        raise NotYet(
            f"There are 3 weights and 2 output entries; you gave {len(weights)} "
            f"and {len(output)}."
        )
    if weights == [0, 2, 2]:
        raise NotYet("These are the scores in units of ln 2. Raise 2 to each.")
    if weights == [1, 4, 4]:
        raise NotYet("Nearly: divide by their sum, so that they add up to 1.")
    if sum(weights) != 1:
        raise NotYet(f"The weights add up to {sum(weights)}, not to 1.")
    if weights != [Fraction(1, 9), Fraction(4, 9), Fraction(4, 9)]:
        raise NotYet(
            "The weights add up to 1 but are not these. The score of a key is ln 2 "
            "times the dot product of the two tokens."
        )
    if output != [Fraction(5, 9), Fraction(8, 9)]:
        raise NotYet(
            "The weights are right. The output is the tokens mixed by them: "
            "A is (1, 0), B is (0, 1), C is (1, 1)."
        )
    return "Exact, and no machine was asked."


@check("2.4")
def own_row_only(answer: Callable[[Attend], bool]) -> str:
    """Check a test of attention: True for sound modules, False for faulty ones.

    Examples
    --------
    >>> own_row_only(lambda attend: True)
    Exercise 2.4: not yet. It calls an attention sound whose queries and keys are swapped.
    """
    sound: dict[str, Attend] = {
        "torch's own attention": torch.nn.functional.scaled_dot_product_attention,
        "an unscaled attention (a choice, and no row sees another)": (
            lambda q, k, v: (q @ k.mT).softmax(-1) @ v
        ),
    }
    faulty: dict[str, Attend] = {
        "whose queries and keys are swapped": lambda q, k, v: (
            scaled_dot_product_attention(k, q, v)
        ),
        "whose softmax runs over the queries": lambda q, k, v: (
            (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-2) @ v
        ),
        "that subtracts the mean over all queries first": lambda q, k, v: (
            scaled_dot_product_attention(q - q.mean(-2, keepdim=True), k, v)
        ),
    }
    for seed in draws(3):
        for name, subject in sound.items():
            torch.manual_seed(seed)
            verdict = answer(subject)
            if verdict is None:
                raise NotYet("The function returns nothing yet.")
            if not verdict:
                raise NotYet(f"It calls {name} faulty.")
        for name, subject in faulty.items():
            torch.manual_seed(seed)
            if answer(subject):
                raise NotYet(f"It calls an attention sound {name}.")
    return "Two sound attentions cleared, three faulty ones found, on three draws each."


@check("2.5")
def crowd(answer: Callable[[], tuple[Tensor, Tensor]]) -> str:
    """Check how many items of width 2 are found again, with norms of at most 10.

    Examples
    --------
    >>> crowd(lambda: (torch.eye(2), torch.eye(2)))
    Exercise 2.5: not yet. Item 0 finds itself with weight 0.67; 0.90 is asked for.
    """
    found = answer()
    if found is None:
        raise NotYet("The function returns nothing yet.")
    try:
        query, key = found
    except (TypeError, ValueError):
        raise NotYet("Return two tensors: the queries and the keys.") from None
    if not isinstance(query, Tensor) or query.dim() != 2:
        raise NotYet("The queries must be a tensor of shape (n, 2).")
    n = query.shape[0]
    query = demand_tensor(query, (n, 2), "The tensor of queries")
    key = demand_tensor(key, (n, 2), "The tensor of keys")
    for name, tensor in (("query", query), ("key", key)):
        longest = tensor.norm(dim=-1).max().item()
        if longest > 10 * (1 + 1e-5):
            raise NotYet(f"A {name} has norm {longest:.2f}; at most 10 is allowed.")
    weights = (query.double() @ key.double().mT / math.sqrt(2)).softmax(-1)
    own = weights.diagonal()
    if bool((own < 0.9).any()):
        worst = int(own.argmin())
        raise NotYet(
            f"Item {worst} finds itself with weight {own[worst]:.2f}; "
            "0.90 is asked for."
        )
    if n < 16:
        raise NotYet(f"All {n} items are found. Now fit in at least 16.")
    return f"{n} items share two dimensions, each found with weight 0.9 or more."
