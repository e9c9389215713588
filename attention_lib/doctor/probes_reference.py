"""Against a reference that is declared to be right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attention_lib.doctor.adapters import adapt
from attention_lib.doctor.causes import finding
from attention_lib.doctor.copies import double
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench, Skip
from attention_lib.doctor.probes_positions import called

__all__ = ["like_reference", "same_numbers"]


def like_reference(bench: Bench) -> Iterator[Finding]:
    """The same tokens must give the reference's output, in every way of asking."""
    if bench.facts.reference is None:
        raise Skip("no reference is declared", True)
    other = adapt(bench.facts.reference, replace(bench.facts, reference=None))
    double(other.thing, bench.dtype)
    theirs = replace(bench, subject=other)
    x = bench.tokens()
    for name, how in bench.ways():
        y, z = bench.out(x, **how), theirs.out(x, **how)
        if y.shape != z.shape:
            gap = float("inf")
        else:
            gap = bench.close(y, z)
        if gap > max(bench.noise, 1e-7):
            yield finding(
                "AT330",
                "like_reference",
                "the output is not the reference's",
                f"Outputs differ by {gap:.2g} (relative), {name}.",
                measured=gap,
                expected=0.0,
                why="the parameters differ, or scale, positions or the order of heads",
                kind="reference",
            )
            return


def same_numbers(bench: Bench) -> Iterator[Finding]:
    """The same input must give the reference's numbers."""
    reference = bench.facts.reference
    if reference is None:
        raise Skip("no reference is declared", True)
    drawn = torch.randn(2, 3, 7, bench.E, generator=bench.generator(1))
    drawn = drawn.to(bench.dtype)
    given: tuple[Tensor, ...] = (drawn,)
    if bench.notes.get("core"):
        given = (drawn, drawn.flip(-2), drawn.flip(-1))
    elif bench.facts.embed_dim is not None and bench.notes.get("encoding"):
        given = (drawn[:, 0],)
    y = called(bench, *given)
    with torch.no_grad():
        z = reference(*given)
    gap = bench.close(y, z) if y.shape == z.shape else float("inf")
    if gap > 1e-5:
        yield finding(
            "AT330",
            "same_numbers",
            "the output is not the reference's",
            f"Outputs differ by {gap:.2g} (relative).",
            measured=gap,
            expected=0.0,
            why="pairs, frequencies, scale or order differ",
            kind="reference",
        )
