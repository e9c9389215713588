"""Arguments in the form that torch's fused kernels take.

``torch.nn.functional.scaled_dot_product_attention`` falls back, without a word, to a slow
path where its fused kernels refuse the arguments, and some arguments it gets wrong. Here
both are kept away from it.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_lib import masks

HALVES = (torch.float16, torch.bfloat16)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """The output of arguments that are checked, without a soft cap."""
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    elif scale <= 0:
        # The causal kernel on a CPU scales its minus infinities too, which gives NaN.
        query, scale = query * scale, 1.0
    mixed = (torch.float64, torch.float32)
    if attn_mask is not None and (query.dtype, attn_mask.dtype) == mixed:
        # The kernel on a CPU takes the bytes of such a mask for float64 ones.
        attn_mask = attn_mask.double()
    if is_causal and attn_mask is not None:
        attn_mask = _causal_too(attn_mask, query.shape[-2], key.shape[-2])
        is_causal = False

    plain = attn_mask is None and not is_causal and not enable_gqa
    if dropout_p and plain and query.device.type == "cpu" and query.dtype not in HALVES:
        # No fused kernel takes dropout here. Torch's other path guards against rows that
        # see nothing; without a mask there are none.
        weights = ((query * scale) @ key.mT).softmax(dim=-1)  # (..., L, S)
        return F.dropout(weights, dropout_p) @ value

    # Four axes, rows without gaps and, on a CPU, one width.
    leading, width = query.shape[:-2], value.shape[-1]
    if attn_mask is not None and (attn_mask.ndim != 4 or len(leading) != 2):
        attn_mask = _four_axes(attn_mask, leading)
    if len(leading) != 2:
        query, key, value = (_four_axes(x, leading) for x in (query, key, value))
    if query.stride(-1) != 1 or key.stride(-1) != 1 or value.stride(-1) != 1:
        query, key, value = (x.contiguous() for x in (query, key, value))
    if width != query.shape[-1] and query.device.type == "cpu":
        query, key, value = _one_width(query, key, value)
    # torch 2.6 divides by the number of key heads, which may be 0 if query has none.
    enable_gqa = enable_gqa and key.shape[1] != query.shape[1]
    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    if output.shape[-1] != width:
        output = output[..., :width]
    if len(leading) != 2:
        output = output.reshape(*leading, *output.shape[-2:])
    return output


def _causal_too(attn_mask: Tensor, L: int, S: int) -> Tensor:
    """``attn_mask`` with the future hidden as well."""
    keep = masks.causal(L, S, device=attn_mask.device)
    if attn_mask.dtype == torch.bool:
        return attn_mask & keep
    return attn_mask.masked_fill(~keep, -math.inf)


def _four_axes(tensor: Tensor, leading: tuple[int, ...]) -> Tensor:
    """(..., X, Y) as (B, H, X, Y): the axes before the heads become one.

    ``leading`` are the query's axes before its last two.
    """
    if tensor.ndim < 4:
        return tensor[(None,) * (4 - tensor.ndim)]
    return tensor.expand(*leading[:-1], -1, -1, -1).flatten(0, -4)


def _one_width(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Zeros up to the wider of D and Dv: they change no score, and are cut off after."""
    missing = value.shape[-1] - query.shape[-1]
    if missing > 0:
        query, key = F.pad(query, (0, missing)), F.pad(key, (0, missing))
    elif missing < 0:
        value = F.pad(value, (0, -missing))
    return query, key, value
