"""The refit: which textbook variant, run with the subject's own weights, is it?

Behaviour cannot tell a wrong scale from other weights. But where the projections are
known, attention can be computed from them in every way that textbooks and their
mistakes offer, and the way that gives the subject's own output names the cause.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.causes import CAUSES, finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench, Skip, SubjectError, moved, scattered
from attention_lib.doctor.projections import Parts, find_parts

__all__ = ["Variant", "reproduced", "textbook"]


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

    def causes(self) -> list[str]:
        """Names of what is wrong with it."""
        wrong = []
        if self.axis != "keys":
            wrong.append(f"over {self.axis}")
        if self.split == "view":
            wrong.append("view")
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
        if self.shift > 0:
            wrong.append("late triangle")
        elif self.shift < 0:
            wrong.append("strict triangle")
        return wrong


SPLITS = ("heads", "inner", "view", "tokens")
MERGES = ("heads", "inner", "flat")
SCALES = ("head", "width", "none", "head^1", "width^1", "up", "keys", "number")
AXES = ("keys", "queries", "heads", "batch", "all")
MASKS = (
    *("hide", "ignored", "inverted", "query axis", "tiny fill", "multiplied"),
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
        elif mask == "multiplied":
            z = z * kept
        elif mask == "added bool":
            z = z + kept
        elif mask not in ("after softmax", "renormalised"):
            z = z.masked_fill(~kept, -1e30)
    if variant.axis == "all":
        w = z.flatten(-2).softmax(-1).view_as(z)
    else:
        at = {"keys": -1, "queries": -2, "heads": 1, "batch": 0}[variant.axis]
        w = z.softmax(at)
    if mask in ("after softmax", "renormalised") and kept is not None:
        w = w * kept
        if mask == "renormalised":
            w = w / w.sum(-1, keepdim=True)
    o = w @ (v if variant.value == "v" else (q if variant.turned else k))
    return _merge(o, variant, B, L), w


@dataclass
class _Case:
    """What the subject was given, its own output, and the right mask."""

    x: Tensor
    context: Tensor
    keep: Tensor | None
    out: Tensor
    shifts: tuple[int, ...] = (0,)


class _Refit:
    def __init__(self, bench: Bench, parts: Parts, H: int) -> None:
        self.bench, self.parts, self.H = bench, parts, H
        self.tried = 0
        self.next = math.inf
        self.tolerance = max(1e-7, 10 * bench.noise)

    def error(self, case: _Case, variant: Variant) -> float:
        """Relative distance of the variant's output from the subject's."""
        self.tried += 1
        p = self.parts
        keep = case.keep
        if keep is not None and variant.shift:
            L, S = keep.shape[-2:]
            keep = torch.ones(L, S, dtype=torch.bool).tril(variant.shift).expand_as(keep)
        try:
            with torch.no_grad():
                q, k, v = p.q(case.x), p.k(case.context), p.v(case.context)
                o, _ = textbook(
                    q,
                    k,
                    v,
                    self.H,
                    variant,
                    keep,
                    E=self.bench.E,
                    scale=self.bench.facts.scale,
                )
                made = p.o(o)
        except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
            return math.inf
        if made.shape != case.out.shape:
            return math.inf
        size = float(case.out.abs().max())
        return float(moved(case.out, made.to(case.out.dtype)).max()) / max(size, 1e-30)

    def fits(self, case: _Case, variants: Iterator[Variant]) -> list[Variant]:
        found = []
        for variant in variants:
            error = self.error(case, variant)
            if error <= self.tolerance:
                found.append(variant)
                self.best = error
            else:
                self.next = min(self.next, error)
        return found


def _grid(right: str, group: bool) -> Iterator[Variant]:
    """All variants without a mask, those with one mistake before those with two."""
    scales = (right, *(s for s in SCALES if s != right))
    both = ("each", "tile") if group else ("each",)
    everything = [
        Variant(s, m, c, a, v, t, g)
        for s, m, c, a, v, t, g in itertools.product(
            *(SPLITS, MERGES, scales, AXES, ("v", "k"), (False, True), both)
        )
    ]
    near = (v for v in everything if _far(v, right) <= 2)
    return iter(sorted(near, key=lambda v: _far(v, right)))


def _far(v: Variant, right: str) -> int:
    """Number of mistakes; how heads are split and merged is one."""
    plain = Variant(split=v.split, merge=v.merge, scale=right)
    others = sum(getattr(v, f) != getattr(plain, f) for f in plain.__dataclass_fields__)
    return others + ((v.split, v.merge) != ("heads", "heads"))


def reproduced(bench: Bench) -> Iterator[Finding]:
    """Textbook variants with the subject's own weights: which one gives its output?

    The right one clears scale, softmax axis and head layout. A wrong one alone is the
    cause. None or several: it cannot be told.
    """
    if bench.facts.residual or bench.facts.normalization != "softmax":
        raise Skip("not a bare softmax attention: it cannot be told by a refit", True)
    candidates = find_parts(bench.subject.thing, bench.E, bench.H)
    if not candidates:
        raise Skip("its projections are not recognised: scale cannot be told", True)
    right = "head" if bench.facts.scale is None else "declared"
    case = _case(bench)
    heads = [bench.H] if "num_heads" in bench.notes["known"] or bench.H > 1 else []
    heads += [n for n in range(1, 17) if bench.E % n == 0 and n not in heads]
    fit: _Refit | None = None
    variant = Variant(scale=right)
    tried = 0
    for H, parts in itertools.product(heads[:6], candidates):
        trial = _Refit(bench, parts, H)
        near = (replace(variant, group=g) for g in ("each", "tile"))
        found = trial.fits(case, (v for v in near))
        tried += trial.tried
        if found:
            fit, variant = trial, found[0]
            break
    if fit is None:
        fit, variant, tried = _search(bench, case, candidates, heads[0], right)
    if fit is None:
        raise Skip(
            f"none of {tried} textbook variants with its weights gives its output: "
            "scale cannot be told",
            True,
        )
    if fit.parts.own_features:
        yield _report(bench, fit, variant, "own features", case)
    for key in variant.causes():
        yield _report(bench, fit, variant, key, case)
    yield from _masks(bench, fit, variant)
    yield from _weights(bench, fit, variant)


def _case(bench: Bench) -> _Case:
    """Cross-attention where possible, so that queries and keys differ in number."""
    x = bench.tokens()
    always = bench.facts.causal == "always" or bench.facts.pattern is not None
    if bench.has_context and not always:
        context = bench.tokens(6, L=bench.S)
        try:
            return _Case(x, context, None, bench.out(x, context=context))
        except SubjectError:
            pass
    keep = None
    if always and bench.facts.causal != "flag":
        keep = bench.expected(bench.L).expand(bench.B, -1, -1)
    return _Case(x, x, keep, bench.out(x))


def _search(
    bench: Bench, case: _Case, candidates: list[Parts], H: int, right: str
) -> tuple[_Refit | None, Variant, int]:
    tried = 0
    for parts in candidates[:4]:
        trial = _Refit(bench, parts, H)
        grid: Iterator[Variant] = _grid(right, False)
        if case.keep is not None:
            shifts = (
                Variant(scale=s, axis=a, mask=m, shift=n)
                for n, m, s, a in itertools.product(
                    *((0, 1, -1, 2), ("hide", "ignored", "query axis"), SCALES, AXES)
                )
            )
            grid = itertools.chain(shifts, grid)
        best: list[Variant] = []
        limit = 99
        for v in grid:
            error = trial.error(case, v)
            if error <= trial.tolerance:
                best.append(v)
                trial.best = error
                limit = min(limit, _far(v, right))
            else:
                trial.next = min(trial.next, error)
        tried += trial.tried
        if best:
            nearest = [v for v in best if _far(v, right) <= limit]
            return trial, nearest[0], tried
    return None, Variant(), tried


def _report(
    bench: Bench, fit: _Refit, variant: Variant, key: str, case: _Case
) -> Finding:
    known = CAUSES[key]
    near = f"; next {fit.next:.1e}" if math.isfinite(fit.next) else ""
    how = (
        f"of {fit.tried} textbook variants run with your weights this one gives your "
        f"output ({getattr(fit, 'best', 0.0):.1e}{near})"
    )
    measured = expected = None
    if known.code == "AT203":
        d = fit.parts.q(case.x).shape[-1] // fit.H
        declared = bench.facts.scale
        S = case.context.shape[1]
        measured = factor(variant.scale, d, bench.E, fit.H, S, declared)
        expected = declared if declared is not None else d**-0.5
    text = (
        f"Scores are multiplied by {measured:.4g}; it should be {expected:.4g}."
        if measured is not None and expected is not None
        else "A textbook attention with your weights and this fault gives your output."
    )
    return finding(
        known.code,
        "reproduced",
        known.text,
        text,
        key=key,
        sure="reproduced",
        how=how,
        measured=measured,
        expected=expected,
        intended=f"scale={measured:.6g}" if measured is not None else "",
    )


def _masks(bench: Bench, fit: _Refit, variant: Variant) -> Iterator[Finding]:
    """The same with the causal rule, with a mask, and with a mask per item."""
    if variant.split == "tokens":
        return
    x = bench.tokens()
    ways: list[tuple[dict[str, Any], Tensor]] = []
    rule = bench.expected(bench.L, causal=True)
    if bench.has_flag:
        ways.append(({"causal": True}, rule.expand(bench.B, -1, -1)))
    if bench.has_mask and not bench.subject.padding_only:
        keep = scattered(bench.B, bench.L, bench.L)
        if not bench.works(x, mask=keep):
            keep = keep[:1].expand_as(keep)
        full = bench.expected(bench.L)
        if not full.all():
            keep = keep | torch.eye(bench.L, dtype=torch.bool)
        given = keep if bench.works(x, mask=keep) else keep[0]
        ways.append(({"mask": given}, keep & full))
    for how, keep in ways:
        try:
            case = _Case(x, x, keep, bench.out(x, **how))
        except SubjectError:
            continue
        fit.tried, fit.next = 0, math.inf
        if fit.error(case, variant) <= fit.tolerance:
            continue
        shifts = (0, 1, -1, 2) if "causal" in how else (0,)
        grid = (
            replace(variant, mask=m, shift=n)
            for m, n in itertools.product(MASKS, shifts)
        )
        found = fit.fits(case, grid)
        found = [v for v in found if v.mask != "ignored" or v.shift == 0]
        keys = []
        for v in found:
            extra = [c for c in v.causes() if c not in variant.causes()]
            keys.append(extra)
        if any(not extra for extra in keys) or not keys:
            continue
        key = keys[0][0]
        if key == "ignored" and "causal" in how:
            key = "no causal"
        if key in ("inverted", "query axis") and "causal" in how:
            key = "other triangle"
        yield _report(bench, fit, found[0], key, case)
        return


def _weights(bench: Bench, fit: _Refit, variant: Variant) -> Iterator[Finding]:
    """Reported weights must be those that make the output."""
    if bench.facts.weights != "heads" or variant != replace(
        Variant(), scale=variant.scale, group=variant.group
    ):
        return
    x = bench.tokens()
    for name, how in bench.ways():
        if "mask" in how:
            continue
        keep = bench.expected(bench.L, causal="causal" in how)
        p = fit.parts
        with torch.no_grad():
            _, w = textbook(
                p.q(x),
                p.k(x),
                p.v(x),
                fit.H,
                variant,
                keep.expand(bench.B, -1, -1),
                E=bench.E,
                scale=bench.facts.scale,
            )
        told = bench.weights(x, **how)
        if told.shape != w.shape:
            continue
        gap = float((told - w).abs().max())
        case = _Case(x, x, keep.expand(bench.B, -1, -1), bench.out(x, **how))
        if gap > 1e-5 and fit.error(case, variant) <= fit.tolerance:
            yield finding(
                "AT314",
                "reproduced",
                "reported weights do not make the output",
                f"They differ by up to {gap:.2g} from those that do ({name}).",
                measured=gap,
                expected=0.0,
                why="weights are reported from another step, dropped out, or averaged",
                kind="reported weights",
                sure="shown",
            )
            return
