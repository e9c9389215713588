"""Padding, and queries that may see nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probes_masks import need_mask
from attention_lib.doctor.probing import (
    Bench,
    Skip,
    holes,
    leaked,
    moved,
)

__all__ = ["empty_row", "padding"]


def padding(bench: Bench) -> Iterator[Finding]:
    """Padding must neither be seen nor change anything: left, right, and as a hole.

    Replacing hidden tokens must move real outputs by exactly 0; real outputs must be
    those without the padding, to rounding. Causal too where there is a flag.
    """
    need_mask(bench)
    x = bench.tokens()
    causal: list[dict[str, Any]] = [{}]
    if bench.has_flag:
        causal.append({"causal": True})
    for how in causal:
        keep = holes(bench.B, bench.L)
        real = keep[:, -1]
        y = bench.out(x, mask=keep, **how)
        z = bench.out(bench.replaced(x, ~real), mask=keep, **how)
        leak = torch.where(real, leaked(y, z), 0.0)
        if leak.max() > 0:
            b, i = (int(n) for n in (leak > 0).nonzero()[0])
            yield finding(
                "AT110",
                "padding",
                "padding is seen",
                f"y[{i}] moves by {float(leak[b, i]):.2g} when only padding changes. "
                "It must move by exactly 0.",
                measured=float(leak[b, i]),
                expected=0.0,
                why="the padding mask is ignored, turned round or on another axis",
                kind="mask semantics",
                effect="results depend on what the padding holds",
            )
            return
        yield from _truncated(bench, x, how)


def _truncated(bench: Bench, x: Tensor, how: dict[str, Any]) -> Iterator[Finding]:
    L, cut = bench.L, bench.L // 3 + 1
    positions = bench.facts.positions
    for side in ("right", "left"):
        if side == "right" and bench.facts.pattern is not None and "causal" not in how:
            continue
        real = torch.ones(L, dtype=torch.bool)
        part = slice(0, L - cut) if side == "right" else slice(cut, L)
        real[:] = False
        real[part] = True
        keep = real.expand(bench.B, L, L).contiguous()
        y = bench.out(x, mask=keep, **how)[:, part]
        inner = keep[:, : L - cut, part] if bench.subject.padding_only else None
        z = bench.out(x[:, part], mask=inner, **how)
        gap = bench.close(y, z)
        if gap <= bench.noise:
            continue
        if side == "left":
            if positions is None and bench.notes.get("ordered"):
                continue  # positions that nobody declared: told elsewhere
            severity = (
                "fault"
                if positions != "absolute" or bench.subject.padding_only
                else "note"
            )
            if bench.facts.pattern and bench.facts.pattern.startswith(  # type: ignore[union-attr]
                ("prefix", "blocks")
            ):
                continue
            yield finding(
                "AT210",
                "padding",
                "padding on the left moves the positions",
                f"Real outputs differ by {gap:.2g} (relative) from those without "
                f"{cut} tokens of padding on the left.",
                measured=gap,
                expected=0.0,
                severity=severity,  # type: ignore[arg-type]
                why="positions count the padding: they are not derived from the mask",
                kind="padding side",
                sure="shown",
                remedy=("+ positions = (keep.cumsum(-1) - 1).clamp(min=0)",),
                effect="a batch padded on the left generates other text",
            )
            return
        yield finding(
            "AT202",
            "padding",
            "padding changes the real outputs, whatever it holds",
            f"Real outputs differ by {gap:.2g} (relative) from those without "
            f"{cut} tokens of padding on the right.",
            measured=gap,
            expected=0.0,
            why="a scale, a norm or a count uses the padded length",
            kind="length",
            effect="results depend on the longest item of a batch",
        )
        return


def empty_row(bench: Bench) -> Iterator[Finding]:
    """A query that may see nothing: what it gives is a choice, whom it hurts is not.

    Zeros are best. Makers differ, so NaN and an average of hidden keys are notes; that
    other rows become wrong is a fault.
    """
    need_mask(bench)
    if bench.subject.padding_only:
        raise Skip("it takes padding alone")
    x = bench.tokens()
    keep = torch.ones(bench.B, bench.L, bench.L, dtype=torch.bool)
    row = bench.L // 2
    keep[-1, row] = False
    y = bench.out(x, mask=keep)
    whole = bench.out(x, mask=torch.ones_like(keep))
    rest = moved(whole, y)
    rest[-1, row] = 0
    if rest.max() > 0 and bench.close(*_without(y, whole, row)) > bench.noise:
        yield finding(
            "AT501",
            "empty_row",
            "a query that may see nothing spoils other rows",
            f"Other rows move by {float(rest.max()):.2g} when one query is hidden from "
            "every key.",
            measured=float(rest.max()),
            expected=0.0,
            why="NaN of the empty row spreads, or rows are mixed",
            kind="fully masked row",
        )
        return
    if not torch.isfinite(y[-1, row]).all():
        yield finding(
            "AT501",
            "empty_row",
            "a query that may see nothing gives NaN",
            f"y[{row}] is not finite where all of its keys are hidden.",
            severity="note",
            why="the softmax of minus infinities alone is 0 / 0",
            kind="fully masked row",
            sure="shown",
            remedy=("+ weights = weights.masked_fill(~keep, 0.0)",),
            effect="one empty row makes the loss NaN, and with it every weight",
        )
        return
    hidden = torch.arange(bench.L) != row
    z = bench.out(bench.replaced(x, hidden), mask=keep)
    seen = float(moved(y, z)[-1, row])
    if seen > 0:
        yield finding(
            "AT501",
            "empty_row",
            "a query that may see nothing averages what is hidden from it",
            f"y[{row}] moves by {seen:.2g} when tokens hidden from it change.",
            severity="note",
            measured=seen,
            expected=0.0,
            why="all scores are filled with the same finite number",
            kind="fully masked row",
            sure="shown",
            remedy=("+ weights = weights.masked_fill(~keep, 0.0)",),
            effect="padding leaks through rows that have nothing else to see",
        )
    yield from _empty_row_gradient(bench, x, keep)


def _without(y: Tensor, whole: Tensor, row: int) -> tuple[Tensor, Tensor]:
    y, whole = y.clone(), whole.clone()
    y[-1, row] = whole[-1, row] = 0
    return y, whole


def _empty_row_gradient(bench: Bench, x: Tensor, keep: Tensor) -> Iterator[Finding]:
    if not bench.facts.differentiable or bench.B < 2:
        return
    given = x.clone().requires_grad_(True)
    try:
        out = bench.out(given, mask=keep, grad=True)
        if not out.requires_grad:
            return
        (gradient,) = torch.autograd.grad(
            out[0].sum(), given, allow_unused=True, retain_graph=True
        )
        leaves = [p for m in bench.modules for p in m.parameters() if p.requires_grad]
        others = torch.autograd.grad(out[0].sum(), leaves, allow_unused=True)
    except RuntimeError:
        return  # another probe reports that backward raises
    wrong = [g for g in (gradient, *others) if g is not None and not g.isfinite().all()]
    if wrong:
        yield finding(
            "AT505",
            "empty_row",
            "an empty row makes gradients NaN that have nothing to do with it",
            f"{len(wrong)} gradients of a loss without that row are not finite.",
            severity="note",
            why="the softmax of minus infinities alone has no gradient, and zero times "
            "NaN is NaN",
            kind="fully masked row",
            sure="shown",
            remedy=("fill with the dtype's minimum, then zero the weights",),
            effect="training stops at the first empty row",
        )
