"""A transformer block: attention, then a feed-forward network, each with a residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_lib._checks import check_integer
from attention_lib.cache import KeyValueCache
from attention_lib.layers import MultiHeadAttention
from attention_lib.layers._checks import check_dropout, check_hook

__all__ = ["FeedForward", "TransformerBlock"]


class FeedForward(nn.Module):
    r"""Two linear maps with an activation between, applied to each token alone.

    Computes :math:`W_\text{down}\,\sigma(W_\text{up} x)`, or when gated
    :math:`W_\text{down}\,(\sigma(W_\text{gate} x) \odot W_\text{up} x)`.

    Parameters
    ----------
    embed_dim
        E, the width of the tokens.
    hidden_dim
        Width between the maps, 4E by default.
    activation
        The function :math:`\sigma`: ``F.gelu``, ``F.relu``, ``F.silu`` or another.
    gated
        Whether a second map of the input gates the first, as in SwiGLU.
    dropout
        Probability with which a hidden component is dropped, in training only.
    bias
        Whether the maps add a bias.
    device, dtype
        Of the parameters.

    Raises
    ------
    ValueError
        If a width is below 1 or ``dropout`` is not in [0, 1).

    Examples
    --------
    >>> swiglu = FeedForward(8, 24, activation=F.silu, gated=True, bias=False)
    >>> swiglu(torch.randn(2, 3, 8)).shape
    torch.Size([2, 3, 8])

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, section 3.3.
    Shazeer, "GLU Variants Improve Transformer", 2020, for the gate.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int | None = None,
        *,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        gated: bool = False,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_integer("embed_dim", embed_dim, least=1)
        hidden_dim = 4 * embed_dim if hidden_dim is None else hidden_dim
        check_integer("hidden_dim", hidden_dim, least=1)
        check_dropout(dropout)
        self.activation = activation
        self.gate_proj = (
            nn.Linear(embed_dim, hidden_dim, bias, device, dtype) if gated else None
        )
        self.up_proj = nn.Linear(embed_dim, hidden_dim, bias, device, dtype)
        self.down_proj = nn.Linear(hidden_dim, embed_dim, bias, device, dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (..., E) to tokens (..., E)."""
        hidden = self.up_proj(x)
        if self.gate_proj is None:
            hidden = self.activation(hidden)
        else:
            hidden = self.activation(self.gate_proj(x)) * hidden
        return self.down_proj(self.dropout(hidden))


class TransformerBlock(nn.Module):
    """Self-attention, perhaps cross-attention, and a feed-forward network.

    Each part adds to the tokens. With ``norm_first`` a part reads the normalised tokens
    (pre-norm); otherwise the sum is normalised (post-norm).

    Parameters
    ----------
    embed_dim
        E, the width of the tokens.
    num_heads
        H, for attention made here. Leave out when ``attention`` is given.
    hidden_dim
        Width inside the feed-forward network, 4E by default.
    dropout
        Probability of dropping a weight, a hidden component, and a component of what
        each part adds, in training only.
    bias
        Whether projections add a bias.
    norm_first
        Pre-norm if true, post-norm if false.
    norm
        Makes a normalisation from the width: ``nn.LayerNorm``, ``nn.RMSNorm`` or a
        partial of one.
    activation
        Of the feed-forward network.
    attention
        A :class:`MultiHeadAttention` made elsewhere, in place of ``num_heads``.
    cross_attention
        A :class:`MultiHeadAttention` that reads the context. By default there is none.
    feed_forward
        A module made elsewhere, from (B, L, E) to (B, L, E).
    device, dtype
        Of the parameters made here.

    Raises
    ------
    ValueError
        If both or none of ``num_heads`` and ``attention`` are given, or widths differ.

    Examples
    --------
    >>> block = TransformerBlock(32, 4)
    >>> block(torch.randn(2, 5, 32), is_causal=True).shape
    torch.Size([2, 5, 32])

    Of another build: grouped heads, root-mean-square norms and a gate.

    >>> block = TransformerBlock(
    ...     32,
    ...     attention=MultiHeadAttention(32, 4, num_kv_heads=2, bias=False),
    ...     feed_forward=FeedForward(32, 80, activation=F.silu, gated=True),
    ...     norm=nn.RMSNorm,
    ... )
    >>> block(torch.randn(2, 5, 32)).shape
    torch.Size([2, 5, 32])

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, section 3.1.
    Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int | None = None,
        *,
        hidden_dim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        norm_first: bool = True,
        norm: Callable[..., nn.Module] = nn.LayerNorm,
        activation: Callable[[Tensor], Tensor] = F.gelu,
        attention: nn.Module | None = None,
        cross_attention: nn.Module | None = None,
        feed_forward: nn.Module | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_integer("embed_dim", embed_dim, least=1)
        check_dropout(dropout)
        if num_heads is not None and attention is not None:
            raise ValueError(f"num_heads={num_heads} and attention: give one of them")
        if hidden_dim is not None and feed_forward is not None:
            raise ValueError(
                f"hidden_dim={hidden_dim} and feed_forward: give one of them"
            )
        check_hook("attention", attention, "embed_dim", embed_dim, "block")
        check_hook("cross_attention", cross_attention, "embed_dim", embed_dim, "block")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        if attention is None:
            if num_heads is None:
                raise ValueError("num_heads or attention must be given")
            attention = MultiHeadAttention(
                embed_dim, num_heads, dropout=dropout, bias=bias, **factory
            )
        if feed_forward is None:
            feed_forward = FeedForward(
                embed_dim,
                hidden_dim,
                activation=activation,
                dropout=dropout,
                bias=bias,
                **factory,
            )
        self.norm_first = norm_first
        self.attention_norm = norm(embed_dim, **factory)
        self.attention = attention
        self.cross_attention = cross_attention
        self.cross_attention_norm = (
            nn.Identity() if cross_attention is None else norm(embed_dim, **factory)
        )
        self.feed_forward_norm = norm(embed_dim, **factory)
        self.feed_forward = feed_forward
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Apply the block.

        Parameters
        ----------
        x
            Tokens, (B, L, E).
        context
            Tokens that cross-attention reads, (B, S, its kdim).
        attn_mask, is_causal, cache, positions
            Of self-attention, as in :meth:`MultiHeadAttention.forward`.
        context_mask
            Mask of cross-attention.
        need_weights
            Whether to return the weights of self-attention as well.

        Returns
        -------
        Tensor or tuple of Tensor
            The tokens, (B, L, E). With ``need_weights``, also the weights,
            (B, H, L, S) where S counts the tokens held by a cache as well.

        Raises
        ------
        ValueError
            If there is a context and no cross-attention, or the other way round.
        """
        if context is not None and self.cross_attention is None:
            raise ValueError("context needs a block with cross_attention")
        if context is None and self.cross_attention is not None:
            raise ValueError("context is missing: the block has cross_attention")
        if context_mask is not None and context is None:
            raise ValueError("context_mask needs context")
        tokens = self._before(x, self.attention_norm)
        attended = self.attention(
            tokens,
            attn_mask=attn_mask,
            is_causal=is_causal,
            cache=cache,
            positions=positions,
            need_weights=need_weights,
        )
        weights: Tensor | None = None
        if need_weights:
            attended, weights = attended
        x = self._after(x, attended, self.attention_norm)

        if self.cross_attention is not None:
            tokens = self._before(x, self.cross_attention_norm)
            attended = self.cross_attention(tokens, context, attn_mask=context_mask)
            x = self._after(x, attended, self.cross_attention_norm)

        tokens = self._before(x, self.feed_forward_norm)
        x = self._after(x, self.feed_forward(tokens), self.feed_forward_norm)
        return x if weights is None else (x, weights)

    def _before(self, x: Tensor, norm: nn.Module) -> Tensor:
        """What a part reads."""
        return norm(x) if self.norm_first else x

    def _after(self, x: Tensor, added: Tensor, norm: nn.Module) -> Tensor:
        """The tokens once a part has added to them."""
        x = x + self.dropout(added)
        return x if self.norm_first else norm(x)
