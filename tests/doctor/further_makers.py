"""Correct attention of rarer designs: on none of these may the doctor report a fault."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from makers import MAKERS, D, E, H, keep4, sound
from torch import nn

__all__ = ["MAKERS"]

FLAG = {"causal": "flag", "masks": "any", "context": False}


class Steps(nn.Module):
    """Attention in steps, of which each design below replaces one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(E, 3 * E), nn.Linear(E, E)

    def heads(self, x):
        return self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)

    def weights(self, q, k, keep):
        z = q @ k.mT * D**-0.5
        z = z if keep is None else z.masked_fill(~keep, -torch.inf)
        return z.softmax(-1).nan_to_num(0.0)

    def mix(self, q, k, v, keep):
        return self.weights(q, k, keep) @ v

    def forward(self, x, mask=None, causal=False):
        out = self.mix(*self.heads(x), keep4(x, None, mask, causal))
        return self.out(out.transpose(1, 2).flatten(2))


@sound("talking heads", **FLAG, weights="heads", normalization="sink")
def talking_heads():
    class Talking(Steps):
        def __init__(self) -> None:
            super().__init__()
            self.after = nn.Parameter(torch.eye(H) - 0.3 * torch.rand(H, H))

        def forward(self, x, mask=None, causal=False, need_weights=False):
            q, k, v = self.heads(x)
            w = self.weights(q, k, keep4(x, None, mask, causal))
            w = torch.einsum("gh,bhls->bgls", self.after, w)
            out = self.out((w @ v).transpose(1, 2).flatten(2))
            return (out, w) if need_weights else out

    return Talking()


@sound("differential attention", **FLAG, normalization="sink")
def differential():
    class Differential(Steps):
        """The difference of two softmaxes; each has half of a head's features."""

        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Parameter(torch.linspace(0.2, 0.6, H)[:, None, None])
            self.norm = nn.RMSNorm(D)

        def mix(self, q, k, v, keep):
            one, two = (
                self.weights(a, b, keep)
                for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
            )
            return self.norm((one - self.part * two) @ v)

    return Differential()


@sound(
    "shifted half of the features",
    causal="always",
    masks="none",
    context=False,
    positions="relative",
)
def token_shift():
    class Shifted(Steps):
        """Half of the features come from the token before, as in token-shift models."""

        def forward(self, x):
            before = F.pad(x, (0, 0, 1, 0))[:, :-1]
            mixed = torch.cat([x[..., : E // 2], before[..., E // 2 :]], -1)
            return super().forward(mixed, causal=True)

    return Shifted()


@sound("memory slots", **FLAG, normalization="sink")
def memory_slots():
    class Slots(Steps):
        def __init__(self) -> None:
            super().__init__()
            self.keys, self.values = (
                nn.Parameter(torch.randn(1, H, 2, D)) for _ in range(2)
            )

        def mix(self, q, k, v, keep):
            k = torch.cat([self.keys.expand(len(k), -1, -1, -1), k], 2)
            v = torch.cat([self.values.expand(len(v), -1, -1, -1), v], 2)
            keep = None if keep is None else F.pad(keep, (2, 0), value=True)
            return super().mix(q, k, v, keep)

    return Slots()


@sound("torch's attention, called otherwise", causal="never", masks="any")
def called_otherwise():
    class Own(nn.MultiheadAttention):
        def forward(self, x, mask=None):  # type: ignore[override]
            if mask is not None:
                mask = ~(mask if mask.dim() == 2 else mask.repeat_interleave(H, 0))
            return super().forward(x, x, x, attn_mask=mask, need_weights=False)[0]

    return Own(E, H, batch_first=True)


@sound("bias from a small network", "bias")
def bias_of_network():
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, H))

        def forward(self, L, S):
            d = torch.arange(S) - (torch.arange(L)[:, None] + S - L)
            d = d.to(self.net[0].weight.dtype)
            return self.net((d.sign() * d.abs().log1p())[..., None]).permute(2, 0, 1)

    return Network()


@sound("cache in the module, emptied by a new sequence", "decoder")
def own_cache():
    class OwnCache(Steps):
        held = None

        def full(self, x):
            return self(x, causal=True)

        def step(self, x, state=None):
            q, *new = self.heads(x)
            if state is not None:
                new = [torch.cat(p, 2) for p in zip(self.held, new, strict=True)]
            self.held = [t.detach() for t in new]
            L, S = x.shape[1], new[0].shape[2]
            out = self.mix(q, *new, torch.ones(L, S).tril(S - L).bool())
            return self.out(out.transpose(1, 2).flatten(2)), S

    return OwnCache()


@sound("linear attention, decoded by running sums", "decoder")
def recurrent():
    class Recurrent(Steps):
        def full(self, x):
            return self.step(x)[0]

        def step(self, x, state=None):
            q, k, v = self.heads(x)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            sums, total = (0, 0) if state is None else state
            sums = sums + (k[..., None] * v[..., None, :]).cumsum(2)
            total = total + k.cumsum(2)
            out = torch.einsum("bhld,bhlde->bhle", q, sums)
            out = out / (q * total).sum(-1, keepdim=True)
            new = sums[:, :, -1:].detach(), total[:, :, -1:].detach()
            return self.out(out.transpose(1, 2).flatten(2)), new

    return Recurrent()
