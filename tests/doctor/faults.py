"""Attention with one planted fault each, and its correct twin: data for the tests.

A fault says its class of cause, the code that the doctor must give and what is declared
of both twins. Most replace one step of :class:`Plain`, a multi-head attention made of
small steps; those in ``OTHER_STYLES`` and ``FURTHER`` are written in other ways.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

E, H = 8, 2


@dataclass(frozen=True)
class Fault:
    """A planted fault."""

    id: str
    cause: str  # class of root cause
    code: str
    bad: Callable[[], Any]
    good: Callable[[], Any]
    kind: str = "attention"
    declared: dict[str, Any] = field(default_factory=dict)

    def examined(self) -> dict[str, Any]:
        """What is declared of both twins."""
        if self.kind != "attention":
            return self.declared
        full = {
            "embed_dim": E,
            "num_heads": H,
            "causal": "flag",
            "masks": "any",
            "context": True,
            "weights": "heads",
        }
        return {**full, **self.declared}


FAULTS: list[Fault] = []
OTHER_STYLES: list[Fault] = []
FURTHER: list[Fault] = []


def plant(
    id: str,
    cause: str,
    code: str,
    bad: Any,
    good: Any,
    kind: str = "attention",
    into: list[Fault] | None = None,
    **declared: Any,
) -> None:
    into = FAULTS if into is None else into
    into.append(Fault(id, cause, code, made(bad), made(good), kind, declared))


def made(make: Any) -> Callable[[], Any]:
    """The same parameters for both twins, so that they differ by the fault alone."""

    def build() -> Any:
        torch.manual_seed(0)
        thing = make()
        return thing.double().eval() if isinstance(thing, nn.Module) else thing

    return build


class Plain(nn.Module):
    """A correct multi-head attention in small steps."""

    def __init__(self, dim: int = E, heads: int = H, p: float = 0.0) -> None:
        super().__init__()
        self.dim, self.heads, self.width, self.p = dim, heads, dim // heads, p
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim) for _ in range(4))

    def split(self, t):
        return t.reshape(*t.shape[:2], self.heads, self.width).transpose(1, 2)

    def merge(self, t):
        return t.transpose(1, 2).reshape(t.shape[0], t.shape[2], -1)

    def project(self, x, context):
        return (
            self.split(self.wq(x)),
            self.split(self.wk(context)),
            self.split(self.wv(context)),
        )

    def scores(self, q, k):
        return q @ k.transpose(-1, -2) * self.width**-0.5

    def triangle(self, L, S):
        return torch.ones(L, S, dtype=torch.bool).tril(S - L)

    def per_head(self, mask):
        return mask[:, None] if mask.dim() == 3 else mask

    def keep(self, mask, causal, L, S):
        keep = None if mask is None else self.per_head(mask)
        if causal:
            rule = self.triangle(L, S)
            keep = rule if keep is None else keep & rule
        return keep

    def normalise(self, z, keep):
        if keep is None:
            return z.softmax(-1)
        low = torch.finfo(z.dtype).min
        return z.masked_fill(~keep, low).softmax(-1).masked_fill(~keep, 0.0)

    def forward(self, x, *, context=None, mask=None, causal=False, need_weights=False):
        q, k, v = self.project(x, x if context is None else context)
        keep = self.keep(mask, causal, q.shape[2], k.shape[2])
        w = self.normalise(self.scores(q, k), keep)
        out = self.wo(self.merge(F.dropout(w, self.p, self.training) @ v))
        return (out, w) if need_weights else out


def fill(value: float, after: Any = None) -> type:
    """A Plain that fills hidden scores with a number."""

    class Filled(Plain):
        def normalise(self, z, keep):
            hidden = z if keep is None else z.masked_fill(~keep, value)
            return hidden.softmax(-1)

    return Filled


# Masks --------------------------------------------------------------------------------


class MaskInverted(Plain):
    def per_head(self, mask):
        return ~super().per_head(mask)


class MaskLate(Plain):
    def normalise(self, z, keep):
        return z.softmax(-1) if keep is None else z.softmax(-1) * keep


class MaskQueryAxis(Plain):
    def per_head(self, mask):
        return super().per_head(mask).transpose(-1, -2)


class MaskHeadBroadcast(Plain):
    def per_head(self, mask):
        return mask


class InplaceBackward(Plain):
    def normalise(self, z, keep):
        w = z.softmax(-1)
        if keep is not None:
            w *= keep
        return w / w.sum(-1, keepdim=True)


plant("mask-meaning-inverted", "mask semantics", "AT111", MaskInverted, Plain)
plant("mask-fill-too-small", "mask value", "AT112", fill(-1e-9), Plain)
plant("mask-after-softmax", "mask position", "AT201", MaskLate, Plain)
plant("mask-fill-overflows-half", "numeric range", "AT502", fill(-1e20), Plain)
plant("full-row-uniform", "fully masked row", "AT501", fill(-1e9), Plain)
plant("full-row-nan", "fully masked row", "AT501", fill(-math.inf), Plain)
plant("mask-plus-inf", "mask value", "AT112", fill(math.inf), Plain)
plant("mask-on-query-axis", "mask axis", "AT112", MaskQueryAxis, Plain)
plant("mask-head-broadcast", "mask broadcasting", "AT113", MaskHeadBroadcast, Plain)
plant("inplace-breaks-backward", "autograd", "AT702", InplaceBackward, Plain)


# Causality ----------------------------------------------------------------------------


class CausalOrMask(Plain):
    def keep(self, mask, causal, L, S):
        return super().keep(mask, causal and mask is None, L, S)


class CausalNext(Plain):
    def triangle(self, L, S):
        return torch.ones(L, S, dtype=torch.bool).tril(S - L + 1)


class CausalTopLeft(Plain):
    def triangle(self, L, S):
        return torch.ones(L, S, dtype=torch.bool).tril()


class CausalTable(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(4, 4, dtype=torch.bool).tril())

    def triangle(self, L, S):
        return self.table[:L, :S]


class Windowed(Plain):
    window = 3

    def triangle(self, L, S):
        past = super().triangle(L, S)
        return past & ~torch.ones_like(past).tril(S - L - self.window)


class WindowedLate(Windowed):
    window = 4


plant("causal-lost-with-mask", "causality", "AT101", CausalOrMask, Plain)
plant("causal-sees-next", "causality", "AT101", CausalNext, Plain)
plant("causal-top-left", "causality", "AT601", CausalTopLeft, Plain)
plant("causal-table-too-short", "length", "AT520", CausalTable, Plain)
plant(
    "window-off-by-one",
    "window",
    "AT101",
    WindowedLate,
    Windowed,
    pattern="window:3",
)


# Softmax, scale, dropout --------------------------------------------------------------


def over(axis: int) -> type:
    """A Plain whose softmax runs over another axis."""

    class Over(Plain):
        def normalise(self, z, keep):
            return (z if keep is None else z.masked_fill(~keep, -1e9)).softmax(axis)

    return Over


def scaled(factor: Callable[[Plain], float]) -> type:
    """A Plain with another scale."""

    class Scaled(Plain):
        def scores(self, q, k):
            return q @ k.transpose(-1, -2) * factor(self)

    return Scaled


class DropoutEval(Plain):
    def __init__(self) -> None:
        super().__init__(p=0.5)

    def forward(self, x, *, context=None, mask=None, causal=False, need_weights=False):
        q, k, v = self.project(x, x if context is None else context)
        keep = self.keep(mask, causal, q.shape[2], k.shape[2])
        out = F.scaled_dot_product_attention(q, k, v, keep, dropout_p=self.p)
        return self.wo(self.merge(out))


plant("softmax-over-queries", "softmax axis", "AT201", over(-2), Plain)
plant("softmax-over-heads", "softmax axis", "AT201", over(1), Plain)
plant("scale-by-model-dim", "scale", "AT203", scaled(lambda m: m.dim**-0.5), Plain)
plant("scale-missing", "scale", "AT203", scaled(lambda m: 1.0), Plain)
plant("dropout-at-eval", "train/eval", "AT401", DropoutEval, lambda: Plain(p=0.5))


# Heads --------------------------------------------------------------------------------


class SplitView(Plain):
    def split(self, t):
        return t.reshape(t.shape[0], self.heads, t.shape[1], self.width)

    def merge(self, t):
        return t.reshape(t.shape[0], t.shape[2], -1)


class ProjectionUnused(nn.Module):
    """Projections of one head's width that are made and never called."""

    def __init__(self) -> None:
        super().__init__()
        self.values, self.keys, self.queries = (
            nn.Linear(E // H, E // H, bias=False) for _ in range(3)
        )
        self.fc_out = nn.Linear(E, E)

    def forward(self, x, *, context=None, mask=None, causal=False, need_weights=False):
        c = x if context is None else context
        q = x.reshape(len(x), -1, H, E // H)
        k = v = c.reshape(len(c), -1, H, E // H)
        z = torch.einsum("nqhd,nkhd->nhqk", q, k)
        if causal:
            rule = torch.ones(z.shape[-2:], dtype=torch.bool)
            z = z.masked_fill(~rule.tril(z.shape[-1] - z.shape[-2]), -1e20)
        if mask is not None:
            z = z.masked_fill(~(mask[:, None] if mask.dim() == 3 else mask), -1e20)
        w = torch.softmax(z / E**0.5, -1)
        out = torch.einsum("nhql,nlhd->nqhd", w, v).reshape(x.shape)
        return (self.fc_out(out), w) if need_weights else self.fc_out(out)


class SharedProjection(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (
            nn.Linear(self.width, self.width) for _ in range(3)
        )

    def project(self, x, context):
        return (
            self.wq(self.split(x)),
            self.wk(self.split(context)),
            self.wv(self.split(context)),
        )


class AttendHeads(Plain):
    def forward(self, x, *, context=None, mask=None, causal=False, need_weights=False):
        q, k, v = (
            w(x).reshape(*x.shape[:2], self.heads, self.width)
            for w in (self.wq, self.wk, self.wv)
        )
        return self.wo(F.scaled_dot_product_attention(q, k, v).flatten(2))


class HeadsInList(nn.Module):
    box: Any = list

    def __init__(self) -> None:
        super().__init__()
        self.heads = self.box([Plain(E, 1) for _ in range(H)])
        self.out = nn.Linear(E * H, E)

    def forward(self, x, **how):
        parts = [head.to(x.dtype)(x, **how) for head in self.heads]
        parts = [part[0] if isinstance(part, tuple) else part for part in parts]
        return self.out(torch.cat(parts, -1))


class HeadsInModuleList(HeadsInList):
    box = nn.ModuleList


class ContextAsQuery(Plain):
    def project(self, x, context):
        return super().project(context, x)


class BatchAxis(nn.Module):
    batch_first = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(E, H, batch_first=self.batch_first)

    def forward(self, x, *, context=None, need_weights=False):
        c = x if context is None else context
        out, w = self.inner(x, c, c, average_attn_weights=False)
        return (out, w) if need_weights else out


class BatchAxisRight(BatchAxis):
    batch_first = True


class NeedsContiguous(Plain):
    def forward(self, x, **how):
        return super().forward(x.view(-1, self.dim).view_as(x), **how)


class WeightsAveraged(Plain):
    def forward(self, x, *, need_weights=False, **how):
        out, w = super().forward(x, need_weights=True, **how)
        return (out, w.mean(1)) if need_weights else out


ALONE = {"causal": "never", "masks": "none"}
plant("heads-split-by-view", "head layout", "AT311", SplitView, Plain)
plant("heads-projection-unused", "dead parameter", "AT310", ProjectionUnused, Plain)
plant("heads-share-projection", "head layout", "AT313", SharedProjection, Plain)
plant(
    "heads-in-place-of-tokens",
    "head layout",
    "AT311",
    AttendHeads,
    Plain,
    **ALONE,
    context=False,
)
plant(
    "heads-in-python-list",
    "registration",
    "AT320",
    HeadsInList,
    HeadsInModuleList,
    weights=None,
)
plant("context-as-query", "cross-attention", "AT130", ContextAsQuery, Plain)
plant("batch-axis-attended", "axis order", "AT301", BatchAxis, BatchAxisRight, **ALONE)
plant("needs-contiguous", "layout in memory", "AT302", NeedsContiguous, Plain)
plant("weights-are-averaged", "reported weights", "AT314", WeightsAveraged, Plain)


# Encodings, rotations, biases ---------------------------------------------------------


class Sinusoid(nn.Module):
    def __init__(self, dim: int = E, max_len: int = 32) -> None:
        super().__init__()
        self.register_buffer("table", self.codes(dim, max_len))

    def codes(self, dim, max_len):
        place = torch.arange(max_len).double()[:, None]
        speed = torch.exp(torch.arange(0, dim, 2).double() * (-math.log(1e4) / dim))
        table = torch.zeros(max_len, dim, dtype=torch.float64)
        table[:, 0::2] = torch.sin(place * speed)
        table[:, 1::2] = torch.cos(place * speed[: dim // 2])
        return table

    def forward(self, x, offset=0):
        n = x.shape[1] + offset
        if n > len(self.table):
            raise ValueError(f"length {n} is more than max_len {len(self.table)}")
        return x + self.table[offset:n].to(x.dtype)


class EvenOnly(Sinusoid):
    def codes(self, dim, max_len):
        place = torch.arange(max_len).double()[:, None]
        speed = torch.exp(torch.arange(0, dim, 2).double() * (-math.log(1e4) / dim))
        table = torch.zeros(max_len, dim, dtype=torch.float64)
        table[:, 0::2] = torch.sin(place * speed)
        table[:, 1::2] = torch.cos(place * speed)
        return table


class GuessedLayout(Sinusoid):
    def forward(self, x, offset=0):
        if len(x) == len(self.table):
            return x + self.table[:, None].to(x.dtype)
        return super().forward(x, offset)


class OverBatch(Sinusoid):
    def forward(self, x, offset=0):
        return x + self.table[: len(x), None].to(x.dtype)


class WrongFrequencies(Sinusoid):
    def codes(self, dim, max_len):
        place = torch.arange(max_len).double()[:, None]
        i = torch.arange(0, dim, 2).double()
        table = torch.zeros(max_len, dim, dtype=torch.float64)
        table[:, 0::2] = torch.sin(place / 1e4 ** (2 * i / dim))
        table[:, 1::2] = torch.cos(place / 1e4 ** (2 * (i + 1) / dim))
        return table


class PlainTable(nn.Module):
    buffer = False

    def __init__(self) -> None:
        super().__init__()
        table = torch.randn(32, E)
        if self.buffer:
            self.register_buffer("table", table, persistent=False)
        else:
            self.table = table

    def forward(self, x, offset=0):
        return x + self.table[offset : offset + x.shape[1]]


class BufferTable(PlainTable):
    buffer = True


class Rotary:
    """Pairs (i, i + D/2)."""

    def angles(self, L, d, offset):
        speed = 1e4 ** (-torch.arange(0, d, 2).double() / d)
        angles = (torch.arange(L).double() + offset)[:, None] * speed
        return torch.cat([angles, angles], -1)

    def __call__(self, t, offset=0):
        angles = self.angles(t.shape[-2], t.shape[-1], offset)
        a, b = t.chunk(2, -1)
        turned = torch.cat([-b, a], -1)
        return t * angles.cos().to(t.dtype) + turned * angles.sin().to(t.dtype)


class RotaryOverHeads(Rotary):
    def __call__(self, t, offset=0):
        return super().__call__(t.transpose(1, 2), offset).transpose(1, 2)


class RotaryRough(Rotary):
    dtype = torch.bfloat16

    def angles(self, L, d, offset):
        speed = (1e4 ** (-torch.arange(0, d, 2).float() / d)).to(self.dtype)
        places = torch.arange(L).to(self.dtype) + offset
        angles = (places[:, None] * speed).float()
        return torch.cat([angles, angles], -1)


class RotaryFine(RotaryRough):
    dtype = torch.float32


class Buckets:
    sign = 1

    def __call__(self, L, S):
        n, far, half = 8, 16, 4
        back = (torch.arange(L)[:, None] + S - L - torch.arange(S)) * self.sign
        back = back.clamp(min=0)
        log = torch.log(back.clamp(min=1).double() / half) / math.log(far / half)
        late = (half + (log * (n - half)).long()).clamp(max=n - 1)
        bucket = torch.where(back < half, back, late)
        return (torch.arange(n).double() * -0.3)[bucket][None]


class BucketsFlipped(Buckets):
    sign = -1


def itself(made_class: type) -> Callable[[], type]:
    return lambda: made_class


ENCODING = {"kind": "encoding"}
plant(
    "odd-width-positions",
    "odd size",
    "AT220",
    itself(EvenOnly),
    itself(Sinusoid),
    **ENCODING,
)
plant(
    "positions-guess-layout", "axis order", "AT220", GuessedLayout, Sinusoid, **ENCODING
)
plant("positions-over-batch", "axis order", "AT220", OverBatch, Sinusoid, **ENCODING)
plant(
    "position-frequencies-wrong",
    "formula",
    "AT220",
    WrongFrequencies,
    Sinusoid,
    **ENCODING,
)
plant(
    "table-not-a-buffer", "dtype/device", "AT510", PlainTable, BufferTable, **ENCODING
)
plant("rotary-over-heads", "axis order", "AT211", RotaryOverHeads, Rotary, "rotary")
plant(
    "rotary-low-precision-table",
    "numeric precision",
    "AT222",
    RotaryRough,
    RotaryFine,
    "rotary",
)
plant(
    "bucket-direction-flipped",
    "relative bias",
    "AT230",
    BucketsFlipped,
    Buckets,
    "bias",
)


# Decoding -----------------------------------------------------------------------------


class Decoder(nn.Module):
    """A causal layer with added positions and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Plain()
        self.dim = E
        self.positions = nn.Parameter(torch.randn(64, E) * 0.5)

    def place(self, seen, n):
        return self.positions[seen : seen + n]

    def keep(self, context):
        return context.detach()

    def full(self, x):
        return self.attention(x + self.positions[: x.shape[1]], causal=True)

    def step(self, x, state=None):
        seen, past = (0, None) if state is None else state
        tokens = x + self.place(seen, x.shape[1])
        context = tokens if past is None else torch.cat([past, tokens], 1)
        y = self.attention(tokens, context=context, causal=True)
        return y, (seen + x.shape[1], self.keep(context))


class PositionRestarts(Decoder):
    def place(self, seen, n):
        return self.positions[:n]


class CacheHoldsGraph(Decoder):
    def keep(self, context):
        return context


plant(
    "decode-position-restarts",
    "incremental decoding",
    "AT602",
    PositionRestarts,
    Decoder,
    "decoder",
)
plant(
    "cache-holds-graph",
    "incremental decoding",
    "AT604",
    CacheHoldsGraph,
    Decoder,
    "decoder",
)


# Other modules that attend ------------------------------------------------------------


class LeftPadded(nn.Module):
    """Takes the padding of each row, and adds positions."""

    counted = False

    def __init__(self) -> None:
        super().__init__()
        self.attention = Plain()
        self.positions = nn.Parameter(torch.randn(32, E) * 0.5)

    def forward(self, x, keep):
        place = torch.arange(x.shape[1]).expand(x.shape[:2])
        if self.counted:
            place = (keep.long().cumsum(1) - 1).clamp(min=0)
        mask = keep[:, None, :].expand(-1, x.shape[1], -1)
        return self.attention(x + self.positions[place], mask=mask, causal=True)


class LeftPaddedCounted(LeftPadded):
    counted = True


class Recomputed(nn.Module):
    """Recomputes its activations in backward."""

    reentrant = False
    p = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(E, E) for _ in range(3))

    def inner(self, x):
        out = F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return F.dropout(out, self.p, True) if self.p else out

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class RecomputedReentrant(Recomputed):
    reentrant = True


class RecomputedOtherwise(Recomputed):
    p = 0.5
    keep_state = False

    def forward(self, x):
        return checkpoint(
            self.inner, x, use_reentrant=False, preserve_rng_state=self.keep_state
        )


class RecomputedAlike(RecomputedOtherwise):
    keep_state = True


class NeverMade(nn.Module):
    """Its forward uses projections that its constructor does not make."""

    def forward(self, x):
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


BARE = {**ALONE, "context": False, "weights": None, "num_heads": 1}
plant(
    "left-padding-positions",
    "padding side",
    "AT210",
    LeftPadded,
    LeftPaddedCounted,
    causal="always",
    context=False,
    weights=None,
    positions="absolute",
)
plant(
    "checkpoint-reentrant-no-grad",
    "recomputation",
    "AT701",
    RecomputedReentrant,
    Recomputed,
    **BARE,
)
plant(
    "checkpoint-dropout-redrawn",
    "recomputation",
    "AT703",
    RecomputedOtherwise,
    RecomputedAlike,
    **BARE,
    allow={"AT401": "dropout stays on, to compare it with its recomputation"},
)
plant(
    "checkpoint-class-without-init",
    "construction",
    "AT900",
    NeverMade,
    Recomputed,
    **BARE,
)
