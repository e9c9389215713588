"""Before the probes: find out what is not declared, and choose sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.doctor.adapters import UnknownSubject, find_sizes, keywords
from attention_lib.doctor.copies import double, modules_of
from attention_lib.doctor.probing import Bench, Skip, SubjectError, moved, pick
from attention_lib.doctor.subject import Subject

__all__ = ["prepare"]


def prepare(subject: Subject, kind: str, seed: int) -> Bench:
    """A bench for the subject, in float64 where it runs in it.

    Parameters
    ----------
    subject
        From :func:`attention_lib.doctor.adapters.adapt`.
    kind
        What it is.
    seed
        Of every random number.

    Returns
    -------
    Bench
        With sizes that differ pairwise, and facts completed.

    Raises
    ------
    SubjectError
        If no call gives an answer.
    UnknownSubject
        If the width of the tokens cannot be found.
    """
    facts = subject.facts
    bench = Bench(subject, facts, seed)
    bench.notes["known"] = [
        name for name in ("embed_dim", "num_heads") if getattr(facts, name) is not None
    ]
    bench.notes["declared weights"] = facts.weights
    if kind == "bias":
        return bench
    if kind in ("encoding", "rotary"):
        _positions(bench, kind)
        return bench
    find_sizes(subject.thing, facts)
    if kind == "core":
        bench.E = facts.embed_dim or 5
        bench.H = facts.num_heads or 3
        return bench
    if kind == "decoder" and facts.embed_dim is None:
        facts.embed_dim = getattr(subject.thing, "dim", None)
    double(subject.thing)
    _width(bench)
    _sizes(bench)
    _dtype(bench)
    if kind == "attention":
        _trials(bench)
    bench.noise = _noise(bench)
    return bench


def _positions(bench: Bench, kind: str) -> None:
    """Width of an encoding or a rotation; a class is made, with the widths it takes."""
    thing = bench.subject.thing
    if isinstance(thing, type):
        factory = _factory(thing)
        bench.notes["factory"] = factory
        width = bench.facts.embed_dim or 8
        try:
            bench.subject.thing = factory(width)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise SubjectError(text, f"made with width {width}", error) from error
        bench.subject.takes = frozenset({"offset"}) & _takes(bench.subject.thing)
        bench.facts.embed_dim = width
        for module in modules_of(bench.subject.thing):
            module.eval()
    double(bench.subject.thing)
    if bench.facts.embed_dim is None:
        find_sizes(bench.subject.thing, bench.facts)
    widths = [bench.facts.embed_dim]
    if bench.facts.embed_dim is None:
        found: list[int] = []
        for module in modules_of(bench.subject.thing):
            for t in (*module.parameters(), *module.buffers(), *_plain(module)):
                found += reversed(t.shape)
        widths = [*found, *(2 * n for n in found), 8, 16, 64]
    error: SubjectError | None = None
    for width in widths:
        if not width:
            continue
        shape = (1, 3, width) if kind == "encoding" else (1, 3, 4, width)
        for dtype in (torch.float64, torch.float32):
            try:
                with torch.no_grad():
                    made = bench.subject.thing(torch.zeros(shape, dtype=dtype))
            except Exception as raised:
                error = SubjectError(f"{type(raised).__name__}: {raised}", str(shape))
                continue
            if isinstance(made, Tensor) and made.shape == shape:
                bench.E, bench.dtype = width, dtype
                bench.B = pick((2, 3), {width})
                bench.L = pick((7, 5, 9), {width})
                return
    raise error or SubjectError("no width works", "declare embed_dim")


def _takes(thing: Any) -> frozenset[str]:
    return keywords(thing)


def _plain(module: nn.Module) -> list[Tensor]:
    return [v for v in vars(module).values() if isinstance(v, Tensor)]


def _factory(made: type) -> Callable[[int], Any]:
    """A class as a function of the width alone."""
    names = _takes(made)
    name = next(
        (n for n in ("dim", "embed_dim", "d_model", "width") if n in names), None
    )

    def factory(width: int) -> Any:
        return made(width) if name is None else made(**{name: width})

    return factory


def _width(bench: Bench) -> None:
    """The width of the tokens: declared, or the first that gives an answer."""
    facts = bench.facts
    found = [facts.embed_dim] if facts.embed_dim else []
    if "embed_dim" not in bench.notes["known"]:
        sizes = {
            n
            for module in bench.modules
            for p in module.parameters()
            for n in p.shape
            if n > 1
        }
        found += sorted(sizes, reverse=True)
    if not found:
        raise UnknownSubject(
            bench.subject.name, "its width is unknown: declare embed_dim"
        )
    error: SubjectError | None = None
    for width in dict.fromkeys(found):
        bench.E = int(width)
        for dtype in (torch.float64, torch.float32):
            bench.dtype = dtype
            for L in (4, 2, 1):
                try:
                    bench.raw(bench.tokens(1, 2, L))
                except SubjectError as raised:
                    error = error or raised
                    continue
                facts.embed_dim = bench.E
                return
            double(bench.subject.thing, torch.float32)
        double(bench.subject.thing)
    bench.dtype = torch.float64
    assert error is not None
    raise error


def _sizes(bench: Bench) -> None:
    """Batch, queries and keys that differ from each other, from heads and widths."""
    facts = bench.facts
    if facts.num_heads is None and "weights" in bench.subject.takes:
        try:
            _, weights = bench.both(bench.tokens(L=3), need_weights=True)
        except SubjectError:
            weights = None
        if weights is not None and weights.dim() == 4:
            facts.num_heads = int(weights.shape[1])
            bench.notes["known"].append("num_heads")
    bench.H = facts.num_heads or 1
    width = bench.E // bench.H if bench.E % bench.H == 0 else None
    taken: set[int | None] = {bench.H, width, bench.E}
    bench.B = pick((2, 3, 5), taken)
    taken.add(bench.B)
    bench.L = pick((7, 9, 11, 5), taken)
    taken.add(bench.L)
    bench.S = pick((11, 13, 9, 10), taken)


def _dtype(bench: Bench) -> None:
    """A length that works; float32 where float64 does not."""
    for L in (bench.L, 6, 5, 4, 3):
        if bench.works(bench.tokens(L=L)):
            bench.notes["plain length"] = L
            bench.L = L
            return
    bench.out(bench.tokens())  # raises


def _trials(bench: Bench) -> None:
    """What a call takes, where nothing is declared."""
    facts, takes = bench.facts, bench.subject.takes
    small = bench.tokens(L=3)
    if facts.masks is None:
        keep = torch.ones(3, 3, dtype=torch.bool)
        facts.masks = (
            "any" if "mask" in takes and bench.works(small, mask=keep) else "none"
        )
    if facts.causal is None:
        if facts.pattern == "causal" or (facts.pattern is None and _is_causal(bench)):
            facts.causal = "always"
        else:
            flag = "causal" in takes and bench.works(small, causal=True)
            facts.causal = "flag" if flag else "never"
    if facts.causal == "always" and facts.pattern is None:
        facts.pattern = "causal"
    if facts.context is None:
        facts.context = False
        if "context" in takes and facts.positions is None:
            try:
                bench.raw(small, context=bench.tokens(L=5))
                facts.context = True
            except SubjectError:
                facts.context = False
    if facts.weights is None and "weights" in takes:
        try:
            _, weights = bench.both(small, need_weights=True)
        except SubjectError:
            weights = None
        if weights is not None:
            facts.weights = "heads" if weights.dim() == 4 else "mean"
    elif facts.weights is not None:
        try:
            _, weights = bench.both(small, need_weights=True)
        except SubjectError:
            weights = None
        if weights is None:
            facts.weights = None
        elif weights.dim() == 3:
            facts.weights = "mean"
    # A causal call may fail at a length that works without: tables are short.
    if facts.causal == "flag":
        for L in (bench.L, 5, 4, 3):
            if bench.works(bench.tokens(L=L), causal=True):
                bench.L = L
                break


def _is_causal(bench: Bench) -> bool:
    """Whether tokens are seen by exactly those that do not come before them."""
    x = bench.tokens(L=5)
    try:
        before = bench.out(x)
        seen = []
        for j in range(5):
            changed = bench.replaced(x, torch.arange(5) == j)
            seen.append((moved(before, bench.out(changed)) > 0).any(0))
    except (SubjectError, Skip):
        return False
    return torch.equal(
        torch.stack(seen, -1), torch.ones(5, 5, dtype=torch.bool).tril()
    )


def _noise(bench: Bench) -> float:
    """The noise floor: how far outputs are from smooth, where tokens hardly move.

    Where the softmax runs in float32 inside, outputs jump by its rounding. A second
    difference shows that: of a smooth function it is as small as the step squared.
    """
    if bench.dtype != torch.float64:
        return 1e-4
    x = bench.tokens()
    worst = 0.0
    try:
        y = bench.out(x)
        for seed in (41, 42, 43):
            step = 1e-7 * bench.tokens(seed)
            middle = (bench.out(x + step) + bench.out(x - step)) / 2
            worst = max(worst, bench.close(middle, y))
    except (SubjectError, Skip):
        return 1e-9
    if worst < 1e-11:
        return 1e-9
    return min(max(1e-6, 50 * worst), 1e-1)
