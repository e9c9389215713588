"""Encodings that are added to tokens: axis, offset, formula, tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.doctor.causes import finding
from attention_lib.doctor.copies import double, private_copy
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probes_layout import foreign_tensors
from attention_lib.doctor.probes_positions import called, takes_offset
from attention_lib.doctor.probing import Bench, Skip, SubjectError

__all__ = [
    "codes_of",
    "encoding_added",
    "encoding_formula",
    "encoding_offset",
    "encoding_sizes",
    "encoding_tables",
]


def codes_of(bench: Bench, L: int, B: int = 1, **how: Any) -> Tensor:
    """What is added to tokens of zero: (B, L, E)."""
    x = torch.zeros(B, L, bench.E, dtype=bench.dtype)
    out = called(bench, x, **how)
    if out.shape != x.shape:
        raise SubjectError(
            f"returned shape {tuple(out.shape)} for {tuple(x.shape)}", "zeros"
        )
    return out


def encoding_added(bench: Bench) -> Iterator[Finding]:
    """Positions are added: the same along every item, different along the tokens.

    Also for batches as large as a table, where a layout that is guessed from sizes goes
    wrong.
    """
    L = bench.L
    codes = codes_of(bench, L, bench.B)
    if not torch.isfinite(codes).all():
        yield finding(
            "AT220",
            "encoding_added",
            "positions are not finite",
            f"{int((~torch.isfinite(codes)).sum())} numbers are not finite.",
            kind="formula",
            why="a logarithm or a division by zero",
        )
        return
    sizes = {bench.B, L, bench.E}
    for module in bench.modules:
        for t in (*module.parameters(), *module.buffers()):
            sizes |= {n for n in t.shape if n <= 4096}
    for _, _, t in _strays(bench):
        sizes |= {n for n in t.shape if n <= 4096}
    for B in sorted(sizes):
        codes = codes_of(bench, min(L, 4), B)
        across = float((codes - codes[:1]).abs().max())
        along = float((codes - codes[:, :1]).abs().max())
        if across > 0:
            guessed = B != bench.B and along == 0
            yield finding(
                "AT220",
                "encoding_added",
                "items of a batch get different positions",
                f"With {B} items, codes of one place differ by {across:.2g} between "
                f"items, and by {along:.2g} along the tokens.",
                measured=across,
                expected=0.0,
                why="the layout is guessed from the sizes: a batch as large as a table "
                "is taken for the length"
                if guessed
                else "positions run along the batch axis",
                kind="axis order",
                sure="shown",
                remedy=("- x + table[: x.shape[0]]", "+ x + table[: x.shape[1]]"),
                effect="tokens of one item cannot be told apart",
                smallest=f"batch {B}, length 2",
            )
            return
        if along == 0:
            zero = not codes.any()
            yield finding(
                "AT100" if zero else "AT220",
                "encoding_added",
                "tokens get no positions"
                if zero
                else "all tokens get the same position",
                "Codes of different tokens do not differ at all.",
                severity="note" if zero else "fault",
                measured=0.0,
                why="the table is zero, or the place is not used",
                kind="axis order",
            )
            return
    codes = codes_of(bench, L)[0]
    short = codes_of(bench, L - 2)[0]
    gap = float((codes[: L - 2] - short).abs().max())
    if gap > 1e-6:
        yield finding(
            "AT220",
            "encoding_added",
            "the code of a place depends on the length",
            f"Codes of the first {L - 2} places differ by {gap:.2g} when 2 tokens "
            "follow.",
            measured=gap,
            expected=0.0,
            why="positions are divided by the length, or counted from the end",
            kind="length",
            sure="shown",
            effect="decoding and longer texts see other positions than training",
        )
        return
    near = (codes[:, None] - codes[None]).abs().amax(-1) <= 1e-9
    near.fill_diagonal_(False)
    if near.any():
        a, b = (int(n) for n in near.nonzero()[0])
        yield finding(
            "AT220",
            "encoding_added",
            "two places get the same code",
            f"Codes of positions {a} and {b} do not differ.",
            measured=0.0,
            why="the count stops or starts again: positions are clamped or wrap around",
            kind="formula",
            sure="shown",
            effect="tokens at these places cannot be told apart",
        )
        return
    x = bench.tokens()
    added = called(bench, x) - x
    gap = float((added - codes_of(bench, L, bench.B)).abs().max())
    scaled = called(bench, 2 * x) - called(bench, x) - x
    if gap > 1e-5 and float(scaled.abs().max()) < 1e-5:
        yield finding(
            "AT220",
            "encoding_added",
            "what is added depends on the tokens",
            f"f(x) - x differs by {gap:.2g} between tokens.",
            severity="note",
            measured=gap,
            expected=0.0,
            why="tokens are scaled as well",
            kind="formula",
        )


def encoding_offset(bench: Bench) -> Iterator[Finding]:
    """An offset continues the count: tokens 3.. with offset 3 are the whole's."""
    if not takes_offset(bench):
        raise Skip("it takes no offset")
    whole = codes_of(bench, bench.L)
    late = codes_of(bench, bench.L - 3, offset=3)
    gap = float((late - whole[:, 3:]).abs().max())
    if gap > 1e-6:
        yield finding(
            "AT602",
            "encoding_offset",
            "an offset does not continue the count",
            f"Codes from position 3 differ by {gap:.2g} from those of the whole.",
            measured=gap,
            expected=0.0,
            why="the offset is ignored, or counts otherwise",
            kind="incremental decoding",
            sure="shown",
            effect="in decoding every token has the first positions",
        )


def encoding_formula(bench: Bench) -> Iterator[Finding]:
    """A sinusoid's scalar products depend on the distance alone.

    A table is taken for a sinusoid where it does not train, lies within 1 and starts
    with sines and cosines of 0. A table that trains is compared with the usual size.
    """
    L = min(12, bench.notes.get("table", 12))
    codes = codes_of(bench, L)[0].double()
    trained = [p for m in bench.modules for p in m.parameters()]
    if trained:
        size = float(codes.std())
        if size > 0.4:
            yield finding(
                "AT222",
                "encoding_formula",
                "learned positions start far larger than tokens usually are",
                f"Their standard deviation is {size:.2g}; tokens start at 0.02.",
                severity="note",
                measured=size,
                expected=0.02,
                why="torch.randn without a factor",
                kind="initialisation",
                remedy=("+ nn.init.normal_(table, std=0.02)",),
                effect="the place drowns the word",
            )
        return
    first = codes[0]
    is_wave = bool(
        ((first.abs() < 1e-9) | ((first - 1).abs() < 1e-6)).all()
        and codes.abs().max() <= 1 + 1e-6
    )
    if not is_wave:
        raise Skip("the table is no sinusoid, so no formula is known", True)
    gram = codes @ codes.T
    worst = max(
        float((gram.diagonal(d) - gram.diagonal(d)[0]).abs().max()) for d in range(L)
    )
    rest = codes.shape[1] % 2  # the last column of an odd width has no partner
    limit = 1e-4 + rest
    if worst > limit:
        yield finding(
            "AT220",
            "encoding_formula",
            "sines and cosines do not belong together",
            f"Scalar products of positions at one distance differ by {worst:.2g}.",
            measured=worst,
            expected=0.0,
            why="sine and cosine of one pair have different frequencies",
            kind="formula",
            sure="shown",
            remedy=("+ angle = position / 10000 ** (2 * i / width)",),
            effect="distances cannot be read from positions",
        )


def encoding_sizes(bench: Bench) -> Iterator[Finding]:
    """Odd widths, and lengths past the table: they work or are refused clearly."""
    if bench.notes.get("factory") is not None:
        yield from _odd_width(bench)
    longest, L = 0, 1
    error: SubjectError | None = None
    while L <= 16384:
        try:
            codes_of(bench, L)
            longest = L
        except SubjectError as raised:
            error = raised
            break
        L *= 2
    bench.notes["table"] = longest
    if error is None or not longest:
        return
    low, high = longest, L
    while high - low > 1:
        middle = (low + high) // 2
        try:
            codes_of(bench, middle)
            low = middle
        except SubjectError as raised:
            error, high = raised, middle
    if not error.clear:
        yield finding(
            "AT520",
            "encoding_sizes",
            f"length {high} is refused by an error that does not say so",
            f"Length {low} works; length {high} raises {error.what}",
            severity="note",
            measured=float(low),
            why="the table ends there",
            kind="length",
            sure="shown",
            remedy=("+ if L > self.max_len: raise ValueError(...)",),
        )


def _odd_width(bench: Bench) -> Iterator[Finding]:
    make = bench.notes["factory"]
    for width in (8, 7):
        try:
            made = make(width)
            with torch.no_grad():
                out = made(torch.zeros(1, 4, width, dtype=torch.float64))
            if tuple(out.shape) == (1, 4, width):
                continue
            what = f"gives shape {tuple(out.shape)}"
        except Exception as error:  # noqa: BLE001 - a subject may raise anything
            text = " ".join(str(error).split())[:150]
            if isinstance(error, ValueError) and "odd" in text + " even":
                continue
            what = f"raises {type(error).__name__}: {text}"
        yield finding(
            "AT220",
            "encoding_sizes",
            f"width {width} breaks it",
            f"Made with width {width} it {what}",
            why="an odd width has one cosine less than sines",
            kind="odd size",
            sure="shown",
            remedy=("- cos(angles)", "+ cos(angles)[:, : width // 2]"),
        )
        return


def _strays(bench: Bench) -> list[tuple[Any, str, Tensor]]:
    from attention_lib.doctor.copies import stray_tensors

    return stray_tensors(bench.subject.thing)


def encoding_tables(bench: Bench) -> Iterator[Finding]:
    """Tables follow the module: half in, half out, and nothing held on the side."""
    if not isinstance(bench.subject.thing, nn.Module):
        raise Skip("not a module")
    x = torch.zeros(1, 3, bench.E, dtype=bench.dtype)
    found = foreign_tensors(bench, lambda: bench.subject.thing(x), [x])
    wrong = ""
    if found:
        wrong = f"{len(found)} tensors are neither parameters nor buffers"
    else:
        copy = private_copy(bench.subject.thing)
        double(copy, torch.float16)
        try:
            out = copy(x.half())
        except Exception as error:
            raise SubjectError(f"{type(error).__name__}: {error}", "half") from error
        if isinstance(out, Tensor) and out.dtype != torch.float16:
            wrong = f"a module in float16 gives {str(out.dtype)[6:]}"
    if wrong:
        yield finding(
            "AT510",
            "encoding_tables",
            "the table does not follow the module's device and dtype",
            wrong + ".",
            severity="fault" if found else "note",
            why="the table is a plain attribute",
            kind="dtype/device",
            sure="shown",
            remedy=(
                "- self.table = table",
                '+ self.register_buffer("table", table, persistent=False)',
            ),
            effect="an error, or another dtype, once the module is moved",
        )
