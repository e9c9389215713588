"""Self-attention with one head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attention_lib._checks import check_integer
from attention_lib.functional import attention_steps, scaled_dot_product_attention
from attention_lib.layers import _checks as checks

__all__ = ["SelfAttention"]


class SelfAttention(nn.Module):
    """Self-attention with one head: three projections and one attention.

    Parameters
    ----------
    embed_dim
        E, the width of the tokens.
    key_dim
        Width of queries and keys, E by default.
    value_dim
        Width of values and so of the output, E by default.
    dropout
        Probability with which a weight is dropped, in training only.
    bias
        Whether the projections add a bias.
    device, dtype
        Of the parameters.

    Raises
    ------
    ValueError
        If a width is below 1 or ``dropout`` is not in [0, 1).

    Examples
    --------
    >>> layer = SelfAttention(6, key_dim=4, value_dim=5)
    >>> layer(torch.randn(2, 3, 6)).shape
    torch.Size([2, 3, 5])

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, section 3.2.1.
    """

    def __init__(
        self,
        embed_dim: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        key_dim = embed_dim if key_dim is None else key_dim
        value_dim = embed_dim if value_dim is None else value_dim
        check_integer("embed_dim", embed_dim, least=1)
        check_integer("key_dim", key_dim, least=1)
        check_integer("value_dim", value_dim, least=1)
        checks.check_dropout(dropout)
        self.embed_dim = embed_dim
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, key_dim, bias, device, dtype)
        self.k_proj = nn.Linear(embed_dim, key_dim, bias, device, dtype)
        self.v_proj = nn.Linear(embed_dim, value_dim, bias, device, dtype)

    def forward(
        self,
        x: Tensor,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Let each token attend to the tokens of its row.

        Parameters
        ----------
        x
            Tokens, (B, L, E).
        attn_mask
            As in :meth:`MultiHeadAttention.forward`, with H = 1.
        is_causal
            Whether a token sees only itself and those before it.
        need_weights
            Whether to return the weights as well.

        Returns
        -------
        Tensor or tuple of Tensor
            The output, (B, L, value_dim). With ``need_weights``, also the weights
            before dropout, (B, 1, L, L).

        Raises
        ------
        ValueError, TypeError
            If ``x`` or ``attn_mask`` has another shape, dtype or device.
        """
        checks.check_input("x", x, self.embed_dim, self.q_proj)
        if attn_mask is not None:
            attn_mask = checks.mask_for_heads(attn_mask, x, 1, x.shape[1])
        query = self.q_proj(x).unsqueeze(1)  # (B, 1, L, key_dim)
        key = self.k_proj(x).unsqueeze(1)  # (B, 1, L, key_dim)
        value = self.v_proj(x).unsqueeze(1)  # (B, 1, L, value_dim)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            steps = attention_steps(query, key, value, attn_mask, dropout, is_causal)
            return steps.output.squeeze(1), steps.weights
        output = scaled_dot_product_attention(
            query, key, value, attn_mask, dropout, is_causal
        )
        return output.squeeze(1)  # (B, L, value_dim)
