"""Sizes, layers and their definition that the tests of layers share."""

from itertools import pairwise

import reference
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_lib import MultiHeadAttention

B, L, S, E = 2, 5, 7, 12
H, HKV, D = 6, 3, 4  # H * D is not E


def wide(**options) -> MultiHeadAttention:
    """A layer in which no two sizes agree, with biases that are not zero."""
    options = {"num_kv_heads": HKV, "head_dim": D, "dtype": torch.float64} | options
    layer = MultiHeadAttention(E, H, **options)
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return layer


def by_definition(
    layer: MultiHeadAttention,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Output and weights, on the CPU, from nothing but the layer's parameters."""
    key = query if key is None else key
    value = key if value is None else value
    with torch.device("cpu"):
        heads = []
        for x, (weight, bias) in zip((query, key, value), parts(layer), strict=True):
            projected = F.linear(x.cpu(), weight, bias)
            heads.append(torch.stack(projected.split(layer.head_dim, dim=-1), dim=1))
        weights, output = reference.attention(
            *heads,
            None if attn_mask is None else attn_mask.cpu(),
            is_causal,
            scale=layer.scale,
            softcap=layer.softcap,
        )
        merged = torch.cat(output.unbind(1), dim=-1)
        last = layer.out_proj
        bias = None if last.bias is None else last.bias.cpu()
        return F.linear(merged, last.weight.cpu(), bias), weights


def parts(layer: MultiHeadAttention) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of queries, keys and values, on the CPU, cut by hand."""
    named = {name: p.cpu() for name, p in layer.named_parameters()}
    if "qkv_proj.weight" not in named:
        return [
            (named[f"{part}_proj.weight"], named.get(f"{part}_proj.bias"))
            for part in "qkv"
        ]
    width = layer.num_heads * layer.head_dim
    kv_width = layer.num_kv_heads * layer.head_dim
    cuts = (0, width, width + kv_width, width + 2 * kv_width)
    weight, bias = named["qkv_proj.weight"], named.get("qkv_proj.bias")
    return [
        (weight[a:b], None if bias is None else bias[a:b]) for a, b in pairwise(cuts)
    ]
