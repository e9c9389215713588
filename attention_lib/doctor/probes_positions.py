"""Encodings that are added, rotations, and biases of the scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.probing import Bench, SubjectError

__all__ = []


def called(bench: Bench, *args: Any, **kwargs: Any) -> Tensor:
    """What the subject returns, which must be a tensor of floats."""
    bench.calls += 1
    torch.manual_seed(bench.seed)
    shapes = ", ".join(
        str(tuple(a.shape)) if isinstance(a, Tensor) else str(a) for a in args
    )
    said = shapes + "".join(f", {k}={v}" for k, v in kwargs.items())
    try:
        with torch.no_grad():
            own = [a.clone() if isinstance(a, Tensor) else a for a in args]
            out = bench.subject.thing(*own, **kwargs)
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise SubjectError(f"{type(error).__name__}: {text}", said, error) from error
    if isinstance(out, (tuple, list)) and out and isinstance(out[0], Tensor):
        out = out[0]
    if not isinstance(out, Tensor) or not out.is_floating_point():
        raise SubjectError(f"returned {type(out).__name__}, not floats", said)
    return out.detach()


def takes_offset(bench: Bench) -> bool:
    return "offset" in bench.subject.takes


# Encodings ----------------------------------------------------------------------------


# Rotary -------------------------------------------------------------------------------


def spread(scores: Tensor) -> float:
    """How much scores at one distance differ."""
    L = scores.shape[-1]
    return max(
        float((diagonal - diagonal[..., :1]).abs().max())
        for d in range(-(L - 2), L - 1)
        for diagonal in [scores.diagonal(d, -2, -1)]
    )


# Biases -------------------------------------------------------------------------------
