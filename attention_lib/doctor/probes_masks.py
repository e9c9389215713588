"""What masks hide: a mask is a promise about who moves whom, for any mask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probes_reach import reach_of
from attention_lib.doctor.probing import (
    Bench,
    Skip,
    SubjectError,
    holes,
    leaked,
    moved,
    scattered,
)
from attention_lib.doctor.shrink import picture

__all__ = ["empty_row", "mask_per_item", "mask_reach", "padding", "scattered_causal"]


def need_mask(bench: Bench) -> None:
    if not bench.has_mask:
        raise Skip("masks are not declared, or not taken")


def mask_per_item(bench: Bench) -> Iterator[Finding]:
    """A mask (B, L, S) must mean the same for item b as a mask (L, S) for b alone.

    With as many items as heads, with fewer and with one: a missing head axis is an
    error for some of these, and silently wrong for others.
    """
    need_mask(bench)
    if bench.subject.padding_only:
        raise Skip("it takes padding alone")
    for B in dict.fromkeys((1, bench.H, bench.B)):
        if B > 6:
            continue
        x = bench.tokens(B=B, L=bench.L)
        keep = scattered(B, bench.L, bench.L, seed=8)
        try:
            together = bench.out(x, mask=keep)
        except SubjectError as error:
            if not bench.works(x, mask=keep[0]):
                raise
            yield finding(
                "AT113",
                "mask_per_item",
                "a mask with one part per batch item is refused",
                f"A mask {tuple(keep.shape)} for {B} items raises {error.what}",
                key="broadcast",
                sure="shown",
                how=f"the mask {tuple(keep[0].shape)} works",
                smallest=f"batch {B}, heads {bench.H}",
            )
            return
        alone = torch.cat([bench.out(x[b : b + 1], mask=keep[b]) for b in range(B)])
        gap = bench.close(together, alone)
        if gap > bench.noise and B > 1:
            twice = bench.out(x, mask=keep.clone())
            yield finding(
                "AT113",
                "mask_per_item",
                "a mask of one batch item acts on another axis",
                f"With {B} items the outputs differ by {gap:.2g} (relative) from each "
                f"item alone with its own mask. They must agree to {bench.noise:.0e}.",
                measured=gap,
                expected=0.0,
                key="broadcast",
                sure="shown" if B == bench.H else "consistent",
                how=f"it happens with as many items as heads ({B})"
                if B == bench.H
                else "",
                smallest=f"batch {B}, heads {bench.H}",
            )
            del twice
            return


def mask_reach(bench: Bench) -> Iterator[Finding]:
    """Under a mask without symmetry, tokens must move exactly the outputs it allows.

    What the opposite mask, its transpose, or no mask would allow is compared as well,
    and names the cause. In self-attention a token also moves its own output as a query.
    """
    need_mask(bench)
    if bench.subject.padding_only:
        raise Skip("it takes padding alone")
    ways: list[tuple[str, dict[str, Any]]] = [("", {})]
    if bench.has_weights:
        ways.append((" when weights are asked for", {"need_weights": True}))
    if bench.has_context:
        ways.append((" in cross-attention", {"context": bench.tokens(6, L=bench.S)}))
    for where, how in ways:
        if how.get("context") is not None:
            try:  # queries and context may be swapped, which another probe reports
                if not bench.works(bench.tokens(), **how):
                    continue
            except SubjectError:
                continue
        found = list(_mask_way(bench, where, how))
        yield from found
        if found:
            return


def _mask_way(bench: Bench, where: str, how: dict[str, Any]) -> Iterator[Finding]:
    x = bench.tokens()
    S = bench.L if "context" not in how else bench.S
    keep = scattered(bench.B, bench.L, S)
    own = torch.eye(bench.L, S, dtype=torch.bool)
    if "context" in how:
        own = torch.zeros_like(own)
    rule = bench.expected(bench.L, S) if "context" not in how else None
    if rule is not None and not rule.all():  # what it hides by itself hides still
        keep = keep | own
    may = keep if rule is None else keep & rule
    try:
        masked = bench.out(x, mask=keep, **how)
    except SubjectError:
        keep = keep[:1].expand_as(keep)  # (L, S) alone may work: seen above
        may = keep if rule is None else keep & rule
        how = {**how, "mask": keep[0]}
        masked = bench.out(x, **how)
    how = {**how, "mask": how.get("mask", keep)}
    if not torch.isfinite(masked).all() and bool(may.any(-1).all()):
        yield finding(
            "AT112",
            "mask_reach",
            f"the output is not finite when a mask is passed{where}",
            f"{int((~torch.isfinite(masked)).sum())} of {masked.numel()} outputs are "
            "not finite, although each query may see some key.",
            key="plus inf",
            smallest="length 2, batch 1 (any seed)",
        )
        return
    size = reach_of(bench, x, **how)
    seen = size > 0
    if torch.equal(seen | own, may | own) and not ((seen & own) & ~(may | own)).any():
        return
    yield _mask_fault(bench, x, keep, may, seen, own, size, masked, where, how)


def _mask_fault(
    bench: Bench,
    x: Tensor,
    keep: Tensor,
    may: Tensor,
    seen: Tensor,
    own: Tensor,
    size: Tensor,
    masked: Tensor,
    where: str,
    how: dict[str, Any],
) -> Finding:
    key, sure, told, why, kind = "", "shown", "", "", "mask semantics"
    code = "AT112"

    def equal(other: Tensor) -> bool:
        return torch.equal(seen | own, other | own)

    bare = bench.out(x, **{k: v for k, v in how.items() if k != "mask"})
    gap = bench.close(masked, bare)
    leak, missing = seen & ~(may | own), may & ~(seen | own)
    rule = bench.expected(*may.shape[1:]) if "context" not in how else None
    everything = torch.ones_like(seen) if rule is None else rule.expand_as(seen)
    opposite = ~keep if rule is None else ~keep & rule
    if equal(opposite):
        code, key = "AT111", "inverted"
        told = "exactly the hidden tokens are seen"
    elif equal(everything) and gap <= bench.noise:
        code, key = "AT110", "ignored"
        told = "the output is the one without a mask"
    elif may.shape[1] == may.shape[2] and equal(keep.transpose(1, 2)):
        key, told = "query axis", "exactly the transposed mask is obeyed"
    elif equal(everything):
        sum_kept = _rows_kept(bench, keep, how)
        if sum_kept:
            key, sure = "tiny fill", "consistent"
            told = "hidden tokens still count, and rows still sum to 1"
        else:
            key, sure = "after softmax", "shown"
            told = "hidden tokens still count, and rows do not sum to 1"
    elif bench.B > 1 and _other_item(seen, keep, own):
        code, key = "AT113", "broadcast"
        told = "an item obeys the masks of other items"
    elif missing.any() and not leak.any():
        why, kind, sure = "the mask hides more than it says", "mask value", "consistent"
    else:
        why, sure = "the mask reaches the scores on another axis", "consistent"
        kind = "mask axis"
    where_leak = leak if leak.any() else missing
    b, i, j = (int(n) for n in where_leak.nonzero()[0])
    text, forbidden = picture(size[b : b + 1], may[b] | own)
    does = "moves" if leak.any() else "does not move"
    return finding(
        code,
        "mask_reach",
        {
            "AT110": "the mask changes nothing",
            "AT111": "the mask is read the other way round",
            "AT113": "a mask of one batch item acts on another axis",
        }.get(code, "the mask does not hide what it says")
        + where,
        f"y[{i}] {does} ({float(size[b, i, j]):.2g}) when token {j}, which the mask "
        f"{'hides from' if leak.any() else 'shows to'} it, changes.",
        measured=float(size[b, i, j]),
        expected=0.0 if leak.any() else None,
        key=key,
        sure=sure,  # type: ignore[arg-type]
        how=told,
        why=why,
        kind=kind,
        seen=text,
        forbidden=forbidden,
        smallest=f"length {may.shape[1]}, batch {bench.B} (any seed)",
    )


def _rows_kept(bench: Bench, keep: Tensor, how: dict[str, Any]) -> bool:
    """Whether identical tokens give identical outputs under the mask: rows sum to 1."""
    one = bench.tokens(9, bench.B, 1)
    if how.get("context") is not None:
        how = {**how, "context": one.expand(-1, bench.S, -1).contiguous()}
        x = bench.tokens()
    else:
        x = one.expand(-1, bench.L, -1).contiguous()
    if bench.facts.residual and how.get("context") is not None:
        return True
    y = bench.out(x, **{**how, "mask": keep})
    return bench.close(y, y[:, :1].expand_as(y)) <= max(bench.noise, 1e-7)


def _other_item(seen: Tensor, keep: Tensor, own: Tensor) -> bool:
    B = len(keep)
    union = keep.any(0)
    return all(
        torch.equal(seen[b] | own, union | own)
        or any(torch.equal(seen[b] | own, keep[c] | own) for c in range(B) if c != b)
        for b in range(B)
    )


def scattered_causal(bench: Bench) -> Iterator[Finding]:
    """A mask and the causal rule together: a token moves what both allow."""
    need_mask(bench)
    if not bench.has_flag or bench.subject.padding_only:
        raise Skip("there is no causal flag beside the mask")
    x = bench.tokens()
    own = torch.eye(bench.L, dtype=torch.bool)
    keep = scattered(bench.B, bench.L, bench.L) | own
    rule = bench.expected(bench.L, causal=True)
    try:
        size = reach_of(bench, x, mask=keep, causal=True)
    except SubjectError:
        keep = keep[:1].expand_as(keep)
        size = reach_of(bench, x, mask=keep[0], causal=True)
    seen, may = size > 0, keep & rule
    if torch.equal(seen, may):
        return
    if torch.equal(seen, keep):
        code, key, message = "AT101", "causal lost", "a mask switches causality off"
    elif torch.equal(seen, rule.expand_as(seen)):
        code, key, message = "AT110", "mask lost", "causality switches the mask off"
    else:
        leak = seen & ~may
        future = bool((leak & ~rule).any())
        code, key = ("AT101" if future else "AT112"), ""
        message = "a mask and causal=True together do not hide what both hide"
    wrong = (seen != may).nonzero()[0].tolist()
    b, i, j = wrong
    text, forbidden = picture(size[b : b + 1], may[b])
    yield finding(
        code,
        "scattered_causal",
        message,
        f"y[{i}] moves by {float(size[b, i, j]):.2g} when x[{j}] changes.",
        measured=float(size[b, i, j]),
        expected=0.0 if seen[b, i, j] else None,
        key=key,
        sure="shown" if key else "consistent",
        how="exactly what the other rule allows is seen" if key else "",
        why="the two are combined by another rule than 'and'",
        kind="mask semantics",
        seen=text,
        forbidden=forbidden,
    )


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
        leaves = [
            p for m in bench.modules for p in m.parameters() if p.requires_grad
        ]
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
