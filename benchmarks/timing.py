"""Times of several calls that can be compared although the machine is busy.

Other work takes the processor away for a while and warms or cools it. CPU time does not
count the first; taking turns spreads the second over all calls alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    """One call beside the others.

    Attributes
    ----------
    seconds
        CPU time of one call, the median of the rounds.
    ratio
        To the call that serves as the measure: the median of the ratios in each round.
    rounds
        CPU time of one call in each round.
    """

    seconds: float
    ratio: float
    rounds: list[float]


def take_turns(
    calls: dict[str, Callable[[], object]],
    rounds: int,
    *,
    least: float = 0.02,
    before: Callable[[str], object] = lambda name: None,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Seconds of each call in each round.

    Parameters
    ----------
    calls
        What to measure, by name.
    rounds
        How often each is measured. Every round begins with another call, and every
        other one goes backwards, so that none always follows the same neighbour.
    least
        Seconds that a measurement should last: a shorter call is repeated within it.
        With 0, every measurement is one call.
    before
        Called with the name before each measurement, outside the time.
    clock
        Seconds used so far.
    """
    repeats = {}
    for name, call in calls.items():
        before(name)
        call()  # the first call allocates and chooses kernels
        before(name)
        start = clock()
        call()
        repeats[name] = max(1, math.ceil(least / max(clock() - start, 1e-6)))
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        order = names[first:] + names[:first]
        for name in order[:: -1 if turn % 2 else 1]:
            call, count = calls[name], repeats[name]
            before(name)
            start = clock()
            for _ in range(count):
                call()
            times[name].append((clock() - start) / count)
    return times


def compare(times: dict[str, list[float]], to: str | None = None) -> dict[str, Result]:
    """Medians, and ratios to one call: to the smallest median by default."""
    medians = {name: statistics.median(rounds) for name, rounds in times.items()}
    base = times[min(medians, key=medians.__getitem__) if to is None else to]
    results = {}
    for name, rounds in times.items():
        pairs = zip(rounds, base, strict=True)
        ratio = statistics.median(own / other for own, other in pairs)
        results[name] = Result(medians[name], ratio, rounds)
    return results
