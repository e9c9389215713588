"""Self-attention as several libraries write it, all with the same weights."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_lib import MultiHeadAttention, interop, masks

OURS = "ours"


@dataclass(frozen=True)
class Setting:
    """What every layer is asked to compute.

    ``keep`` is a bool mask, True = may attend: (B, 1, 1, S) hides padding, (1, 1, L, S)
    hides what a window leaves out.
    """

    causal: bool = False
    keep: Tensor | None = None

    def visible(self, length: int) -> Tensor | None:
        """All that the setting hides, as one mask."""
        if not self.causal:
            return self.keep
        causal = masks.causal(length)
        return causal if self.keep is None else causal & self.keep


def source(
    embed_dim: int, num_heads: int, dropout: float = 0.0
) -> nn.MultiheadAttention:
    """The layer from which all take their weights; none of its biases is zero."""
    layer = nn.MultiheadAttention(embed_dim, num_heads, dropout, batch_first=True)
    nn.init.normal_(layer.in_proj_bias, std=0.1)
    nn.init.normal_(layer.out_proj.bias, std=0.1)
    return layer


def every_layer(
    weights: nn.MultiheadAttention, setting: Setting, length: int
) -> dict[str, nn.Module]:
    """The layers by name, ours first; that of x-transformers where it is installed."""
    made = {
        OURS: Ours(weights, setting),
        "SDPA": Fused(weights, setting, length),
        "MHA usual": Usual(weights, setting, length),
        "MHA best": Best(weights, setting, length),
        "MHA plain": Best(weights, setting, length, fast_path=False),
        "explicit": Explicit(weights, setting, length),
    }
    if importlib.util.find_spec("x_transformers"):
        made["x-transformers"] = XTransformers(weights, setting)
    return made


class Ours(nn.Module):
    """:class:`attention_lib.MultiHeadAttention`."""

    def __init__(self, weights: nn.MultiheadAttention, setting: Setting) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            weights.embed_dim, weights.num_heads, dropout=weights.dropout
        )
        interop.load_weights(self.attention, weights.state_dict(), names="torch")
        self.setting = setting

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(
            x, attn_mask=self.setting.keep, is_causal=self.setting.causal
        )


class Projected(nn.Module):
    """One product for queries, keys and values, and one for the output."""

    def __init__(self, weights: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads = weights.num_heads
        self.dropout = weights.dropout
        E = weights.embed_dim
        self.qkv = nn.Linear(E, 3 * E)
        self.out = nn.Linear(E, E)
        copy(
            ((self.qkv.weight, self.qkv.bias), (self.out.weight, self.out.bias)),
            (
                (weights.in_proj_weight, weights.in_proj_bias),
                (weights.out_proj.weight, weights.out_proj.bias),
            ),
        )

    def forward(self, x: Tensor) -> Tensor:
        B, L, E = x.shape
        q, k, v = (
            part.view(B, L, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(E, dim=-1)
        )
        heads = self.attend(q, k, v, self.dropout if self.training else 0.0)
        return self.out(heads.transpose(1, 2).reshape(B, L, E))


class Fused(Projected):
    """What one writes by hand around torch's fused function."""

    def __init__(
        self, weights: nn.MultiheadAttention, setting: Setting, length: int
    ) -> None:
        super().__init__(weights)
        # The function takes a mask or the flag, not both.
        self.causal = setting.causal and setting.keep is None
        self.mask = None if self.causal else setting.visible(length)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, self.mask, dropout, is_causal=self.causal
        )


class Explicit(Projected):
    """Scores, softmax and mean, one after the other."""

    def __init__(
        self, weights: nn.MultiheadAttention, setting: Setting, length: int
    ) -> None:
        super().__init__(weights)
        visible = setting.visible(length)
        self.hidden = None if visible is None else ~visible

    def attend(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        scores = q / math.sqrt(q.shape[-1]) @ k.transpose(-2, -1)
        if self.hidden is not None:
            scores = scores.masked_fill(self.hidden, -math.inf)
        return F.dropout(scores.softmax(dim=-1), dropout) @ v


class Usual(nn.Module):
    """``nn.MultiheadAttention`` as most call it: a mask, and the weights returned."""

    def __init__(
        self, weights: nn.MultiheadAttention, setting: Setting, length: int
    ) -> None:
        super().__init__()
        self.attention = weights
        self.options = torch_masks(setting, length)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, **self.options)[0]


class Best(nn.Module):
    """``nn.MultiheadAttention`` with ``is_causal`` and without the weights.

    In inference it takes a fast path that is at times the slower one: without it, this
    is ``MHA plain``.
    """

    def __init__(
        self,
        weights: nn.MultiheadAttention,
        setting: Setting,
        length: int,
        *,
        fast_path: bool = True,
    ) -> None:
        super().__init__()
        self.attention = weights
        self.options = torch_masks(setting, length) | {
            "is_causal": setting.causal and setting.keep is None,
            "need_weights": False,
        }
        self.fast_path = fast_path

    def forward(self, x: Tensor) -> Tensor:
        torch.backends.mha.set_fastpath_enabled(self.fast_path)
        try:
            return self.attention(x, x, x, **self.options)[0]
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


def torch_masks(setting: Setting, length: int) -> dict[str, Tensor | None]:
    """The masks of ``nn.MultiheadAttention``, in which True = hidden."""
    keep = setting.keep
    if keep is not None and keep.shape[2] == 1:  # padding
        causal = ~masks.causal(length) if setting.causal else None
        return {"key_padding_mask": ~keep[:, 0, 0], "attn_mask": causal}
    visible = setting.visible(length)
    if visible is None:
        return {}
    return {"attn_mask": ~visible.view(visible.shape[-2:])}


class XTransformers(nn.Module):
    """``x_transformers.Attention`` with flash attention, and biases put in."""

    def __init__(self, weights: nn.MultiheadAttention, setting: Setting) -> None:
        from x_transformers import Attention

        super().__init__()
        E = weights.embed_dim
        self.attention = Attention(
            E,
            dim_head=weights.head_dim,
            heads=weights.num_heads,
            causal=setting.causal,
            flash=True,
            dropout=weights.dropout,
        )
        names = ("to_q", "to_k", "to_v", "to_out")
        for name in names:
            setattr(self.attention, name, nn.Linear(E, E))
        made = (getattr(self.attention, name) for name in names)
        copy(
            ((linear.weight, linear.bias) for linear in made),
            (
                *zip(
                    weights.in_proj_weight.chunk(3),
                    weights.in_proj_bias.chunk(3),
                    strict=True,
                ),
                (weights.out_proj.weight, weights.out_proj.bias),
            ),
        )
        self.keep = setting.keep

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, attn_mask=self.keep)


@torch.no_grad()
def copy(
    into: Iterable[tuple[Tensor, Tensor]], of: Iterable[tuple[Tensor, Tensor]]
) -> None:
    """Weight and bias of each layer."""
    for (weight, bias), (given_weight, given_bias) in zip(into, of, strict=True):
        weight.copy_(given_weight)
        bias.copy_(given_bias)
