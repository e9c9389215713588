"""Half precision, large inputs, the path without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.copies import double
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench, Skip, SubjectError, holes

__all__ = ["explodes", "fast_path", "half"]


def in_dtype(bench: Bench, x: Tensor, dtype: torch.dtype, **how: Any) -> Tensor:
    """The output of a copy cast to another dtype."""
    inner = [part for module in bench.modules for part in module.modules()]
    held = [
        (part, dict(part._buffers), [(p, p.data) for p in part.parameters(False)])
        for part in inner
    ]
    try:
        double(bench.subject.thing, dtype)
        context = how.get("context")
        if context is not None:
            how = {**how, "context": context.to(dtype)}
        return bench.out(x.to(dtype), **how)
    finally:
        for part, buffers, parameters in held:
            part._buffers.update(buffers)
            for parameter, data in parameters:
                parameter.data = data


def half(bench: Bench) -> Iterator[Finding]:
    """float16 with a mask and the causal rule: finite, and in float16.

    A fixed fill such as -1e9 does not fit into float16. What half precision survives is
    a choice: this gives notes.
    """
    x = bench.tokens()
    how: dict[str, Any] = {"causal": True} if bench.has_flag else {}
    if bench.has_mask:
        keep = holes(bench.B, bench.L)
        keep = keep | torch.eye(bench.L, dtype=torch.bool)
        how["mask"] = keep
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype)[6:]
        try:
            y = in_dtype(bench, x, dtype, **how)
        except SubjectError as error:
            what = error.what
            if "not implemented for" in what:
                raise Skip(f"an operation has no {name} version here") from error
            fill = "overflow" in what
            yield finding(
                "AT502" if fill or not _mixes(what) else "AT510",
                "half",
                f"it raises in {name}",
                what,
                severity="note",
                why="hidden scores are filled with a number that float16 cannot hold"
                if fill
                else "a table or constant keeps another dtype",
                kind="numeric range" if fill else "dtype/device",
                sure="shown" if fill else "consistent",
                remedy=(
                    "- scores.masked_fill(~keep, -1e9)",
                    "+ scores.masked_fill(~keep, torch.finfo(scores.dtype).min)",
                )
                if fill
                else (),
                effect="an error as soon as the model runs in half precision",
            )
            return
        if y.dtype != dtype:
            yield finding(
                "AT510",
                "half",
                f"the output is {str(y.dtype)[6:]} where everything is {name}",
                f"A module and tokens in {name} give {str(y.dtype)[6:]}.",
                severity="note",
                why="a table or constant keeps another dtype",
                kind="dtype/device",
            )
            return
        if not torch.isfinite(y).all():
            yield finding(
                "AT502",
                "half",
                f"the output is not finite in {name}",
                f"{int((~torch.isfinite(y)).sum())} of {y.numel()} outputs are not "
                "finite; in float64 all are.",
                severity="note",
                why="scores or fills leave the range of float16, 65504",
                kind="numeric range",
                effect="NaN in training with half precision",
            )
            return


def _mixes(what: str) -> bool:
    return "dtype" in what or "type" in what.lower() and "expected" in what.lower()


def explodes(bench: Bench) -> Iterator[Finding]:
    """Tokens 40 times as large in float32: a softmax that is done right stays finite."""
    x = bench.tokens(size=40.0)
    if not torch.isfinite(bench.out(bench.tokens())).all():
        raise Skip("ordinary input is not finite already")
    try:
        y = in_dtype(bench, x, torch.float32)
    except SubjectError as error:
        raise Skip(f"it does not run in float32: {error.what}") from error
    if not torch.isfinite(y).all():
        yield finding(
            "AT503",
            "explodes",
            "large inputs give NaN or infinity",
            f"{int((~torch.isfinite(y)).sum())} of {y.numel()} outputs are not finite "
            "in float32 for tokens of size 40.",
            why="exp of the scores without subtracting the row's maximum",
            kind="numeric range",
            remedy=("- scores.exp() / scores.exp().sum(-1)", "+ scores.softmax(-1)"),
            effect="NaN after some steps of training",
        )


def fast_path(bench: Bench) -> Iterator[Finding]:
    """With and without gradients a call must give the same, in every way of asking."""
    if not bench.facts.differentiable:
        raise Skip("declared as not differentiable")
    x = bench.tokens()
    for name, how in bench.ways():
        fast, slow = bench.out(x, **how), bench.out(x, grad=True, **how).detach()
        odd = fast.isfinite().all() != slow.isfinite().all()
        gap = bench.close(
            fast.nan_to_num(0.0), slow.nan_to_num(0.0)
        )
        if odd or gap > max(bench.noise, 1e-7):
            yield finding(
                "AT504",
                "fast_path",
                "the output differs with and without gradients",
                f"Outputs differ by {gap:.2g} ({name})"
                + (", and one of them is not finite." if odd else "."),
                severity="note" if odd and name == "mask" else "fault",
                measured=gap,
                expected=0.0,
                why="another kernel runs in eval without gradients",
                kind="fast path",
            )
            return


