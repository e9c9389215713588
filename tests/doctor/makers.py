"""Correct attention in many styles: on none of these may the doctor report a fault.

Each maker says what is declared of it, and no more may be demanded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

E, H = 12, 3
D = E // H


@dataclass(frozen=True)
class Maker:
    """A correct subject, and what is declared of it."""

    name: str
    make: Callable[[], Any]
    kind: str = "attention"
    declared: dict[str, Any] = field(default_factory=dict)


MAKERS: list[Maker] = []


def sound(name: str, kind: str = "attention", **declared: Any) -> Any:
    """Enter what the function makes."""

    def enter(make: Callable[[], Any]) -> Callable[[], Any]:
        known = {"embed_dim": E, "num_heads": H} if kind == "attention" else {}

        def build() -> Any:
            torch.manual_seed(0)
            return make()

        MAKERS.append(Maker(name, build, kind, {**known, **declared}))
        return make

    return enter


def keep4(x, context, mask, causal):
    """The mask and the causal rule as (B, 1, L, S), or None."""
    L, S = x.shape[1], (x if context is None else context).shape[1]
    keep = None
    if mask is not None:
        keep = (mask[:, None] if mask.dim() == 3 else mask[None, None]).expand(
            len(x), 1, L, S
        )
    if causal:
        rule = torch.ones(L, S, dtype=torch.bool).tril(S - L).expand(len(x), 1, L, S)
        keep = rule if keep is None else keep & rule
    return keep


class Rows(nn.Module):
    """Attention whose rows and rules are given: the base of several makers."""

    def __init__(self, row=None, rule=None, key_bias=True, gain=None, **extra) -> None:
        super().__init__()
        self.q, self.v, self.o = (nn.Linear(E, E) for _ in range(3))
        self.k = nn.Linear(E, E, bias=key_bias)
        self.row, self.rule, self.gain = row, rule, gain
        for name, value in extra.items():
            setattr(self, name, value)

    def forward(
        self, x, *, context=None, mask=None, causal=False, need_weights=False
    ):
        c = x if context is None else context
        q, k, v = (
            t.unflatten(-1, (H, D)).transpose(1, 2)
            for t in (self.q(x), self.k(c), self.v(c))
        )
        z = q @ k.mT / math.sqrt(D)
        keep = keep4(x, context, mask, causal)
        if self.rule is not None:
            rule = self.rule(x.shape[1])
            keep = rule.expand(len(x), 1, -1, -1) if keep is None else keep & rule
        if self.gain is not None:
            z = self.gain(z)
        if keep is not None:
            z = z.masked_fill(~keep, -torch.inf)
        if self.row is None:
            w = z.softmax(-1)
            w = w if keep is None else torch.where(keep, w, 0.0)
        else:
            w = self.row(z)
        out = self.o((w @ v).transpose(1, 2).flatten(2))
        return (out, w) if need_weights else out


FLAG = {"causal": "flag", "masks": "any", "context": True, "weights": "heads"}


@sound("plain", **FLAG)
def plain():
    return Rows()


@sound("no key bias", **FLAG)
def no_key_bias():
    return Rows(key_bias=False)


# Designs that look like faults until they are declared ----------------------------------


def window_of(n):
    return lambda L: torch.ones(L, L, dtype=torch.bool).tril().triu(1 - n)


@sound("window", **{**FLAG, "causal": "always", "context": False}, pattern="window:3")
def window():
    return Rows(rule=window_of(3))


@sound("prefix", **{**FLAG, "causal": "always", "context": False}, pattern="prefix:3")
def prefix():
    def rule(L):
        keep = torch.ones(L, L, dtype=torch.bool).tril()
        keep[:, :3] = True
        return keep

    return Rows(rule=rule)


@sound("local", **{**FLAG, "causal": "never", "context": False}, pattern="local:2")
def local():
    return Rows(rule=lambda L: torch.ones(L, L, dtype=torch.bool).tril(1).triu(-1))


@sound("blocks", **{**FLAG, "causal": "never", "context": False}, pattern="blocks:3")
def blocks():
    def rule(L):
        block = torch.arange(L) // 3
        return block[:, None] == block

    return Rows(rule=rule)


@sound("always causal", **{**FLAG, "causal": "always", "context": False})
def always_causal():
    return Rows(rule=lambda L: torch.ones(L, L, dtype=torch.bool).tril())


@sound("causal without a word", weights="heads", masks="any")
def undeclared_causal():
    return Rows(rule=lambda L: torch.ones(L, L, dtype=torch.bool).tril())


@sound("sigmoid", **FLAG, normalization="sigmoid")
def sigmoid():
    return Rows(row=torch.sigmoid)


@sound("softmax-one", **FLAG, normalization="sink")
def softmax_one():
    def row(z):
        z = F.pad(z, (1, 0))
        return z.softmax(-1)[..., 1:]

    return Rows(row=row)


class SinkLogits(Rows):
    def __init__(self) -> None:
        super().__init__(row=self.with_sink)
        self.sink = nn.Parameter(torch.randn(H))

    def with_sink(self, z):
        sink = self.sink[:, None, None].expand(len(z), H, z.shape[2], 1)
        return torch.cat([z, sink], -1).softmax(-1)[..., :-1]

    def __deepcopy__(self, memo):
        made = SinkLogits()
        made.load_state_dict(self.state_dict())
        return made.to(self.sink.dtype)


@sound("sink logits", **FLAG, normalization="sink")
def sink_logits():
    return SinkLogits()


class Absolute(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Rows()
        self.table = nn.Parameter(torch.randn(512, E))

    def forward(self, x, *, mask=None, causal=False, need_weights=False):
        x = x + self.table[: x.shape[1]]
        return self.inner(x, mask=mask, causal=causal, need_weights=need_weights)


@sound("absolute positions", **{**FLAG, "context": False}, positions="absolute")
def absolute():
    return Absolute()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.BatchNorm1d(E), Rows()

    def forward(self, x, *, mask=None, causal=False, need_weights=False):
        x = self.norm(x.mT).mT
        return self.inner(x, mask=mask, causal=causal, need_weights=need_weights)


@sound("batch normalisation", **{**FLAG, "context": False})
def batch_normed():
    return Normed()


class Block(nn.Module):
    def __init__(self, norm) -> None:
        super().__init__()
        self.norm, self.inner = norm(E), Rows()
        self.feed = nn.Sequential(nn.Linear(E, 20), nn.GELU(), nn.Linear(20, E))

    def forward(self, x, *, mask=None, causal=False):
        x = x + self.inner(self.norm(x), mask=mask, causal=causal)
        return x + self.feed(self.norm(x))


BLOCK = {"causal": "flag", "masks": "any", "residual": True}


@sound("block, layer norm", **BLOCK)
def block_layer_norm():
    return Block(nn.LayerNorm)


@sound("block, RMS norm", **BLOCK)
def block_rms_norm():
    return Block(nn.RMSNorm)


# Other styles -------------------------------------------------------------------------


@sound("softmax in float32", **FLAG)
def softmax_in_float32():
    return Rows(row=lambda z: z.float().softmax(-1).to(z.dtype).nan_to_num(0.0))


@sound("masked, then normalised again", causal="flag", masks="any", weights="heads")
def renormalised():
    class Again(Rows):
        def forward(self, x, *, mask=None, causal=False, need_weights=False):
            q, k, v = (
                t.unflatten(-1, (H, D)).transpose(1, 2)
                for t in (self.q(x), self.k(x), self.v(x))
            )
            w = (q @ k.mT / math.sqrt(D)).softmax(-1)
            keep = keep4(x, None, mask, causal)
            if keep is not None:
                w = w * keep
                w = w / w.sum(-1, keepdim=True).clamp(min=1e-12)
            out = self.o((w @ v).transpose(1, 2).flatten(2))
            return (out, w) if need_weights else out

    return Again()


@sound("softcap", **FLAG)
def softcap():
    return Rows(gain=lambda z: 5 * torch.tanh(z / 5))


@sound("linear bias", **{**FLAG, "context": False}, positions="relative")
def linear_bias():
    def gain(z):
        i, j = torch.arange(z.shape[-2])[:, None], torch.arange(z.shape[-1])
        slopes = torch.tensor([0.5, 0.25, 0.125], dtype=z.dtype)[:, None, None]
        return z - slopes * (i - j).abs()

    return Rows(gain=gain)


class Einsum(nn.Module):
    """Weights as bare parameters, one matrix for each head."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("W_Q", "W_K", "W_V"):
            setattr(self, name, nn.Parameter(torch.randn(H, E, D) / math.sqrt(E)))
        self.W_O = nn.Parameter(torch.randn(H, D, E) / math.sqrt(E))

    def forward(self, x, mask=None, causal=False):
        q, k, v = (
            torch.einsum("ble,hed->blhd", x, w) for w in (self.W_Q, self.W_K, self.W_V)
        )
        z = torch.einsum("bqhd,bkhd->bhqk", q, k) / D**0.5
        keep = keep4(x, None, mask, causal)
        if keep is not None:
            z = torch.where(keep, z, torch.finfo(z.dtype).min)
        out = torch.einsum("bhqk,bkhd,hde->bqe", z.softmax(-1), v, self.W_O)
        return out


@sound("einsum on bare matrices")
def einsum():
    return Einsum()


class SequenceFirst(nn.Module):
    """Works on (L, B, E) inside."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj, self.out = nn.Linear(E, 3 * E), nn.Linear(E, E)

    def forward(self, x, attn_mask=None, is_causal=False):
        t = x.transpose(0, 1)
        L, B = t.shape[:2]
        q, k, v = self.in_proj(t).chunk(3, -1)
        q, k, v = (
            a.reshape(L, B * H, D).transpose(0, 1) for a in (q * D**-0.5, k, v)
        )
        z = torch.bmm(q, k.transpose(1, 2))
        keep = keep4(x, None, attn_mask, is_causal)
        if keep is not None:
            hide = ~keep.expand(B, H, L, L).reshape(B * H, L, L)
            z = z + torch.zeros_like(z).masked_fill_(hide, -1e30)
        out = torch.bmm(z.softmax(-1), v).transpose(0, 1).reshape(L, B, E)
        return self.out(out).transpose(0, 1)


@sound("sequence first inside")
def sequence_first():
    return SequenceFirst()


@sound("a list for each projection", masks="any", causal="flag")
def lists():
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qs, self.ks, self.vs = (
                nn.ModuleList(nn.Linear(E, D, bias=False) for _ in range(H))
                for _ in range(3)
            )
            self.proj = nn.Linear(E, E)

        def forward(self, x, mask=None, causal=False):
            keep = keep4(x, None, mask, causal)
            outs = []
            for q, k, v in zip(self.qs, self.ks, self.vs, strict=True):
                z = q(x) @ k(x).mT / math.sqrt(D)
                if keep is not None:
                    z = z + (~keep[:, 0]) * -1e9
                outs.append(z.softmax(-1) @ v(x))
            return self.proj(torch.cat(outs, -1))

    return Lists()


@sound("fused, by head, grouped", causal="flag", masks="any", context=False)
def grouped():
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_attn = nn.Linear(E, E + 2 * D)  # one key and value head for all
            self.c_proj = nn.Linear(E, E)

        def forward(self, x, mask=None, causal=False):
            q, k, v = self.c_attn(x).split([E, D, D], -1)
            q = q.unflatten(-1, (H, D)).transpose(1, 2)
            k, v = k[:, None], v[:, None]
            keep = keep4(x, None, mask, causal)
            out = F.scaled_dot_product_attention(
                q, k.expand_as(q), v.expand_as(q), keep
            )
            return self.c_proj(out.transpose(1, 2).flatten(2))

    return Grouped()


@sound("a closure", embed_dim=E)
def closure():
    q, k, v = (torch.randn(E, E, dtype=torch.float64) / 3 for _ in range(3))

    def attend(x, mask=None):
        z = (x @ q) @ (x @ k).mT / math.sqrt(E)
        if mask is not None:
            z = z.masked_fill(~mask, -1e12)
        return z.softmax(-1) @ (x @ v)

    return attend


@sound("additive scores, one head", num_heads=1)
def additive():
    class AdditiveScores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.s, self.v = (
                nn.Linear(E, E),
                nn.Linear(E, E),
                nn.Linear(E, 1),
                nn.Linear(E, E),
            )

        def forward(self, x, context=None, mask=None):
            c = x if context is None else context
            z = self.s(torch.tanh(self.a(x)[:, :, None] + self.b(c)[:, None]))[..., 0]
            if mask is not None:
                z = z.masked_fill(~mask, torch.finfo(z.dtype).min)
            return z.softmax(-1) @ self.v(c)

    return AdditiveScores()


@sound("linear attention", causal="never", masks="none")
def kernel():
    class Kernel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.to_q, self.to_k, self.to_v = (nn.Linear(E, E) for _ in range(3))
            self.to_out = nn.Linear(E, E)

        def forward(self, x):
            q, k, v = (
                t(x).unflatten(-1, (H, D)).transpose(1, 2)
                for t in (self.to_q, self.to_k, self.to_v)
            )
            q, k = F.elu(q) + 1, F.elu(k) + 1
            out = q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)
            return self.to_out(out.transpose(1, 2).flatten(2))

    return Kernel()


@sound("gated output", causal="flag", masks="any")
def gated():
    class Gated(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(E, E)

        def forward(self, x, *, mask=None, causal=False):
            return super().forward(x, mask=mask, causal=causal) * self.gate(x).sigmoid()

    return Gated()


@sound("blockwise, running maximum", causal="flag", masks="any")
def blockwise():
    class Blockwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.o = nn.Linear(E, 3 * E), nn.Linear(E, E)

        def forward(self, x, mask=None, causal=False):
            keep = keep4(x, None, mask, causal)
            q, k, v = (
                t.unflatten(-1, (H, D)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
            )
            low = -1e30
            top = torch.full(q.shape[:-1], low, dtype=q.dtype)
            total, out = torch.zeros_like(top), torch.zeros_like(q)
            for j in range(0, x.shape[1], 2):
                z = q @ k[:, :, j : j + 2].mT / math.sqrt(D)
                may = torch.ones_like(z, dtype=torch.bool)
                if keep is not None:
                    may = keep[..., j : j + 2].expand_as(z)
                z = z.masked_fill(~may, low)
                new = torch.maximum(top, z.amax(-1))
                shrink, p = (top - new).exp(), (z - new[..., None]).exp() * may
                total = total * shrink + p.sum(-1)
                out = out * shrink[..., None] + p @ v[:, :, j : j + 2]
                top = new
            out = out / total.clamp(min=1e-30)[..., None]
            return self.o(out.transpose(1, 2).flatten(2))

    return Blockwise()


@sound("query, key, value", embed_dim=E, num_heads=1)
def triple():
    def attend(query, key, value, attn_mask=None, is_causal=False):
        return F.scaled_dot_product_attention(query, key, value, attn_mask)

    return lambda q, k, v, attn_mask=None: attend(q, k, v, attn_mask)


# Cores --------------------------------------------------------------------------------


@sound("core of torch", "core")
def core_torch():
    return F.scaled_dot_product_attention


@sound("core by einsum", "core")
def core_einsum():
    def attend(q, k, v):
        z = torch.einsum("bhld,bhsd->bhls", q, k) * q.shape[-1] ** -0.5
        e = (z - z.amax(-1, keepdim=True)).exp()
        return torch.einsum("bhls,bhsd->bhld", e / e.sum(-1, keepdim=True), v)

    return attend


@sound("core, causal", "core", pattern="causal")
def core_causal():
    def attend(q, k, v):
        L, S = q.shape[-2], k.shape[-2]
        keep = torch.ones(L, S, dtype=torch.bool).tril(S - L)
        return F.scaled_dot_product_attention(q, k, v, keep)

    return attend


@sound("core without scale, declared", "core", scale=1.0)
def core_unscaled():
    return lambda q, k, v: (q @ k.mT).softmax(-1) @ v
