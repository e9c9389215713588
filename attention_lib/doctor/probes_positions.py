"""Encodings that are added, rotations, and biases of the scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.doctor.causes import finding
from attention_lib.doctor.copies import double, private_copy
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probes_layout import foreign_tensors
from attention_lib.doctor.probing import Bench, Skip, SubjectError

__all__ = [
    "bias_distance",
    "bias_past",
    "encoding_added",
    "encoding_formula",
    "encoding_offset",
    "encoding_sizes",
    "encoding_tables",
    "rotary_far",
    "rotary_layout",
    "rotary_offset",
    "rotary_relative",
]


def called(bench: Bench, *args: Any, **kwargs: Any) -> Tensor:
    """What the subject returns, which must be a tensor of floats."""
    bench.calls += 1
    torch.manual_seed(bench.seed)
    shapes = ", ".join(
        str(tuple(a.shape)) if isinstance(a, Tensor) else str(a) for a in args
    )
    said = shapes + "".join(f", {k}={v}" for k, v in kwargs.items())
    try:
        with torch.no_grad():
            out = bench.subject.thing(*args, **kwargs)
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise SubjectError(f"{type(error).__name__}: {text}", said, error) from error
    if isinstance(out, (tuple, list)) and out and isinstance(out[0], Tensor):
        out = out[0]
    if not isinstance(out, Tensor) or not out.is_floating_point():
        raise SubjectError(f"returned {type(out).__name__}, not floats", said)
    return out.detach()


def takes_offset(bench: Bench) -> bool:
    return "offset" in bench.subject.takes


# Encodings ----------------------------------------------------------------------------


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
        except Exception as error:
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


# Rotary -------------------------------------------------------------------------------


def turned(bench: Bench, t: Tensor, **how: Any) -> Tensor:
    out = called(bench, t, **how)
    if out.shape != t.shape:
        raise SubjectError(
            f"returned shape {tuple(out.shape)} for {tuple(t.shape)}", "rotation"
        )
    return out


def _scores(bench: Bench, L: int, **how: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of one query and one key at all places, (B, H, L, L), and both turned."""
    H, d, B = 3, bench.E, 2
    q = torch.randn(1, 1, 1, d, generator=bench.generator(2), dtype=torch.float64)
    k = torch.randn(1, 1, 1, d, generator=bench.generator(4), dtype=torch.float64)
    q, k = (t.to(bench.dtype).expand(B, H, L, d).contiguous() for t in (q, k))
    a, b = turned(bench, q, **how), turned(bench, k, **how)
    return (a @ b.transpose(-1, -2)).double(), a.double(), q.double()


def _spread(scores: Tensor) -> float:
    """How much scores at one distance differ."""
    L = scores.shape[-1]
    return max(
        float((diagonal - diagonal[..., :1]).abs().max())
        for d in range(-(L - 2), L - 1)
        for diagonal in [scores.diagonal(d, -2, -1)]
    )


def rotary_layout(bench: Bench) -> Iterator[Finding]:
    """The angle follows the token: not the head, not the batch."""
    scores, a, q = _scores(bench, bench.L)
    across_heads = float((a - a[:, :1]).abs().max())
    across_items = float((a - a[:1]).abs().max())
    along = float((a - a[:, :, :1]).abs().max())
    bench.notes["axis"] = False
    if max(across_heads, across_items) > 1e-6 or along < 1e-6:
        bench.notes["axis"] = True
        axis = (
            "heads"
            if across_heads > 1e-6
            else "items"
            if across_items > 1e-6
            else "nothing"
        )
        yield finding(
            "AT211",
            "rotary_layout",
            f"the angle follows the {axis}, not the token"
            if axis != "nothing"
            else "nothing turns with the token's place",
            f"One vector everywhere: turned, it differs by {across_heads:.2g} between "
            f"heads, {across_items:.2g} between items, {along:.2g} along the tokens.",
            measured=along,
            why="the layout is (B, L, H, D) where (B, H, L, D) is given"
            if axis == "heads"
            else "the position is read from another axis",
            kind="axis order",
            sure="shown",
            remedy=("- rotary(q.view(B, L, H, D))", "+ rotary(q)  # (B, H, L, D)"),
            effect="scores know no distances",
        )
        return
    norms = float((a.norm(dim=-1) / q.norm(dim=-1) - 1).abs().max())
    if norms > 1e-3:
        yield finding(
            "AT211",
            "rotary_layout",
            "turning changes the length of vectors",
            f"Lengths change by up to {norms:.2%}. A rotation changes none.",
            measured=norms,
            expected=0.0,
            why="sine and cosine of a pair are not those of one angle: halves and "
            "neighbours are mixed up",
            kind="rotary layout",
            remedy=("use the same pairs in the tables and in the rotation",),
        )


def rotary_relative(bench: Bench) -> Iterator[Finding]:
    """Scores of turned vectors depend on the distance alone."""
    if bench.notes.get("axis"):
        raise Skip("the angle does not follow the token")
    scores, _, _ = _scores(bench, 10)
    size = float(scores.abs().max())
    gap = _spread(scores) / size
    if gap <= 1e-5:
        return
    low = gap < 0.1
    bench.notes["rough"] = True
    yield finding(
        "AT222" if low else "AT221",
        "rotary_relative",
        "scores do not depend on the distance alone"
        if not low
        else "angles are computed in low precision",
        f"Scores at one distance differ by {gap:.2g} (relative).",
        measured=gap,
        expected=0.0,
        why="phases are rounded before sine and cosine are taken"
        if low
        else "the pairs that are turned are not those of the tables, or frequencies "
        "of a pair differ",
        kind="numeric precision" if low else "rotary layout",
        remedy=("- angles = (t * inv).bfloat16()", "+ angles = t.float() * inv.float()")
        if low
        else (),
        effect="distant tokens are confused" if low else "shifted text scores otherwise",
    )


def rotary_offset(bench: Bench) -> Iterator[Finding]:
    """An offset continues the count."""
    if not takes_offset(bench):
        raise Skip("it takes no offset")
    t = torch.randn(2, 3, bench.L, bench.E, generator=bench.generator(5)).to(bench.dtype)
    whole, late = turned(bench, t), turned(bench, t[:, :, 3:], offset=3)
    gap = float((late - whole[:, :, 3:]).abs().max())
    if gap > 1e-5:
        yield finding(
            "AT602",
            "rotary_offset",
            "an offset does not continue the count",
            f"Vectors from position 3 differ by {gap:.2g} from those of the whole.",
            measured=gap,
            expected=0.0,
            why="the offset is ignored, or counts otherwise",
            kind="incremental decoding",
            sure="shown",
            effect="in decoding every token has the first positions",
        )


def rotary_far(bench: Bench) -> Iterator[Finding]:
    """Far from the start the scores are those near it: phases keep their precision."""
    if bench.notes.get("axis") or bench.notes.get("rough"):
        raise Skip("scores near the start are wrong already")
    L = 2000
    d = bench.E
    q = torch.randn(1, 1, 1, d, generator=bench.generator(2), dtype=torch.float64)
    t = q.to(torch.float32).expand(1, 1, L, d).contiguous()
    try:
        a = turned(bench, t)[0, 0].double()
    except SubjectError as error:
        if error.clear or "index" in error.what.lower():
            raise Skip(f"{L} tokens are refused: {error.what}") from error
        yield finding(
            "AT520",
            "rotary_far",
            f"{L} tokens are refused by an error that does not say so",
            error.what,
            severity="note",
            why="the table ends before",
            kind="length",
        )
        return
    near, far = a[:8] @ a[:8].T, a[-8:] @ a[-8:].T
    gap = float((near - far).abs().max() / near.abs().max())
    if gap > 1e-2:
        yield finding(
            "AT222",
            "rotary_far",
            "angles far from the start lose precision",
            f"Scores near position {L} differ by {gap:.2g} (relative) from those at "
            "the start.",
            measured=gap,
            expected=0.0,
            why="positions or phases are held in half precision",
            kind="numeric precision",
            remedy=("+ angles = t.float() * inv.float()",),
            effect="distant tokens are confused",
        )


# Biases -------------------------------------------------------------------------------


def bias_of(bench: Bench, L: int, S: int) -> Tensor:
    """The bias of each head, (H, L, S)."""
    aligned = {"offset": S - L} if takes_offset(bench) else {}
    bias = called(bench, L, S, **aligned)
    if bias.dim() == 4 and bias.shape[0] == 1:
        bias = bias[0]
    if bias.dim() != 3 or tuple(bias.shape[1:]) != (L, S):
        raise SubjectError(
            f"returned shape {tuple(bias.shape)}, not (H, {L}, {S})", f"{L}, {S}"
        )
    return bias.double()


def bias_distance(bench: Bench) -> Iterator[Finding]:
    """The bias depends on the distance alone; the last query stands at the last key."""
    whole = bias_of(bench, 9, 9)
    finite = torch.where(whole.isfinite(), whole, -1e9)
    gap = _spread(finite)
    if gap > 1e-6:
        yield finding(
            "AT230",
            "bias_distance",
            "the bias does not depend on the distance alone",
            f"Biases at one distance differ by {gap:.2g}.",
            measured=gap,
            expected=0.0,
            why="positions are used in place of their difference",
            kind="relative bias",
        )
        return
    for L in (1, 4):
        late = bias_of(bench, L, 9)
        late = torch.where(late.isfinite(), late, -1e9)
        gap = float((late - finite[:, 9 - L :]).abs().max())
        if gap > 1e-6:
            yield finding(
                "AT230",
                "bias_distance",
                "with fewer queries the bias is not aligned with the last key",
                f"Biases of the last {L} of 9 queries differ by {gap:.2g} from the "
                "whole.",
                measured=gap,
                expected=0.0,
                why="the first query is put at the first key",
                kind="relative bias",
                remedy=("- i = arange(L)", "+ i = arange(L) + S - L"),
                effect="decoding with a cache sees other distances",
            )
            return


def bias_past(bench: Bench) -> Iterator[Finding]:
    """Distances into the past must be told apart, and must not be rewarded."""
    whole = bias_of(bench, 9, 9)
    if float(whole.abs().nan_to_num(0.0, 0.0, 0.0).max()) == 0:
        yield finding(
            "AT100",
            "bias_past",
            "the bias is zero everywhere",
            "No distance is told from another.",
            severity="note",
            measured=0.0,
            why="a learned table that starts at zero",
            kind="vacuous",
        )
        return
    row = whole[:, -1].flip(-1)  # distance 0, 1, ... into the past
    ahead = whole[:, 0]  # distance 0, 1, ... into the future
    past_same = bool((row[:, 1:4] - row[:, :1]).abs().max() < 1e-9)
    ahead_differs = bool((ahead[:, 1:4] - ahead[:, :1]).abs().max() > 1e-9)
    if past_same:
        yield finding(
            "AT230",
            "bias_past",
            "distances into the past are not told apart",
            "The biases of the last 4 keys are equal; "
            + (
                "those of the future differ."
                if ahead_differs
                else "so are those of the future."
            ),
            measured=0.0,
            why="the sign of the distance is flipped: the past falls into one bucket"
            if ahead_differs
            else "the distance is not used",
            kind="relative bias",
            sure="shown",
            remedy=("- distance = j - i", "+ distance = i - j"),
            effect="a causal layer knows no distances",
        )
        return
    steps = row.diff(dim=-1)
    linear = (steps - steps[:, :1]).abs().amax(-1) < 1e-6 * row.abs().amax(-1) + 1e-12
    rising = linear & (steps[:, 0] > 1e-9)
    if bool(rising.any()) and row.shape[0] > 0:
        head = int(rising.nonzero()[0])
        yield finding(
            "AT230",
            "bias_past",
            "distant keys are rewarded",
            f"Head {head} adds {float(steps[head, 0]):.2g} for each step into the "
            "past.",
            measured=float(steps[head, 0]),
            why="the sign of a linear penalty is flipped",
            kind="relative bias",
            remedy=("- bias = slope * distance", "+ bias = -slope * distance"),
        )
        return
    if bool(linear.all()) and row.shape[0] > 1:
        slopes = -steps[:, 0]
        if len({round(float(s), 9) for s in slopes}) < len(slopes):
            yield finding(
                "AT230",
                "bias_past",
                "heads share a slope",
                f"{len(slopes)} heads have slopes "
                f"{[round(float(s), 4) for s in slopes]}.",
                why="the slopes do not differ by head",
                kind="formula",
            )


