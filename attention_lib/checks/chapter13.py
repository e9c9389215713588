"""Checks for the exercises of chapter 13, many devices. None starts a process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attention_lib.checks._report import (
    NotYet,
    check,
    demand_number,
    demand_partial,
    demand_tensor,
    explain,
)

__all__ = ["attend_part", "broken", "places", "schedule", "sent"]

Ranks = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@check("13.1")
def sent(answer: Callable[[int, int, int, int, int], int]) -> str:
    """Check ``sent(L, P, H, Hkv, D)``: bytes a rank sends in a forward and backward pass.

    Examples
    --------
    >>> sent(lambda L, P, H, Hkv, D: 4 * (P - 1) * 2 * Hkv * (L // P) * D)
    Exercise 13.1: not yet. That is the forward pass. Backward, keys and values go round \
again, and their gradients with them.
    """
    for L, P, H, Hkv, D in ((512, 4, 8, 4, 16), (256, 2, 4, 2, 32), (768, 8, 8, 8, 8)):
        one = 4 * 2 * Hkv * (L // P) * D  # a rank's keys and values
        true = (2 * (P - 1) + P) * one
        found = demand_number(answer(L, P, H, Hkv, D), "a number of bytes")
        mistakes = {
            (P - 1)
            * one: "That is the forward pass. Backward, keys and values go round "
            "again, and their gradients with them.",
            2 * (P - 1) * one: "The gradients of keys and values travel as well.",
            (P - 1) * one + P * one: "Backward needs the keys and values again, not "
            "their gradients alone.",
            3 * (P - 1) * one: "After P - 1 steps the gradients are one rank short of "
            "home.",
            3 * P * one: "The last rank to see a rank's keys need not send them on: "
            "P - 1 times, not P.",
            true // 4: "That is a count of numbers: a float32 takes 4 bytes.",
            true // 2: "Keys are sent, and values are.",
            true * P: "That is what all ranks send. A rank holds L / P tokens.",
            true * H // Hkv: "Only Hkv heads of keys and values travel; H is for "
            "queries, which stay at home.",
        }
        if found != true:
            words = f"With L={L}, P={P}, H={H}, Hkv={Hkv}, D={D} a rank sends {true} "
            hint = "How often does it send its keys, and how often their gradients?"
            raise NotYet(
                mistakes.get(int(found), f"{words}bytes; you say {found:.0f}. {hint}")
            )
    return "Every byte predicted, for 2, 4 and 8 ranks."


@check("13.2")
def places(answer: Callable[[int, int, int], Tensor]) -> str:
    """Check ``places(L, P, rank)``: positions for each rank, and their work balanced.

    Examples
    --------
    >>> places(lambda L, P, rank: torch.arange(L).chunk(P)[rank])
    Exercise 13.2: not yet. With 2 ranks the busiest has 1.5 times the mean work. A late \
query sees more keys than an early one: give each rank both.
    """
    for L, P in ((512, 2), (1024, 4), (1536, 6)):
        parts = [
            demand_tensor(answer(L, P, rank), (L // P,), "The positions")
            for rank in range(P)
        ]
        held = torch.cat(parts).sort().values
        if not torch.equal(held.double(), torch.arange(L).double()):
            raise NotYet(
                f"With L={L}, P={P} the ranks together do not hold every position "
                "once: some are missing, others are held twice or do not exist."
            )
        work = torch.stack([(part.double() + 1).sum() for part in parts])
        ratio = (work.max() / work.mean()).item()
        if ratio > 1.02:
            raise NotYet(
                f"With {P} ranks the busiest has {ratio:.2g} times the mean work. A "
                "late query sees more keys than an early one: give each rank both."
            )
    return "Every position once, and no rank over 1.02 times the mean work."


@check("13.3")
def attend_part(answer: Callable[..., tuple[Tensor, Tensor]]) -> str:
    """Check ``attend_part(query, key, value, i, j)``: some queries with some keys.

    Examples
    --------
    >>> attend_part(lambda query, key, value, i, j: query)
    Exercise 13.3: not yet. Return two tensors: the output and the log-sum-exp.
    """
    query, key, value = (torch.randn(n, 4, dtype=torch.float64) for n in (5, 6, 6))
    value = value[:, :3]
    i, j = torch.tensor([1, 2, 9, 10, 11]), torch.tensor([3, 0, 4, 11, 20, 2])

    def part(*given: Tensor) -> tuple[Tensor, Tensor]:
        output, level = demand_partial(answer(*given), (5, 3))
        return output.double(), level.double()

    found, level = part(query, key, value, i, j)
    wanted, log_sum = _part(query, key, value, j <= i[:, None])
    local = torch.arange(6) <= torch.arange(5)[:, None]
    mistakes = {
        "There is no mask: a query sees no key that comes later.": torch.ones(5, 6) > 0,
        "The mask counts within the parts. Compare i and j, the places in the whole "
        "sequence.": local,
        "The mask is strict: a query sees the key at its own place.": j < i[:, None],
        "The mask is the wrong way round: j may be at most i.": j >= i[:, None],
    }
    results = {cause: _part(query, key, value, k)[0] for cause, k in mistakes.items()}
    explain(found, wanted, results)
    unscaled = _part(2 * query, key, value, j <= i[:, None])[1]
    if not torch.allclose(level, log_sum):
        if torch.allclose(level, unscaled):
            raise NotYet("The log-sum-exp is that of scores without the scale.")
        if torch.allclose(level, log_sum.exp()):
            raise NotYet("That is the sum of exponentials. Take its logarithm.")
        raise NotYet(
            "The output is right, the log-sum-exp of the masked scores is not."
        )
    early = torch.zeros(5, dtype=torch.int64)  # queries that see none of these keys
    found, level = part(query, key, value, early, j + 1)
    if bool(found.isnan().any()) or bool((found != 0).any()):
        raise NotYet("A query that sees no key of the part gets zeros, not NaN.")
    if not bool((level == -math.inf).all()):
        raise NotYet(
            "The log-sum-exp of a query that sees no key is minus infinity: then a "
            "merge gives the part no share."
        )
    far, level = part(1000 * query, key, value, i + 30, j)
    if not bool(far.isfinite().all()) or not bool(level.isfinite().all()):
        raise NotYet("Scores in the thousands overflow: subtract before exp.")
    return "Right by places, with empty rows and with large scores."


def _part(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor
) -> tuple[Tensor, ...]:
    """Output and log-sum-exp of some queries with some keys."""
    scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~keep, -math.inf)
    return scores.softmax(-1).nan_to_num() @ value, scores.logsumexp(-1)


@check("13.4")
def broken(answer: Callable[[Ranks], bool]) -> str:
    """Check a detector: True where a causal attention over ranks is not that of one.

    Examples
    --------
    >>> broken(lambda attend: False)
    Exercise 13.4: not yet. It clears an attention that masks by the place within a part.
    """
    subjects = {
        "a sound attention over contiguous parts": (_over(), False),
        "a sound attention over parts that deal out the tokens": (
            _over(dealt=True),
            False,
        ),
        "an attention that masks by the place within a part": (_over(local=True), True),
        "an attention that averages the parts": (_over(mean=True), True),
        "an attention whose merge keeps the first log-sum-exp": (
            _over(stale=True),
            True,
        ),
    }
    for seed in range(3):
        for words, (attend, faulty) in subjects.items():
            torch.manual_seed(seed)
            verdict = answer(attend)
            if verdict is None:
                raise NotYet("The function returns nothing yet.")
            if bool(verdict) != faulty:
                hint = "" if faulty else " Sound ones differ by rounding."
                if words.endswith("log-sum-exp"):
                    hint = " With two parts there is one merge, and nothing to forget."
                raise NotYet(f"{('It accuses', 'It clears')[faulty]} {words}.{hint}")
    return "Two sound attentions cleared, three faulty ones found, on three draws each."


def _over(
    *, dealt: bool = False, local: bool = False, mean: bool = False, stale: bool = False
) -> Ranks:
    """A causal attention over P parts in one process; True plants a fault."""

    def attend(query: Tensor, key: Tensor, value: Tensor, ranks: int) -> Tensor:
        L = len(query)
        if ranks < 1 or L % ranks:
            raise ValueError(f"{L} tokens cannot be shared among {ranks} ranks evenly")
        whole = torch.arange(L)
        parts = [
            whole[r::ranks] if dealt else whole.chunk(ranks)[r] for r in range(ranks)
        ]
        output = torch.zeros(L, value.shape[-1], dtype=value.dtype)
        for rank, mine in enumerate(parts):
            i = torch.arange(len(mine)) if local else mine
            total, level = torch.zeros_like(value[mine]), None
            count = torch.zeros(len(mine), 1)
            for step in range(ranks):  # around the ring
                theirs = parts[(rank - step) % ranks]
                j = torch.arange(len(theirs)) if local else theirs
                new, log_sum = _part(
                    query[mine], key[theirs], value[theirs], j <= i[:, None]
                )
                seen = (log_sum > -math.inf)[:, None]
                if mean:
                    total, count = total + new, count + seen
                    continue
                if level is None:
                    total, level = new, log_sum
                    continue
                both = torch.logaddexp(level, log_sum)
                low = both.clamp(min=torch.finfo(both.dtype).min)
                shares = [(x - low).exp()[:, None] for x in (level, log_sum)]
                total = shares[0] * total + shares[1] * new
                level = level if stale else both
            output[mine] = total / count if mean else total
        return output

    return attend


@check("13.5")
def schedule(
    answer: Callable[[Sequence[int], int, int], Sequence[Sequence[int]]],
) -> str:
    """Check ``schedule(lengths, ranks, chunk)``: chunks of packed documents for each rank.

    Examples
    --------
    >>> schedule(lambda lengths, ranks, chunk: [[0, 1], [1, 2]])
    Exercise 13.5: not yet. Return one list for each of the 4 ranks; 2 came.
    """
    ranks, chunk = 4, 64
    worst, moved, plain = 0.0, 0, 0
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        lengths = _documents(generator)
        chunks = sum(lengths) // chunk
        found = answer(list(lengths), ranks, chunk)
        if found is None:
            raise NotYet("The function returns nothing yet.")
        if not isinstance(found, list | tuple) or len(found) != ranks:
            came = (
                len(found) if isinstance(found, list | tuple) else type(found).__name__
            )
            raise NotYet(f"Return one list for each of the {ranks} ranks; {came} came.")
        lists = [[int(c) for c in part] for part in found]
        if sorted(c for part in lists for c in part) != list(range(chunks)):
            raise NotYet(
                f"Each of the {chunks} chunks must be held by exactly one rank."
            )
        if {len(part) for part in lists} != {chunks // ranks}:
            raise NotYet(
                "Every rank must hold the same number of chunks, or memory is not shared "
                f"out: here {chunks // ranks} each."
            )
        work, start = _work(lengths, chunk)
        loads = torch.tensor([work[part].sum().item() for part in lists])
        worst = max(worst, (loads.max() / loads.mean()).item())
        moved += _fetched(lists, start)
        dealt = [list(range(r, chunks, ranks)) for r in range(ranks)]
        plain += _fetched(dealt, start)
    if worst > 1.05:
        raise NotYet(
            f"The busiest rank has {worst:.2f} times the mean work in the worst of three "
            "draws; 1.05 is asked for. A chunk late in a long document is dear, one early "
            "in any is cheap."
        )
    return (
        f"The busiest rank has {worst:.3f} times the mean work at worst, and ranks fetch "
        f"{moved} chunks of keys; dealing chunks out in turn fetches {plain}."
    )


def _documents(generator: torch.Generator) -> list[int]:
    """Lengths of documents, multiples of 64: many short ones, a few long, 64 chunks."""
    left, lengths = 64, []
    while left:
        draw = torch.rand((), generator=generator).item()
        size = min(left, 1 + int(20 * draw**3))
        lengths.append(64 * size)
        left -= size
    return lengths


def _work(lengths: Sequence[int], chunk: int) -> tuple[Tensor, list[int]]:
    """Visible pairs of each chunk of queries, and the first chunk of its document."""
    work: list[float] = []
    first: list[int] = []
    for length in lengths:
        begin = len(work)
        for n in range(length // chunk):
            work.append(n * chunk * chunk + chunk * (chunk + 1) // 2)
            first.append(begin)
    return torch.tensor(work, dtype=torch.float64), first


def _fetched(lists: Sequence[Sequence[int]], first: Sequence[int]) -> int:
    """Chunks of keys that ranks need and do not hold."""
    total = 0
    for part in lists:
        needed = {key for chunk in part for key in range(first[chunk], chunk + 1)}
        total += len(needed - set(part))
    return total
