"""Attention by its definition, in float64, with nothing from the package.

A weight is the exponential of a visible key's score over the sum of the exponentials of
all visible keys. There is no minus infinity here: what is not visible is not in the sum.
"""

import math

import torch
from torch import Tensor


def visible(
    shape: tuple[int, ...], attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Which keys each query sees, a bool tensor of the scores' ``shape``."""
    L, S = shape[-2:]
    keep = torch.ones(shape, dtype=torch.bool)
    if is_causal:
        seen = [[j <= i for j in range(S)] for i in range(L)]
        keep = keep & torch.tensor(seen, dtype=torch.bool).reshape(L, S)
    if attn_mask is not None:
        allowed = attn_mask if attn_mask.dtype == torch.bool else attn_mask > -math.inf
        keep = keep & allowed.detach().cpu()
    return keep


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Weights (..., H, L, S) and output (..., H, L, Dv); heads of the key may be fewer."""
    query, key, value = (tensor.double().cpu() for tensor in (query, key, value))
    if query.ndim > 2:
        served = query.shape[-3] // max(key.shape[-3], 1)
        owner = [head // served for head in range(query.shape[-3])] if served else []
        key, value = key[..., owner, :, :], value[..., owner, :, :]
    if scale is None:
        scale = query.shape[-1] ** -0.5
    scores = torch.einsum("...id,...jd->...ij", query, key) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return average(scores, value, attn_mask, is_causal)


def average(
    scores: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Weights from float64 scores, and the values' mean under them."""
    keep = visible(scores.shape, attn_mask, is_causal)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        bias = attn_mask.double().cpu()
        scores = scores + torch.where(bias > -math.inf, bias, 0.0)
    if scores.shape[-1]:
        top = scores.detach().masked_fill(~keep, -1e300).amax(-1, keepdim=True)
        scores = torch.where(keep, scores - top, 0.0)
    parts = scores.exp() * keep
    total = parts.sum(-1, keepdim=True)
    weights = parts / torch.where(total > 0, total, 1.0)
    return weights, torch.einsum("...ij,...jd->...id", weights, value)
