"""Planted faults in modules that are not made of the steps of ``faults.Plain``."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from faults import OTHER_STYLES, E, H, Plain, plant

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
    ("weights transposed", "normalisation", "AT201", EinsumTurned),
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
            (e := (q @ k.mT * q.shape[-1] ** -0.5).exp()) / e.sum(-1, keepdim=True)
        )
        @ v,
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
        (lambda f: lambda: f)(bad),
        lambda: core,
        kind="core",
    )

