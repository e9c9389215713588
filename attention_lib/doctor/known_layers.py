"""Adapters of torch's attention and layers, and of this package's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.block import TransformerBlock
from attention_lib.doctor.conventions import (
    fill_in,
    hide_of,
    keep_of,
)
from attention_lib.doctor.subject import Facts, Subject
from attention_lib.layers import MultiHeadAttention, SelfAttention

__all__ = ["KNOWN_LAYERS"]


def _torch_attention(m: nn.MultiheadAttention, name: str, facts: Facts) -> Subject:
    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        hide = hide_of(keep_of(x, context, mask, causal), m.num_heads)
        c = x if context is None else context
        if m.batch_first:
            out, weights = m(
                x,
                c,
                c,
                attn_mask=hide,
                need_weights=need_weights,
                average_attn_weights=False,
            )
        else:
            out, weights = m(
                x.transpose(0, 1),
                c.transpose(0, 1),
                c.transpose(0, 1),
                attn_mask=hide,
                need_weights=need_weights,
                average_attn_weights=False,
            )
            out = out.transpose(0, 1)
        return (out, weights) if need_weights else out

    fill_in(
        facts,
        embed_dim=m.embed_dim,
        num_heads=m.num_heads,
        causal="flag",
        masks="any",
        context=m.kdim == m.vdim == m.embed_dim,
        weights="heads",
    )
    if m.bias_k is not None or m.add_zero_attn:
        facts.normalization = "sink"  # a key that is not a token
    takes = frozenset({"context", "mask", "causal", "weights"})
    return Subject(call, m, name, facts, takes)


def _torch_encoder(
    m: nn.TransformerEncoderLayer | nn.TransformerEncoder, name: str, facts: Facts
) -> Subject:
    stack = isinstance(m, nn.TransformerEncoder)
    layer = m.layers[0] if isinstance(m, nn.TransformerEncoder) else m
    assert isinstance(layer, nn.TransformerEncoderLayer)
    heads, batch_first = layer.self_attn.num_heads, layer.self_attn.batch_first

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        hide = hide_of(keep_of(x, None, mask, causal), heads)
        hidden = {"mask" if stack else "src_mask": hide}
        if batch_first:
            return m(x, **hidden)
        return m(x.transpose(0, 1), **hidden).transpose(0, 1)

    fill_in(
        facts,
        embed_dim=layer.self_attn.embed_dim,
        num_heads=heads,
        causal="flag",
        masks="any",
        residual=True,
    )
    # Through a second layer a hidden token is seen by way of one that it shows itself.
    return Subject(call, m, name, facts, frozenset({"mask", "causal"}))


def _torch_decoder(m: nn.TransformerDecoderLayer, name: str, facts: Facts) -> Subject:
    heads, batch_first = m.self_attn.num_heads, m.self_attn.batch_first
    E = m.self_attn.embed_dim

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        hide = hide_of(keep_of(x, None, mask, causal), heads)
        memory = torch.linspace(-1, 1, 3 * E, dtype=x.dtype, device=x.device).sin()
        memory = memory.view(1, 3, E).expand(x.shape[0], 3, E)
        if batch_first:
            return m(x, memory, tgt_mask=hide)
        out = m(x.transpose(0, 1), memory.transpose(0, 1), tgt_mask=hide)
        return out.transpose(0, 1)

    fill_in(
        facts,
        embed_dim=E,
        num_heads=heads,
        causal="flag",
        masks="any",
        residual=True,
    )
    return Subject(call, m, name, facts, frozenset({"mask", "causal"}))


def _order(m: MultiHeadAttention) -> str | None:
    """Whether a layer of ours knows positions, and which."""
    return None if m.rotary is None and m.score_bias is None else "relative"


def _our_attention(m: MultiHeadAttention, name: str, facts: Facts) -> Subject:
    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        return m(
            x, context, attn_mask=mask, is_causal=causal, need_weights=need_weights
        )

    fill_in(
        facts,
        embed_dim=m.embed_dim,
        num_heads=m.num_heads,
        causal="flag",
        masks="any",
        context=m.kdim == m.vdim == m.embed_dim and m.rotary is None,
        weights="heads",
        positions=_order(m),
        scale=m.scale,
    )
    takes = frozenset({"context", "mask", "causal", "weights"})
    return Subject(call, m, name, facts, takes, causal_rectangle=False)


def _our_self_attention(m: SelfAttention, name: str, facts: Facts) -> Subject:
    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        return m(x, attn_mask=mask, is_causal=causal, need_weights=need_weights)

    fill_in(
        facts,
        embed_dim=m.embed_dim,
        num_heads=1,
        causal="flag",
        masks="any",
        weights="heads",
    )
    return Subject(call, m, name, facts, frozenset({"mask", "causal", "weights"}))


def _our_block(m: TransformerBlock, name: str, facts: Facts) -> Subject:
    inner = m.attention
    assert isinstance(inner, MultiHeadAttention)
    E = inner.embed_dim

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        memory = None
        if isinstance(m.cross_attention, MultiHeadAttention):
            width = m.cross_attention.kdim
            memory = torch.linspace(-1, 1, 3 * width, dtype=x.dtype, device=x.device)
            memory = memory.sin().view(1, 3, width).expand(x.shape[0], 3, width)
        return m(x, memory, attn_mask=mask, is_causal=causal, need_weights=need_weights)

    fill_in(
        facts,
        embed_dim=E,
        num_heads=inner.num_heads,
        causal="flag",
        masks="any",
        weights="heads",
        residual=True,
        positions=_order(inner),
    )
    return Subject(call, m, name, facts, frozenset({"mask", "causal", "weights"}))


KNOWN_LAYERS: tuple[tuple[type, Callable[..., Subject]], ...] = (
    (nn.MultiheadAttention, _torch_attention),
    (nn.TransformerEncoderLayer, _torch_encoder),
    (nn.TransformerEncoder, _torch_encoder),
    (nn.TransformerDecoderLayer, _torch_decoder),
    (MultiHeadAttention, _our_attention),
    (SelfAttention, _our_self_attention),
    (TransformerBlock, _our_block),
)
