"""What the layers share: checks of their inputs, and masks fit for the scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attention_lib import masks
from attention_lib._checks import check_number, expands
from attention_lib.positions._common import check_positions

if TYPE_CHECKING:
    from attention_lib.cache import KeyValueCache
    from attention_lib.layers import MultiHeadAttention


def check_dropout(dropout: float) -> None:
    """A share that leaves something."""
    check_number("dropout", dropout)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} must be at least 0 and below 1")


def check_input(
    name: str, x: Tensor, width: int, like: nn.Module, length: str = "L"
) -> None:
    """Tokens (B, L, width), of the dtype and on the device of a projection."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(x).__name__}")
    if x.ndim != 3 or x.shape[-1] != width:
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}, expected (B, {length}, {width})"
        )
    if not isinstance(like, nn.Linear):
        return  # what stands in for a Linear, quantized say, has dtypes of its own
    weight = like.weight
    if x.device != weight.device:
        raise ValueError(
            f"{name} is on {x.device}, expected {weight.device} as the layer"
        )
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"{name} has dtype {x.dtype}, expected {weight.dtype} as the layer"
        )


def check_tokens(
    layer: MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor
) -> None:
    """Queries, keys and values that the layer can project and pair."""
    E, like = layer.embed_dim, layer.out_proj
    check_input("query", query, E, like)
    if key is query and value is query and layer.kdim == layer.vdim == E:
        return
    check_input("key", key, layer.kdim, like, "S")
    check_input("value", value, layer.vdim, like, "S")
    if key.shape[0] != query.shape[0]:
        raise ValueError(
            f"key has batch size {key.shape[0]}, expected {query.shape[0]} as query"
        )
    if value.shape[:2] != key.shape[:2]:
        raise ValueError(
            f"value has batch and length {tuple(value.shape[:2])}, "
            f"expected {tuple(key.shape[:2])} as key"
        )


def check_places(
    layer: MultiHeadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    cache: KeyValueCache | None,
    positions: Tensor | None,
) -> None:
    """What needs to know where tokens stand: cache, rotary and the causal rule."""
    is_self = key is query and value is query
    if positions is not None:
        if layer.rotary is None:
            raise ValueError("positions needs a layer with rotary")
        check_positions(positions, query.shape[0], query.shape[1], query.device)
    if layer.rotary is not None and not is_self:
        raise ValueError(
            "rotary turns queries and keys of one sequence: leave out key and value"
        )
    if cache is not None:
        if not is_self:
            raise ValueError("cache is for self-attention: leave out key and value")
        check_cache(layer, query, cache)
    elif is_causal and key.shape[1] != query.shape[1]:
        L, S = query.shape[1], key.shape[1]
        raise ValueError(
            f"is_causal does not say how {L} queries and {S} keys align: "
            f"pass attn_mask=masks.causal({L}, {S}, offset=...)"
        )


def check_cache(layer: MultiHeadAttention, query: Tensor, cache: KeyValueCache) -> None:
    """A cache that can take the keys of these queries."""
    batch, heads, _, width = cache.keys.shape
    expected = (query.shape[0], layer.num_kv_heads, layer.head_dim)
    if (batch, heads, width) != expected:
        raise ValueError(
            f"cache has batch, heads and width {(batch, heads, width)}, "
            f"expected {expected} as query and the layer"
        )
    if cache.keys.device != query.device:
        raise ValueError(
            f"cache is on {cache.keys.device}, expected {query.device} as query"
        )
    if cache.keys.dtype != query.dtype and not torch.is_autocast_enabled(
        query.device.type
    ):
        raise TypeError(
            f"cache has dtype {cache.keys.dtype}, expected {query.dtype} as query"
        )
    cache.check_room(query.shape[1])


def check_hook(
    name: str, hook: object, attribute: str, expected: int, owner: str = "layer"
) -> None:
    """A part made elsewhere that says for how many heads or what width it is made."""
    found = getattr(hook, attribute, expected)
    if found != expected:
        raise ValueError(
            f"{name} has {attribute}={found}, expected {expected} as the {owner}"
        )


def check_score_bias(bias: Tensor, query: Tensor, heads: int, S: int) -> None:
    """What a hook returns: a float that broadcasts to the scores (B, H, L, S)."""
    scores = (query.shape[0], heads, query.shape[1], S)
    if not expands(bias.shape, scores) or not bias.is_floating_point():
        raise ValueError(
            f"score_bias gave shape {tuple(bias.shape)} and dtype {bias.dtype}, "
            f"expected a float that broadcasts to {scores}"
        )


def mask_for_heads(attn_mask: Tensor, query: Tensor, heads: int, S: int) -> Tensor:
    """The mask with its head axis, broadcasting to the scores (B, H, L, S).

    Three axes mean (B, L, S). A mask per head has four, so that the number of heads
    never decides what a mask means.
    """
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask must be a Tensor, got {type(attn_mask).__name__}")
    if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise TypeError(
            f"attn_mask has dtype {attn_mask.dtype}, expected torch.bool "
            f"(True = may attend) or {query.dtype} as query (added to the scores)"
        )
    if attn_mask.device != query.device:
        raise ValueError(
            f"attn_mask is on {attn_mask.device}, expected {query.device} as query"
        )
    B, L, _ = query.shape
    shape = tuple(attn_mask.shape)
    full = (B, L, S) if attn_mask.ndim == 3 else (B, heads, L, S)
    if not expands(shape, full):
        if attn_mask.ndim == 3:
            hint = "three axes mean (B, L, S), a mask per head is (1, H, L, S)"
        else:
            hint = "padding is masks.padding(lengths, S), of shape (B, 1, 1, S)"
        raise ValueError(
            f"attn_mask has shape {shape}, "
            f"expected one that broadcasts to {full}: {hint}"
        )
    return attn_mask.unsqueeze(1) if attn_mask.ndim == 3 else attn_mask


def join(attn_mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Both masks at once: what both allow, and the sum of what they add."""
    if attn_mask is None or other is None:
        return other if attn_mask is None else attn_mask
    if attn_mask.dtype == torch.bool:
        if other.dtype == torch.bool:
            return attn_mask & other
        return other.masked_fill(~attn_mask, -math.inf)
    if other.dtype == torch.bool:
        return attn_mask.masked_fill(~other, -math.inf)
    return attn_mask + other


def causal_from(
    held: int, L: int, S: int, window: int | None, device: torch.device
) -> tuple[Tensor | None, bool]:
    """The causal rule for L queries after the tokens held: a mask, or the flag.

    One query sees every key, so it needs neither. Without tokens held, the flag says it
    all. A window adds that none sees further back.
    """
    if L == 1:
        return None, False
    if window is not None and S > window:
        keep = masks.sliding_window(L, S, window=window, offset=held, device=device)
        return keep, False
    if held == 0:
        return None, True
    return masks.causal(L, S, offset=held, device=device), False
