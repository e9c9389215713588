"""Weights, their rows, their scale, and the order of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench, Skip, SubjectError, moved, scattered

__all__ = ["reported", "rows", "same_output"]


def rows(bench: Bench) -> Iterator[Finding]:
    """The same token repeated: a weighted mean of equal values is that value.

    Every output must then be the one of the token alone, whatever the mask and the
    number of tokens. Rows that do not sum to 1 show, also where no weights are
    returned.
    """
    if bench.facts.normalization != "softmax":
        raise Skip(f'rows need not sum to 1: normalization="{_norm(bench)}"')
    if bench.facts.positions == "absolute":
        raise Skip("the same token differs by its position: positions are absolute")
    one = bench.tokens(9, bench.B, 1)
    alone = bench.out(one)
    if not torch.isfinite(alone).all():
        raise Skip("the output of one token alone is not finite")
    two, more = (bench.out(one.expand(-1, n, -1).contiguous()) for n in (2, bench.L))
    odd = bench.close(alone.expand_as(two), two)
    same = bench.close(two[:, :1].expand_as(more), more) <= bench.noise
    if odd > bench.noise and same and bench.close(two, two.flip(1)) <= bench.noise:
        yield finding(
            "AT521",
            "rows",
            "one token alone is treated otherwise than several",
            f"One token repeated gives the same for 2 and {bench.L}; alone it differs "
            f"by {odd:.2g} (relative).",
            severity="note",
            measured=odd,
            expected=0.0,
            why="a deviation over one token is not defined, or a token hides itself",
            kind="length",
            sure="shown",
        )
        alone = two[:, :1]
    ways: list[tuple[str, dict[str, Any], int]] = []
    for name, how in bench.ways():
        if name == "mask" and not bench.subject.padding_only:
            how = {"mask": scattered(bench.B, bench.L, bench.L)}
            if not bench.works(bench.tokens(), **how):
                how = {"mask": how["mask"][0].expand(bench.L, -1)}
        ways.append((name, how, bench.L))
    if bench.has_weights:
        ways.append(("weights", {"need_weights": True}, bench.L))
    ways.append(("longer", {}, bench.S))
    for name, how, L in ways:
        x = one.expand(-1, L, -1).contiguous()
        y = bench.out(x, **how)
        mask = how.get("mask")
        if mask is not None:  # rows that may see nothing promise nothing
            causal = bench.expected(L)
            full = (mask & causal).any(-1)[..., None]
            if full.dim() == 2:
                full = full[None]
            y = torch.where(full, y, alone.expand_as(y))
        if not torch.isfinite(y).all():
            continue  # another probe's
        gap = bench.close(y, alone.expand_as(y))
        if gap > bench.noise:
            if bench.facts.positions and _edges(bench, one):
                raise Skip(
                    "tokens at the edges have other values, as with a convolution or a "
                    "shift that pads: sums of rows cannot be seen",
                    cannot_be_told=True,
                )
            yield _rows_fault(bench, y, alone, name, gap)
            return
    bench.notes["means"] = True
    if not bench.has_context:
        return
    x, context = bench.tokens(), one.expand(-1, bench.S, -1).contiguous()
    try:
        y = bench.out(x, context=context)
        short = bench.out(x, context=one)
        other = bench.out(x, context=bench.tokens(6, L=bench.S))
    except SubjectError:
        return
    if moved(y, other).max() == 0:
        return  # the context has no influence: another probe's
    if bench.facts.residual:
        gap = bench.close(y, short)
    else:
        gap = bench.close(y, y[:, :1].expand_as(y))
    if gap > bench.noise:
        bench.notes["means"] = False
        # Columns that sum to 1 make rows that grow with the number of keys.
        by_number = bench.close(y, short) > bench.noise
        yield finding(
            "AT201",
            "rows",
            "outputs are no weighted mean of the values in cross-attention",
            f"With one context token repeated, outputs differ by {gap:.2g} (relative).",
            measured=gap,
            expected=0.0,
            key="over queries" if by_number else "not normalised",
        )


def _edges(bench: Bench, one: Tensor) -> bool:
    """Whether the difference fades with the number of equal tokens, as an edge's does.

    The output in the middle then tends to a limit, in steps that halve as the length
    doubles. Sums that do not depend on the length, or grow with it, do not.
    """
    try:
        middle = [
            bench.out(one.expand(-1, n, -1).contiguous())[:, n // 2]
            for n in (17, 33, 65)
        ]
    except SubjectError:
        return False
    first, then = (bench.close(b, a) for a, b in pairwise(middle))
    return bench.noise < then < 0.75 * first


def _norm(bench: Bench) -> str:
    return bench.facts.normalization


def _rows_fault(
    bench: Bench, y: Tensor, alone: Tensor, name: str, gap: float
) -> Finding:
    key, sure, told, why, kind = "", "consistent", "", "", "normalisation"
    steps = y.diff(dim=1).abs().amax((0, 2))
    causal = name == "causal" or bench.facts.causal == "always"
    if causal and not bench.facts.residual and len(steps) > 3:
        if bench.close(y[:, 1] - y[:, 0], y[:, -1] - y[:, -2]) < 1e-6 and steps[0] > 0:
            key, sure = "after softmax", "shown"
            told = "the sum of a row grows evenly with the number of visible keys"
        elif (steps.diff() > 0).all():
            key, sure = "over queries", "shown"
            told = "the sums of the rows grow as those of columns that sum to 1"
    if not key:
        if name == "mask":
            key = "after softmax"
        elif name == "causal":
            key = "over queries"
        else:
            key = "not normalised"
    if name in ("plain", "longer", "weights"):
        sure, told = "shown", "it happens without any mask"
    by_weights = _axis_of_weights(bench) or _off_plain(bench)
    if by_weights:
        key, sure, told = by_weights, "shown", "the reported weights say so"
    row = int((y - alone).abs().amax((0, 2)).argmax())
    return finding(
        "AT201",
        "rows",
        "outputs are no weighted mean of the values",
        f"With one token repeated, y[{row}] differs by {gap:.2g} (relative) from the "
        f"output of that token alone ({name}). They must be equal.",
        measured=gap,
        expected=0.0,
        key=key,
        sure=sure,  # type: ignore[arg-type]
        how=told,
        why=why,
        kind=kind,
        intended='normalization="sigmoid", "sink", or positions="absolute"'
        if key == "not normalised"
        else "",
        smallest="length 2, batch 1 (any seed)",
    )


def _axis_of_weights(bench: Bench) -> str:
    """Along which axis the reported weights sum to 1, where it is not the keys."""
    if bench.facts.weights != "heads":
        return ""
    ways = [how for _, how in bench.ways()]
    for how in ways:
        try:
            w = bench.weights(bench.tokens(), **how)
        except (Skip, SubjectError):
            return ""
        if w.dim() != 4 or _ones(w, 3):
            continue
        if _ones(w, 2):
            return "over queries"
        if w.shape[1] > 1 and _ones(w, 1):
            return "over heads"
        if _ones(w, 0):
            return "over batch"
        if _ones(w.flatten(-2), -1):
            return "over all"
    return ""


def _off_plain(bench: Bench) -> str:
    """Whether reported weights do not sum to 1 even without a mask."""
    if bench.facts.weights != "heads":
        return ""
    try:
        w = bench.weights(bench.tokens())
    except (Skip, SubjectError):
        return ""
    return "" if _ones(w, -1) else "not normalised"


def _ones(w: Tensor, axis: int) -> bool:
    return bool(((w.sum(axis) - 1).abs() < 1e-6).all())


def reported(bench: Bench) -> Iterator[Finding]:
    """Reported weights: their shape, their rows, and that hidden keys get none."""
    declared = bench.notes.get("declared weights")
    if declared is None and not bench.has_weights:
        raise Skip("it returns no weights")
    x = bench.tokens()
    _, w = bench.both(x, need_weights=True)
    if w is None:
        if declared:
            yield finding(
                "AT314",
                "reported",
                "weights are declared and not returned",
                "A call with need_weights=True returns the output alone.",
                severity="note",
                why="the module has no path that keeps the weights",
                kind="reported weights",
                sure="shown",
            )
            return
        raise Skip("it returns no weights")
    heads = "num_heads" in bench.notes.get("known", ()) and bench.H
    if w.dim() == 3 and (declared == "heads" or (declared is None and bench.H > 1)):
        yield finding(
            "AT314",
            "reported",
            "reported weights are an average over the heads",
            f"Weights have shape {tuple(w.shape)}, not (B, H, L, S).",
            severity="fault" if declared == "heads" else "note",
            measured=float(w.dim()),
            expected=4.0,
            why="the weights of the heads are averaged before they are returned",
            kind="reported weights",
            sure="shown",
            remedy=("- return out, weights.mean(1)", "+ return out, weights"),
            intended='weights="mean"',
            effect="a picture of the weights shows no head",
        )
        if declared == "heads":
            return
    four = w[:, None] if w.dim() == 3 else w
    want = (bench.B, four.shape[1], bench.L, bench.L)
    if bench.facts.normalization == "sink" and four.shape[-1] > bench.L:
        raise Skip("a sink adds keys that are not tokens")
    wrong_heads = w.dim() == 4 and heads and heads > 1 and four.shape[1] != heads
    if tuple(four.shape) != want or wrong_heads:
        yield finding(
            "AT314",
            "reported",
            "reported weights have another shape",
            f"Weights have shape {tuple(w.shape)}, not "
            f"{(bench.B, heads or 'H', bench.L, bench.L)}.",
            why="axes are swapped, or weights of another step are returned",
            kind="reported weights",
        )
        return
    if bench.facts.normalization == "softmax":
        axis = _axis_of_weights(bench)
        if axis and _mean_is_right(bench):
            yield _not_the_weights(four)
            return
        if axis:
            yield finding(
                "AT201",
                "reported",
                "reported weights do not sum to 1 over the keys",
                f"Row sums lie between {float(four.sum(-1).min()):.3g} and "
                f"{float(four.sum(-1).max()):.3g}.",
                measured=float(four.sum(-1).max()),
                expected=1.0,
                key=axis,
                sure="shown",
                how="along that axis they sum to 1",
            )
            return
    for name, how in bench.ways():
        four = bench.weights(x, **how)
        if "mask" in how:
            may = how["mask"] & bench.expected(bench.L)
        else:
            may = bench.expected(bench.L, causal="causal" in how).expand(
                bench.B, -1, -1
            )
        hidden = torch.where(may[:, None], 0.0, four).abs().nan_to_num(0.0)
        some = may.any(-1)[:, None]
        sums = torch.where(some, four.sum(-1), 1.0)
        if hidden.max() > 0 and not (bench.facts.pattern and name == "plain"):
            yield finding(
                "AT314",
                "reported",
                "reported weights show hidden keys",
                f"A hidden key has weight {float(hidden.max()):.2g} ({name}).",
                measured=float(hidden.max()),
                expected=0.0,
                why="weights are taken before the mask is applied",
                kind="reported weights",
            )
            return
        if (
            bench.facts.normalization == "softmax"
            and float((sums - 1).abs().max()) > 1e-4
            and _mean_is_right(bench)
        ):
            yield _not_the_weights(four)
            return
        if (
            bench.facts.normalization == "softmax"
            and float((sums - 1).abs().max()) > 1e-4
        ):
            yield finding(
                "AT201",
                "reported",
                "reported weights do not sum to 1 over the keys",
                f"A row sums to {float(sums.flatten()[(sums - 1).abs().argmax()]):.3g}"
                f" ({name}).",
                measured=float(sums.flatten()[(sums - 1).abs().argmax()]),
                expected=1.0,
                key="after softmax" if name != "plain" else "not normalised",
            )
            return
        if bool((four < 0).any()) and _mean_is_right(bench):
            yield _not_the_weights(four)
            return
        if bool((four < 0).any()) and bench.facts.normalization == "softmax":
            yield finding(
                "AT201",
                "reported",
                "reported weights are negative",
                f"The smallest is {float(four.min()):.2g} ({name}).",
                measured=float(four.min()),
                key="not normalised",
            )
            return


def _mean_is_right(bench: Bench) -> bool:
    """Whether outputs were shown to be weighted means, so that only the report errs."""
    return bench.notes.get("means", False)


def _not_the_weights(four: Tensor) -> Finding:
    return finding(
        "AT314",
        "reported",
        "what is reported as weights is not what makes the output",
        f"Rows of it sum to {float(four.sum(-1).min()):.3g} up to "
        f"{float(four.sum(-1).max()):.3g}; outputs are weighted means all the same.",
        measured=float(four.sum(-1).max()),
        expected=1.0,
        why="scores are returned, or weights of another step",
        kind="reported weights",
        sure="shown",
        effect="pictures of the weights mislead",
    )


def same_output(bench: Bench) -> Iterator[Finding]:
    """Asking for the weights must not change the output, in any way of asking."""
    if not bench.has_weights:
        raise Skip("it returns no weights")
    x = bench.tokens()
    for name, how in bench.ways():
        gap = bench.close(bench.out(x, need_weights=True, **how), bench.out(x, **how))
        if gap > max(bench.noise, 1e-7):
            yield finding(
                "AT315",
                "same_output",
                "asking for the weights changes the output",
                f"Outputs with and without weights differ by {gap:.2g} ({name}).",
                measured=gap,
                expected=0.0,
                why="two paths compute the output, and they differ",
                kind="reported weights",
            )
            return
