"""Wrong layers, and wrong calls of layers."""

from functools import partial

import torch
from wrong_row import Row, call, zeros

from attention_lib import (
    AlibiBias,
    MultiHeadAttention,
    RotaryEmbedding,
    SelfAttention,
    masks,
)

E, H = 12, 6
x, context = zeros(2, 5, E), zeros(2, 7, E)


def layer(*args, options=None, **kwargs):
    """Prepare a call of a layer made with ``options``."""
    return lambda: partial(MultiHeadAttention(E, H, **(options or {})), *args, **kwargs)


ROWS = [
    # Making a layer
    Row(
        "heads that do not divide the width",
        call(MultiHeadAttention, 12, 5),
        ValueError,
        "embed_dim=12 must be a multiple of num_heads=5, or head_dim given",
    ),
    Row(
        "key/value heads that do not divide the heads",
        call(MultiHeadAttention, 12, 12, num_kv_heads=5),
        ValueError,
        "num_heads=12 must be a multiple of num_kv_heads=5",
    ),
    Row(
        "more key/value heads than heads",
        call(MultiHeadAttention, 12, 4, num_kv_heads=8),
        ValueError,
        "num_heads=4 must be a multiple of num_kv_heads=8",
    ),
    Row(
        "no width",
        call(MultiHeadAttention, 0, 1),
        ValueError,
        "embed_dim=0 must be at least 1",
    ),
    Row(
        "no heads",
        call(MultiHeadAttention, 12, 0),
        ValueError,
        "num_heads=0 must be at least 1",
    ),
    Row(
        "a float for heads",
        call(MultiHeadAttention, 12, 12 / 3),
        TypeError,
        "num_heads must be an integer, got float",
    ),
    Row(
        "no key/value heads",
        call(MultiHeadAttention, 12, 4, num_kv_heads=0),
        ValueError,
        "num_kv_heads=0 must be at least 1",
    ),
    Row(
        "a head without width",
        call(MultiHeadAttention, 12, 4, head_dim=0),
        ValueError,
        "head_dim=0 must be at least 1",
    ),
    Row(
        "keys without width",
        call(MultiHeadAttention, 12, 4, kdim=-1),
        ValueError,
        "kdim=-1 must be at least 1",
    ),
    Row(
        "values without width",
        call(MultiHeadAttention, 12, 4, vdim=0),
        ValueError,
        "vdim=0 must be at least 1",
    ),
    Row(
        "dropout in percent",
        call(MultiHeadAttention, 12, 4, dropout=10),
        ValueError,
        "dropout=10 must be at least 0 and below 1",
    ),
    Row(
        "dropout of everything",
        call(SelfAttention, 12, dropout=1.0),
        ValueError,
        "dropout=1.0 must be at least 0 and below 1",
    ),
    Row(
        "a module for dropout",
        call(MultiHeadAttention, 12, 4, dropout=torch.nn.Dropout(0.1)),
        TypeError,
        "dropout must be a number, got Dropout",
    ),
    Row(
        "a soft cap of 0",
        call(MultiHeadAttention, 12, 4, softcap=0.0),
        ValueError,
        "softcap=0.0 must be above 0 and finite, or None",
    ),
    Row(
        "an infinite scale",
        call(MultiHeadAttention, 12, 4, scale=float("inf")),
        ValueError,
        "scale=inf must be finite",
    ),
    Row(
        "a rotary embedding of another width",
        lambda: partial(MultiHeadAttention, 12, 4, rotary=RotaryEmbedding(4)),
        ValueError,
        "rotary has head_dim=4, expected 3 as the layer",
    ),
    Row(
        "a bias for other heads",
        lambda: partial(MultiHeadAttention, 12, 4, score_bias=AlibiBias(8)),
        ValueError,
        "score_bias has num_heads=8, expected 4 as the layer",
    ),
    Row(
        "one head: no width",
        call(SelfAttention, 0),
        ValueError,
        "embed_dim=0 must be at least 1",
    ),
    Row(
        "one head: no values",
        call(SelfAttention, 12, value_dim=0),
        ValueError,
        "value_dim=0 must be at least 1",
    ),
    Row(
        "one head without width",
        call(SelfAttention, 12, key_dim=0),
        ValueError,
        "key_dim=0 must be at least 1",
    ),
    # Calling it
    Row(
        "a list for tokens",
        layer([[0.0] * E]),
        TypeError,
        "query must be a Tensor, got list",
    ),
    Row(
        "another width",
        layer(zeros(2, 5, 11)),
        ValueError,
        "query has shape (2, 5, 11), expected (B, L, 12)",
    ),
    Row(
        "no batch axis",
        layer(zeros(5, E)),
        ValueError,
        "query has shape (5, 12), expected (B, L, 12)",
    ),
    Row(
        "heads split already",
        layer(zeros(2, 5, H, E)),
        ValueError,
        "query has shape (2, 5, 6, 12), expected (B, L, 12)",
    ),
    Row(
        "token numbers",
        layer(zeros(2, 5, E, dtype=torch.int64)),
        TypeError,
        "query has dtype torch.int64, expected torch.float32 as the layer",
    ),
    Row(
        "another dtype",
        layer(zeros(2, 5, E, dtype=torch.float16)),
        TypeError,
        "query has dtype torch.float16, expected torch.float32 as the layer",
    ),
    Row(
        "another device",
        layer(zeros(2, 5, E, device="meta")),
        ValueError,
        "query is on meta, expected cpu as the layer",
    ),
    Row(
        "a context of another width",
        layer(x, zeros(2, 7, 8)),
        ValueError,
        "key has shape (2, 7, 8), expected (B, S, 12)",
    ),
    Row(
        "a missing context of another width",
        layer(x, options={"kdim": 8}),
        ValueError,
        "key has shape (2, 5, 12), expected (B, S, 8)",
    ),
    Row(
        "values of another width",
        layer(x, context, zeros(2, 7, 8)),
        ValueError,
        "value has shape (2, 7, 8), expected (B, S, 12)",
    ),
    Row(
        "a context of another dtype",
        layer(x, context.double()),
        TypeError,
        "key has dtype torch.float64, expected torch.float32 as the layer",
    ),
    Row(
        "a context of another batch",
        layer(x, context[:1]),
        ValueError,
        "key has batch size 1, expected 2 as query",
    ),
    Row(
        "values of another length",
        layer(x, context, context[:, 1:]),
        ValueError,
        "value has batch and length (2, 6), expected (2, 7) as key",
    ),
    Row(
        "keys of another length than the queries as values",
        layer(x, context, x),
        ValueError,
        "value has batch and length (2, 5), expected (2, 7) as key",
    ),
    Row(
        "values of another length than the queries as keys",
        layer(x, x, context),
        ValueError,
        "value has batch and length (2, 7), expected (2, 5) as key",
    ),
    Row(
        "one head: another width",
        lambda: partial(SelfAttention(E), zeros(2, 5, 11)),
        ValueError,
        "x has shape (2, 5, 11), expected (B, L, 12)",
    ),
    # Masks
    Row(
        "an integer mask",
        layer(x, attn_mask=zeros(5, 5, dtype=torch.int64)),
        TypeError,
        "attn_mask has dtype torch.int64, expected torch.bool (True = may attend)",
    ),
    Row(
        "a mask of another float dtype",
        layer(x, attn_mask=zeros(5, 5, dtype=torch.float16)),
        TypeError,
        "attn_mask has dtype torch.float16, expected torch.bool",
    ),
    Row(
        "a list for a mask",
        layer(x, attn_mask=[True] * 5),
        TypeError,
        "attn_mask must be a Tensor, got list",
    ),
    Row(
        "a mask elsewhere",
        layer(x, attn_mask=zeros(5, 5, dtype=torch.bool, device="meta")),
        ValueError,
        "attn_mask is on meta, expected cpu as query",
    ),
    Row(
        "a mask of another length",
        layer(x, attn_mask=zeros(5, 6, dtype=torch.bool)),
        ValueError,
        "attn_mask has shape (5, 6), expected one that broadcasts to (2, 6, 5, 5)",
    ),
    Row(
        "padding without its axes",
        layer(x, attn_mask=zeros(2, 5, dtype=torch.bool)),
        ValueError,
        "padding is masks.padding(lengths, S), of shape (B, 1, 1, S)",
    ),
    Row(
        "a mask per head with three axes",
        layer(x, attn_mask=zeros(H, 5, 5, dtype=torch.bool)),
        ValueError,
        "expected one that broadcasts to (2, 5, 5): three axes mean (B, L, S), "
        "a mask per head is (1, H, L, S)",
    ),
    Row(
        "a mask with batch and heads in one axis",
        layer(x, attn_mask=zeros(2 * H, 5, 5, dtype=torch.bool)),
        ValueError,
        "attn_mask has shape (12, 5, 5), expected one that broadcasts to (2, 5, 5)",
    ),
    Row(
        "a mask with five axes",
        layer(x, attn_mask=zeros(1, 2, H, 5, 5, dtype=torch.bool)),
        ValueError,
        "attn_mask has shape (1, 2, 6, 5, 5), expected one that broadcasts to",
    ),
    Row(
        "a mask of the batch of another call",
        layer(x, attn_mask=masks.padding([5, 3, 2], 5)),
        ValueError,
        "attn_mask has shape (3, 1, 1, 5), expected one that broadcasts to",
    ),
    Row(
        "one head: a mask of another length",
        lambda: partial(SelfAttention(E), x, attn_mask=zeros(4, 4, dtype=torch.bool)),
        ValueError,
        "attn_mask has shape (4, 4), expected one that broadcasts to (2, 1, 5, 5)",
    ),
]
