"""Attention in which every rank holds a part of the queries and all keys pass by."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_lib._checks import check_attention, check_integer
from attention_lib.context_parallel.ring import Ring
from attention_lib.efficient.chunked import Tiling, tiled_backward, tiled_forward

__all__ = ["context_parallel_attention"]


def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool = False,
    *,
    ring: Ring,
    scale: float | None = None,
    enable_gqa: bool = False,
    chunk_size: int = 512,
) -> Tensor:
    """Attention over a sequence of which each rank holds a part.

    Every rank calls it with its own part, as :meth:`Ring.shard` cuts it, and gets the
    output of its own queries. The parts' outputs and gradients are those of one process
    with the whole sequence, to rounding.

    Parameters
    ----------
    query
        This rank's queries, (..., H, L / P, D) for P ranks.
    key, value
        This rank's keys and values, (..., H, L / P, D) and (..., H, L / P, Dv), or of
        Hkv heads with ``enable_gqa``.
    is_causal
        Whether a query sees only keys up to its own position in the whole sequence.
    ring
        The ranks. Make it once and use it for every layer and step.
    scale, enable_gqa
        As in :func:`~attention_lib.scaled_dot_product_attention`.
    chunk_size
        Queries and keys of a tile, as in :func:`~attention_lib.efficient.chunked_attention`.

    Returns
    -------
    Tensor
        Shape (..., H, L / P, Dv).

    Raises
    ------
    ValueError, TypeError
        As :func:`~attention_lib.scaled_dot_product_attention`; if queries and keys
        differ in number, their number is odd, or ranks bring different shapes.
    RuntimeError
        If a neighbour is gone or silent beyond the group's timeout.

    Notes
    -----
    A rank sends P - 1 times its keys and values forward. Backward it sends them P - 1
    times again, and P times their gradients, in float32 at least.

    Examples
    --------
    >>> from attention_lib import scaled_dot_product_attention
    >>> query = torch.randn(2, 8, 4)  # (H, L, D)
    >>> output = context_parallel_attention(query, query, query, True, ring=Ring())
    >>> same = scaled_dot_product_attention(query, query, query, is_causal=True)
    >>> torch.allclose(output, same, atol=1e-6)
    True

    References
    ----------
    Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for
    Near-Infinite Context", 2024.
    """
    check_attention(query, key, value, None, 0.0, scale, enable_gqa, None)
    check_integer("chunk_size", chunk_size, least=1)
    if key.shape[-2] != query.shape[-2]:
        raise ValueError(
            f"key has {key.shape[-2]} tokens, expected {query.shape[-2]} as query"
        )
    if query.shape[-2] % 2:
        raise ValueError(
            f"query has {query.shape[-2]} tokens, expected an even number: "
            "an early and a late chunk"
        )
    ring.agree(query, key, value)
    tiling = Tiling(
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        is_causal=False,  # said for each pair of chunks
        softcap=None,
        dropout_p=0.0,
        seed=0,
        size=chunk_size,
    )
    output: Tensor = _RingAttention.apply(query, key, value, is_causal, tiling, ring)
    return output


class _RingAttention(torch.autograd.Function):
    """Once around the ring with keys and values, and once more with their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool,
        tiling: Tiling,
        ring: Ring,
    ) -> Tensor:
        work = torch.promote_types(query.dtype, torch.float32)
        output = torch.zeros(
            *query.shape[:-1], value.shape[-1], dtype=work, device=query.device
        )
        log_sum = torch.full_like(output[..., 0], -math.inf)
        held = key.contiguous(), value.contiguous()
        for step in range(ring.size):
            last = step == ring.size - 1
            under_way = None if last else ring.send(*held)
            source = (ring.rank - step) % ring.size
            for rows, columns, rule in _pairs(ring, source, query, is_causal, tiling):
                k, v = (x[..., columns, :] for x in held)
                part, part_log = tiled_forward(query[..., rows, :], k, v, None, rule)
                _merge(output[..., rows, :], log_sum[..., rows], part, part_log)
            if under_way is not None:
                held = under_way.wait()  # type: ignore[assignment]
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, log_sum)
        ctx.is_causal, ctx.tiling, ctx.ring = is_causal, tiling, ring
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, log_sum = ctx.saved_tensors
        ring: Ring = ctx.ring
        grad_query = torch.zeros_like(query, dtype=log_sum.dtype)
        held = key.contiguous(), value.contiguous()
        grads = tuple(torch.zeros_like(x, dtype=log_sum.dtype) for x in held)
        for step in range(ring.size):
            last = step == ring.size - 1
            under_way = None if last else ring.send(*held)
            source = (ring.rank - step) % ring.size
            for rows, columns, rule in _pairs(
                ring, source, query, ctx.is_causal, ctx.tiling
            ):
                k, v = (x[..., columns, :] for x in held)
                q, out, level = query[..., rows, :], output[..., rows, :], log_sum
                saved = (q, k, v, None, out, level[..., rows])
                *parts, _ = tiled_backward(grad[..., rows, :], saved, rule, False)
                grad_query[..., rows, :] += parts[0]
                for total, part in zip(grads, parts[1:], strict=True):
                    total[..., columns, :] += part
            if ring.size > 1:  # the gradients follow their keys, and at last come home
                grads = ring.send(*grads).wait()
            if under_way is not None:
                held = under_way.wait()  # type: ignore[assignment]
        grad_key, grad_value = grads
        return (
            grad_query.to(query.dtype),
            grad_key.to(key.dtype),
            grad_value.to(value.dtype),
            None,
            None,
            None,
        )


def _pairs(
    ring: Ring, source: int, query: Tensor, is_causal: bool, tiling: Tiling
) -> Iterator[tuple[slice, slice, Tiling]]:
    """Own chunks of queries with a rank's chunks of keys that they may see."""
    half = query.shape[-2] // 2
    halves = slice(0, half), slice(half, 2 * half)
    for rows, mine in zip(halves, ring.chunks, strict=True):
        for columns, theirs in zip(halves, ring.chunks_of(source), strict=True):
            if not is_causal or theirs < mine:
                yield rows, columns, tiling
            elif theirs == mine:
                yield rows, columns, tiling.causal()


def _merge(output: Tensor, log_sum: Tensor, part: Tensor, part_log: Tensor) -> None:
    """Add what one block of keys gives to the mean over the blocks before, in place."""
    both = torch.logaddexp(log_sum, part_log)
    finite = both.clamp(min=torch.finfo(both.dtype).min)  # of a row with no key yet
    output *= (log_sum - finite).exp().unsqueeze(-1)
    output += (part_log - finite).exp().unsqueeze(-1) * part
    log_sum.copy_(both)
