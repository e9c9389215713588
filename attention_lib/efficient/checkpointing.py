"""Explicit attention that computes its intermediates twice and keeps none."""

from __future__ import annotations

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attention_lib.functional import attention_steps

__all__ = ["checkpointed_attention"]


def checkpointed_attention(
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
    """The output of :func:`~attention_lib.attention_steps`, recomputed for the backward.

    Scores and weights are dropped after the forward pass and computed again when the
    gradient asks for them, with the same dropout. What is saved is the arguments; while
    it computes, all L x S weights are there.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap
        As in :func:`~attention_lib.attention_steps`.

    Returns
    -------
    Tensor
        Shape (..., H, L, Dv).

    Raises
    ------
    ValueError, TypeError
        As :func:`~attention_lib.attention_steps`.

    Examples
    --------
    >>> import torch
    >>> query = torch.randn(2, 5, 4, requires_grad=True)  # (H, L, D)
    >>> output = checkpointed_attention(query, query, query, is_causal=True)
    >>> output.sum().backward()
    >>> query.grad.shape
    torch.Size([2, 5, 4])

    References
    ----------
    Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
    """

    def explicit(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
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

    # The other kind, reentrant, gives parameters no gradient when no input asks for one.
    output: Tensor = checkpoint(explicit, query, key, value, use_reentrant=False)
    return output
