"""Attention tile by tile: memory in proportion to L + S, forward and backward.

The forward pass meets a tile of queries with one tile of keys after the other and keeps
a running softmax: the largest score so far, the sum of powers and the mixture of values.
What it saves is the output and, for each row, the logarithm of the sum of exponentials.
From that the backward pass makes every weight again, tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_lib._checks import autocasts, check_attention, check_integer

__all__ = ["chunked_attention"]


def chunked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    chunk_size: int = 512,
) -> Tensor:
    """Attention that holds one tile of weights at a time, also in training.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap
        As in :func:`~attention_lib.scaled_dot_product_attention`. The dropout of a tile
        is drawn from a seed of its own, so the backward pass draws the same again.
    chunk_size
        Queries and keys of a tile. Larger is faster and needs more memory.

    Returns
    -------
    Tensor
        Shape (..., H, L, Dv), the query's dtype (under autocast, autocast's).

    Raises
    ------
    ValueError
        If ``chunk_size`` is below 1, and as
        :func:`~attention_lib.scaled_dot_product_attention`.
    TypeError
        As there.

    Notes
    -----
    There is no second derivative.

    Examples
    --------
    >>> from attention_lib import scaled_dot_product_attention
    >>> query = torch.randn(2, 100, 4)  # (H, L, D)
    >>> output = chunked_attention(query, query, query, is_causal=True, chunk_size=32)
    >>> same = scaled_dot_product_attention(query, query, query, is_causal=True)
    >>> torch.allclose(output, same, atol=1e-6)
    True

    References
    ----------
    Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018. Rabe and
    Staats, "Self-attention Does Not Need O(n²) Memory", 2021. Dao et al.,
    "FlashAttention", 2022.
    """
    check_attention(query, key, value, attn_mask, dropout_p, scale, enable_gqa, softcap)
    check_integer("chunk_size", chunk_size, least=1)
    if autocasts(query):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    tiling = Tiling(
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        is_causal=is_causal,
        softcap=softcap,
        dropout_p=dropout_p,
        seed=int(torch.randint(2**31, ())) if dropout_p else 0,
        size=chunk_size,
    )
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * max(2 - attn_mask.ndim, 0)]
    output, _ = ChunkedAttention.apply(query, key, value, attn_mask, tiling)
    return output


@dataclass(frozen=True)
class Tiling:
    """What a tile of scores depends on beside queries, keys and the mask."""

    scale: float
    is_causal: bool
    softcap: float | None
    dropout_p: float
    seed: int
    size: int

    def causal(self) -> Tiling:
        """The same with a causal mask."""
        return replace(self, is_causal=True)

    def spans(self, length: int) -> Iterator[slice]:
        """The chunks of an axis."""
        for start in range(0, length, self.size):
            yield slice(start, min(start + self.size, length))

    def pairs(self, L: int, S: int) -> Iterator[tuple[slice, Iterator[slice]]]:
        """Each chunk of queries with the chunks of keys that it may see."""
        for rows in self.spans(L):
            yield rows, self.spans(min(S, rows.stop) if self.is_causal else S)

    def scores(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        rows: slice,
        columns: slice,
    ) -> tuple[Tensor, Tensor | None]:
        """The masked scores of one tile, and the slope of the soft cap if there is one."""
        scores, slope = query @ key.mT, None  # (..., H, rows, columns)
        if self.softcap is not None:
            bent = torch.tanh(scores / self.softcap)
            scores, slope = self.softcap * bent, 1 - bent.square()
        if self.is_causal and columns.stop > rows.start + 1:
            row = torch.arange(rows.start, rows.stop, device=scores.device)
            column = torch.arange(columns.start, columns.stop, device=scores.device)
            scores = scores.masked_fill(column > row[:, None], -math.inf)
        if attn_mask is not None:
            part = attn_mask[..., _part(attn_mask, -2, rows), :]
            part = part[..., _part(attn_mask, -1, columns)]
            if part.dtype == torch.bool:
                scores = scores.masked_fill(~part, -math.inf)
            else:
                scores = scores + part
        return scores, slope

    def kept(self, weights: Tensor, rows: slice, columns: slice) -> Tensor | None:
        """The factors of dropout, the same each time a tile is asked for."""
        if not self.dropout_p:
            return None
        generator = torch.Generator(weights.device)
        generator.manual_seed(hash((self.seed, rows.start, columns.start)) % 2**63)
        drawn = torch.rand(weights.shape, device=weights.device, generator=generator)
        return (drawn >= self.dropout_p).to(weights.dtype) / (1 - self.dropout_p)


class ChunkedAttention(torch.autograd.Function):
    """The output and the log-sum-exp of each row, with a backward pass in tiles."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        tiling: Tiling,
    ) -> tuple[Tensor, Tensor]:
        with _without_autocast(query):
            output, log_sum = tiled_forward(query, key, value, attn_mask, tiling)
        ctx.save_for_backward(query, key, value, attn_mask, output, log_sum)
        ctx.tiling = tiling
        ctx.mark_non_differentiable(log_sum)
        return output, log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        wants_mask = ctx.needs_input_grad[3]
        with _without_autocast(grad):
            grads = tiled_backward(grad, ctx.saved_tensors, ctx.tiling, wants_mask)
        return (*grads, None)


def _without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Products in the dtype of their tensors, also where autocast would round them."""
    if autocasts(tensor):
        return torch.autocast(tensor.device.type, enabled=False)
    return nullcontext()


def tiled_forward(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, tiling: Tiling
) -> tuple[Tensor, Tensor]:
    """The output, (..., H, L, Dv), and the log-sum-exp of each row, (..., H, L)."""
    work = torch.promote_types(query.dtype, torch.float32)
    group = _group(query, key)
    L, S = query.shape[-2], key.shape[-2]
    output = query.new_zeros(*query.shape[:-1], value.shape[-1])
    log_sum = query.new_full(query.shape[:-1], -math.inf, dtype=work)
    for rows, spans in tiling.pairs(L, S):
        q = query[..., rows, :].to(work) * tiling.scale  # (..., H, rows, D)
        top = torch.full_like(q[..., :1], -math.inf)  # the largest score so far
        total = torch.zeros_like(top)  # of exp(score - top)
        mixed = q.new_zeros(*q.shape[:-1], value.shape[-1])
        for columns in spans:
            k = _shared(key[..., columns, :].to(work), group)
            scores, _ = tiling.scores(q, k, attn_mask, rows, columns)
            above = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            finite = above.clamp(min=torch.finfo(work).min)  # of a row with no key
            powers, shrink = (scores - finite).exp(), (top - finite).exp()
            total = total * shrink + powers.sum(dim=-1, keepdim=True)
            kept = tiling.kept(powers, rows, columns)
            powers = powers if kept is None else powers * kept
            v = _shared(value[..., columns, :].to(work), group)
            mixed = mixed * shrink + powers @ v
            top = above
        output[..., rows, :] = mixed / (total + (total == 0))
        log_sum[..., rows] = (top + total.log()).squeeze(-1)
    return output, log_sum


def tiled_backward(
    grad: Tensor, saved: tuple[Any, ...], tiling: Tiling, wants_mask: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of query, key, value and mask.

    ``saved`` holds those four, the output and the log-sum-exp. Where the keys are a part
    of those that the rows saw, the last two must be those over all of them.
    """
    query, key, value, attn_mask, output, log_sum = saved
    work = log_sum.dtype
    group = _group(query, key)
    L, S = query.shape[-2], key.shape[-2]
    grad_query = torch.zeros_like(query)
    grad_key = torch.zeros_like(key, dtype=work)
    grad_value = torch.zeros_like(value, dtype=work)
    grad_mask = torch.zeros_like(attn_mask, dtype=work) if wants_mask else None
    for rows, spans in tiling.pairs(L, S):
        q = query[..., rows, :].to(work) * tiling.scale
        g = grad[..., rows, :].to(work)  # (..., H, rows, Dv)
        mean = (g * output[..., rows, :].to(work)).sum(dim=-1, keepdim=True)
        level = log_sum[..., rows, None].clamp(min=torch.finfo(work).min)
        grad_q = torch.zeros_like(q)
        for columns in spans:
            k = _shared(key[..., columns, :].to(work), group)
            v = _shared(value[..., columns, :].to(work), group)
            scores, slope = tiling.scores(q, k, attn_mask, rows, columns)
            weights = (scores - level).exp()  # (..., H, rows, columns)
            grad_weights = g @ v.mT
            kept = tiling.kept(weights, rows, columns)
            if kept is None:
                grad_value[..., columns, :] += _gathered(weights.mT @ g, group)
            else:
                grad_value[..., columns, :] += _gathered((weights * kept).mT @ g, group)
                grad_weights = grad_weights * kept
            grad_scores = weights * (grad_weights - mean)
            if grad_mask is not None:
                part = grad_mask[..., _part(grad_mask, -2, rows), :]
                part = part[..., _part(grad_mask, -1, columns)]
                part += grad_scores.sum_to_size(part.shape)
            if slope is not None:
                grad_scores = grad_scores * slope
            grad_q += grad_scores @ k
            grad_key[..., columns, :] += _gathered(grad_scores.mT @ q, group)
        grad_query[..., rows, :] = grad_q * tiling.scale
    mask = None if grad_mask is None else grad_mask.to(attn_mask.dtype)
    return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype), mask


def _group(query: Tensor, key: Tensor) -> int:
    """How many query heads share a head of keys."""
    if query.ndim < 3 or not key.shape[-3]:
        return 1
    return query.shape[-3] // key.shape[-3]


def _shared(tile: Tensor, group: int) -> Tensor:
    """(..., Hkv, S, D) as (..., H, S, D)."""
    return tile if group == 1 else tile.repeat_interleave(group, dim=-3)


def _gathered(tile: Tensor, group: int) -> Tensor:
    """(..., H, S, D) as (..., Hkv, S, D): the sum over the heads that share."""
    return tile if group == 1 else tile.unflatten(-3, (-1, group)).sum(dim=-3)


def _part(mask: Tensor, axis: int, span: slice) -> slice:
    """The chunk of a mask's axis; all of an axis that broadcasts."""
    return span if mask.shape[axis] > 1 else slice(None)
