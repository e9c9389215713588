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
    scattered,
)
from attention_lib.doctor.shrink import picture

__all__ = ["mask_per_item", "mask_reach", "scattered_causal"]


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
    gaps: dict[int, float] = {}
    for B in dict.fromkeys((1, bench.H, bench.B)):
        if B > 6:
            continue
        x = bench.tokens(B=B, L=bench.L)
        keep = scattered(B, bench.L, bench.L, seed=8)
        bare = torch.cat([bench.out(x[b : b + 1]) for b in range(B)])
        if bench.close(bench.out(x), bare) > bench.noise:
            raise Skip("items differ in a batch without a mask: another probe's")
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
        gaps[B] = bench.close(together, alone)
    wrong = [B for B, gap in gaps.items() if gap > bench.noise and B > 1]
    if wrong:
        heads = wrong == [bench.H] and len(gaps) > 1
        yield finding(
            "AT113",
            "mask_per_item",
            "a mask of one batch item acts on another axis",
            f"With {wrong[0]} items the outputs differ by {gaps[wrong[0]]:.2g} "
            "(relative) from each item alone with its own mask. They must agree to "
            f"{bench.noise:.0e}.",
            measured=gaps[wrong[0]],
            expected=0.0,
            key="broadcast",
            sure="shown" if heads else "consistent",
            how=f"it happens with as many items as heads ({bench.H}) and not with "
            "others"
            if heads
            else "",
            smallest=f"batch {wrong[0]}, heads {bench.H}",
        )


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
    if leak.any() and _weights_hide(bench, x, how, may):
        code, key = "AT101", "outside"
        told = "the reported weights of hidden tokens are exactly 0"
    elif equal(opposite):
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
            "AT101": "output sees tokens that its weights hide",
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


def _weights_hide(bench: Bench, x: Tensor, how: dict[str, Any], may: Tensor) -> bool:
    """Whether the reported weights of what the mask hides are exactly 0."""
    if bench.facts.weights != "heads":
        return False
    try:
        w = bench.weights(x, **{k: v for k, v in how.items() if k != "need_weights"})
    except (Skip, SubjectError):
        return False
    if w.shape[-2:] != may.shape[-2:] or len(w) != len(may):
        return False
    return bool((torch.where(may[:, None], 0.0, w) == 0).all())


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
