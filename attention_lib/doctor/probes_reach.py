"""Who sees whom: replace a token, and see which outputs move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench, Skip, SubjectError, leaked, moved
from attention_lib.doctor.shrink import picture, smallest_leak

__all__ = ["control", "cross", "items", "reach", "reach_of", "train_reach"]


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
            small = bench.tokens(seed, *x.shape[:2], size=scale)
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
        yield _leak(bench, x, seen, may, size, where, how, clean)
    else:
        yield _missing(bench, seen, may, size, where, how)


def _leak(
    bench: Bench,
    x: Tensor,
    seen: Tensor,
    may: Tensor,
    size: Tensor,
    where: str,
    how: dict[str, Any],
    clean: set[str],
) -> Finding:
    L = len(may)
    leak = seen & ~may
    i, j = torch.arange(L)[:, None], torch.arange(L)[None]
    future = leak & (j > i)
    ahead = (j - i)[leak]
    missing = may & ~seen
    key, sure, why, kind, how_known = "", "consistent", "", "causality", ""
    full = torch.equal(seen, torch.ones_like(seen))
    if future.any() and not missing.any() and set(ahead.tolist()) == {1}:
        key, sure = "late triangle", "shown"
        how_known = "exactly the first diagonal above the allowed one is seen"
    elif full and "mask" in how and "with causal=True" in clean:
        key, sure = "causal lost", "shown"
        how_known = "without a mask the causal rule holds, with one it does not"
    elif full:
        key = "no causal"
    elif future.any() and not missing.any() and len(set(ahead.tolist())) < L - 2:
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
    a, b = _first(leak)
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


def _missing(
    bench: Bench,
    seen: Tensor,
    may: Tensor,
    size: Tensor,
    where: str,
    how: dict[str, Any],
) -> Finding:
    L = len(may)
    missing = may & ~seen
    i, j = torch.arange(L)[:, None], torch.arange(L)[None]
    code, key, sure, why, kind, told, intended = (
        *("AT102", "", "consistent", "", "mask value", "", ""),
    )
    back = (i - j)[seen]
    if torch.equal(seen, torch.eye(L, dtype=torch.bool)):
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
    elif torch.equal(seen, may & (j <= i)):
        why, kind, sure = (
            "it is causal although nothing asks for it",
            "causality",
            "shown",
        )
        intended = 'causal="always"'
    elif _blocks(seen):
        code, why, kind = (
            "AT311" if bench.H > 1 else "AT120",
            "heads are split by a view alone, or tokens are attended to in blocks",
            "head layout",
        )
    else:
        code = "AT311" if bench.H > 1 and not where else "AT102"
        why, kind = (
            "heads are split or merged by a view, so that tokens are cut up",
            "head layout",
        )
    a, b = _first(missing)
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


def _first(where: Tensor) -> tuple[int, int]:
    a, b = where.nonzero()[0].tolist()
    return int(a), int(b)


def _blocks(seen: Tensor) -> bool:
    """Whether tokens fall into groups that see their own group and nothing else."""
    return bool(
        torch.equal(seen, seen.T)
        and seen.diagonal().all()
        and torch.equal((seen.float() @ seen.float()) > 0, seen)
    )


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


def train_reach(bench: Bench) -> Iterator[Finding]:
    """The future must stay hidden in train mode too, with the same random numbers."""
    causal = {"causal": True} if bench.has_flag else {}
    if not bench.has_flag and bench.facts.causal != "always":
        raise Skip("it is not causal")
    norms = (torch.nn.modules.batchnorm._BatchNorm,)
    if any(isinstance(m, norms) for top in bench.modules for m in top.modules()):
        raise Skip("batch normalisation mixes tokens in training")
    modes = [(m, m.training) for top in bench.modules for m in top.modules()]
    try:
        for top in bench.modules:
            top.train()
        x = bench.tokens()
        size = reach_of(bench, x, **causal)
    finally:
        for module, mode in modes:
            module.training = mode
    may = bench.expected(bench.L, causal=True)
    leak = (size > 0).any(0) & ~may
    if leak.any():
        a, b = _first(leak)
        yield finding(
            "AT101",
            "train_reach",
            "output can see the future in train mode",
            f"In train mode y[{a}] moves by {float(size[:, a, b].max()):.2g} when only "
            f"x[{b}] changes; in eval it does not.",
            measured=float(size[:, a, b].max()),
            expected=0.0,
            why="the training path builds another mask than the one of eval",
            kind="causality",
        )


def cross(bench: Bench) -> Iterator[Finding]:
    """Cross-attention: one output per query, which depends on all of the context.

    Replacing tokens of x must move their own outputs alone.
    """
    if not bench.has_context:
        raise Skip("cross-attention is not declared")
    x, context = bench.tokens(), bench.tokens(6, L=bench.S)
    try:
        y, _ = bench.both(x, context=context)
    except SubjectError as error:
        raise Skip(f"a context is not taken: {error.what}") from error
    if y.shape[1] == bench.S:
        yield finding(
            "AT130",
            "cross",
            "there is one output per context token, not per query",
            f"{bench.L} queries and {bench.S} context tokens give {y.shape[1]} rows.",
            measured=float(y.shape[1]),
            expected=float(bench.L),
            key="swapped sides",
            sure="shown",
            how="the output has the context's length",
        )
        return
    size = reach_of(bench, x, context=context)
    seen = (size > 0).any(0)
    if not seen.any():
        yield finding(
            "AT130",
            "cross",
            "the context has no influence",
            "Replacing any context token moves the output by exactly 0.",
            measured=0.0,
            key="context ignored",
            sure="shown",
        )
        return
    may = torch.ones(bench.L, bench.S, dtype=torch.bool)
    if bench.facts.pattern or bench.facts.causal == "always":
        may = seen
    if (may & ~seen).any():
        a, b = _first(may & ~seen)
        yield finding(
            "AT102",
            "cross",
            "output does not see all of the context",
            f"y[{a}] moves by exactly 0 when context token {b} changes.",
            measured=0.0,
            key="view" if bench.H > 1 else "",
            why="a mask hides part of the context",
            kind="mask value",
        )
    for i in range(bench.L):
        changed = bench.replaced(x, torch.arange(bench.L) == i)
        change = leaked(
            bench.out(x, context=context), bench.out(changed, context=context)
        ).amax(0)
        change[i] = 0
        if change.max() > 0:
            row = int(change.argmax())
            yield finding(
                "AT130",
                "cross",
                "queries see one another in cross-attention",
                f"y[{row}] moves by {float(change.max()):.2g} when only x[{i}] "
                "changes and the context stays.",
                measured=float(change.max()),
                expected=0.0,
                why="keys or values come from x, or the softmax runs over the queries",
                kind="cross-attention",
            )
            return
