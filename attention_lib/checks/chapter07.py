"""Checks for the exercises of chapter 7, positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attention_lib.checks._report import NotYet, check, demand_tensor, draws, explain
from attention_lib.positions import (
    RelativePositionBias,
    RotaryEmbedding,
    SinusoidalEncoding,
    alibi_bias,
    alibi_slopes,
)

__all__ = ["bucket_of", "offset_only", "sinusoidal", "slopes", "turn_pairs"]

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


@check("7.3", forbids=("alibi",))
def slopes(answer: Callable[[int], Sequence[float]]) -> str:
    """Check ``slopes(H)``: ALiBi's slopes for any number of heads.

    Examples
    --------
    >>> slopes(lambda H: [2 ** (-8 * h / H) for h in range(1, H + 1)])
    Exercise 7.3: not yet. For H = 6 the formula of a power of two is used, but 6 is none: start with the slopes of 4 heads.
    """
    for H in (8, 2, 6, 12, 1):
        found = answer(H)
        if found is None:
            raise NotYet("The function returns nothing yet.")
        try:
            values = [float(slope) for slope in found]
        except (TypeError, ValueError):
            raise NotYet("Return a list of floats.") from None
        if len(values) != H:
            raise NotYet(f"For H = {H} there are {len(values)} slopes, expected {H}.")
        wanted = alibi_slopes(H).tolist()
        below = 2 ** int(math.log2(H))
        above = [2 ** (-4 * h / below) for h in range(1, 2 * below + 1)]
        straight = [2 ** (-8 * h / H) for h in range(1, H + 1)]
        if _close(values, wanted):
            continue
        if _close(values, straight):
            raise NotYet(
                f"For H = {H} the formula of a power of two is used, but {H} is none: "
                f"start with the slopes of {below} heads."
            )
        if _close(values, [2 ** (-8 * h / H) for h in range(H)]):
            raise NotYet(f"For H = {H} the slopes begin at 1: h runs from 1 to H.")
        if _close(values, wanted[:below] + above[: H - below]):
            raise NotYet(
                f"For H = {H} the added slopes follow each other: take every other "
                "one of the power above."
            )
        if _close(values, wanted[:below] + above[1::2][: H - below]):
            raise NotYet(
                f"For H = {H} the added slopes start with the second of the power "
                "above, which is in the list already: start with the first."
            )
        raise NotYet(
            f"For H = {H} the first slope that differs: {_first(values, wanted)}."
        )
    return "Powers of two, and what lies between them."


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
                verdict = answer(scores)
                if verdict is None:
                    raise NotYet("The function returns nothing yet.")
                if not isinstance(verdict, bool):
                    kind = type(verdict).__name__
                    raise NotYet(f"Return True or False, not {kind}.")
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


def _close(found: Sequence[float], wanted: Sequence[float]) -> bool:
    return len(found) == len(wanted) and all(
        math.isclose(a, b, rel_tol=1e-5) for a, b in zip(found, wanted, strict=True)
    )


def _first(found: Sequence[float], wanted: Sequence[float]) -> str:
    for h, (a, b) in enumerate(zip(found, wanted, strict=True), start=1):
        if not math.isclose(a, b, rel_tol=1e-5):
            return f"slope {h} is {a:.4g}, expected {b:.4g}"
    return "none"
