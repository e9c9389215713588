"""Attention within a sliding window, in time and memory proportional to L."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_lib._checks import check_attention, check_integer
from attention_lib.functional import scaled_dot_product_attention

__all__ = ["local_attention"]


def local_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    window: int,
    after: int = 0,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
) -> Tensor:
    """Attention under :func:`~attention_lib.masks.sliding_window`, without the mask.

    The queries are cut into blocks, each of which meets the keys that its window can
    reach: the block itself and what lies before and after it.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap
        As in :func:`~attention_lib.scaled_dot_product_attention`. With a mask, a query
        sees what both the mask and the window allow.
    window
        How many keys a query sees up to and including its own position, at least 1.
    after
        How many keys behind its own position, at least 0. ``is_causal`` hides them.

    Returns
    -------
    Tensor
        Shape (..., H, L, Dv).

    Raises
    ------
    ValueError
        If ``window`` is below 1 or ``after`` below 0, and as
        :func:`~attention_lib.scaled_dot_product_attention`.
    TypeError
        As there.

    Examples
    --------
    >>> from attention_lib import masks
    >>> query = torch.randn(2, 100, 4)  # (H, L, D)
    >>> output = local_attention(query, query, query, window=8)
    >>> keep = masks.sliding_window(100, window=8)
    >>> same = scaled_dot_product_attention(query, query, query, keep)
    >>> torch.allclose(output, same, atol=1e-6)
    True

    References
    ----------
    Beltagy, Peters and Cohan, "Longformer", 2020, section 3.1.
    """
    check_attention(query, key, value, attn_mask, dropout_p, scale, enable_gqa, softcap)
    check_integer("window", window, least=1)
    check_integer("after", after, least=0)
    after = 0 if is_causal else after
    L, S = query.shape[-2], key.shape[-2]
    window, after = min(window, max(L, 1)), min(after, max(S, 1))
    block = max(window - 1 + after, _LEAST)  # a block meets about two blocks of keys
    blocks = max(math.ceil(L / block), 1)

    row = torch.arange(blocks * block, device=query.device).view(blocks, block, 1)
    reach = torch.arange(1 - window, block + after, device=query.device)
    column = row[:, :1] + reach  # (blocks, 1, width): the keys that a block meets
    keep = (column > row - window) & (column <= row + after)  # (blocks, block, width)
    keep = (keep & (column >= 0) & (column < S)).unsqueeze(1)  # and the head axis
    output = scaled_dot_product_attention(
        _rows(query, blocks, block),
        _windows(key, blocks, block, window - 1, after),
        _windows(value, blocks, block, window - 1, after),
        keep if attn_mask is None else _within(attn_mask, keep, row, column),
        dropout_p,
        scale=scale,
        enable_gqa=enable_gqa,
        softcap=softcap,
    )  # (..., blocks, H, block, Dv)
    if query.ndim == 2:
        return output.flatten(0, 2)[:L]
    return output.transpose(-4, -3).flatten(-3, -2)[..., :L, :]


_LEAST = 64  # smaller blocks cost more in calls than they save in keys


def _rows(query: Tensor, blocks: int, block: int) -> Tensor:
    """(..., H, L, D) as (..., blocks, H, block, D), zeros behind the last query."""
    padded = F.pad(query, (0, 0, 0, blocks * block - query.shape[-2]))
    return _blocks_first(padded.unflatten(-2, (blocks, block)))


def _windows(key: Tensor, blocks: int, block: int, before: int, after: int) -> Tensor:
    """(..., Hkv, S, D) as (..., blocks, Hkv, width, D), zeros outside the sequence."""
    behind = blocks * block + after - key.shape[-2]  # below 0: keys that nobody sees
    padded = F.pad(key, (0, 0, before, behind))
    windows = padded.unfold(-2, before + block + after, block)
    return _blocks_first(windows.transpose(-1, -2))


def _blocks_first(blocked: Tensor) -> Tensor:
    """(..., H, blocks, X, D) as (..., blocks, H, X, D); one head where there is none."""
    if blocked.ndim == 3:
        return blocked.unsqueeze(1)
    return blocked.transpose(-4, -3)


def _within(attn_mask: Tensor, keep: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The part of the mask that each block meets, joined with its window."""
    mask = attn_mask[(None,) * max(3 - attn_mask.ndim, 0)]  # (..., H, L, S), or 1s
    rows = row.clamp(max=mask.shape[-2] - 1)
    columns = column.clamp(0, mask.shape[-1] - 1)
    met = _blocks_first(mask[..., rows, columns])  # (..., blocks, H, block, width)
    if met.dtype == torch.bool:
        return met & keep
    return met.masked_fill(~keep, -math.inf)
