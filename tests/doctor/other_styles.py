"""Planted faults in modules that are not made of the steps of ``faults.Plain``."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from faults import OTHER_STYLES, E, H, Plain, plant
from torch import nn

D = E // H


def other(*args, **kwargs):
    plant(*args, into=OTHER_STYLES, **kwargs)


def rule4(x, mask, causal):
    """(B, 1, L, L) or None."""
    L = x.shape[1]
    keep = None if mask is None else (mask if mask.dim() == 3 else mask[None])[:, None]
    if causal:
        past = torch.ones(L, L, dtype=torch.bool).tril()
        keep = past if keep is None else keep & past
    return keep


class Fused(nn.Module):
    """nanoGPT's style: one projection for all, always causal."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(E, 3 * E), nn.Linear(E, E)

    scale = D**-0.5

    def heads(self, t):
        return t.view(*t.shape[:2], H, D).transpose(1, 2)

    def weigh(self, z):
        L = z.shape[-1]
        past = torch.ones(L, L, dtype=torch.bool).tril()
        return z.masked_fill(~past, -math.inf).softmax(-1)

    def gather(self, y):
        return y.transpose(1, 2).contiguous().view(len(y), -1, E)

    def forward(self, x):
        q, k, v = (self.heads(t) for t in self.c_attn(x).split(E, 2))
        return self.c_proj(self.gather(self.weigh(q @ k.mT * self.scale) @ v))


class FusedTraining(Fused):
    """The mask is applied in eval alone."""

    def weigh(self, z):
        return z.softmax(-1) if self.training else super().weigh(z)


class FusedLate(Fused):
    def weigh(self, z):
        L = z.shape[-1]
        return z.masked_fill(torch.ones(L, L).triu(2) == 1, -math.inf).softmax(-1)


class FusedFlat(Fused):
    def gather(self, y):
        return y.contiguous().view(len(y), -1, E)


class FusedUnscaled(Fused):
    scale = 1.0


class FusedWide(Fused):
    scale = E**-0.5


class FusedColumns(Fused):
    def weigh(self, z):
        L = z.shape[-1]
        past = torch.ones(L, L, dtype=torch.bool).tril()
        return z.masked_fill(~past, -math.inf).softmax(-2)


class FusedLong(Fused):
    """Scaled by the number of tokens."""

    def weigh(self, z):
        return super().weigh(z / math.sqrt(z.shape[-1]))


class FusedCentred(Fused):
    """Subtracts the mean of all tokens."""

    def forward(self, x):
        return super().forward(x - x.mean(1, keepdim=True))


class FusedCached(Fused):
    """Keeps the mask of the first call, as wide as that call was."""

    past = None

    def weigh(self, z):
        L = z.shape[-1]
        if self.past is None or len(self.past) < L:
            self.past = torch.ones(L, L).triu(1) == 1
            self.offset = L
        return z.masked_fill(self.past[-L:, :L], -math.inf).softmax(-1)


class FusedInPlace(Fused):
    def forward(self, x):
        x -= x.mean(-1, keepdim=True)
        return super().forward(x)


class FusedDetached(Fused):
    def forward(self, x):
        q, k, v = (self.heads(t) for t in self.c_attn(x).split(E, 2))
        return self.c_proj(self.gather(self.weigh(q @ k.mT.detach() * D**-0.5) @ v))


class FusedSqueezed(Fused):
    def forward(self, x):
        return super().forward(x).squeeze()


class FusedExp(Fused):
    def weigh(self, z):
        e = z.exp().tril()
        return e / e.sum(-1, keepdim=True)


class FusedNoOutput(Fused):
    """The output projection is made and not called."""

    def forward(self, x):
        q, k, v = (self.heads(t) for t in self.c_attn(x).split(E, 2))
        return self.gather(self.weigh(q @ k.mT * D**-0.5) @ v)


ALWAYS = {"causal": "always", "masks": "none", "context": False, "weights": None}
for name, cause, code, bad in (
    ("causal in eval alone", "causality", "AT101", FusedTraining),
    ("causal from the second diagonal", "causality", "AT101", FusedLate),
    ("merged without transpose", "head layout", "AT311", FusedFlat),
    ("fused, not scaled", "scale", "AT203", FusedUnscaled),
    ("fused, scaled by width", "scale", "AT203", FusedWide),
    ("softmax down the columns", "softmax axis", "AT201", FusedColumns),
    ("scaled by length", "length", "AT202", FusedLong),
    ("mean over tokens", "causality", "AT101", FusedCentred),
    ("mask of another call", "hidden state", "AT402", FusedCached),
    ("centred in place", "in place", "AT403", FusedInPlace),
    ("keys detached", "autograd", "AT703", FusedDetached),
    ("squeezed", "length", "AT521", FusedSqueezed),
    ("exp without maximum", "numeric range", "AT503", FusedExp),
    ("output projection unused", "dead parameter", "AT310", FusedNoOutput),
):
    other(name, cause, code, bad, Fused, **ALWAYS)


class Einsum(nn.Module):
    """One matrix for each head, as bare parameters."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("W_Q", "W_K", "W_V"):
            setattr(self, name, nn.Parameter(torch.randn(H, E, D) / math.sqrt(E)))
        self.W_O = nn.Parameter(torch.randn(H, D, E) / math.sqrt(E))

    def scores(self, q, k):
        return torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D)

    def hide(self, z, keep):
        return z if keep is None else z.masked_fill(~keep, -1e30)

    def weigh(self, z):
        return z.softmax(-1)

    def mix(self, w, v):
        return torch.einsum("bhqk,bkhd->bqhd", w, v)

    def forward(self, x, mask=None, causal=False, return_weights=False):
        q, k, v = (
            torch.einsum("ble,hed->blhd", x, w) for w in (self.W_Q, self.W_K, self.W_V)
        )
        w = self.weigh(self.hide(self.scores(q, k), rule4(x, mask, causal)))
        out = torch.einsum("bqhd,hde->bqe", self.mix(w, v), self.W_O)
        return (out, w) if return_weights else out


class EinsumTurned(Einsum):
    """Weights are used transposed."""

    def mix(self, w, v):
        return torch.einsum("bhkq,bkhd->bqhd", w, v)


class EinsumMultiplied(Einsum):
    def hide(self, z, keep):
        return z if keep is None else z * keep


class EinsumAdded(Einsum):
    def hide(self, z, keep):
        return z if keep is None else z + keep


class EinsumNan(Einsum):
    def hide(self, z, keep):
        return z if keep is None else z + (1 - keep.double()) * -math.inf


class EinsumBatch(Einsum):
    def weigh(self, z):
        return z.softmax(0)


class EinsumAll(Einsum):
    def weigh(self, z):
        return z.flatten(-2).softmax(-1).view_as(z)


class EinsumUnscaled(Einsum):
    def scores(self, q, k):
        return torch.einsum("bqhd,bkhd->bhqk", q, k)


class EinsumOpposite(Einsum):
    def hide(self, z, keep):
        return z if keep is None else z.masked_fill(keep, -1e30)


class EinsumIgnored(Einsum):
    def forward(self, x, mask=None, causal=False, return_weights=False):
        return super().forward(x, None, causal, return_weights)


class EinsumWeightsPath(Einsum):
    """The mask is lost where weights are asked for."""

    def forward(self, x, mask=None, causal=False, return_weights=False):
        mask = None if return_weights else mask
        return super().forward(x, mask, causal, return_weights)


class EinsumRaw(Einsum):
    """Reports the weights before the mask."""

    def forward(self, x, mask=None, causal=False, return_weights=False):
        out, _ = super().forward(x, mask, causal, True)
        if not return_weights:
            return out
        return out, super().forward(x, None, False, True)[1]


class EinsumMaskLost(Einsum):
    def forward(self, x, mask=None, causal=False, return_weights=False):
        mask = None if causal else mask
        return super().forward(x, mask, causal, return_weights)


NO_CONTEXT = {"context": False}
for name, cause, code, bad in (
    ("weights transposed", "softmax axis", "AT201", EinsumTurned),
    ("scores times mask", "mask value", "AT112", EinsumMultiplied),
    ("scores plus bool mask", "mask value", "AT112", EinsumAdded),
    ("zero times infinity", "mask value", "AT112", EinsumNan),
    ("softmax over the batch", "softmax axis", "AT201", EinsumBatch),
    ("softmax over everything", "softmax axis", "AT201", EinsumAll),
    ("einsum, not scaled", "scale", "AT203", EinsumUnscaled),
    ("True hides", "mask semantics", "AT111", EinsumOpposite),
    ("mask not used", "mask semantics", "AT110", EinsumIgnored),
    ("mask lost with weights", "mask semantics", "AT110", EinsumWeightsPath),
    ("weights before the mask", "reported weights", "AT314", EinsumRaw),
    ("mask lost with causal", "mask semantics", "AT110", EinsumMaskLost),
):
    other(name, cause, code, bad, Einsum, **NO_CONTEXT)


class Noisy(Plain):
    """Adds noise in every mode."""

    def scores(self, q, k):
        z = super().scores(q, k)
        return z + 0.1 * torch.randn_like(z)


class Averages(Plain):
    """Keeps a running mean that it updates in eval as well."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(E))

    def forward(self, x, **how):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return super().forward(x - self.mean, **how)


class ContextIgnored(Plain):
    def project(self, x, context):
        return super().project(x, x)


class SameProjection(Plain):
    """Keys are made by the projection of the queries."""

    def project(self, x, context):
        q, _, v = super().project(x, context)
        return q, self.split(self.wq(context)), v


class ShortTable(nn.Module):
    """Positions past the table raise IndexError from the embedding."""

    longest = 16

    def __init__(self) -> None:
        super().__init__()
        self.inner = Plain()
        self.mask = torch.ones(self.longest, self.longest, dtype=torch.bool).tril()

    def forward(self, x):
        L = x.shape[1]
        return self.inner(x, mask=self.mask.expand(len(x), -1, -1)[:, :L, :L])


class NoTable(ShortTable):
    def forward(self, x):
        return self.inner(x, causal=True)


other("noise in eval", "train/eval", "AT401", Noisy, Plain)
other("running mean in eval", "hidden state", "AT402", Averages, Plain)
other("context ignored", "cross-attention", "AT130", ContextIgnored, Plain)
other("keys by the queries' map", "dead parameter", "AT310", SameProjection, Plain)
other("short mask table", "length", "AT520", ShortTable, NoTable, **ALWAYS)


def same(f):
    return lambda: f


# Cores --------------------------------------------------------------------------------


def core(q, k, v):
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def core_in_place(q, k, v):
    q *= q.shape[-1] ** -0.5
    return (q @ k.mT).softmax(-1) @ v


for name, cause, code, bad in (
    ("core, not scaled", "scale", "AT203", lambda q, k, v: (q @ k.mT).softmax(-1) @ v),
    (
        "core, scaled the wrong way",
        "scale",
        "AT203",
        lambda q, k, v: (q @ k.mT * q.shape[-1] ** 0.5).softmax(-1) @ v,
    ),
    (
        "core, softmax over heads",
        "softmax axis",
        "AT201",
        lambda q, k, v: (q @ k.mT * q.shape[-1] ** -0.5).softmax(1) @ v,
    ),
    (
        "core, softmax over queries",
        "softmax axis",
        "AT201",
        lambda q, k, v: (q @ k.mT * q.shape[-1] ** -0.5).softmax(2) @ v,
    ),
    (
        "core, dropout always",
        "train/eval",
        "AT401",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.2),
    ),
    ("core, queries scaled in place", "in place", "AT403", core_in_place),
    (
        "core, exp without maximum",
        "numeric range",
        "AT503",
        lambda q, k, v: (
            ((e := (q @ k.mT * q.shape[-1] ** -0.5).exp()) / e.sum(-1, keepdim=True))
            @ v
        ),
    ),
    (
        "core, causal unasked",
        "causality",
        "AT102",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
):
    other(
        name,
        cause,
        code,
        same(bad),
        lambda: core,
        kind="core",
    )


# More of the same ---------------------------------------------------------------------


class MaskRepeated(Plain):
    """The mask of the items is repeated head after head, scores are item by item."""

    def per_head(self, mask):
        if mask.dim() == 2:
            return mask
        return mask.repeat(self.heads, 1, 1).unflatten(0, (len(mask), self.heads))


class MaskOfFirst(Plain):
    def per_head(self, mask):
        return mask[:1, None] if mask.dim() == 3 else mask


class Diagonal(Plain):
    """A token is hidden from itself."""

    def keep(self, mask, causal, L, S):
        keep = super().keep(mask, causal, L, S)
        other = ~torch.eye(L, S, dtype=torch.bool)
        if L != S or L == 1:
            return keep
        return other if keep is None else keep & other


class Twice(Plain):
    def normalise(self, z, keep):
        return super().normalise(super().normalise(z, keep), keep)


class Logarithm(Plain):
    def normalise(self, z, keep):
        w = super().normalise(z, keep)
        return (w + 1e-9).log() if keep is None else w


class Scores(Plain):
    """Returns the scores in place of the weights."""

    def forward(self, x, *, context=None, need_weights=False, **how):
        out = super().forward(x, context=context, **how)
        q, k, _ = self.project(x, x if context is None else context)
        return (out, self.scores(q, k)) if need_weights else out


class ValuesOfX(Plain):
    """In cross-attention the values come from x."""

    def project(self, x, context):
        q, k, _ = super().project(x, context)
        return q, k, self.split(self.wv(x))


class KeepsContext(Plain):
    """Projects the first context that it sees, and no other."""

    kept = None

    def forward(self, x, *, context=None, **how):
        if context is not None:
            if self.kept is None or self.kept.shape != context.shape:
                self.kept = context
            context = self.kept
        return super().forward(x, context=context, **how)


class Unsaved(Plain):
    """A random table that state_dict leaves out."""

    saved = False

    def __init__(self, dim: int = E, heads: int = H) -> None:
        super().__init__(dim, heads)
        table = torch.randn(dim)
        self.register_buffer("table", table, persistent=self.saved)

    def forward(self, x, *, context=None, **how):
        context = x if context is None else context
        return super().forward(x * self.table, context=context * self.table, **how)


class Saved(Unsaved):
    saved = True


class Turned(Plain):
    """Rotary attention."""

    def project(self, x, context):
        q, k, v = super().project(x, context)
        return neighbours(q), neighbours(k), v


class TurnedUnscaled(Turned):
    def scores(self, q, k):
        return q @ k.transpose(-1, -2)


class NotTransposed(Plain):
    """Scores work where there are as many tokens as features, and nowhere else."""

    def scores(self, q, k):
        return q @ k * self.width**-0.5


other("keys not transposed", "length", "AT520", NotTransposed, Plain, context=False)
for name, cause, code, bad in (
    ("mask repeated head by head", "mask broadcasting", "AT113", MaskRepeated),
    ("mask of the first item", "mask broadcasting", "AT113", MaskOfFirst),
    ("diagonal hidden", "mask value", "AT102", Diagonal),
    ("softmax twice", "normalisation", "AT201", Twice),
    ("logarithm of the weights", "normalisation", "AT201", Logarithm),
    ("scores as weights", "reported weights", "AT314", Scores),
    ("values from x", "cross-attention", "AT130", ValuesOfX),
    ("context kept", "hidden state", "AT402", KeepsContext),
):
    other(name, cause, code, bad, Plain)
other("table not saved", "registration", "AT404", Unsaved, Saved)
RELATIVE = {"positions": "relative", "context": False}
other("rotary, not scaled", "scale", "AT203", TurnedUnscaled, Turned, **RELATIVE)


# Encodings, rotations, biases ---------------------------------------------------------


class Waves(nn.Module):
    """Sines in the first half, cosines in the second; made in every call."""

    def speeds(self, half):
        return 1e4 ** (-torch.arange(half).double() / half)

    def forward(self, x, offset=0):
        half = x.shape[-1] // 2
        place = torch.arange(offset, offset + x.shape[1]).double()[:, None]
        angles = place * self.speeds(half)
        return x + torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)


class WavesFromZero(Waves):
    def forward(self, x, offset=0):
        return super().forward(x, 0)


class WavesApart(Waves):
    def forward(self, x, offset=0):
        half = x.shape[-1] // 2
        place = torch.arange(offset, offset + x.shape[1]).double()[:, None]
        slow = self.speeds(half)
        codes = [(place * slow).sin(), (place * slow * 0.9).cos()]
        return x + torch.cat(codes, -1).to(x.dtype)


def neighbours(t, offset=0):
    """Rotates pairs (2i, 2i + 1), as complex numbers."""
    d = t.shape[-1]
    speed = 1e4 ** (-torch.arange(0, d, 2).double() / d)
    place = torch.arange(offset, offset + t.shape[-2]).double()
    turn = torch.polar(torch.ones(1).double(), place[:, None] * speed)
    pairs = torch.view_as_complex(t.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn).flatten(-2).to(t.dtype)


def mixed_pairs(t, offset=0):
    """Tables for neighbours, rotation of halves."""
    d = t.shape[-1]
    speed = 1e4 ** (-torch.arange(0, d, 2).double() / d)
    angles = torch.arange(offset, offset + t.shape[-2]).double()[:, None] * speed
    angles = angles.repeat_interleave(2, -1)
    a, b = t.chunk(2, -1)
    turned = torch.cat([-b, a], -1)
    return t * angles.cos().to(t.dtype) + turned * angles.sin().to(t.dtype)


def mirrored(t, offset=0):
    """The sign of one sine is wrong: no rotation."""
    d = t.shape[-1]
    speed = 1e4 ** (-torch.arange(0, d, 2).double() / d)
    angles = (torch.arange(offset, offset + t.shape[-2]).double()[:, None] * speed).to(
        t.dtype
    )
    a, b = t.chunk(2, -1)
    return torch.cat(
        [a * angles.cos() + b * angles.sin(), b * angles.cos() + a * angles.sin()], -1
    )


def no_offset(t, offset=0):
    return neighbours(t)


SLOPES = torch.tensor([0.5, 0.25, 0.125])


def penalty(L, S):
    back = torch.arange(L)[:, None] + S - L - torch.arange(S)
    return -SLOPES[:, None, None] * back.abs()


def reward(L, S):
    return -penalty(L, S)


def top_left_penalty(L, S):
    back = torch.arange(L)[:, None] - torch.arange(S)
    return -SLOPES[:, None, None] * back.abs()


def by_place(L, S):
    return -SLOPES[:, None, None] * torch.arange(S).expand(L, S)


def one_slope(L, S):
    return penalty(L, S)[:1].expand(3, -1, -1)


other(
    "offset ignored", "incremental decoding", "AT602", WavesFromZero, Waves, "encoding"
)
other("speeds of a pair differ", "formula", "AT220", WavesApart, Waves, "encoding")
for name, cause, code, bad in (
    ("halves turned by neighbours' tables", "rotary layout", "AT211", mixed_pairs),
    ("a sine with the wrong sign", "rotary layout", "AT211", mirrored),
    ("rotary offset ignored", "incremental decoding", "AT602", no_offset),
):
    other(name, cause, code, same(bad), same(neighbours), "rotary", embed_dim=8)
for name, cause, code, bad in (
    ("distance rewarded", "relative bias", "AT230", reward),
    ("bias from the first key", "relative bias", "AT230", top_left_penalty),
    ("bias by place", "relative bias", "AT230", by_place),
    ("one slope for all heads", "formula", "AT230", one_slope),
):
    other(name, cause, code, same(bad), same(penalty), "bias")


# Decoding -----------------------------------------------------------------------------


class Cached(nn.Module):
    """Keys and values of a rotary attention in a state that is a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.embed_dim = nn.Linear(E, 3 * E), nn.Linear(E, E), E

    def rows(self, x, offset):
        q, k, v = (
            t.unflatten(-1, (H, D)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        return neighbours(q, offset), neighbours(k, offset), v

    def rule(self, L, S):
        return torch.ones(L, S, dtype=torch.bool).tril(S - L)

    def attend(self, q, k, v):
        keep = self.rule(q.shape[2], k.shape[2])
        out = F.scaled_dot_product_attention(q, k, v, keep)
        return self.out(out.transpose(1, 2).flatten(2))

    def full(self, x):
        return self.attend(*self.rows(x, 0))

    def join(self, past, new):
        return torch.cat([past, new], 2)

    def seen(self, state):
        return state["k"].shape[2]

    def step(self, x, state=None):
        q, k, v = self.rows(x, 0 if state is None else self.seen(state))
        if state is not None:
            k, v = self.join(state["k"], k), self.join(state["v"], v)
        return self.attend(q, k, v), {"k": k.detach(), "v": v.detach()}


class CachedInFront(Cached):
    def join(self, past, new):
        return torch.cat([new, past], 2)


class CachedShort(Cached):
    def join(self, past, new):
        return torch.cat([past, new], 2)[:, :, -5:]


class CachedRestarts(Cached):
    def seen(self, state):
        return 0


class CachedOff(Cached):
    def seen(self, state):
        return state["k"].shape[2] - 1


class CachedTopLeft(Cached):
    def rule(self, L, S):
        return torch.ones(L, S, dtype=torch.bool).tril()


class CachedOpen(Cached):
    """No causal rule inside a chunk."""

    def step(self, x, state=None):
        _, state = super().step(x, state)
        q, _, _ = self.rows(x, state["k"].shape[2] - x.shape[1])
        out = F.scaled_dot_product_attention(q, state["k"], state["v"])
        return self.out(out.transpose(1, 2).flatten(2)), state


class CachedBlind(Cached):
    """The new token does not see itself."""

    def step(self, x, state=None):
        y, new = super().step(x, state)
        if state is None:
            return y, new
        q, _, _ = self.rows(x, state["k"].shape[2])
        return self.attend(q, state["k"], state["v"]), new


class CachedInside(Cached):
    """Keeps the state in the module as well."""

    held = None

    def step(self, x, state=None):
        y, self.held = super().step(x, self.held)
        return y, self.held


class CachedRows(Cached):
    """All rows get the first row's past."""

    def join(self, past, new):
        return torch.cat([past[:1].expand_as(past), new], 2)


class CachedUncausal(Cached):
    def full(self, x):
        q, k, v = self.rows(x, 0)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.out(out.transpose(1, 2).flatten(2))


for name, cause, code, bad in (
    ("cache in front", "incremental decoding", "AT601", CachedInFront),
    ("cache of five tokens", "incremental decoding", "AT601", CachedShort),
    ("rotary restarts", "incremental decoding", "AT602", CachedRestarts),
    ("rotary off by one", "incremental decoding", "AT602", CachedOff),
    ("cache, top left", "incremental decoding", "AT601", CachedTopLeft),
    ("no rule in a chunk", "incremental decoding", "AT601", CachedOpen),
    ("blind to itself", "incremental decoding", "AT601", CachedBlind),
    ("state in the module", "hidden state", "AT402", CachedInside),
    ("past of the first row", "incremental decoding", "AT603", CachedRows),
    ("full pass not causal", "causality", "AT101", CachedUncausal),
):
    other(name, cause, code, bad, Cached, "decoder")
