"""Self- and cross-attention with several heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_lib._checks import check_integer, check_scores
from attention_lib._fused import fused_attention
from attention_lib.cache import KeyValueCache
from attention_lib.functional import attention_steps
from attention_lib.layers import _checks as checks

__all__ = ["MultiHeadAttention"]


class MultiHeadAttention(nn.Module):
    r"""Self- or cross-attention with several heads.

    Parameters
    ----------
    embed_dim
        E, the width of the queries' tokens and of the output.
    num_heads
        H, the number of query heads.
    num_kv_heads
        Hkv, the number of key/value heads, a divisor of H. Each serves H / Hkv
        neighbouring query heads. H by default; 1 is multi-query attention.
    head_dim
        D, the width of a head. E / H by default; H·D need not be E.
    kdim, vdim
        Widths of the tokens from which keys and values are made. ``kdim`` is E and
        ``vdim`` is ``kdim`` by default.
    dropout
        Probability with which a weight is dropped, in training only.
    bias
        Whether the projections of queries, keys and values add a bias.
    key_bias, out_bias
        The same for keys and for the output alone, as ``bias`` by default. A bias of
        the keys shifts all scores of a query alike, which softmax ignores.
    rotary
        Turns queries and keys: :class:`~attention_lib.RotaryEmbedding`, or any callable
        ``rotary(x, offset=..., positions=...)`` on (B, H, L, D).
    score_bias
        Added to the scores: :class:`~attention_lib.AlibiBias`,
        :class:`~attention_lib.RelativePositionBias`, or any callable
        ``score_bias(L, S, offset=...)`` that returns (H, L, S). A
        :class:`~attention_lib.RollingCache` counts S and the offset from the first token
        held: with one, only distances may matter.
    query_norm, key_norm
        Applied to each head of queries and keys, (B, H, L, D), before ``rotary``:
        ``nn.RMSNorm(D)`` say.
    scale
        Factor of the dot products, :math:`1/\sqrt{D}` by default.
    softcap
        Bound c of the scores, :math:`c \tanh(\text{score}/c)`. None by default.
    device, dtype
        Of the parameters.

    Raises
    ------
    ValueError
        If the heads do not divide, a size is below 1, or ``dropout`` is not in [0, 1).

    Notes
    -----
    One matrix, ``qkv_proj``, makes queries, keys and values. Where ``kdim``, ``vdim``
    or ``key_bias`` is given there are three: ``q_proj``, ``k_proj`` and ``v_proj``.
    :meth:`parts` gives the weights of each, :meth:`project` the heads, in both cases.

    Examples
    --------
    >>> layer = MultiHeadAttention(32, num_heads=4, num_kv_heads=2)
    >>> x = torch.randn(2, 5, 32)
    >>> layer(x, is_causal=True).shape
    torch.Size([2, 5, 32])
    >>> output, weights = layer(x, torch.randn(2, 7, 32), need_weights=True)
    >>> weights.shape
    torch.Size([2, 4, 5, 7])

    Token by token, the same output:

    >>> cache = KeyValueCache.for_layer(layer, batch_size=2, max_len=5)
    >>> steps = [layer(x[:, t : t + 1], is_causal=True, cache=cache) for t in range(5)]
    >>> torch.allclose(torch.cat(steps, 1), layer(x, is_causal=True), atol=1e-6)
    True

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, section 3.2.2.
    Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models", 2023.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        key_bias: bool | None = None,
        out_bias: bool | None = None,
        rotary: Callable[..., Tensor] | None = None,
        score_bias: Callable[..., Tensor] | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_integer("embed_dim", embed_dim, least=1)
        check_integer("num_heads", num_heads, least=1)
        check_integer("num_kv_heads", num_kv_heads, least=1)
        if num_heads % num_kv_heads:
            raise ValueError(
                f"num_heads={num_heads} must be a multiple of "
                f"num_kv_heads={num_kv_heads}"
            )
        if head_dim is None:
            if embed_dim % num_heads:
                raise ValueError(
                    f"embed_dim={embed_dim} must be a multiple of "
                    f"num_heads={num_heads}, or head_dim given"
                )
            head_dim = embed_dim // num_heads
        one_input = kdim is None and vdim is None and key_bias is None
        kdim = embed_dim if kdim is None else kdim
        vdim = kdim if vdim is None else vdim
        check_integer("head_dim", head_dim, least=1)
        check_integer("kdim", kdim, least=1)
        check_integer("vdim", vdim, least=1)
        checks.check_dropout(dropout)
        check_scores(scale, softcap)
        checks.check_hook("rotary", rotary, "head_dim", head_dim)
        checks.check_hook("score_bias", score_bias, "num_heads", num_heads)

        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.kdim = kdim
        self.vdim = vdim
        self.dropout = dropout
        self.scale = scale
        self.softcap = softcap

        width, kv_width = num_heads * head_dim, num_kv_heads * head_dim
        self.widths = (width, kv_width, kv_width)
        self.qkv_proj = None
        if one_input:  # one product in place of three
            self.qkv_proj = nn.Linear(embed_dim, sum(self.widths), bias, device, dtype)
        else:
            key_bias = bias if key_bias is None else key_bias
            self.q_proj = nn.Linear(embed_dim, width, bias, device, dtype)
            self.k_proj = nn.Linear(kdim, kv_width, key_bias, device, dtype)
            self.v_proj = nn.Linear(vdim, kv_width, bias, device, dtype)
        out_bias = bias if out_bias is None else out_bias
        self.out_proj = nn.Linear(width, embed_dim, out_bias, device, dtype)
        self.rotary = rotary
        self.score_bias = score_bias
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the projections anew: Glorot's uniform weights, zero biases."""
        for weight, bias in (*self.parts(), (self.out_proj.weight, self.out_proj.bias)):
            nn.init.xavier_uniform_(weight)
            if bias is not None:
                nn.init.zeros_(bias)

    def parts(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias that make the queries, the keys and the values.

        Returns
        -------
        list of tuple
            Three weights of shapes (H·D, E), (Hkv·D, kdim) and (Hkv·D, vdim), each with
            its bias or None. Views of the parameters, however these are stored.

        Examples
        --------
        >>> layer = MultiHeadAttention(32, num_heads=4, num_kv_heads=2)
        >>> [tuple(weight.shape) for weight, bias in layer.parts()]
        [(32, 32), (16, 32), (16, 32)]
        """
        if self.qkv_proj is None:
            linears = (self.q_proj, self.k_proj, self.v_proj)
            return [(linear.weight, linear.bias) for linear in linears]
        weights = self.qkv_proj.weight.split(self.widths)
        bias = self.qkv_proj.bias
        biases = (None,) * 3 if bias is None else bias.split(self.widths)
        return list(zip(weights, biases, strict=True))

    def project(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values of each head, before norms and rotary.

        Parameters
        ----------
        query, key, value
            As in :meth:`forward`.

        Returns
        -------
        tuple of Tensor
            Shapes (B, H, L, D), (B, Hkv, S, D) and (B, Hkv, S, D).

        Examples
        --------
        >>> layer = MultiHeadAttention(32, num_heads=4, num_kv_heads=2)
        >>> q, k, v = layer.project(torch.randn(3, 5, 32))
        >>> q.shape, k.shape
        (torch.Size([3, 4, 5, 8]), torch.Size([3, 2, 5, 8]))
        """
        key = query if key is None else key
        value = key if value is None else value
        stacked = self.qkv_proj
        if stacked is None:
            q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        elif key is query and value is query:
            q, k, v = stacked(query).split_with_sizes(self.widths, dim=-1)
        else:
            inputs = zip((query, key, value), self.parts(), strict=True)
            q, k, v = (F.linear(x, *part) for x, part in inputs)
        B, L, S, D = *query.shape[:2], key.shape[1], self.head_dim
        return (
            q.view(B, L, self.num_heads, D).transpose(1, 2),
            k.view(B, S, self.num_kv_heads, D).transpose(1, 2),
            v.view(B, S, self.num_kv_heads, D).transpose(1, 2),
        )

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        cache: KeyValueCache | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend.

        Parameters
        ----------
        query
            Tokens that ask, (B, L, E).
        key
            Tokens that answer, (B, S, kdim): the queries' own by default, which is
            self-attention.
        value
            Tokens that give the values, (B, S, vdim): those of ``key`` by default.
        attn_mask
            Bool, True = may attend, or a float that is added to the scores. It
            broadcasts to (B, H, L, S); three axes mean (B, L, S). With a cache, S
            counts the tokens held and the new ones. A query that may attend to nothing gives what the
            output projection makes of 0.
        is_causal
            Whether a query sees only keys up to its own position. Holds together with
            ``attn_mask``. With a cache, the queries stand after the tokens held.
        cache
            Keys and values of the tokens before; those of ``query`` are appended.
            Self-attention only. A :class:`~attention_lib.RollingCache` brings its
            window as a mask, which is causal.
        positions
            Position of each query for ``rotary``, integers (L,) or (B, L): with padding
            on the left, :func:`~attention_lib.token_positions`. By default they count
            from the cache's offset.
        need_weights
            Whether to return the weights as well.

        Returns
        -------
        Tensor or tuple of Tensor
            The output, (B, L, E). With ``need_weights``, also the weights of each head
            before dropout, (B, H, L, S).

        Raises
        ------
        ValueError, TypeError
            If a shape, dtype or device does not fit; if the cache has no room; if
            ``is_causal`` leaves open how queries and keys align; if ``cache``,
            ``rotary`` or ``positions`` meet cross-attention.
        """
        key = query if key is None else key
        value = key if value is None else value
        checks.check_tokens(self, query, key, value)
        checks.check_places(self, query, key, value, is_causal, cache, positions)
        L = query.shape[1]
        offset, held, window = 0, 0, None
        if cache is not None:  # a rolling one holds less than it has seen
            offset, held, window = cache.offset, cache.length, cache.window
        S = held + key.shape[1]
        if attn_mask is not None:
            attn_mask = checks.mask_for_heads(attn_mask, query, self.num_heads, S)
        if self.score_bias is not None:
            bias = self.score_bias(L, S, offset=held)  # (H, L, S)
            checks.check_score_bias(bias, query, self.num_heads, S)
            attn_mask = checks.join(attn_mask, bias)
        if is_causal or window is not None:
            keep, is_causal = checks.causal_from(held, L, S, window, query.device)
            attn_mask = checks.join(attn_mask, keep)

        q, k, v = self.project(query, key, value)  # (B, H, L, D), 2 of (B, Hkv, S, D)
        if self.query_norm is not None:
            q = self.query_norm(q)
        if self.key_norm is not None:
            k = self.key_norm(k)
        if self.rotary is not None:
            start = offset if positions is None else 0
            q = self.rotary(q, offset=start, positions=positions)
            k = self.rotary(k, offset=start, positions=positions)
        if cache is not None:
            k, v = cache.update(k, v)

        dropout = self.dropout if self.training else 0.0
        shared = self.num_kv_heads != self.num_heads
        if need_weights or self.softcap is not None:
            steps = attention_steps(
                q,
                k,
                v,
                attn_mask,
                dropout,
                is_causal,
                scale=self.scale,
                enable_gqa=shared,
                softcap=self.softcap,
            )
            output = self.out_proj(_merge(steps.output))
            return (output, steps.weights) if need_weights else output
        # Checked above: a second check would show where tokens come one by one.
        heads = fused_attention(
            q, k, v, attn_mask, dropout, is_causal, self.scale, shared
        )
        return self.out_proj(_merge(heads))  # (B, L, E)

    def extra_repr(self) -> str:
        return (
            f"{self.embed_dim}, num_heads={self.num_heads}, "
            f"num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
        )


def _merge(heads: Tensor) -> Tensor:
    """(B, H, L, D) to (B, L, H·D), a view of what the fused kernels return."""
    return heads.transpose(1, 2).flatten(2)
