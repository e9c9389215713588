"""Rotations by position: axis, pairs, distances, precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probes_positions import called, spread, takes_offset
from attention_lib.doctor.probing import Bench, Skip, SubjectError

__all__ = ["rotary_far", "rotary_layout", "rotary_offset", "rotary_relative", "turned"]


def turned(bench: Bench, t: Tensor, **how: Any) -> Tensor:
    out = called(bench, t, **how)
    if out.shape != t.shape:
        raise SubjectError(
            f"returned shape {tuple(out.shape)} for {tuple(t.shape)}", "rotation"
        )
    return out


def _scores(bench: Bench, L: int, **how: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of one query and one key at all places, (B, H, L, L), and both turned."""
    H, d, B = 3, bench.E, 2
    q = torch.randn(1, 1, 1, d, generator=bench.generator(2), dtype=torch.float64)
    k = torch.randn(1, 1, 1, d, generator=bench.generator(4), dtype=torch.float64)
    q, k = (t.to(bench.dtype).expand(B, H, L, d).contiguous() for t in (q, k))
    a, b = turned(bench, q, **how), turned(bench, k, **how)
    return (a @ b.transpose(-1, -2)).double(), a.double(), q.double()


def rotary_layout(bench: Bench) -> Iterator[Finding]:
    """The angle follows the token: not the head, not the batch."""
    _, a, q = _scores(bench, bench.L)
    across_heads = float((a - a[:, :1]).abs().max())
    across_items = float((a - a[:1]).abs().max())
    along = float((a - a[:, :, :1]).abs().max())
    bench.notes["axis"] = False
    if max(across_heads, across_items) > 1e-6 or along < 1e-6:
        bench.notes["axis"] = True
        axis = (
            "heads"
            if across_heads > 1e-6
            else "items"
            if across_items > 1e-6
            else "nothing"
        )
        yield finding(
            "AT211",
            "rotary_layout",
            f"the angle follows the {axis}, not the token"
            if axis != "nothing"
            else "nothing turns with the token's place",
            f"One vector everywhere: turned, it differs by {across_heads:.2g} between "
            f"heads, {across_items:.2g} between items, {along:.2g} along the tokens.",
            measured=along,
            why="the layout is (B, L, H, D) where (B, H, L, D) is given"
            if axis == "heads"
            else "the position is read from another axis",
            kind="axis order",
            sure="shown",
            remedy=("- rotary(q.view(B, L, H, D))", "+ rotary(q)  # (B, H, L, D)"),
            effect="scores know no distances",
        )
        return
    norms = float((a.norm(dim=-1) / q.norm(dim=-1) - 1).abs().max())
    lost = _lost(bench) if norms > 1e-3 else []
    if lost:
        yield finding(
            "AT211",
            "rotary_layout",
            "components of a vector are lost",
            f"Replacing components {lost[0]} to {lost[-1]} of {bench.E} moves the turned "
            "vectors by exactly 0.",
            measured=float(len(lost)),
            expected=0.0,
            why="the part that is not turned is dropped instead of passed on",
            kind="rotary layout",
            sure="shown",
            remedy=("+ torch.cat([turned, t[..., rotary_dim:]], -1)",),
            effect="heads see fewer features than they have",
        )
        return
    if norms > 1e-3:
        yield finding(
            "AT211",
            "rotary_layout",
            "turning changes the length of vectors",
            f"Lengths change by up to {norms:.2%}. A rotation changes none.",
            measured=norms,
            expected=0.0,
            why="sine and cosine of a pair are not those of one angle: halves and "
            "neighbours are mixed up",
            kind="rotary layout",
            remedy=("use the same pairs in the tables and in the rotation",),
        )


def _lost(bench: Bench) -> list[int]:
    """Components that have no influence on the turned vector."""
    t = torch.randn(1, 1, bench.L, bench.E, generator=bench.generator(6))
    t = t.to(bench.dtype)
    before = turned(bench, t)
    lost = []
    for c in range(bench.E):
        changed = t.clone()
        changed[..., c] += 1
        if torch.equal(turned(bench, changed), before):
            lost.append(c)
    return lost


def rotary_relative(bench: Bench) -> Iterator[Finding]:
    """Scores of turned vectors depend on the distance alone."""
    if bench.notes.get("axis"):
        raise Skip("the angle does not follow the token")
    scores, _, _ = _scores(bench, 10)
    size = float(scores.abs().max())
    gap = spread(scores) / size
    if gap <= 1e-5:
        return
    low = gap < 0.1
    bench.notes["rough"] = True
    yield finding(
        "AT222" if low else "AT221",
        "rotary_relative",
        "scores do not depend on the distance alone"
        if not low
        else "angles are computed in low precision",
        f"Scores at one distance differ by {gap:.2g} (relative).",
        measured=gap,
        expected=0.0,
        why="phases are rounded before sine and cosine are taken"
        if low
        else "the pairs that are turned are not those of the tables, or frequencies "
        "of a pair differ",
        kind="numeric precision" if low else "rotary layout",
        remedy=("- angles = (t * inv).bfloat16()", "+ angles = t.float() * inv.float()")
        if low
        else (),
        effect="distant tokens are confused"
        if low
        else "shifted text scores otherwise",
    )


def rotary_offset(bench: Bench) -> Iterator[Finding]:
    """An offset continues the count."""
    if not takes_offset(bench):
        raise Skip("it takes no offset")
    t = torch.randn(2, 3, bench.L, bench.E, generator=bench.generator(5)).to(
        bench.dtype
    )
    whole, late = turned(bench, t), turned(bench, t[:, :, 3:], offset=3)
    gap = float((late - whole[:, :, 3:]).abs().max())
    if gap > 1e-5:
        back = turned(bench, t[:, :, 3:], offset=-3)
        subtracted = float((back - whole[:, :, 3:]).abs().max()) <= 1e-5
        yield finding(
            "AT602",
            "rotary_offset",
            "an offset does not continue the count",
            f"Vectors from position 3 differ by {gap:.2g} from those of the whole.",
            measured=gap,
            expected=0.0,
            why="the offset is subtracted, not added"
            if subtracted
            else "the offset is ignored, or counts otherwise",
            kind="incremental decoding",
            sure="shown",
            effect="in decoding every token has the first positions",
        )


def rotary_far(bench: Bench) -> Iterator[Finding]:
    """Far from the start the scores are those near it: phases keep their precision."""
    if bench.notes.get("axis") or bench.notes.get("rough"):
        raise Skip("scores near the start are wrong already")
    L = 2000
    d = bench.E
    q = torch.randn(1, 1, 1, d, generator=bench.generator(2), dtype=torch.float64)
    t = q.to(torch.float32).expand(1, 1, L, d).contiguous()
    try:
        a = turned(bench, t)[0, 0].double()
    except SubjectError as error:
        if error.clear or "index" in error.what.lower():
            raise Skip(f"{L} tokens are refused: {error.what}") from error
        yield finding(
            "AT520",
            "rotary_far",
            f"{L} tokens are refused by an error that does not say so",
            error.what,
            severity="note",
            why="the table ends before",
            kind="length",
        )
        return
    near, far = a[:8] @ a[:8].T, a[-8:] @ a[-8:].T
    gap = float((near - far).abs().max() / near.abs().max())
    if gap > 1e-2:
        yield finding(
            "AT222",
            "rotary_far",
            "angles far from the start lose precision",
            f"Scores near position {L} differ by {gap:.2g} (relative) from those at "
            "the start.",
            measured=gap,
            expected=0.0,
            why="positions or phases are held in half precision",
            kind="numeric precision",
            remedy=("+ angles = t.float() * inv.float()",),
            effect="distant tokens are confused",
        )
