"""Wrong calls of the cache, the layers and the block."""

from functools import partial

import torch
from wrong_row import Row, call, zeros

from attention_lib import (
    AlibiBias,
    FeedForward,
    KeyValueCache,
    MultiHeadAttention,
    RotaryEmbedding,
    SelfAttention,
    TransformerBlock,
    masks,
)

E, H = 12, 6
x, context = zeros(2, 5, E), zeros(2, 7, E)


def layer(*args, options=None, **kwargs):
    """Prepare a call of a layer made with ``options``."""
    return lambda: partial(MultiHeadAttention(E, H, **(options or {})), *args, **kwargs)


def cached(*args, held=5, cache=None, options=None, **kwargs):
    """Prepare a call with a cache of 8 tokens that holds some already."""

    def prepare():
        made = MultiHeadAttention(E, H, **(options or {}))
        sizes = {"batch_size": 2, "num_kv_heads": H, "max_len": 8, "head_dim": 2}
        memory = KeyValueCache(**(sizes | (cache or {})))
        shape = (memory.keys.shape[0], memory.keys.shape[1], held, 2)
        if held:
            memory.update(torch.zeros(shape), torch.zeros(shape))
        return partial(made, *args, cache=memory, **kwargs)

    return prepare


def block(*args, cross=False, **kwargs):
    def prepare():
        attention = MultiHeadAttention(E, H) if cross else None
        return partial(
            TransformerBlock(E, H, cross_attention=attention), *args, **kwargs
        )

    return prepare


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
    # Where tokens stand
    Row(
        "a causal rule between sequences of other lengths",
        layer(x, context, is_causal=True),
        ValueError,
        "is_causal does not say how 5 queries and 7 keys align: "
        "pass attn_mask=masks.causal(5, 7, offset=...)",
    ),
    Row(
        "positions without rotary",
        layer(x, positions=zeros(5, dtype=torch.int64)),
        ValueError,
        "positions needs a layer with rotary",
    ),
    Row(
        "rotary between two sequences",
        layer(x, context, options={"rotary": RotaryEmbedding(2)}),
        ValueError,
        "rotary turns queries and keys of one sequence: leave out key and value",
    ),
    Row(
        "positions of another batch",
        layer(
            x,
            positions=zeros(3, 5, dtype=torch.int64),
            options={"rotary": RotaryEmbedding(2)},
        ),
        ValueError,
        "positions has shape (3, 5), expected (5,) or (2, 5)",
    ),
    # With a cache
    Row(
        "more tokens than the cache has room for",
        cached(x),
        ValueError,
        "query has 5 tokens, the cache has room for 3: it holds 5 of max_len=8",
    ),
    Row(
        "a cache of another batch",
        cached(x[:, :1], cache={"batch_size": 3}),
        ValueError,
        "cache has batch, heads and width (3, 6, 2), expected (2, 6, 2)",
    ),
    Row(
        "a cache of other heads",
        cached(x[:, :1], options={"num_kv_heads": 3}),
        ValueError,
        "cache has batch, heads and width (2, 6, 2), expected (2, 3, 2)",
    ),
    Row(
        "a cache of another width",
        cached(x[:, :1], held=0, cache={"head_dim": 3}),
        ValueError,
        "cache has batch, heads and width (2, 6, 3), expected (2, 6, 2)",
    ),
    Row(
        "a cache of another dtype",
        cached(x[:, :1], held=0, cache={"dtype": torch.float64}),
        TypeError,
        "cache has dtype torch.float64, expected torch.float32 as query",
    ),
    Row(
        "a cache elsewhere",
        cached(x[:, :1], held=0, cache={"device": "meta"}),
        ValueError,
        "cache is on meta, expected cpu as query",
    ),
    Row(
        "a mask that did not grow with the cache",
        cached(x[:, :1], attn_mask=zeros(1, 5, dtype=torch.bool)),
        ValueError,
        "attn_mask has shape (1, 5), expected one that broadcasts to (2, 6, 1, 6)",
    ),
    Row(
        "a cache in cross-attention",
        cached(x[:, :1], context),
        ValueError,
        "cache is for self-attention: leave out key and value",
    ),
    Row(
        "a cache of no tokens",
        call(KeyValueCache, 2, 6, 0, 2),
        ValueError,
        "max_len=0 must be at least 1",
    ),
    # Blocks
    Row(
        "a block without heads",
        call(TransformerBlock, E),
        ValueError,
        "num_heads or attention must be given",
    ),
    Row(
        "a block with attention twice",
        lambda: partial(TransformerBlock, E, H, attention=MultiHeadAttention(E, H)),
        ValueError,
        "num_heads=6 and attention: give one of them",
    ),
    Row(
        "a block with a network twice",
        lambda: partial(
            TransformerBlock, E, H, hidden_dim=20, feed_forward=FeedForward(E)
        ),
        ValueError,
        "hidden_dim=20 and feed_forward: give one of them",
    ),
    Row(
        "a block with dropout in percent",
        call(TransformerBlock, E, H, dropout=10),
        ValueError,
        "dropout=10 must be at least 0 and below 1",
    ),
    Row(
        "a network without width",
        call(FeedForward, E, 0),
        ValueError,
        "hidden_dim=0 must be at least 1",
    ),
    Row(
        "a network with dropout below 0",
        call(FeedForward, E, dropout=-0.1),
        ValueError,
        "dropout=-0.1 must be at least 0 and below 1",
    ),
    Row(
        "a context without cross-attention",
        block(x, context),
        ValueError,
        "context needs a block with cross_attention",
    ),
    Row(
        "cross-attention without a context",
        block(x, cross=True),
        ValueError,
        "context is missing: the block has cross_attention",
    ),
    Row(
        "a mask of no context",
        block(x, context_mask=zeros(7, dtype=torch.bool)),
        ValueError,
        "context_mask needs context",
    ),
]
