"""What the shape of a dependency map tells: too much is seen, or too little."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench
from attention_lib.doctor.shrink import picture, smallest_leak

__all__ = ["explained_gap", "explained_leak", "first_of"]


def explained_leak(
    bench: Bench,
    seen: Tensor,
    may: Tensor,
    size: Tensor,
    where: str,
    how: dict[str, Any],
    clean: set[str],
) -> Finding:
    """What is seen and must not be, and why: the shape of the map tells."""
    L = len(may)
    leak = seen & ~may
    i, j = torch.arange(L)[:, None], torch.arange(L)[None]
    future = leak & (j > i)
    ahead = (j - i)[leak]
    missing = may & ~seen
    key, sure, why, kind, how_known = "", "consistent", "", "causality", ""
    full = torch.equal(seen, torch.ones_like(seen))
    if future.any() and torch.equal(seen, may | (j - i == 1)):
        key, sure = "late triangle", "shown"
        how_known = "exactly the first diagonal above the allowed one is seen"
    elif full and "mask" in how and "with causal=True" in clean:
        key, sure = "causal lost", "shown"
        how_known = "without a mask the causal rule holds, with one it does not"
    elif full and not may.all() and _masked_in_part(bench, size, may, how):
        key = "outside"
    elif full:
        key = "no causal"
    elif future.any() and torch.equal(seen, may | ((j > i) & (j - i <= ahead.max()))):
        why = f"the causal mask starts {int(ahead.max())} columns late"
        sure = "shown"
    elif torch.equal(seen, j >= i):
        key, sure = "other triangle", "shown"
    elif not future.any() and set((i - j)[leak].tolist()) == {
        int((i - j)[may].max()) + 1
    }:
        key, sure = "window late", "shown"
        how_known = f"tokens {int((i - j)[may].max()) + 1} back are seen as well"
    elif missing.any():
        why, kind = (
            "tokens are mixed by a view, a reshape or another axis than the tokens'",
            "head layout",
        )
    else:
        why = "the softmax or a view mixes queries, or the mask is built wrongly"
    a, b = first_of(leak)
    moved_by = float(size[:, a, b].max())
    smallest, example = smallest_leak(bench, how)
    pattern = f"band:{int(ahead.max())}" if future.any() and not missing.any() else ""
    side = "the future" if future.any() else "tokens that must be hidden"
    return finding(
        "AT101",
        "reach",
        f"output can see {side}{where}",
        f"y[{a}] moves by {moved_by:.2g} when only x[{b}] changes{where}. It must move "
        "by exactly 0.",
        measured=moved_by,
        expected=0.0,
        key=key,
        why=why,
        kind=kind,
        sure=sure,  # type: ignore[arg-type]
        how=how_known,
        intended=f'pattern="{pattern}"' if pattern and not full else "",
        smallest=smallest,
        seen=example[0] if example else picture(size, may)[0],
        forbidden=example[1] if example else picture(size, may)[1],
    )


def explained_gap(
    bench: Bench,
    seen: Tensor,
    may: Tensor,
    size: Tensor,
    where: str,
    how: dict[str, Any],
) -> Finding:
    """What may be seen and is not, and why."""
    L = len(may)
    missing = may & ~seen
    i, j = torch.arange(L)[:, None], torch.arange(L)[None]
    code, key, sure, why, kind, told, intended = (
        *("AT102", "", "consistent", "", "mask value", "", ""),
    )
    back = (i - j)[seen]
    own = torch.eye(L, dtype=torch.bool)
    cut = int(missing.any(0).nonzero()[0])
    if torch.equal(seen, own) and _linear(bench, how):
        why, kind, sure = (
            "a token gets its own value alone: values are indexed by the query",
            "value axis",
            "shown",
        )
        told = "outputs are linear in the tokens, so no weights act"
    elif 0 < cut and torch.equal(seen, may & ((j < cut) | own)):
        why, kind, sure = (
            f"the last {L - cut} of {L} tokens are left out: an incomplete last block",
            "pieces",
            "shown",
        )
        told = "all queries miss the same tokens at the end"
    elif torch.equal(seen, own):
        code, key, told = "AT311", "heads as tokens", "no token sees any other"
        sure = "shown" if bench.H > 1 else "consistent"
    elif torch.equal(seen, may & (j < i)):
        key = "strict triangle"
    elif seen.any() and torch.equal(seen, may & (i - j <= back.max())):
        n = int(back.max()) + 1
        widest = int((i - j)[may].max()) + 1
        if bench.facts.pattern and n == widest - 1:
            key, sure = "window early", "shown"
        else:
            why, kind = f"a window: only the last {n} tokens are seen", "window"
            intended = f'pattern="window:{n}"'
    elif (ahead := int((j - i)[seen].max()) if seen.any() else 0) in (1, 2) and (
        torch.equal(seen, may & (j <= i + ahead))
    ):
        code, key, intended = "AT101", "late triangle", f'pattern="band:{ahead}"'
    elif torch.equal(seen, may & (j <= i)):
        why, kind, sure = (
            "it is causal although nothing asks for it",
            "causality",
            "shown",
        )
        intended = 'causal="always"'
    elif bench.facts.pattern and _by_distance(missing, may, i - j):
        hidden = sorted(set((i - j)[missing].tolist()))
        why, kind, sure = (
            f"the pattern hides distance {hidden[0]}, which it must show",
            "window",
            "shown",
        )
    elif _blocks(seen):
        code, why, kind = (
            "AT311" if bench.H > 1 else "AT120",
            "heads are split by a view alone, or tokens are attended to in blocks",
            "head layout",
        )
    else:
        code = "AT311" if bench.H > 1 and not where else "AT102"
        sides = bool((missing & (j > i)).any() and (missing & (j < i)).any())
        sure = "shown" if code == "AT311" and sides else "consistent"
        told = "tokens on both sides are missing, and nothing hides any" * sides
        why, kind = (
            "heads are split or merged by a view, so that tokens are cut up",
            "head layout",
        )
    a, b = first_of(missing)
    text, forbidden = picture(size, may)
    return finding(
        code,
        "reach",
        f"output does not see all that it may{where}",
        f"y[{a}] moves by exactly 0 when x[{b}] changes{where}; "
        f"{int(missing.sum())} of {int(may.sum())} dependencies are missing.",
        measured=0.0,
        key=key,
        sure=sure,  # type: ignore[arg-type]
        why=why,
        kind=kind,
        how=told,
        intended=intended,
        seen=text,
        forbidden=forbidden,
        smallest=f"length {L}, batch 1 (any seed)",
    )


def _linear(bench: Bench, how: dict[str, Any]) -> bool:
    """Whether outputs add up as tokens do, up to a constant."""
    a, b = bench.tokens(), bench.tokens(4)
    parts = bench.out(a, **how) + bench.out(b, **how)
    both = bench.out(a + b, **how) + bench.out(torch.zeros_like(a), **how)
    return bench.close(both, parts) <= bench.noise


def _masked_in_part(
    bench: Bench, size: Tensor, may: Tensor, how: dict[str, Any]
) -> bool:
    """Whether a rule still acts: order matters, and positions are no reason for that.

    Without any rule, attention that knows no positions does not mind the order. Where
    it cannot be asked without a rule, what is hidden must at least count for little.
    """
    if bench.facts.positions is not None or how.get("mask") is not None:
        return False
    unordered = bench.has_flag and not bench.notes.get("ordered")  # seen without a rule
    strength = size.mean(0)
    if not unordered and strength[~may].mean() > strength[may].mean() / 4:
        return False
    x = bench.tokens()
    turned = bench.out(x.flip(1), **how).flip(1)
    return bench.close(turned, bench.out(x, **how)) > bench.noise


def first_of(where: Tensor) -> tuple[int, int]:
    """Row and column of the first entry that is true."""
    a, b = where.nonzero()[0].tolist()
    return int(a), int(b)


def _by_distance(missing: Tensor, may: Tensor, distance: Tensor) -> bool:
    """Whether exactly what stands at certain distances is missing."""
    return torch.equal(missing, may & torch.isin(distance, distance[missing]))


def _blocks(seen: Tensor) -> bool:
    """Whether tokens fall into groups that see their own group and nothing else."""
    return bool(
        torch.equal(seen, seen.T)
        and seen.diagonal().all()
        and torch.equal((seen.float() @ seen.float()) > 0, seen)
    )
