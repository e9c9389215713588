"""The order of tokens, their number, and their features."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench, Skip

__all__ = ["features", "length", "order"]


def features(bench: Bench) -> Iterator[Finding]:
    """Each feature of the tokens must be able to change the weights of every head.

    Heads that are cut from the tokens before a projection see their slice alone.
    """
    if bench.facts.weights != "heads":
        raise Skip("it returns no weights by head")
    x = bench.tokens()
    before = bench.weights(x)
    if before.dim() != 4:
        raise Skip("it returns no weights by head")
    fresh = bench.tokens(12)
    width = min(bench.E, 64)
    seen = torch.zeros(before.shape[1], width, dtype=torch.bool)
    for f in range(width):
        changed = x.clone()
        changed[..., f] = fresh[..., f]
        after = bench.weights(changed)
        seen[:, f] = (after != before).flatten(2).any(-1).any(0)
    if not seen.all():
        head, feature = (int(n) for n in (~seen).nonzero()[0])
        share = float(seen.double().mean())
        yield finding(
            "AT313",
            "features",
            "heads cannot see all features",
            f"The weights of head {head} move by exactly 0 when feature {feature} of "
            f"every token changes; heads see {share:.0%} of the features.",
            measured=share,
            expected=1.0,
            key="own features",
            sure="shown" if before.shape[1] > 1 else "consistent",
        )


def length(bench: Bench) -> Iterator[Finding]:
    """Tokens that come later must not change outputs by being there at all.

    A causal output at t is the same whether or not more tokens follow. The content of
    later tokens is another probe's; here their number is in question.
    """
    causal = {"causal": True} if bench.has_flag else {}
    if not bench.has_flag and bench.facts.causal != "always":
        raise Skip("it is not causal: padding tells instead")
    pattern = bench.facts.pattern
    if isinstance(pattern, str) and pattern.startswith(("local", "blocks", "full")):
        raise Skip("the pattern looks ahead")
    start = 1
    if isinstance(pattern, str) and pattern.startswith("prefix"):
        start = int(pattern.partition(":")[2])
    x = bench.tokens()
    y = bench.out(x, **causal)
    if not torch.isfinite(y).all():
        row = int((~torch.isfinite(y)).any(-1).any(0).nonzero()[0])
        yield finding(
            "AT102",
            "length",
            "causal outputs are not finite",
            f"y[{row}] is not finite with causal=True.",
            key="strict triangle" if row == 0 else "plus inf",
        )
        return
    for t in sorted({start, bench.L // 2, bench.L - 1}):
        if t < start or t < 1:
            continue
        z = bench.out(x[:, :t], **causal)
        gap = bench.close(y[:, :t], z)
        if gap > bench.noise:
            yield finding(
                "AT202",
                "length",
                "outputs depend on how many tokens follow",
                f"The first {t} of {bench.L} outputs differ by {gap:.2g} (relative) "
                f"from those of the first {t} tokens alone.",
                measured=gap,
                expected=0.0,
                why="a scale, a norm or a softmax uses the length",
                kind="length",
                effect="decoding differs from training",
            )
            return


def order(bench: Bench) -> Iterator[Finding]:
    """Without positions, the order of the tokens must not matter.

    Turning the tokens round must turn the outputs round. Where it does not and nothing
    is declared, that is a note; where it does for a few tokens and not for more, it is
    no position and a fault.
    """
    if bench.facts.positions is not None:
        raise Skip(f"positions are declared: {bench.facts.positions}")
    if bench.facts.causal == "always" or bench.facts.pattern:
        raise Skip("it hides by order")
    x = bench.tokens()
    turn = torch.randperm(bench.L, generator=bench.generator(3))
    gap = bench.close(bench.out(x[:, turn]), bench.out(x)[:, turn])
    if gap > bench.noise:
        bench.notes["ordered"] = True
        if _unordered_when_short(bench):
            yield finding(
                "AT204",
                "order",
                "the order of the tokens matters from some length on",
                f"With {bench.L} tokens, turning them round changes outputs by {gap:.2g}"
                " (relative) beyond turning them round; with 2 to 4 by nothing.",
                measured=gap,
                expected=0.0,
                why="pieces of the sequence are put together wrongly: a running maximum "
                "or sum is not rescaled, or a piece is left out",
                kind="pieces",
                sure="shown",
                effect="right on short texts, wrong on long ones",
            )
            return
        yield finding(
            "AT204",
            "order",
            "the order of the tokens matters",
            f"Turning the tokens round changes outputs by {gap:.2g} (relative) beyond "
            "turning them round.",
            severity="note",
            measured=gap,
            expected=0.0,
            why="positions are known inside, or a view cuts tokens up",
            kind="positions",
            intended='positions="relative" or positions="absolute"',
        )


def _unordered_when_short(bench: Bench) -> bool:
    """Whether 2 to 4 tokens have no order: then the module knows no positions."""
    for L in (2, 3, 4):
        x = bench.tokens(L=L)
        y = bench.out(x)
        places = list(range(L))
        for turn in (places[1:] + places[:1], [1, 0, *places[2:]], places[::-1]):
            if bench.close(bench.out(x[:, turn]), y[:, turn]) > bench.noise:
                return False
    return True
