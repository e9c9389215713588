"""Attention as textbooks and their mistakes compute it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "AXES",
    "MASKS",
    "MERGES",
    "SCALES",
    "SPLITS",
    "Variant",
    "factor",
    "far",
    "near",
    "textbook",
]


@dataclass(frozen=True)
class Variant:
    """One way to compute attention; the fields' first values are the right ones."""

    split: str = "heads"  # or "inner", "view", "tokens"
    merge: str = "heads"  # or "inner", "flat"
    scale: str = "head"  # or "width", "none", ...
    axis: str = "keys"  # or "queries", "heads", "batch", "all"
    value: str = "v"  # or "k"
    turned: bool = False  # scores of keys against queries
    group: str = "each"  # or "tile": how shared heads are repeated
    mask: str = "hide"
    shift: int = 0  # columns by which the triangle is late
    rotary: str = "none"  # or "halves", "neighbours", "halves, queries"

    def causes(self) -> list[str]:
        """Names of what is wrong with it."""
        wrong = []
        if self.axis == "twice":
            wrong.append("softmax twice")
        elif self.axis != "keys":
            wrong.append(f"over {self.axis}")
        if self.split == "view":
            wrong.append("view and merge" if self.merge == "flat" else "view")
        elif self.split == "tokens":
            wrong.append("heads as tokens")
        elif self.merge == "flat":
            wrong.append("merge")
        if self.value == "k":
            wrong.append("keys as values")
        if self.scale == "width":
            wrong.append("scale by width")
        elif self.scale == "none":
            wrong.append("no scale")
        elif self.scale not in ("head", "declared"):
            wrong.append("other scale")
        if self.mask not in ("hide", "renormalised"):
            wrong.append(self.mask)
        if self.rotary == "halves, queries":
            wrong.append("rotary on queries alone")
        if self.shift > 0:
            wrong.append("late triangle")
        elif self.shift < 0:
            wrong.append("strict triangle")
        return wrong


SPLITS = ("heads", "inner", "view", "tokens")


MERGES = ("heads", "inner", "flat")


SCALES = ("head", "width", "none", "head^1", "width^1", "up", "keys", "number")


ROTARY = ("none", "halves", "neighbours", "halves, queries")
AXES = ("keys", "twice", "queries", "heads", "batch", "all")


MASKS = (
    *(
        "hide",
        "ignored",
        "inverted",
        "query axis",
        "tiny fill",
        "multiplied",
        "plus fill",
    ),
    *("added bool", "after softmax", "renormalised", "broadcast"),
)


def factor(name: str, d: int, E: int, H: int, S: int, declared: float | None) -> float:
    """The scale of that name."""
    return {
        "declared": declared or 1.0,
        "head": d**-0.5,
        "width": E**-0.5,
        "none": 1.0,
        "head^1": 1 / d,
        "width^1": 1 / E,
        "up": d**0.5,
        "keys": S**-0.5,
        "number": H**-0.5,
    }[name]


def turn(t: Tensor, pairs: str, base: float = 1e4) -> Tensor:
    """Turn pairs of features by the token's place: (B, H, L, D)."""
    d, L = t.shape[-1], t.shape[-2]
    speed = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.arange(L, dtype=torch.float64)[:, None] * speed
    cos, sin = angles.cos().to(t.dtype), angles.sin().to(t.dtype)
    if pairs == "neighbours":
        a, b = t[..., 0::2], t[..., 1::2]
        both = torch.stack([a * cos - b * sin, a * sin + b * cos], -1)
        return both.flatten(-2)
    a, b = t.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def _split(t: Tensor, how: str, heads: int) -> Tensor:
    """(B, L, width) to (B, H, L, D), or what mistakes make of it."""
    B, L, width = t.shape
    d = width // heads
    if how == "inner":
        return t.reshape(B, L, d, heads).permute(0, 3, 1, 2)
    if how == "view":
        return t.reshape(B, heads, L, d)
    if how == "tokens":
        return t.reshape(B, L, heads, d)
    return t.reshape(B, L, heads, d).transpose(1, 2)


def _merge(o: Tensor, v: Variant, B: int, L: int) -> Tensor:
    if v.split == "tokens":
        return o.reshape(B, L, -1)
    if v.merge == "inner":
        return o.permute(0, 2, 3, 1).reshape(B, L, -1)
    if v.merge == "flat":
        return o.reshape(B, L, -1)
    return o.transpose(1, 2).reshape(B, L, -1)


def textbook(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    H: int,
    variant: Variant,
    keep: Tensor | None = None,
    *,
    E: int = 1,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention as a variant computes it.

    Parameters
    ----------
    q, k, v
        Projected and not yet split: (B, L, H D), (B, S, Hkv D), (B, S, Hkv D).
    H
        Query heads.
    variant
        How.
    keep
        Mask (B, L, S), True = may attend.
    E, scale
        Width of the model, for one of the wrong scales; the declared scale.

    Returns
    -------
    tuple of Tensor
        The merged heads (B, L, H D), and the weights.

    Raises
    ------
    RuntimeError
        If the variant does not fit the shapes.
    """
    B, L, S = q.shape[0], q.shape[1], k.shape[1]
    d = q.shape[-1] // H
    kv = max(k.shape[-1] // d, 1)
    q = _split(q, variant.split, H)
    k, v = (_split(t, variant.split, kv) for t in (k, v))
    if kv != H:
        axis = 2 if variant.split == "tokens" else 1
        if variant.group == "each":
            k, v = (t.repeat_interleave(H // kv, axis) for t in (k, v))
        else:
            times = [1, 1, 1, 1]
            times[axis] = H // kv
            k, v = k.repeat(*times), v.repeat(*times)
    if variant.rotary != "none":
        q = turn(q, variant.rotary)
        k = k if "queries" in variant.rotary else turn(k, variant.rotary)
    if variant.turned:
        q, k = k, q
    z = q @ k.transpose(-1, -2)
    z = z * factor(variant.scale, d, E, H, S, scale)
    mask = variant.mask
    kept: Tensor | None = None
    if keep is not None and mask != "ignored":
        kept = keep[:, None] if mask != "broadcast" else keep
        if mask == "inverted":
            kept = ~kept
        elif mask == "query axis":
            kept = kept.transpose(-1, -2)
        if mask == "tiny fill":
            z = z.masked_fill(~kept, -1e-9)
        elif mask == "plus fill":
            z = z.masked_fill(~kept, 1e30)
        elif mask == "multiplied":
            z = z * kept
        elif mask == "added bool":
            z = z + kept
        elif mask not in ("after softmax", "renormalised"):
            z = z.masked_fill(~kept, -1e30)
    if variant.axis == "all":
        w = z.flatten(-2).softmax(-1).view_as(z)
    else:
        at = {"keys": -1, "twice": -1, "queries": -2, "heads": 1, "batch": 0}[
            variant.axis
        ]
        w = z.softmax(at)
        if variant.axis == "twice":
            w = w.softmax(at)
    if mask in ("after softmax", "renormalised") and kept is not None:
        w = w * kept
        if mask == "renormalised":
            w = w / w.sum(-1, keepdim=True)
    o = w @ (v if variant.value == "v" else (q if variant.turned else k))
    return _merge(o, variant, B, L), w


def near(right: str, group: bool) -> Iterator[Variant]:
    """All variants without a mask, those with one mistake before those with two."""
    scales = (right, *(s for s in SCALES if s != right))
    both = ("each", "tile") if group else ("each",)
    everything = [
        Variant(s, m, c, a, v, t, g)
        for s, m, c, a, v, t, g in itertools.product(
            *(SPLITS, MERGES, scales, AXES, ("v", "k"), (False, True), both)
        )
    ]
    few = (v for v in everything if far(v, right) <= 2)
    return iter(sorted(few, key=lambda v: far(v, right)))


def far(v: Variant, right: str) -> int:
    """Number of mistakes; how heads are split and merged is one."""
    plain = Variant(split=v.split, merge=v.merge, scale=right)
    others = sum(getattr(v, f) != getattr(plain, f) for f in plain.__dataclass_fields__)
    return others + ((v.split, v.merge) != ("heads", "heads"))
