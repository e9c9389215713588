"""Checks for the exercises of chapter 10, memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_lib.checks._report import (
    READY_ATTENTION,
    NotYet,
    check,
    copies,
    demand_number,
    demand_tensor,
    draws,
    explain,
)
from attention_lib.functional import attention_steps, scaled_dot_product_attention
from attention_lib.memory import peak_bytes, saved_bytes

__all__ = ["frugal", "reach_of", "redraws", "saved", "streamed"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Chunks = Iterable[tuple[Tensor, Tensor]]


@check("10.1")
def saved(answer: Callable[[int, int, int, int], int]) -> str:
    """Check ``saved(H, L, S, D)``: bytes that attention in three lines keeps.

    Examples
    --------
    >>> saved(lambda H, L, S, D: H * L * S)
    Exercise 10.1: not yet. That is the number of weights: a float32 takes 4 bytes.
    """
    for H, L, S, D in ((1, 64, 64, 8), (2, 48, 80, 16), (4, 96, 32, 24)):
        query = torch.randn(H, L, D, requires_grad=True)
        key, value = (torch.randn(H, S, D, requires_grad=True) for _ in "kv")
        true = saved_bytes(three_lines, query, key, value)
        found = demand_number(answer(H, L, S, D), "a number of bytes")
        mistakes = {
            H * L * S: "That is the number of weights: a float32 takes 4 bytes.",
            4
            * H
            * L
            * S: "That is the weights. The scaled queries are new as well, and "
            "the product with the keys keeps them.",
            4 * L * S + 4 * L * D: "That is one head.",
            8 * H * L * S + 4 * H * L * D: "The scores are not kept: the softmax needs "
            "its result alone to make its gradient.",
            4 * H * (L * S + (L + 2 * S) * D): "The keys and values are kept, but they "
            "are arguments: they are there anyway.",
        }
        if found != true:
            cause = mistakes.get(
                int(found), "Which tensors does each product need again?"
            )
            raise NotYet(
                cause
                if int(found) in mistakes
                else f"{true} bytes are kept for H={H}, L={L}, S={S}, D={D}; "
                f"you say {found}. {cause}"
            )
    return "Every byte predicted, for three shapes."


def three_lines(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention as one writes it first."""
    scores = (query / math.sqrt(query.shape[-1])) @ key.mT
    weights = scores.softmax(dim=-1)
    return weights @ value


@check("10.2", forbids=READY_ATTENTION)
def streamed(answer: Callable[[Tensor, Chunks], Tensor]) -> str:
    """Check ``streamed(query, chunks)``: one query (D,), keys and values in chunks.

    Examples
    --------
    >>> streamed(lambda query, chunks: None)
    Exercise 10.2: not yet. The function returns nothing yet.
    """
    query = torch.randn(4)
    sizes = (3, 1, 5, 2)
    chunks = [(torch.randn(n, 4), torch.randn(n, 3)) for n in sizes]

    def once(chunks: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        yield from chunks

    def joined(chunks: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return torch.cat([k for k, _ in chunks]), torch.cat([v for _, v in chunks])

    keys, values = joined(chunks)
    scores = keys @ query / 2  # (S,)
    per_chunk = [scaled_dot_product_attention(query[None], k, v)[0] for k, v in chunks]
    powers, largest = scores.exp(), torch.stack([k @ query / 2 for k, _ in chunks[-1:]])
    found = demand_tensor(answer(query, once(chunks)), (3,), "The output")
    explain(
        found,
        scores.softmax(0) @ values,
        {
            "The chunks' outputs are averaged: a chunk counts by the sum of its "
            "exponentials.": torch.stack(per_chunk).mean(0),
            "Only the last chunk is returned.": per_chunk[-1],
            "The mixture is not divided by the sum of the exponentials.": powers
            @ values,
            "The mixture is divided by the number of keys: divide it by the sum of the "
            "exponentials.": powers @ values / len(scores),
            "The scores are not scaled.": (2 * scores).softmax(0) @ values,
            "The sum of exponentials is that of the last chunk only.": powers
            @ values
            / largest.exp().sum(),
        },
    )
    rising = [(400.0 * i * query[None], torch.full((1, 3), float(i))) for i in range(4)]
    found = answer(query, once(rising))
    if not isinstance(found, Tensor) or not bool(found.isfinite().all()):
        raise NotYet(
            "Right for small scores, but large ones overflow: keep the largest score so "
            "far, and shrink what you have when a larger one comes."
        )
    keys, values = joined(rising)
    want = (keys @ query / 2).softmax(0) @ values
    if not torch.allclose(found, want, atol=1e-4):
        raise NotYet(
            "Right while the first chunk holds the largest score. When a larger one "
            "comes, shrink the sum and the mixture that you have."
        )
    return "Eleven keys in four chunks, each seen once, and scores into the thousands."


@check("10.3")
def reach_of(answer: Callable[[list[int]], int]) -> str:
    """Check ``reach_of(windows)``: how many tokens a stack of windows sees.

    Examples
    --------
    >>> reach_of(lambda windows: sum(windows)).message[:31]
    'With windows [3, 5] the output '
    """
    for windows in ([3], [3, 5], [1, 1, 1], [4, 2, 3], [256, 64, 1024]):
        small = sum(windows) < 20
        true = _measured(windows) if small else 1 + sum(w - 1 for w in windows)
        found = answer(list(windows))
        if found is None:
            raise NotYet("The function returns nothing yet.")
        if found != true:
            raise NotYet(
                f"With windows {windows} the output depends on {true} tokens; you say "
                f"{found}. The token itself is in every window: it is not new a second "
                "time."
            )
    return "Five stacks predicted; those that are small were measured."


def _measured(windows: list[int]) -> int:
    """Tokens on which the last output of a stack depends."""
    length = 1 + sum(windows)
    x = torch.randn(length, 4, dtype=torch.float64, requires_grad=True)
    i = torch.arange(length)
    y = x
    for window in windows:
        keep = (i <= i[:, None]) & (i > i[:, None] - window)
        y = scaled_dot_product_attention(y, y, y, keep)
    (grad,) = torch.autograd.grad(y[-1].sum(), x)
    return int((grad.abs().sum(-1) > 0).sum())


@check("10.4")
def redraws(answer: Callable[[Attend], bool]) -> str:
    """Check a detector: True where the backward pass meets another dropout.

    Examples
    --------
    >>> redraws(lambda attend: False)
    Exercise 10.4: not yet. It clears an attention whose recomputation draws new dropout.
    """

    def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention_steps(q, k, v, None, 0.5).output

    def again(keep_random_state: bool) -> Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            output: Tensor = checkpoint(
                explicit,
                q,
                k,
                v,
                use_reentrant=False,
                preserve_rng_state=keep_random_state,
            )
            return output

        return attend

    subjects = {
        "an attention that keeps its weights": (explicit, False),
        "an attention whose recomputation draws the same dropout": (again(True), False),
        "an attention whose recomputation draws new dropout": (again(False), True),
    }
    for seed in draws(3):
        for words, (attend, faulty) in subjects.items():
            torch.manual_seed(seed)
            verdict = answer(attend)
            if verdict is None:
                raise NotYet("The function returns nothing yet.")
            if bool(verdict) != faulty:
                raise NotYet(f"It {'clears' if faulty else 'accuses'} {words}.")
    return "Two sound attentions cleared, a faulty one found, on three draws each."


@check("10.5")
def frugal(answer: Attend) -> str:
    """Check an attention whose forward pass holds an eighth of the explicit one's bytes.

    Examples
    --------
    >>> frugal(scaled_dot_product_attention).passed
    True
    """
    query, key = torch.randn(2, 300, 8), torch.randn(2, 500, 8)
    value = torch.randn(2, 500, 6)
    found = demand_tensor(answer(*copies(query, key, value)), (2, 300, 6), "The output")
    weights = (query @ key.mT / math.sqrt(8)).softmax(-1)
    explain(
        found,
        weights @ value,
        {"The scores are not scaled.": (query @ key.mT).softmax(-1) @ value},
    )
    inputs = [torch.randn(2, 1024, 8) for _ in "qkv"]
    allowed = peak_bytes(three_lines, *inputs) // 8
    held = peak_bytes(answer, *inputs)
    if held > allowed:
        raise NotYet(
            f"Right, but at L = S = 1024 it holds {held / 2**20:.1f} MiB; an eighth of "
            f"the three lines' is {allowed / 2**20:.1f}. Take fewer queries at a time."
        )
    return f"The same output, and {held / 2**20:.1f} MiB at the most."
