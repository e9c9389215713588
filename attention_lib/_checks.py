"""Checks of arguments: what came, what was expected.

They read shapes, dtypes and plain numbers, never the elements of a tensor: they cost a
few microseconds, wait for no device and vanish under ``torch.compile``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def check_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    scale: float | None,
    enable_gqa: bool,
    softcap: float | None,
) -> None:
    """The arguments of :func:`attention_lib.attention_steps`."""
    check_tensors(query=query, key=key, value=value)
    axes = "(..., H, L, D)" if enable_gqa else "(..., L, D)"
    check_axes(axes, query=query, key=key, value=value)
    width = query.shape[-1]
    if width == 0:
        raise ValueError(f"query has shape {tuple(query.shape)}, expected a width >= 1")
    check_equal("width", key.shape[-1], "key", width, "query")
    check_keys(key, value)
    check_heads(query, key, enable_gqa)
    if attn_mask is not None:
        check_mask(attn_mask, query, key)
    check_dropout(dropout_p)
    check_scores(scale, softcap)


def check_additive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    score_weight: Tensor,
    bias: Tensor | None,
) -> None:
    """The tensors of :func:`attention_lib.additive_attention`."""
    weights = {
        "query_weight": query_weight,
        "key_weight": key_weight,
        "score_weight": score_weight,
    }
    if bias is not None:
        weights["bias"] = bias
    check_tensors(query=query, key=key, value=value, **weights)
    check_axes("(..., L, D)", query=query, key=key, value=value)
    check_keys(key, value)
    check_heads(query, key, enable_gqa=False)
    if score_weight.ndim != 1:
        raise ValueError(
            f"score_weight has shape {tuple(score_weight.shape)}, expected (A,)"
        )
    hidden = score_weight.shape[0]
    expected = {
        "query_weight": (hidden, query.shape[-1]),
        "key_weight": (hidden, key.shape[-1]),
        "score_weight": (hidden,),
        "bias": (hidden,),
    }
    for name, weight in weights.items():
        if weight.shape != expected[name]:
            raise ValueError(
                f"{name} has shape {tuple(weight.shape)}, expected {expected[name]}"
            )


def check_tensors(**tensors: Tensor) -> None:
    """Floating-point tensors of one dtype on one device."""
    first, like = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a Tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} has dtype {tensor.dtype}, expected a float dtype")
        check_equal("device", tensor.device, name, like.device, first)
        if tensor.dtype != like.dtype and not autocasts(like):
            raise TypeError(
                f"{name} has dtype {tensor.dtype}, expected {like.dtype} as {first}"
            )


def autocasts(tensor: Tensor) -> bool:
    """Whether autocast is about to bring the dtypes together itself."""
    kind = tensor.device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def check_axes(expected: str, **tensors: Tensor) -> None:
    """At least the axes that ``expected`` names after its dots."""
    least = expected.count(",")
    for name, tensor in tensors.items():
        if tensor.ndim < least:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, expected {expected}"
            )


def check_keys(key: Tensor, value: Tensor) -> None:
    """A value for each key."""
    check_equal("length", value.shape[-2], "value", key.shape[-2], "key")
    check_equal("leading axes", value.shape[:-2], "value", key.shape[:-2], "key")


def check_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    """The leading axes of query (..., H, L, D) and key (..., Hkv, S, D)."""
    if query.shape[:-2] == key.shape[:-2]:
        return
    if not enable_gqa:
        raise ValueError(
            f"key has leading axes {tuple(key.shape[:-2])}, expected "
            f"{tuple(query.shape[:-2])} as query (enable_gqa=True shares key heads)"
        )
    check_equal("batch axes", key.shape[:-3], "key", query.shape[:-3], "query")
    heads, kv_heads = query.shape[-3], key.shape[-3]
    if heads % kv_heads if kv_heads else heads:
        raise ValueError(
            f"query has {heads} heads, expected a multiple of the {kv_heads} of key"
        )


def check_mask(attn_mask: Tensor, query: Tensor, key: Tensor) -> None:
    """Bool or float, on the query's device, broadcasting to (..., H, L, S)."""
    if not isinstance(attn_mask, Tensor):
        raise TypeError(f"attn_mask must be a Tensor, got {type(attn_mask).__name__}")
    if attn_mask.dtype != torch.bool:
        check_bias(attn_mask, query)
    check_equal("device", attn_mask.device, "attn_mask", query.device, "query")
    scores = (*query.shape[:-1], key.shape[-2])
    if not expands(attn_mask.shape, scores):
        raise ValueError(
            f"attn_mask has shape {tuple(attn_mask.shape)}, "
            f"expected one that broadcasts to {scores}"
        )


def check_bias(attn_mask: Tensor, query: Tensor) -> None:
    """A float mask of the query's dtype, or of float32 for half-precision scores."""
    floats = {query.dtype, torch.float32}
    if attn_mask.dtype in floats:
        return
    if not (attn_mask.is_floating_point() and autocasts(query)):
        expected = " or ".join(sorted(map(str, floats)))
        raise TypeError(
            f"attn_mask has dtype {attn_mask.dtype}, "
            f"expected torch.bool (True = may attend) or {expected}"
        )


def expands(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a tensor of ``shape`` expands to ``target``."""
    new = len(target) - len(shape)  # axes that shape lacks, all before its own
    if new < 0:
        return False
    for size, to in zip(shape, target[new:], strict=True):
        if size != 1 and size != to:  # not `in`: symbols of a dynamic graph compare
            return False
    return True


def broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether tensors of the two shapes broadcast with each other."""
    shared = min(len(one), len(other))
    pairs = zip(one[len(one) - shared :], other[len(other) - shared :], strict=True)
    return all(a == b or a == 1 or b == 1 for a, b in pairs)


def check_scores(scale: float | None, softcap: float | None) -> None:
    """The factor and the bound of the scores."""
    if scale is not None:
        check_number("scale", scale)
        if not -math.inf < scale < math.inf:
            raise ValueError(f"scale={scale} must be finite")
    if softcap is not None:
        check_number("softcap", softcap)
        if not 0 < softcap < math.inf:
            raise ValueError(f"softcap={softcap} must be above 0 and finite, or None")


def check_dropout(dropout_p: float) -> None:
    """A share that leaves something."""
    check_number("dropout_p", dropout_p)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p={dropout_p} must be at least 0 and below 1")


def check_number(name: str, number: float) -> None:
    """A plain number: a tensor or a bool in its place is a slip."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(number).__name__}")


def check_integer(name: str, number: int, least: int | None = None) -> None:
    """A plain integer, at least ``least``."""
    # Exported graphs carry a length as a symbol.
    if isinstance(number, bool) or not isinstance(number, (int, torch.SymInt)):
        raise TypeError(f"{name} must be an integer, got {type(number).__name__}")
    if least is not None and number < least:
        raise ValueError(f"{name}={number} must be at least {least}")


def check_integers(name: str, tensor: Tensor) -> None:
    """A tensor of integers."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(tensor).__name__}")
    if tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        raise TypeError(f"{name} has dtype {tensor.dtype}, expected integers")


def check_equal(what: str, got: object, name: str, expected: object, like: str) -> None:
    """One property of two arguments agrees."""
    if got != expected:
        got, expected = (
            tuple(value) if isinstance(value, torch.Size) else value
            for value in (got, expected)
        )
        raise ValueError(f"{name} has {what} {got}, expected {expected} as {like}")
