"""Planted faults of linear, gated and blockwise attention, of positions and of caches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from faults import FURTHER, E, H, Plain, plant
from torch import nn

D = E // H
CAUSAL = {"causal": "always", "masks": "none", "context": False, "weights": None}
FULL = {"causal": "never", "masks": "none", "context": False, "weights": None}


def further(*args, **kwargs):
    plant(*args, into=FURTHER, **kwargs)


class ValuesOfTheQuery(Plain):
    def forward(self, x, *, mask=None, causal=False, need_weights=False):
        q, k, v = self.project(x, x)
        L = x.shape[1]
        w = self.normalise(self.scores(q, k), self.keep(mask, causal, L, L))
        out = self.wo(self.merge(torch.einsum("bhls,bhld->bhld", w, v)))
        return (out, w) if need_weights else out


class WritesIntoTheMask(Plain):
    def forward(self, x, *, context=None, mask=None, causal=False, need_weights=False):
        if mask is not None and causal and context is None:
            mask &= torch.ones(mask.shape[-2:], dtype=torch.bool).tril()
        return super().forward(
            x, context=context, mask=mask, causal=causal, need_weights=need_weights
        )


further(
    "values of the query", "value axis", "AT102", ValuesOfTheQuery, Plain, context=False
)
further("causal into the mask", "in place", "AT403", WritesIntoTheMask, Plain)


class Pieces(nn.Module):
    """Keys come in pieces of four; a running maximum keeps the exponentials small."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(E, 3 * E), nn.Linear(E, E)

    def starts(self, L):
        return range(0, L, 4)

    def rescaled(self, acc, factor):
        return acc * factor

    def forward(self, x):
        heads = self.qkv(x).unflatten(-1, (3, H, D))
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        top = torch.full_like(q[..., :1], -1e4)
        total, acc = torch.zeros_like(top), torch.zeros_like(q)
        for a in self.starts(x.shape[1]):
            z = q @ k[:, :, a : a + 4].mT * D**-0.5
            new = torch.maximum(top, z.amax(-1, keepdim=True))
            factor, e = (top - new).exp(), (z - new).exp()
            total = total * factor + e.sum(-1, keepdim=True)
            acc = self.rescaled(acc, factor) + e @ v[:, :, a : a + 4]
            top = new
        return self.o((acc / total).transpose(1, 2).flatten(2))


class PiecesNotRescaled(Pieces):
    def rescaled(self, acc, factor):
        return acc


class PiecesWholeAlone(Pieces):
    def starts(self, L):
        return range(0, max(L // 4, 1) * 4, 4)


further("pieces not rescaled", "pieces", "AT204", PiecesNotRescaled, Pieces, **FULL)
further("last piece left out", "pieces", "AT102", PiecesWholeAlone, Pieces, **FULL)


class Grouped(nn.Module):
    """Two key heads, each for two query heads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = (nn.Linear(E, E) for _ in range(3))

    def share(self, t):
        return t.repeat_interleave(2, 1)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (4, 2)).transpose(1, 2)
        kv = self.kv(x).unflatten(-1, (2, 2, 2)).permute(2, 0, 3, 1, 4)
        k, v = map(self.share, kv)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.o(out.transpose(1, 2).flatten(2))


class GroupedFirst(Grouped):
    def share(self, t):
        return t[:, :1].expand(-1, 4, -1, -1)


further(
    "second group not read",
    "dead parameter",
    "AT310",
    GroupedFirst,
    Grouped,
    **{**FULL, "num_heads": 4},
)


class Linear(nn.Module):
    """Linear attention by running sums."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(E, 3 * E), nn.Linear(E, E)

    def divisor(self, q, k):
        return torch.einsum("blhd,blhd->blh", q, k.cumsum(1))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).unbind(2)
        q, k = (F.elu(t) + 1 + 1e-6 for t in (q, k))
        sums = torch.einsum("blhd,blhe->blhde", k, v).cumsum(1)
        out = torch.einsum("blhd,blhde->blhe", q, sums)
        return self.o((out / self.divisor(q, k)[..., None]).flatten(2))


class LinearOverAll(Linear):
    def divisor(self, q, k):
        return torch.einsum("blhd,bhd->blh", q, k.sum(1))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(E, H, batch_first=True)
        self.gate = nn.Linear(E, E)

    def gist(self, x):
        return x

    def forward(self, x):
        future = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        out, _ = self.inner(x, x, x, attn_mask=future, need_weights=False)
        return self.gate(self.gist(x)).sigmoid() * out


class GatedByMean(Gated):
    def gist(self, x):
        return x.mean(1, keepdim=True)


further("divisor over all", "mask position", "AT201", LinearOverAll, Linear, **CAUSAL)
further("gate from the mean", "axis order", "AT101", GatedByMean, Gated, **CAUSAL)


# Encodings, rotations, biases ---------------------------------------------------------


def waves(count):
    """Sinusoids of the places that ``count`` makes of (length, offset)."""

    def add(x, offset=0):
        e = x.shape[-1]
        speeds = 1e4 ** (-torch.arange(0, e, 2).double() / e)
        angles = count(x.shape[1], offset)[:, None] * speeds
        return x + torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(x.dtype)

    return lambda: add


def places(L, offset):
    return torch.arange(offset, offset + L).double()


def rotation(rest):
    """Turns the first half of the features; ``rest`` says what becomes of the others."""

    def turn(t, offset=0):
        n = t.shape[-1] // 4 * 2
        speeds = 1e4 ** (-torch.arange(0, n, 2).double() / n)
        angles = (places(t.shape[-2], offset)[:, None] * speeds).to(t.dtype)
        a, b = t[..., 0:n:2], t[..., 1:n:2]
        cos, sin = angles.cos(), angles.sin()
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        return torch.cat([turned, rest(t[..., n:])], -1)

    return lambda: turn


def buckets(count):
    table = torch.linspace(-1, 1, H * 17).sin().view(H, 17).double()

    def bias(L, S):
        distance = torch.arange(S) - (torch.arange(L)[:, None] + S - L)
        return table[:, count(distance, S).clamp(-8, 8) + 8]

    return lambda: bias


def divided(L, offset):
    return places(L, offset) / L * 9


def shrunk(distance, S):
    return distance * 8 // S


for name, cause, code, bad, good, kind in (
    ("places by length", "length", "AT220", waves(divided), waves(places), "encoding"),
    (
        "rest dropped",
        "rotary layout",
        "AT211",
        rotation(torch.zeros_like),
        rotation(lambda t: t),
        "rotary",
    ),
    (
        "buckets by length",
        "length",
        "AT230",
        buckets(shrunk),
        buckets(lambda distance, S: distance),
        "bias",
    ),
):
    further(name, cause, code, bad, good, kind)


# Caches -------------------------------------------------------------------------------


class Decoder(nn.Module):
    """Places are added to tokens; the state is (tokens seen, their keys and values)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(E, 3 * E), nn.Linear(E, E)

    def parts(self, x, seen):
        x = waves(places)()(x, seen)
        return self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)

    def attend(self, q, k, v):
        L, S = q.shape[2], k.shape[2]
        keep = torch.ones(L, S, dtype=torch.bool).tril(S - L)
        out = F.scaled_dot_product_attention(q, k, v, keep)
        return self.o(out.transpose(1, 2).flatten(2))

    def full(self, x):
        return self.attend(*self.parts(x, 0))

    def advance(self, seen, n):
        return seen + n

    def kept(self, t):
        return t.detach()

    def step(self, x, state=None):
        seen, past = (0, None) if state is None else state
        q, *new = self.parts(x, seen)
        if past is not None:
            new = [torch.cat(pair, 2) for pair in zip(past, new, strict=True)]
        y = self.attend(q, *new)
        return y, (self.advance(seen, x.shape[1]), [self.kept(t) for t in new])


class CountsSteps(Decoder):
    def advance(self, seen, n):
        return seen + 1


class CachesInHalf(Decoder):
    def kept(self, t):
        return t.detach().half().to(t.dtype)


for name, cause, code, bad in (
    ("steps counted, not tokens", "incremental decoding", "AT602", CountsSteps),
    ("cache in half precision", "numeric precision", "AT601", CachesInHalf),
):
    further(name, cause, code, bad, Decoder, "decoder")
