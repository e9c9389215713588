"""Adapters of the attentions of ``transformers`` and of x-transformers."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.doctor.conventions import (
    fill_in,
    keep_of,
    keywords,
    parameters_of,
)
from attention_lib.doctor.subject import Facts, Subject

__all__ = ["published", "x_transformers"]


def x_transformers(m: nn.Module, name: str, facts: Facts) -> Subject:
    """An ``Attention`` of x-transformers: a bool mask with all four axes."""

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        out = m(x, context=context, attn_mask=keep_of(x, context, mask, causal))
        return out[0] if isinstance(out, tuple) else out

    always = bool(getattr(m, "causal", False))
    memory = getattr(m, "mem_k", None) is not None
    if memory:  # keys that are not tokens, which its masks do not count
        facts.normalization = "sink"
        fill_in(facts, masks="none", causal="always" if always else "never")
    fill_in(
        facts,
        num_heads=getattr(m, "heads", None),
        causal="always" if always else "flag",
        masks="any",
        context=not always,
        scale=getattr(m, "scale", None),
    )
    takes = {"mask"} if always else {"mask", "causal", "context"}
    return Subject(call, m, name, facts, frozenset(takes))


def published(m: nn.Module, name: str, facts: Facts) -> Subject:
    """An attention of ``transformers``: a float mask with all four axes, always given.

    Without a mask some of its backends hide the future by themselves.
    """
    accepts = keywords(m)
    config = getattr(m, "config", None)
    heads = next(
        (
            int(v)
            for owner in (m, config)
            for key in ("num_attention_heads", "num_heads", "n_heads", "n_head")
            if isinstance(v := getattr(owner, key, None), int)
        ),
        None,
    )
    cross = "key_value_states" in accepts
    required = {
        p.name for p in parameters_of(m) or () if p.default is inspect.Parameter.empty
    }
    buckets = bool(getattr(m, "has_relative_attention_bias", False))

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        keep = keep_of(x, context, mask, causal)
        B, L, S = x.shape[0], x.shape[1], (x if context is None else context).shape[1]
        if keep is None:
            keep = torch.ones(B, 1, L, S, dtype=torch.bool, device=x.device)
        low = max(torch.finfo(x.dtype).min, torch.finfo(torch.float32).min)
        hide = torch.zeros(keep.shape, dtype=x.dtype, device=x.device)
        given: dict[str, Any] = {}
        if "attention_mask" in accepts:
            given["attention_mask"] = hide.masked_fill(~keep, low)
            if type(m).__name__.startswith("Mpt"):
                given["attention_mask"] = ~keep  # bool, True = hidden
        if context is not None:
            given["key_value_states"] = context
        if "position_embeddings" in accepts:
            given["position_embeddings"] = _turns(m, x, L)
        if "cache_position" in accepts:
            given["cache_position"] = torch.arange(L, device=x.device)
        if "position_ids" in accepts:
            given["position_ids"] = torch.arange(L, device=x.device).expand(B, L)
        if need_weights and "output_attentions" in accepts:
            given["output_attentions"] = True
        for key, shape in (
            ("residual", tuple(x.shape)),
            ("alibi", (B * (heads or 1), 1, S)),
            ("position_bias", (heads or 1, 1, S)),
        ):
            if key in required:
                given[key] = x.new_zeros(shape)
        out = m(hidden_states=x, **given)
        return out[0] if isinstance(out, tuple) else out

    masked = "attention_mask" in accepts
    turned = "position_embeddings" in accepts
    fill_in(
        facts,
        num_heads=heads,
        causal="flag" if masked else "never",
        masks="any" if masked else "none",
        context=cross,
        positions="relative" if turned or buckets else None,
        scale=_scaling(m),
    )
    takes = {"mask", "causal"} if masked else set()
    if cross:
        takes.add("context")
    return Subject(call, m, name, facts, frozenset(takes))


def _scaling(m: nn.Module) -> float | None:
    """The scale that a published attention states; T5's is 1 and is stated nowhere."""
    for key in ("scaling", "scale", "scale_attn"):
        value = getattr(m, key, None)
        if isinstance(value, float):
            return value
    return 1.0 if type(m).__name__.startswith(("T5", "MT5", "UMT5", "Longt5")) else None


def _turns(m: nn.Module, x: Tensor, L: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, half-split: two of (1, L, d)."""
    config = getattr(m, "config", None)
    width = getattr(m, "head_dim", None) or getattr(config, "head_dim", None)
    if width is None:
        heads = getattr(config, "num_attention_heads", 1)
        width = getattr(config, "hidden_size", x.shape[-1]) // heads
    settings = getattr(config, "rope_parameters", None) or {}
    share = settings.get("partial_rotary_factor", 1.0) or 1.0
    own = getattr(m, "rotary_dim", None)  # GPT-J: neighbours, sines first
    width = int(width * share) if own is None else int(own)
    steps = torch.arange(0, width, 2, dtype=torch.float64, device=x.device)
    angles = torch.arange(L, device=x.device).double()[:, None] * torch.exp(
        -math.log(1e4) * steps / width
    )
    if own is not None:
        half = angles[None].to(x.dtype)
        return half.sin(), half.cos()
    both = torch.cat([angles, angles], -1)[None].to(x.dtype)
    return both.cos(), both.sin()
