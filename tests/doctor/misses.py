"""Planted faults that behaviour alone does not show: the doctor finds none of them.

Each has the code that a reference gives, the correct twin with the same parameters, or
no code where not even that tells.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from faults import Fault, Plain, plant
from other_styles import ALWAYS, RELATIVE, E, NoTable, Turned
from torch import nn

MISSES: list[Fault] = []


def miss(*args, **kwargs):
    plant(*args, into=MISSES, **kwargs)


class Swapped(Plain):
    def project(self, x, context):
        return (
            self.split(self.wk(x)),
            self.split(self.wq(context)),
            self.split(self.wv(context)),
        )


class HeadsReversed(Plain):
    def merge(self, t):
        return super().merge(t.flip(1))


class FeaturesReversed(Plain):
    def merge(self, t):
        return super().merge(t.flip(-1))


class TurnedHalves(Turned):
    """Pairs (i, i + D/2) in place of (2i, 2i + 1)."""

    def turn(self, t):
        d = t.shape[-1]
        speed = 1e4 ** (-torch.arange(0, d, 2).double() / d)
        angles = torch.arange(t.shape[-2]).double()[:, None] * speed
        cos, sin = angles.cos().to(t.dtype), angles.sin().to(t.dtype)
        a, b = t.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def project(self, x, context):
        q, k, v = Plain.project(self, x, context)
        return self.turn(q), self.turn(k), v


class Shared(nn.Module):
    """Two key heads serve four query heads, each a pair of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(E, E), nn.Linear(E, E)
        self.k, self.v = nn.Linear(E, E // 2), nn.Linear(E, E // 2)

    def share(self, t):
        return t.repeat_interleave(2, 1)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (4, -1)).transpose(1, 2)
        k, v = (
            self.share(t.unflatten(-1, (2, -1)).transpose(1, 2))
            for t in (self.k(x), self.v(x))
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(out.transpose(1, 2).flatten(2))


class SharedOtherwise(Shared):
    def share(self, t):
        return t.repeat(1, 2, 1, 1)


class LongTable(NoTable):
    """As many positions as the longest text that was tried."""

    longest = 512

    def forward(self, x):
        if x.shape[1] > self.longest:
            raise IndexError("index out of range in self")
        return super().forward(x)


class WindowFar(NoTable):
    """From 400 tokens on, the oldest are forgotten."""

    def forward(self, x):
        L = x.shape[1]
        near = torch.ones(L, L, dtype=torch.bool).triu(-399)
        return self.inner(x, mask=near, causal=True)


def closure(scale):
    """A function whose weights nothing outside can name."""

    def make():
        q, k, v = (torch.randn(E, E, dtype=torch.float64) / 3 for _ in range(3))
        return lambda x: ((x @ q) @ (x @ k).mT * scale).softmax(-1) @ (x @ v)

    return make


class DropoutKeepsSize(Plain):
    """Weights are dropped in training, those that stay are not made larger."""

    def __init__(self) -> None:
        super().__init__(p=0.5)

    def forward(self, x, *, context=None, mask=None, causal=False, need_weights=False):
        if not self.training:
            return super().forward(
                x,
                context=context,
                mask=mask,
                causal=causal,
                need_weights=need_weights,
            )
        q, k, v = self.project(x, x if context is None else context)
        w = self.normalise(
            self.scores(q, k), self.keep(mask, causal, q.shape[2], k.shape[2])
        )
        out = self.wo(self.merge(w * (torch.rand_like(w) > self.p) @ v))
        return (out, w) if need_weights else out


for name, cause, code, bad, good, declared in (
    ("queries and keys swapped", "weights", "AT330", Swapped, Plain, {}),
    ("heads in reverse", "head layout", "AT330", HeadsReversed, Plain, {}),
    ("features in reverse", "head layout", "AT330", FeaturesReversed, Plain, {}),
    (
        "pairs of another layout",
        "rotary layout",
        "AT330",
        TurnedHalves,
        Turned,
        RELATIVE,
    ),
    (
        "shared heads in another order",
        "head layout",
        "AT330",
        SharedOtherwise,
        Shared,
        {**ALWAYS, "num_heads": 4},
    ),
    (
        "scale of a function",
        "scale",
        "AT330",
        closure(1.0),
        closure(1 / math.sqrt(E)),
        {"causal": "never", "masks": "none", "num_heads": 1, "context": False},
    ),
    ("mask table of 512", "length", "", LongTable, NoTable, ALWAYS),
    ("window past 400 tokens", "length", "", WindowFar, NoTable, ALWAYS),
    (
        "dropout keeps the size",
        "train/eval",
        "",
        DropoutKeepsSize,
        lambda: Plain(p=0.5),
        {},
    ),
):
    miss(name, cause, code, bad, good, **declared)
