"""Attention as a function, twice: once to read, once to run.

:func:`attention_steps` computes every intermediate in the order in which it is
explained. :func:`scaled_dot_product_attention` takes the same arguments and returns the
same output from the fastest kernel that computes it. :func:`additive_attention` is the
older form, in which a small network gives the scores.

Letters in shapes: B batch, H query heads, Hkv key/value heads, L queries, S keys,
D width of a query and a key, Dv width of a value.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_lib import _checks, masks
from attention_lib._fused import fused_attention

__all__ = [
    "AttentionSteps",
    "additive_attention",
    "attention_steps",
    "scaled_dot_product_attention",
]


class AttentionSteps(NamedTuple):
    """Every intermediate of one attention, in the order of computation.

    Attributes
    ----------
    scores
        How well each query fits each key, scaled: shape (..., H, L, S).
    capped
        The scores after the soft cap, (..., H, L, S). The scores where there is none.
    masked
        The capped scores after the mask, (..., H, L, S): minus infinity where a query
        may not attend.
    weights
        The softmax of each row of ``masked``, before dropout, (..., H, L, S). A row
        sums to 1, or to 0 where the query may attend to nothing.
    output
        The mean of the values under the weights, after dropout: (..., H, L, Dv).
    """

    scores: Tensor
    capped: Tensor
    masked: Tensor
    weights: Tensor
    output: Tensor


def attention_steps(
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
) -> AttentionSteps:
    r"""Attention step by step: the version to read, and to ask for the weights.

    Query i gives key j the score :math:`s_{ij} = q_i \cdot k_j / \sqrt{D}`. The softmax
    of a row of scores is the row of weights, and the output is the mean of the values
    under them:

    .. math:: w_{ij} = \frac{\exp s_{ij}}{\sum_{t} \exp s_{it}}, \qquad
              o_i = \sum_{j} w_{ij} v_j

    Parameters
    ----------
    query
        Shape (..., H, L, D), or (L, D) for one head of one sequence.
    key
        Shape (..., H, S, D); (..., Hkv, S, D) with ``enable_gqa``.
    value
        Shape (..., H, S, Dv); (..., Hkv, S, Dv) with ``enable_gqa``.
    attn_mask
        Broadcasts to (..., H, L, S). Bool: True = may attend. Float, of the query's
        dtype or float32: added to the capped scores.
    dropout_p
        Share of the weights set to 0 at random, in [0, 1). The others grow by
        ``1 / (1 - dropout_p)``. It acts whenever it is above 0: pass 0 outside
        training.
    is_causal
        Query i may attend to keys 0 to i, counted from the first key also where L and S
        differ. With a mask, both hold. A cache needs ``masks.causal(L, S,
        offset=...)``.
    scale
        Factor of the dot products. ``None`` means ``1 / sqrt(D)``.
    enable_gqa
        Let each key/value head serve H / Hkv neighbouring query heads.
    softcap
        Bound c of the scores: each s becomes ``c * tanh(s / c)``. ``None`` means no
        bound.

    Returns
    -------
    AttentionSteps
        ``(scores, capped, masked, weights, output)``. ``weights`` and ``output`` have
        the dtype of the scores; the softmax of half-precision scores runs in float32. A
        query that may attend to nothing has weights 0, output 0 and gradient 0.

    Raises
    ------
    ValueError
        If shapes do not fit, the mask does not broadcast, tensors are on several
        devices, or a number is out of its range.
    TypeError
        If an argument is not a tensor, dtypes differ, or the mask is neither bool nor
        float.

    Notes
    -----
    A key or value that no query may see must still be finite: 0 times infinity is NaN.

    Examples
    --------
    Three tokens, of which the third is the sum of the first two:

    >>> tokens = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> steps = attention_steps(tokens, tokens, tokens, scale=math.log(2))
    >>> steps.weights
    tensor([[0.4000, 0.2000, 0.4000],
            [0.2000, 0.4000, 0.4000],
            [0.2500, 0.2500, 0.5000]])
    >>> steps.output[2]
    tensor([0.7500, 0.7500])

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, section 3.2.1. Grouped heads:
    Ainslie et al., "GQA", 2023. Soft cap: Gemma Team, "Gemma 2", 2024, section 2.
    """
    _checks.check_attention(
        query, key, value, attn_mask, dropout_p, scale, enable_gqa, softcap
    )
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        group = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(group, dim=-3)  # (..., H, S, D)
        value = value.repeat_interleave(group, dim=-3)  # (..., H, S, Dv)

    scores = (query * scale) @ key.transpose(-2, -1)  # (..., H, L, S)
    capped = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    masked = _hide(capped, attn_mask, is_causal)
    weights = _softmax(masked).to(scores.dtype)
    output = F.dropout(weights, dropout_p) @ value  # (..., H, L, Dv)
    return AttentionSteps(scores, capped, masked, weights, output)


def _hide(scores: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
    """Minus infinity where a query may not attend; a float mask is added."""
    if is_causal:
        keep = masks.causal(*scores.shape[-2:], device=scores.device)  # (L, S)
        scores = torch.where(keep, scores, -math.inf)
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return torch.where(attn_mask, scores, -math.inf)
    return scores + attn_mask


def _softmax(scores: Tensor) -> Tensor:
    """Softmax over the keys, at least in float32; a row of minus infinities gives 0."""
    if scores.shape[-1] == 0:
        return scores
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    some = scores.amax(dim=-1, keepdim=True) > -math.inf  # (..., L, 1)
    # Of minus infinities alone, the softmax and its gradient are NaN: make them finite.
    finite = scores.clamp(min=torch.finfo(scores.dtype).min)
    return finite.softmax(dim=-1) * some


def scaled_dot_product_attention(
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
) -> Tensor:
    """Attention's output, from the fastest kernel: the version to run.

    Takes the arguments of :func:`attention_steps` and returns its ``output``, to
    rounding. Without ``softcap`` this is
    :func:`torch.nn.functional.scaled_dot_product_attention`, with arguments checked and
    brought into the form that its fused kernels accept. A fused kernel never holds all
    L x S weights, so it needs memory in proportion to L + S.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap
        As in :func:`attention_steps`.

    Returns
    -------
    Tensor
        Shape (..., H, L, Dv), the query's dtype (under autocast, autocast's).

    Raises
    ------
    ValueError, TypeError
        As :func:`attention_steps`.

    Notes
    -----
    - The fused kernels have neither a second nor a forward-mode derivative. Take
      ``attention_steps(...).output`` for those.
    - With ``softcap``, and on a CPU with dropout or a mask that requires a gradient, no
      fused kernel applies: all L x S weights are held.
    - ``is_causal`` is cheaper than the same mask passed as a tensor.

    Examples
    --------
    >>> query = torch.randn(2, 3, 5, 8)  # (B, H, L, D)
    >>> key, value = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 4)
    >>> output = scaled_dot_product_attention(query, key, value, is_causal=True)
    >>> output.shape
    torch.Size([2, 3, 5, 4])
    >>> steps = attention_steps(query, key, value, is_causal=True)
    >>> torch.allclose(output, steps.output, atol=1e-6)
    True

    References
    ----------
    Dao et al., "FlashAttention", 2022.
    """
    if softcap is not None:
        steps = attention_steps(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            softcap=softcap,
        )
        return steps.output
    _checks.check_attention(
        query, key, value, attn_mask, dropout_p, scale, enable_gqa, softcap
    )
    return fused_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
    )


def additive_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    score_weight: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    bias: Tensor | None = None,
) -> AttentionSteps:
    r"""Additive attention: a network with one hidden layer of width A scores each pair.

    .. math:: s_{ij} = u \cdot \tanh(W_q q_i + W_k k_j + b)

    Queries and keys may differ in width. All L x S hidden layers are held at once, so
    it needs A times the memory of :func:`attention_steps`.

    Parameters
    ----------
    query
        Shape (..., L, Dq).
    key
        Shape (..., S, Dk).
    value
        Shape (..., S, Dv).
    query_weight
        :math:`W_q`, shape (A, Dq), as in ``nn.Linear``.
    key_weight
        :math:`W_k`, shape (A, Dk).
    score_weight
        :math:`u`, shape (A,).
    attn_mask, dropout_p, is_causal
        As in :func:`attention_steps`; the mask broadcasts to (..., L, S).
    bias
        :math:`b`, shape (A,), or ``None``.

    Returns
    -------
    AttentionSteps
        As :func:`attention_steps`, with scores of shape (..., L, S). ``capped`` is
        ``scores``.

    Raises
    ------
    ValueError, TypeError
        As :func:`attention_steps`, and if a weight's shape does not fit.

    Examples
    --------
    >>> query, key = torch.randn(4, 6), torch.randn(5, 7)
    >>> steps = additive_attention(
    ...     query, key, key, torch.randn(3, 6), torch.randn(3, 7), torch.randn(3)
    ... )
    >>> steps.weights.shape, steps.output.shape
    (torch.Size([4, 5]), torch.Size([4, 7]))

    References
    ----------
    Bahdanau, Cho and Bengio, "Neural Machine Translation by Jointly Learning to Align
    and Translate", 2015, section A.1.2.
    """
    _checks.check_additive(
        query, key, value, query_weight, key_weight, score_weight, bias
    )
    if attn_mask is not None:
        _checks.check_mask(attn_mask, query, key)
    _checks.check_dropout(dropout_p)
    from_query = F.linear(query, query_weight, bias).unsqueeze(-2)  # (..., L, 1, A)
    from_key = F.linear(key, key_weight).unsqueeze(-3)  # (..., 1, S, A)

    scores = torch.tanh(from_query + from_key) @ score_weight  # (..., L, S)
    masked = _hide(scores, attn_mask, is_causal)
    weights = _softmax(masked).to(scores.dtype)
    output = F.dropout(weights, dropout_p) @ value  # (..., L, Dv)
    return AttentionSteps(scores, scores, masked, weights, output)
