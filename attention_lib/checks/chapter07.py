"""Checks for the exercises of chapter 7, positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attention_lib.checks._report import (
    NotYet,
    check,
    demand_bool,
    demand_number,
    demand_tensor,
    draws,
    explain,
)
from attention_lib.positions import (
    RelativePositionBias,
    RotaryEmbedding,
    SinusoidalEncoding,
    alibi_bias,
)

__all__ = [
    "bucket_of",
    "frequencies",
    "offset_only",
    "sinusoidal",
    "turn_pairs",
    "unfinished",
]

Scores = Callable[[Tensor, Tensor], Tensor]


@check("7.1", forbids=("sinusoidalencoding",))
def sinusoidal(answer: Callable[[int, int], Tensor]) -> str:
    """Check ``sinusoidal(L, width)``: codes of positions 0 to L - 1, of any width.

    Examples
    --------
    >>> sinusoidal(lambda L, width: None)
    Exercise 7.1: not yet. The function returns nothing yet.
    """
    for L, width in ((7, 6), (5, 9)):
        found = demand_tensor(answer(L, width), (L, width), "The table of codes")
        wanted = SinusoidalEncoding(width)(torch.zeros(1, L, width))[0]
        p = torch.arange(L)[:, None]
        entry = torch.arange(width)
        pair = entry // 2
        even = (entry % 2 == 0).expand(L, width)
        omega = 10000 ** (-2 * pair / width)
        steep = 10000 ** (-2 * entry / width)
        slow = 10000 ** (-pair / width)
        later = (p + 1) * omega
        sines = p * 10000 ** (-torch.arange(0, width, 2) / width)
        explain(
            found,
            wanted,
            {
                "The cosine must have the frequency of the sine beside it: the "
                "exponent is -2i / width, and i counts pairs, not entries.": (
                    torch.where(even, (p * steep).sin(), (p * steep).cos())
                ),
                "The exponent is -i / width: it must be -2i / width, since i counts "
                "pairs.": torch.where(even, (p * slow).sin(), (p * slow).cos()),
                "Positions start at 1: the first is 0.": torch.where(
                    even, later.sin(), later.cos()
                ),
                "Sine and cosine are swapped: the even entries are sines.": (
                    torch.where(even, (p * omega).cos(), (p * omega).sin())
                ),
                "All sines come first, then all cosines: they alternate.": torch.cat(
                    [sines.sin(), sines.cos()], dim=1
                )[:, :width],
            },
        )
    return "Sines and cosines in pairs, also where the last pair has no room."


@check("7.2", forbids=("rotary",))
def turn_pairs(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str:
    """Check ``turn_pairs(x, positions, omega)``: rotary with interleaved pairs.

    Examples
    --------
    >>> turn_pairs(lambda x, positions, omega: x)
    Exercise 7.2: not yet. Nothing is turned.
    """
    x = torch.randn(2, 3, 5, 8)
    positions = torch.tensor([3, 4, 5, 9, 40])
    omega = torch.tensor([1.0, 0.3, 0.1, 0.02])
    found = answer(x.clone(), positions, omega)
    if isinstance(found, Tensor) and found.is_complex():
        raise NotYet("The result is complex: go back with torch.view_as_real.")
    found = demand_tensor(found, (2, 3, 5, 8), "The turned x")

    def turned(places: Tensor, *, interleaved: bool = True) -> Tensor:
        own = [float(w) for w in omega]
        rotary = RotaryEmbedding(8, frequencies=own, interleaved=interleaved)
        return rotary(x, positions=places)

    def backwards() -> Tensor:
        rotary = RotaryEmbedding(8, frequencies=-omega, interleaved=True)
        return rotary(x, positions=positions)

    explain(
        found,
        turned(positions),
        {
            "Nothing is turned.": x,
            "The pairs turn the wrong way round: the angle is positive.": backwards(),
            "These are half-split pairs, m with m + D/2: neighbours are asked for.": (
                turned(positions, interleaved=False)
            ),
            "The rows are counted from 0: use the positions that are given.": turned(
                torch.arange(5)
            ),
        },
    )
    return "Complex multiplication, and the pairs are neighbours."


@check("7.3")
def unfinished(answer: Callable[[int, int, float], int]) -> str:
    """Check ``unfinished(D, L, base)``: pairs that never complete a turn in training.

    Examples
    --------
    >>> unfinished(lambda D, L, base: D // 2)
    Exercise 7.3: not yet. With D=64, L=32, base=10000 it is 26 of 32 pairs; you say 32. \
Which offsets occur between L tokens, and how far does pair m turn over the largest?
    """
    for D, L, base in ((64, 32, 1e4), (16, 7, 1e4), (128, 2048, 1e4), (128, 8192, 5e5)):
        found = demand_number(answer(D, L, base), "a number of pairs")
        true = _unfinished(D, L, base)
        if found == true:
            continue
        m = torch.arange(D // 2)
        omega = base ** (-2 * m / D)

        def below(angle: Tensor, turn: float = 2 * math.pi) -> int:
            return int((angle < turn).sum())

        mistakes = {
            below((L - 1) * omega, math.pi): "That counts half turns: a turn is 2π.",
            below((L - 1) * base ** (-m / D)): "The exponent is -2m / D: m counts "
            "pairs, not entries.",
            below(L * omega): "The largest offset between L tokens is L - 1.",
            2 * true: "That counts entries: a pair has two.",
            D // 2 - true: "That counts the pairs that do complete a turn.",
        }
        hint = "Which offsets occur between L tokens, and how far does pair m turn over"
        raise NotYet(
            f"With D={D}, L={L}, base={base:.0f} it is {true} of {D // 2} pairs; you "
            f"say {found:g}. {mistakes.get(int(found), f'{hint} the largest?')}"
        )
    return (
        "Four heads measured. At L = 32 it is 26 of 32 pairs: a longer text brings them "
        "to angles that training never showed."
    )


def _unfinished(D: int, L: int, base: float) -> int:
    """Pairs that turn by less than 2π from the first of L positions to the last."""
    east = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(1, 1, L, D // 2)
    turned = RotaryEmbedding(D, base=base, interleaved=True)(east)[0, 0]
    pairs = torch.view_as_complex(turned.unflatten(-1, (-1, 2)))
    steps = (pairs[1:] * pairs[:-1].conj()).angle()  # each is under half a turn
    return int((steps.sum(0) < 2 * math.pi).sum())


@check("7.4", forbids=("relativeposition",))
def bucket_of(answer: Callable[[int, int, int], int]) -> str:
    """Check ``bucket_of(distance, n, M)`` against the table that learns the numbers.

    Examples
    --------
    >>> bucket_of(lambda distance, n, M: min(distance, n - 1))
    Exercise 7.4: not yet. With n = 8 and M = 16, distance 5 falls into bucket 5, expected 4. Past n/2 the buckets widen; round down inside one.
    """
    for n, M in ((8, 16), (12, 50)):
        table = RelativePositionBias(
            1, num_buckets=n, max_distance=M, bidirectional=False
        )
        wanted = table.buckets(1, offset=2 * M)[0].flip(0).tolist()
        for distance, bucket in enumerate(wanted):
            found = answer(distance, n, M)
            if found is None:
                raise NotYet("The function returns nothing yet.")
            if not isinstance(found, int):
                raise NotYet(f"Return an int, not {type(found).__name__}.")
            if found == bucket:
                continue
            if distance < n // 2:
                hint = "Short distances have a bucket each."
            elif distance >= M:
                hint = "From M on all fall into the last bucket, n - 1."
            elif found in (distance, bucket + 1):
                hint = "Past n/2 the buckets widen; round down inside one."
            else:
                hint = "Bucket n/2 begins at distance n/2: take log(distance / (n/2))."
            raise NotYet(
                f"With n = {n} and M = {M}, distance {distance} falls into bucket "
                f"{found}, expected {bucket}. {hint}"
            )
    return "Near distances one by one, far ones by their logarithm."


@check("7.5")
def offset_only(answer: Callable[[Scores], bool]) -> str:
    """Check a detector: True where scores know offsets alone, False where they know more.

    Examples
    --------
    >>> offset_only(lambda scores: True)
    Exercise 7.5: not yet. It calls scores offset-only with sinusoids added to both sides.
    """
    for seed in draws(3):
        for relative, subjects in ((True, _relative(seed)), (False, _absolute(seed))):
            for name, scores in subjects.items():
                torch.manual_seed(seed)
                verdict = demand_bool(answer(scores))
                if relative and not verdict:
                    raise NotYet(
                        f"It says that {name} depends on the place itself. "
                        "Do the rows of your queries, or of your keys, differ? Then "
                        "you see their content."
                    )
                if verdict and not relative:
                    raise NotYet(f"It calls scores offset-only with {name}.")
    return "Five relative kinds cleared, five absolute ones found, on three draws each."


def _relative(seed: int) -> dict[str, Scores]:
    """Scores that know positions through offsets alone."""

    def rotary(interleaved: bool) -> Scores:
        def scores(q: Tensor, k: Tensor) -> Tensor:
            turn = RotaryEmbedding(q.shape[-1], interleaved=interleaved)
            return turn(q[None, None])[0, 0] @ turn(k[None, None])[0, 0].mT

        return scores

    def buckets(q: Tensor, k: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            bias = RelativePositionBias(1, num_buckets=8, max_distance=16)
        return q @ k.mT + 50 * bias(len(q), len(k))[0].detach()

    return {
        "attention without positions": lambda q, k: q @ k.mT,
        "rotary with half-split pairs": rotary(False),
        "rotary with interleaved pairs": rotary(True),
        "ALiBi": lambda q, k: q @ k.mT + alibi_bias(2, len(q), len(k))[0],
        "a table of buckets": buckets,
    }


def _absolute(seed: int) -> dict[str, Scores]:
    """Scores that know where a token stands."""

    def added(codes: Callable[[Tensor], Tensor]) -> Scores:
        return lambda q, k: codes(q) @ codes(k).mT

    def sinusoids(x: Tensor) -> Tensor:
        return SinusoidalEncoding(x.shape[-1])(x[None])[0]

    def learned(x: Tensor) -> Tensor:
        draws = torch.Generator().manual_seed(seed)
        return x + torch.randn(64, x.shape[-1], generator=draws)[: len(x)]

    def turned(x: Tensor, base: float = 10000.0, period: int = 10**6) -> Tensor:
        places = torch.arange(len(x)) % period
        rotary = RotaryEmbedding(x.shape[-1], base=base)
        return rotary(x[None, None], positions=places)[0, 0]

    return {
        "sinusoids added to both sides": added(sinusoids),
        "a learned table added to both sides": added(learned),
        "rotary on the queries alone": lambda q, k: turned(q) @ k.mT,
        "rotary of one base on the queries and another on the keys": (
            lambda q, k: turned(q) @ turned(k, base=100.0).mT
        ),
        "rotary whose positions restart at every fourth token": (
            lambda q, k: turned(q, period=4) @ turned(k, period=4).mT
        ),
    }


def _first(found: Sequence[float], wanted: Sequence[float]) -> str:
    for h, (a, b) in enumerate(zip(found, wanted, strict=True), start=1):
        if not math.isclose(a, b, rel_tol=1e-5):
            return f"slope {h} is {a:.4g}, expected {b:.4g}"
    return "none"


@check("7.6")
def frequencies(answer: Callable[[], Sequence[float]]) -> str:
    """Check ``frequencies()``: four speeds that tell many offsets apart.

    Examples
    --------
    >>> frequencies(lambda: [1.0, 0.1, 0.01, 0.001])
    Exercise 7.6: not yet. Offset 6 looks like offset 0: their similarity is 0.95, \
expected 0.9 at most up to offset 500.
    """
    found = answer()
    if found is None:
        raise NotYet("The function returns nothing yet.")
    try:
        speeds = torch.tensor([float(omega) for omega in found], dtype=torch.float64)
    except (TypeError, ValueError):
        raise NotYet("Return a list of four floats.") from None
    if len(speeds) != 4 or not bool(speeds.isfinite().all()):
        raise NotYet(f"Return four finite floats, not {speeds.tolist()}.")
    offsets = torch.arange(100_001, dtype=torch.float64)
    alike = (offsets[:, None] * speeds).cos().mean(dim=1)  # (offsets,)
    if alike[1] < 0.5:
        raise NotYet(
            f"Neighbours must look alike: their similarity is {alike[1]:.2f}, expected "
            "at least 0.5. The pairs turn too fast."
        )
    if alike[2] > 0.9:
        raise NotYet("The pairs turn too slowly: offset 2 looks like offset 0.")
    twins = (alike[2:] > 0.9).nonzero()
    reach = int(twins[0]) + 1 if len(twins) else len(offsets) - 1
    if reach < 500:
        same = "Pairs of one speed are one pair. " if len(speeds.unique()) < 4 else ""
        raise NotYet(
            f"{same}Offset {reach + 1} looks like offset 0: their similarity is "
            f"{alike[reach + 1]:.2f}, expected 0.9 at most up to offset 500."
        )
    return f"Offsets 2 to {reach} are told from 0. What stops you there?"
