"""The smallest case that still shows a finding, on a fixed grid."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.probing import Bench, SubjectError, leaked

__all__ = ["Grid", "picture", "smallest_leak"]

Map = tuple[tuple[float, ...], ...]
Grid = tuple[tuple[bool, ...], ...]


def picture(size: Tensor, may: Tensor) -> tuple[Map, Grid]:
    """A dependency map of at most 6 x 6, and where it must be 0."""
    size = size.amax(0)[:6, :6].nan_to_num(posinf=float("inf"))
    hidden = ~may[:6, :6]
    return (
        tuple(tuple(float(f"{v:.3g}") for v in row) for row in size.tolist()),
        tuple(tuple(bool(v) for v in row) for row in hidden.tolist()),
    )


def smallest_leak(bench: Bench, how: dict[str, Any]) -> tuple[str, Any]:
    """The shortest input in which an output moves that must not, and its map.

    The grid is length 2 to 6 and batch 1, with three seeds: structural faults show with
    any seed, and how many tokens they need is itself a clue.
    """
    how = dict(how)
    for L in range(2, 7):
        if "mask" in how:
            how["mask"] = torch.ones(1, L, L, dtype=torch.bool)
        may = bench.expected(L, causal=bool(how.get("causal")))
        shown = []
        size = torch.zeros(1, L, L)
        try:
            for seed in (1, 2, 3):
                x = bench.tokens(seed, 1, L)
                before = bench.out(x, **how)
                size = torch.stack(
                    [
                        leaked(
                            before,
                            bench.out(bench.replaced(x, torch.arange(L) == j), **how),
                        )
                        for j in range(L)
                    ],
                    -1,
                )
                shown.append(bool(((size > 0).any(0) & ~may).any()))
        except SubjectError:
            continue
        if any(shown):
            seeds = "any seed" if all(shown) else f"{sum(shown)} of 3 seeds"
            heads = f", heads {bench.H}" if bench.H > 1 else ""
            larger = max(L, 4)
            text = f"length {L}{heads}, batch 1 ({seeds})"
            return text, _map(bench, larger, how) if larger != L else picture(size, may)
    return "", None


def _map(bench: Bench, L: int, how: dict[str, Any]) -> Any:
    how = dict(how)
    if "mask" in how:
        how["mask"] = torch.ones(1, L, L, dtype=torch.bool)
    x = bench.tokens(1, 1, L)
    try:
        before = bench.out(x, **how)
        columns = [
            leaked(before, bench.out(bench.replaced(x, torch.arange(L) == j), **how))
            for j in range(L)
        ]
    except SubjectError:
        return None
    may = bench.expected(L, causal=bool(how.get("causal")))
    return picture(torch.stack(columns, -1), may)
