"""Decoding: pieces of a sequence must give what the whole gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probes_reach import reach_of
from attention_lib.doctor.probing import Bench, Skip, SubjectError, moved

__all__ = ["decoding", "graph", "late_queries", "rows_apart", "whole"]

#: Relative size of what rounding to bfloat16 leaves: wrong positions leave far more.
ROUNDED = 2**-8


def late_queries(bench: Bench) -> Iterator[Finding]:
    """The last queries against all keys: the outputs of the full pass.

    That is decoding with a cache. The last query sees every key, so the triangle ends
    in the lower right corner.
    """
    if not (bench.has_flag and bench.has_context):
        raise Skip("it takes no causal flag together with a context")
    if not bench.subject.causal_rectangle:
        raise Skip("it asks for an explicit mask where queries and keys differ")
    if bench.facts.positions is not None or bench.notes.get("ordered"):
        raise Skip("positions of the last queries cannot be given")
    if bench.facts.pattern or bench.facts.residual:
        raise Skip("a pattern or a residual is declared")
    x = bench.tokens()
    whole = bench.out(x, causal=True)
    for start in (bench.L - 1, bench.L - 3):
        part = x[:, start:]
        try:
            y = bench.out(part, context=x, causal=True)
        except SubjectError as error:
            if error.clear:
                raise Skip(f"refused: {error.what}") from error
            raise
        gap = bench.close(y, whole[:, start:])
        if gap <= bench.noise:
            continue
        seen = (reach_of(bench, part, context=x, causal=True) > 0).any(0)
        corner = torch.ones_like(seen).tril()
        yield finding(
            "AT601",
            "late_queries",
            "the last queries do not see all the keys before them",
            f"{bench.L - start} last queries against {bench.L} keys differ by {gap:.2g}"
            " (relative) from the full pass.",
            measured=gap,
            expected=0.0,
            key="top left" if torch.equal(seen, corner) else "",
            sure="shown" if torch.equal(seen, corner) else "consistent",
            how="the first query sees the first key alone",
            why="the causal mask is not aligned with the last key",
            kind="causality",
            smallest=f"1 query, {bench.L} keys, batch 1",
        )
        return


# kind="decoder" -----------------------------------------------------------------------


def full_of(bench: Bench, x: Tensor) -> Tensor:
    """The full pass, checked."""
    return bench.out(x)


def steps_of(
    bench: Bench, x: Tensor, chunks: tuple[int, ...], grad: bool = False
) -> tuple[list[Tensor], Any]:
    """Outputs of the chunks, one after another, and the last state."""
    done: list[Tensor] = []
    state: Any = None
    start = 0
    for n in chunks:
        part = x[:, start : start + n]
        try:
            with torch.set_grad_enabled(grad):
                if state is None:
                    y, state = _first_step(bench, part)
                else:
                    y, state = bench.subject.thing.step(part, state)
        except SubjectError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())[:200]
            raise SubjectError(
                f"{type(error).__name__}: {text}", f"step on tokens {start}.."
            ) from error
        if not isinstance(y, Tensor) or y.shape[:2] != part.shape[:2]:
            shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise SubjectError(f"step returned {shape}", f"chunk of {n} tokens")
        done.append(y)
        start += n
    return done, state


def _first_step(bench: Bench, part: Tensor) -> Any:
    try:
        return bench.subject.thing.step(part, None)
    except TypeError:
        return bench.subject.thing.step(part)


def whole(bench: Bench) -> Iterator[Finding]:
    """The full pass must be causal, or decoding cannot agree with it."""
    x = bench.tokens()
    size = reach_of(bench, x)
    seen = (size > 0).any(0)
    future = seen & ~torch.ones_like(seen).tril()
    if future.any():
        a, b = (int(n) for n in future.nonzero()[0])
        yield finding(
            "AT101",
            "whole",
            "the full pass can see the future",
            f"y[{a}] moves by {float(size[:, a, b].max()):.2g} when only x[{b}] "
            "changes.",
            measured=float(size[:, a, b].max()),
            expected=0.0,
            key="no causal",
        )


def decoding(bench: Bench) -> Iterator[Finding]:
    """Token by token, in chunks and in one piece: always the full pass, in float64."""
    x = bench.tokens(L=bench.L)
    L = bench.L
    want = full_of(bench, x)
    plans = {
        "in one piece": (L,),
        "token by token": (1,) * L,
        "in chunks": (3, 1, L - 6, 2),
        "in large chunks": (2, L - 2),
    }
    for name, chunks in plans.items():
        parts, _ = steps_of(bench, x, chunks)
        got = torch.cat(parts, 1)
        wrong = moved(want, got) > bench.noise * float(want.abs().max())
        if not wrong.any():
            continue
        where = wrong.any(0).nonzero().flatten().tolist()
        gap = bench.close(got, want)
        alone, _ = steps_of(bench, x[:1], chunks)
        single = bench.close(torch.cat(alone, 1), full_of(bench, x[:1]))
        starts = [sum(chunks[:k]) for k in range(len(chunks))]
        code, why, told, kind = "AT601", "", "", "incremental decoding"
        if single <= bench.noise:
            code = "AT603"
            why = "rows of a batch share a length or overwrite one another"
        elif gap < ROUNDED:
            why = (
                "keys or values are kept in a lower precision than they are computed in"
            )
            kind = "numeric precision"
        elif where[0] == 0 and name == "in one piece":
            why = "the first step is not the full pass: another mask or other positions"
        elif where[0] >= chunks[0] and all(t >= chunks[0] for t in where):
            code, why, told = _later(bench, x, want, where, starts, name)
        else:
            why = "within a chunk, queries are masked as if it stood alone"
        yield finding(
            code,
            "decoding",
            {
                "AT602": "positions are wrong from the second step on",
                "AT603": "decoding differs as soon as there are several rows",
            }.get(code, "decoding differs from the full pass"),
            f"{name.capitalize()}, outputs {where[:6]} differ by up to {gap:.2g} "
            "(relative) from the full pass.",
            measured=gap,
            expected=0.0,
            why=why,
            kind=kind,
            how=told,
            sure="shown" if told else "consistent",
            remedy=("- positions[:n]", "+ positions[seen : seen + n]")
            if code == "AT602"
            else (),
            effect="generation is worse than the training loss says",
            smallest=f"{where[0] + 1} tokens, batch 1",
        )
        return
    yield from _long(bench)


def _later(
    bench: Bench,
    x: Tensor,
    want: Tensor,
    where: list[int],
    starts: list[int],
    name: str,
) -> tuple[str, str, str]:
    """What goes wrong after the first step: positions, or the cache."""
    if where[0] > starts[1] + 1 and name != "in chunks":
        return (
            "AT601",
            f"the cache loses tokens: right up to token {where[0] - 1}, then wrong",
            "",
        )
    same = x[:, :1].expand(-1, 3, -1).contiguous()
    parts, _ = steps_of(bench, same, (1, 1, 1))
    full = full_of(bench, same)
    restarted = bench.close(parts[1], parts[0]) <= bench.noise
    moves = bench.close(full[:, 1:2], full[:, :1]) > bench.noise
    if restarted and moves:
        return (
            "AT602",
            "positions count from 0 in every step",
            "the same token gives the same output in every step, in the full pass not",
        )
    # Do steps see the right tokens? Then what is wrong is where they stand.
    singly = name == "token by token"
    sizes = (1, 1, 1) if singly else (2, 2)
    n = sum(sizes)
    few, three = x[:, :n], x[:, :3]
    before = torch.cat(steps_of(bench, few, sizes)[0], 1)
    columns = []
    for j in range(n):
        changed = bench.replaced(few, torch.arange(n) == j)
        after = torch.cat(steps_of(bench, changed, sizes)[0], 1)
        columns.append((moved(before, after) > 0).any(0))
    right = torch.equal(
        torch.stack(columns, -1), torch.ones(n, n, dtype=torch.bool).tril()
    )
    turned = three[:, [1, 0, 2]]
    ordered = bench.close(full_of(bench, turned)[:, 2], want[:, 2]) > bench.noise
    if right and ordered:
        return (
            "AT602",
            "a new token's position is not the number of tokens seen"
            if singly
            else "positions count steps, or else not every token of a step of several",
            "steps see the right tokens, and their order matters",
        )
    return "AT601", "the cache loses or misorders keys and values", ""


def _long(bench: Bench) -> Iterator[Finding]:
    """Many steps: nothing may be forgotten unless a window is declared."""
    if bench.facts.pattern not in (None, "causal"):
        return
    n = 40
    x = bench.tokens(5, L=n)
    try:
        want = full_of(bench, x)
        parts, _ = steps_of(bench, x, (1,) * n)
    except SubjectError as error:
        yield finding(
            "AT520",
            "decoding",
            f"{n} tokens are refused",
            error.what,
            severity="note",
            why="a table or a cache is shorter",
            kind="length",
        )
        return
    got = torch.cat(parts, 1)
    gap = bench.close(got, want)
    if gap > bench.noise:
        row = int((moved(want, got) > bench.noise).any(0).nonzero()[0])
        yield finding(
            "AT601",
            "decoding",
            f"decoding differs from the full pass from token {row} on",
            f"After {row} tokens outputs differ by up to {gap:.2g} (relative).",
            measured=gap,
            expected=0.0,
            why="the cache is full, trimmed or overwritten",
            kind="incremental decoding",
        )


def rows_apart(bench: Bench) -> Iterator[Finding]:
    """Other rows of the batch, and other sequences, must not enter a step."""
    x = bench.tokens()
    other = torch.cat([bench.tokens(2)[:1], x[1:]])
    chunks = (2, 1, 1)
    one, _ = steps_of(bench, x[:, :4], chunks)
    two, _ = steps_of(bench, other[:, :4], chunks)
    leak = moved(torch.cat(one, 1), torch.cat(two, 1))[1:]
    if leak.max() > 0:
        yield finding(
            "AT603",
            "rows_apart",
            "rows of a batch see one another in decoding",
            f"Other rows move by {float(leak.max()):.2g} when only row 0 changes.",
            measured=float(leak.max()),
            expected=0.0,
            why="the cache mixes rows",
            kind="incremental decoding",
        )
    again, _ = steps_of(bench, x[:, :4], chunks)
    gap = float(moved(torch.cat(one, 1), torch.cat(again, 1)).max())
    if gap == 0:
        yield from _in_turn(bench, x[:, :4], torch.cat(one, 1))
    if gap > 0:
        yield finding(
            "AT402",
            "rows_apart",
            "an earlier sequence changes a later one",
            f"The same sequence decoded after another differs by {gap:.2g}.",
            measured=gap,
            expected=0.0,
            why="the module keeps keys and values beside the state it returns",
            kind="hidden state",
            sure="shown",
        )


def _in_turn(bench: Bench, x: Tensor, alone: Tensor) -> Iterator[Finding]:
    """Another sequence that starts in between: some caches hold one at a time."""
    thing = bench.subject.thing
    try:
        with torch.no_grad():
            first, state = _first_step(bench, x[:, :2])
            _first_step(bench, bench.tokens(3)[:, :1])
            second, _ = thing.step(x[:, 2:3], state)
    except Exception as error:  # noqa: BLE001 - a subject may raise anything
        gap, said = float("inf"), f"The next step raises {type(error).__name__}."
    else:
        gap = float(moved(alone[:, :3], torch.cat([first, second], 1)).max())
        said = f"The next step differs by {gap:.2g}."
    if gap > 0:
        yield finding(
            "AT402",
            "rows_apart",
            "one sequence at a time: a second one disturbs the first",
            f"A sequence is begun before another is finished. {said}",
            severity="note",
            measured=gap,
            expected=0.0,
            why="sequences share a cache, in the module or in a state it hands out twice",
            kind="hidden state",
            sure="shown",
            effect="requests that are served in turn read one another's text",
        )


def tensors_in(thing: Any, depth: int = 5) -> list[Tensor]:
    """Every tensor of a state: tuples, lists, mappings and objects."""
    if isinstance(thing, Tensor):
        return [thing]
    if depth == 0 or isinstance(thing, (str, bytes, int, float, type(None))):
        return []
    if isinstance(thing, dict):
        inner: list[Any] = list(thing.values())
    elif isinstance(thing, (list, tuple, set)):
        inner = list(thing)
    elif isinstance(thing, torch.nn.Module):
        return []
    else:
        inner = list(getattr(thing, "__dict__", {}).values())
    return [t for item in inner for t in tensors_in(item, depth - 1)]


def graph(bench: Bench) -> Iterator[Finding]:
    """The state must not hold the graph of the steps before."""
    x = bench.tokens()
    _, state = steps_of(bench, x[:, :3], (2, 1), grad=True)
    held = [t for t in tensors_in(state) if t.requires_grad and t.grad_fn is not None]
    if held:
        yield finding(
            "AT604",
            "graph",
            "the cache keeps the graph",
            f"{len(held)} tensors of the state require a gradient after a step.",
            measured=float(len(held)),
            expected=0.0,
            why="keys and values are stored without detach()",
            kind="incremental decoding",
            sure="shown",
            remedy=("- state = keys", "+ state = keys.detach()"),
            effect="memory grows with every token, until it is full",
        )
