"""Cross-attention, and the training mode: who sees whom there."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probes_reach import reach_of
from attention_lib.doctor.probing import Bench, Skip, SubjectError, leaked
from attention_lib.doctor.reach_patterns import first_of

__all__ = ["cross", "train_reach"]


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
        a, b = first_of(leak)
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
        if not bench.works(x, context=bench.tokens(6)):
            raise
        yield finding(
            "AT130",
            "cross",
            "a context must be as long as the queries",
            f"{bench.L} queries and {bench.S} context tokens: {error.what}",
            why="values, keys or the mask take their length from x",
            kind="cross-attention",
            effect="cross-attention works for equal lengths alone",
        )
        return
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
        a, b = first_of(may & ~seen)
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
