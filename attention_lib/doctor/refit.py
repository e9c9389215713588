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
from attention_lib.doctor.textbook import (
    AXES,
    MASKS,
    ROTARY,
    SCALES,
    Variant,
    factor,
    far,
    near,
    textbook,
)

__all__ = ["reproduced"]


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
            keep = (
                torch.ones(L, S, dtype=torch.bool).tril(variant.shift).expand_as(keep)
            )
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


def reproduced(bench: Bench) -> Iterator[Finding]:
    """Textbook variants with the subject's own weights: which one gives its output?

    The right one clears scale, softmax axis and head layout. A wrong one alone is the
    cause. None or several: it cannot be told.
    """
    if bench.facts.normalization != "softmax":
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
        plain = (
            replace(variant, group=g, rotary=r)
            for g in ("each", "tile")
            for r in _turns(bench)
        )
        found = trial.fits(case, plain)
        tried += trial.tried
        if found:
            fit, variant = trial, found[0]
            break
    if fit is None:
        fit, variant, tried = _search(bench, case, candidates, heads, right)
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


def _turns(bench: Bench) -> tuple[str, ...]:
    """Rotations to try: where the order of tokens matters, and nowhere else."""
    ordered = bench.facts.positions == "relative" or bench.notes.get("ordered")
    rotated = ("halves", "neighbours", "none") if ordered else ("none",)
    return rotated


def _bare(bench: Bench, x: Tensor, out: Tensor) -> Tensor:
    """The output without the residual x, where one is declared."""
    same = bench.facts.residual and out.shape == x.shape
    return out - x if same else out


def _case(bench: Bench) -> _Case:
    """Cross-attention where possible, so that queries and keys differ in number."""
    x = bench.tokens()
    always = bench.facts.causal == "always" or bench.facts.pattern is not None
    if bench.has_context and not always:
        context = bench.tokens(6, L=bench.S)
        try:
            out = bench.out(x, context=context)
            return _Case(x, context, None, _bare(bench, x, out))
        except SubjectError:
            pass
    keep = None
    if always and bench.facts.causal != "flag":
        keep = bench.expected(bench.L).expand(bench.B, -1, -1)
    return _Case(x, x, keep, _bare(bench, x, bench.out(x)))


def _search(
    bench: Bench, case: _Case, candidates: list[Parts], heads: list[int], right: str
) -> tuple[_Refit | None, Variant, int]:
    """The nearest variant that fits, for every number of heads where it is unknown."""
    known = "num_heads" in bench.notes["known"] or bench.H > 1
    tried = 0
    for parts, H in itertools.product(candidates[:4], heads[: 1 if known else 4]):
        trial = _Refit(bench, parts, H)
        best: list[Variant] = []
        for v in _all(bench, case, right):
            error = trial.error(case, v)
            if error <= trial.tolerance:
                best.append(v)
                trial.best = error
            else:
                trial.next = min(trial.next, error)
        tried += trial.tried
        if best:
            return trial, min(best, key=lambda v: far(v, right)), tried
    return None, Variant(), tried


def _all(bench: Bench, case: _Case, right: str) -> Iterator[Variant]:
    """Every variant to try: with a shifted triangle, with a rotation, and without."""
    if case.keep is not None:
        for n, m, s, a in itertools.product(
            (0, 1, -1, 2), ("hide", "ignored", "query axis"), SCALES, AXES
        ):
            yield Variant(scale=s, axis=a, mask=m, shift=n)
    if len(_turns(bench)) > 1:
        for s, a, r in itertools.product(SCALES, AXES, ROTARY):
            yield Variant(scale=s, axis=a, rotary=r)
    yield from near(right, False)


def _report(
    bench: Bench, fit: _Refit, variant: Variant, key: str, case: _Case
) -> Finding:
    known = CAUSES[key]
    other = f"; next {fit.next:.1e}" if math.isfinite(fit.next) else ""
    how = (
        f"of {fit.tried} textbook variants run with your weights this one gives your "
        f"output ({getattr(fit, 'best', 0.0):.1e}{other})"
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
            case = _Case(x, x, keep, _bare(bench, x, bench.out(x, **how)))
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
        Variant(), scale=variant.scale, group=variant.group, rotary=variant.rotary
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
        out = _bare(bench, x, bench.out(x, **how))
        case = _Case(x, x, keep.expand(bench.B, -1, -1), out)
        if (
            gap > max(1e-5, 10 * bench.noise)
            and fit.error(case, variant) <= fit.tolerance
        ):
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
