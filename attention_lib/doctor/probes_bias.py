"""Biases of the scores: distance, alignment, direction."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probes_positions import called, spread, takes_offset
from attention_lib.doctor.probing import Bench, SubjectError

__all__ = ["bias_distance", "bias_of", "bias_past"]


def bias_of(bench: Bench, L: int, S: int) -> Tensor:
    """The bias of each head, (H, L, S)."""
    aligned = {"offset": S - L} if takes_offset(bench) else {}
    bias = called(bench, L, S, **aligned)
    if bias.dim() == 4 and bias.shape[0] == 1:
        bias = bias[0]
    if bias.dim() != 3 or tuple(bias.shape[1:]) != (L, S):
        raise SubjectError(
            f"returned shape {tuple(bias.shape)}, not (H, {L}, {S})", f"{L}, {S}"
        )
    return bias.double()


def bias_distance(bench: Bench) -> Iterator[Finding]:
    """The bias depends on the distance alone; the last query stands at the last key."""
    whole = bias_of(bench, 9, 9)
    finite = torch.where(whole.isfinite(), whole, -1e9)
    gap = spread(finite)
    if gap > 1e-6:
        yield finding(
            "AT230",
            "bias_distance",
            "the bias does not depend on the distance alone",
            f"Biases at one distance differ by {gap:.2g}.",
            measured=gap,
            expected=0.0,
            why="positions are used in place of their difference",
            kind="relative bias",
        )
        return
    short = bias_of(bench, 5, 5)
    short = torch.where(short.isfinite(), short, -1e9)
    gap = float((short - finite[:, :5, :5]).abs().max())
    if gap > 1e-6:
        yield finding(
            "AT230",
            "bias_distance",
            "the bias of a distance depends on the length",
            f"Biases among the first 5 tokens differ by {gap:.2g} between lengths 5 "
            "and 9.",
            measured=gap,
            expected=0.0,
            why="the distance is divided by the length, or the table is built from it",
            kind="length",
            sure="shown",
            effect="decoding and longer texts see other biases than training",
        )
        return
    for L in (1, 4):
        late = bias_of(bench, L, 9)
        late = torch.where(late.isfinite(), late, -1e9)
        gap = float((late - finite[:, 9 - L :]).abs().max())
        if gap > 1e-6:
            yield finding(
                "AT230",
                "bias_distance",
                "with fewer queries the bias is not aligned with the last key",
                f"Biases of the last {L} of 9 queries differ by {gap:.2g} from the "
                "whole.",
                measured=gap,
                expected=0.0,
                why="the first query is put at the first key",
                kind="relative bias",
                remedy=("- i = arange(L)", "+ i = arange(L) + S - L"),
                effect="decoding with a cache sees other distances",
            )
            return


def bias_past(bench: Bench) -> Iterator[Finding]:
    """Distances into the past must be told apart, and must not be rewarded."""
    whole = bias_of(bench, 9, 9)
    if float(whole.abs().nan_to_num(0.0, 0.0, 0.0).max()) == 0:
        yield finding(
            "AT100",
            "bias_past",
            "the bias is zero everywhere",
            "No distance is told from another.",
            severity="note",
            measured=0.0,
            why="a learned table that starts at zero",
            kind="vacuous",
        )
        return
    row = whole[:, -1].flip(-1)  # distance 0, 1, ... into the past
    ahead = whole[:, 0]  # distance 0, 1, ... into the future
    past_same = bool((row[:, 1:4] - row[:, :1]).abs().max() < 1e-9)
    ahead_differs = bool((ahead[:, 1:4] - ahead[:, :1]).abs().max() > 1e-9)
    if past_same:
        yield finding(
            "AT230",
            "bias_past",
            "distances into the past are not told apart",
            "The biases of the last 4 keys are equal; "
            + (
                "those of the future differ."
                if ahead_differs
                else "so are those of the future."
            ),
            measured=0.0,
            why="the sign of the distance is flipped: the past falls into one bucket"
            if ahead_differs
            else "the distance is not used",
            kind="relative bias",
            sure="shown",
            remedy=("- distance = j - i", "+ distance = i - j"),
            effect="a causal layer knows no distances",
        )
        return
    steps = row.diff(dim=-1)
    linear = (steps - steps[:, :1]).abs().amax(-1) < 1e-6 * row.abs().amax(-1) + 1e-12
    rising = linear & (steps[:, 0] > 1e-9)
    if bool(rising.any()) and row.shape[0] > 0:
        head = int(rising.nonzero()[0])
        yield finding(
            "AT230",
            "bias_past",
            "distant keys are rewarded",
            f"Head {head} adds {float(steps[head, 0]):.2g} for each step into the "
            "past.",
            measured=float(steps[head, 0]),
            why="the sign of a linear penalty is flipped",
            kind="relative bias",
            remedy=("- bias = slope * distance", "+ bias = -slope * distance"),
        )
        return
    if bool(linear.all()) and row.shape[0] > 1:
        slopes = -steps[:, 0]
        if len({round(float(s), 9) for s in slopes}) < len(slopes):
            yield finding(
                "AT230",
                "bias_past",
                "heads share a slope",
                f"{len(slopes)} heads have slopes "
                f"{[round(float(s), 4) for s in slopes]}.",
                why="the slopes do not differ by head",
                kind="formula",
            )
