"""Who sees whom: replace a token, and see which outputs move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench, Skip, leaked, moved
from attention_lib.doctor.reach_patterns import explained_gap, explained_leak

__all__ = ["control", "items", "reach", "reach_of"]


def reach_of(bench: Bench, x: Tensor, seed: int = 77, **how: Any) -> Tensor:
    """How far output i moves when token j is replaced, (B, L, S).

    Token j is replaced in every item at once: items are told apart by another probe.
    With a ``context``, its tokens are replaced and those of x stay.
    """
    context = how.get("context")
    source = x if context is None else context
    before = bench.out(x, **how)
    columns = []
    for j in range(source.shape[1]):
        where = torch.arange(source.shape[1]) == j
        changed = bench.replaced(source, where, seed)
        if context is None:
            after = bench.out(changed, **how)
        else:
            after = bench.out(x, **{**how, "context": changed})
        columns.append(leaked(before, after))
    return torch.stack(columns, -1)


def control(bench: Bench) -> Iterator[Finding]:
    """Replace every token: outputs must move, or no other probe means anything.

    A module whose output projection starts at zero passes every test of "this must not
    change", and has shown nothing.
    """
    x = bench.tokens()
    y, other = bench.out(x), bench.out(bench.tokens(2))
    if not torch.isfinite(y).all():
        yield finding(
            "AT503",
            "control",
            "the output is not finite for ordinary input",
            f"{int((~torch.isfinite(y)).sum())} of {y.numel()} outputs are not finite "
            "for tokens of size 1.",
            why="a division by zero, a logarithm or a row without any key",
            kind="numeric range",
        )
    if moved(y, other).max() == 0:
        zero = [
            name
            for module in bench.modules
            for name, p in module.named_parameters()
            if p.dim() > 1 and not p.any()
        ]
        why = (
            f"{zero[-1]} is zero"
            if zero
            else "the input is not used, or all of it is hidden"
        )
        yield finding(
            "AT100",
            "control",
            "nothing depends on the input",
            "Replacing every token moves the output by exactly 0.",
            measured=0.0,
            why=why,
            kind="vacuous",
            sure="shown" if zero else "consistent",
            remedy=("draw the zero weights at random, then examine again",)
            if zero
            else (),
            effect="every test of what must not change passes, and shows nothing",
        )
        raise Skip("nothing depends on the input")


def items(bench: Bench) -> Iterator[Finding]:
    """Replace all of item 0: the outputs of the other items must not move at all."""
    x = bench.tokens()
    other = torch.cat([bench.tokens(2)[:1], x[1:]])
    for name, how in bench.ways():
        y, z = bench.out(x, **how), bench.out(other, **how)
        leak = moved(y, z)[1:]
        if leak.max() == 0:
            continue
        # Taken for tokens: an output then depends on its own place in other items.
        places = []
        for t in range(bench.L):
            one = x.clone()
            one[0, t] = other[0, t]
            places.append(moved(y, bench.out(one, **how))[1:].amax(0) > 0)
        place = torch.stack(places, -1)  # (L, L): output t, token replaced in item 0
        axis = bool((place == torch.eye(bench.L, dtype=torch.bool)).all())
        yield finding(
            "AT301",
            "items",
            "items of a batch see one another",
            f"The outputs of items 1 to {bench.B - 1} move by {float(leak.max()):.2g} "
            f"when only item 0 changes ({name}). They must move by exactly 0.",
            measured=float(leak.max()),
            expected=0.0,
            key="batch axis" if axis else "",
            why="a view, a softmax or a sum runs across the batch axis",
            kind="axis order",
            sure="shown" if axis else "consistent",
            how="an output depends on its own place in the other items, and on no other"
            if axis
            else "",
            effect="results depend on what else is in the batch",
            smallest="batch 2, length " + ("1" if axis else str(bench.L)),
        )
        return


def reach(bench: Bench) -> Iterator[Finding]:
    """Replace one token at a time: exactly the outputs that may see it must move.

    In every way of asking: without a mask, causal, causal with a mask that hides
    nothing, with the weights asked for, and at lengths 2 to 9.
    """
    x = bench.tokens()
    plain_mask = torch.ones(bench.B, bench.L, bench.L, dtype=torch.bool)
    ways: list[tuple[str, dict[str, Any]]] = [("", {})]
    if bench.has_flag:
        ways.append(("with causal=True", {"causal": True}))
    if bench.has_mask:
        causal = {"causal": True} if bench.has_flag else {}
        ways.append(
            ("when a mask that hides nothing is passed", {"mask": plain_mask, **causal})
        )
    if bench.has_weights:
        causal = {"causal": True} if bench.has_flag else {}
        ways.append(("when weights are asked for", {"need_weights": True, **causal}))
    clean: set[str] = set()
    found = list(_two_tokens(bench))
    yield from found
    if found:
        return
    for name, how in ways:
        found = list(_one_way(bench, x, name, how, clean))
        yield from found
        if found:
            return
        clean.add(name)
    yield from _lengths(bench)


def _one_way(
    bench: Bench, x: Tensor, name: str, how: dict[str, Any], clean: set[str]
) -> Iterator[Finding]:
    L = x.shape[1]
    causal = bool(how.get("causal"))
    may = bench.expected(L, causal=causal)
    y = bench.out(x, **how)
    if not torch.isfinite(y).all() and not name:
        return  # the control reports it
    if not torch.isfinite(y).all():
        bad = (~torch.isfinite(y)).any(-1).any(0)
        first = bool(bad[0]) and int(bad.sum()) == 1
        yield finding(
            "AT102" if first else "AT112",
            "reach",
            f"outputs are not finite{' ' if name else ''}{name}",
            f"{int(bad.sum())} of {L} outputs are not finite, the first of them "
            f"y[{int(bad.nonzero()[0])}].",
            key="strict triangle" if first else "plus inf",
            smallest="length 2, batch 1 (any seed)",
        )
        return
    size = reach_of(bench, x, **how)
    seen = (size > 0).any(0)
    if (may & ~seen).any():  # sharp weights underflow: look again with small tokens
        for seed, scale in ((31, 0.3), (32, 0.05)):
            small = bench.tokens(seed, x.shape[0], x.shape[1], size=scale)
            seen = seen | (reach_of(bench, small, seed + 50, **how) > 0).any(0)
    if bench.facts.pattern and bench.facts.causal == "flag" and not causal:
        whole = torch.ones(L, L, dtype=torch.bool)
        if not (seen & ~whole).any() and not (whole & ~seen).any():
            return  # a pattern that acts with the flag alone
    leak, missing = seen & ~may, may & ~seen
    if not leak.any() and not missing.any():
        return
    where = f" {name}" if name else ""
    if leak.any():
        yield explained_leak(bench, seen, may, size, where, how, clean)
    else:
        yield explained_gap(bench, seen, may, size, where, how)


def _two_tokens(bench: Bench) -> Iterator[Finding]:
    """With two tokens, one that does not see itself sees a single key.

    The softmax over a single key is 1 whatever the query, so that token then moves
    nothing of its own output. With more tokens it still does, as a query.
    """
    for how in [{}, {"causal": True}] if bench.has_flag else [{}]:
        may = bench.expected(2, causal="causal" in how)
        seen = torch.zeros(2, 2, dtype=torch.bool)
        for seed in (1, 2):
            x = bench.tokens(seed, 1, 2)
            y = bench.out(x, **how)
            if not torch.isfinite(y).all():
                break
            seen |= (reach_of(bench, x, **how) > 0).any(0)
        else:
            hidden = may.diagonal() & ~seen.diagonal() & seen.any(1)
            if hidden.any():
                i = int(hidden.nonzero()[0])
                yield finding(
                    "AT102",
                    "reach",
                    "a token does not see itself",
                    f"With two tokens y[{i}] moves by exactly 0 when x[{i}] changes.",
                    measured=0.0,
                    key="strict triangle" if how or i else "own token hidden",
                    sure="shown",
                    how="it sees a single key, and that is the other token",
                    smallest="length 2, batch 1 (any seed)",
                )
                return


def _lengths(bench: Bench) -> Iterator[Finding]:
    """The future stays hidden at other lengths: tables and caches have their own."""
    causal = {"causal": True} if bench.has_flag else {}
    if not bench.has_flag and bench.facts.causal != "always":
        return
    longest = bench.notes.get("longest", 9)
    for L in (2, 3, 4, 9, 33, 130, 300):
        if L > longest:
            return
        x = bench.tokens(4, 1, L)
        before = bench.out(x, **causal)
        for j in {L - 1, L // 2 + 1, 1}:
            if not 0 < j < L:
                continue
            may = bench.expected(L, causal=True)[:, j]
            changed = bench.replaced(x, torch.arange(L) == j)
            change = leaked(before, bench.out(changed, **causal))[0]
            leak = (change > 0) & ~may
            if leak.any():
                row = int(leak.nonzero()[0])
                yield finding(
                    "AT101",
                    "reach",
                    f"output can see the future at length {L}",
                    f"y[{row}] moves by {float(change[row]):.2g} when only x[{j}] "
                    f"changes. At length {bench.L} it does not.",
                    measured=float(change[row]),
                    expected=0.0,
                    why="a causal table that is shorter than the input, or a cached "
                    "mask of another length",
                    kind="causality",
                    smallest=f"length {L}, batch 1",
                )
                return
