"""Wrong calls where tokens stand somewhere: cache, positions, blocks."""

from functools import partial

import torch
from wrong_layers import E, H, context, layer, x
from wrong_row import Row, call, zeros

from attention_lib import (
    FeedForward,
    KeyValueCache,
    MultiHeadAttention,
    RotaryEmbedding,
    TransformerBlock,
)

token = x[:, :1]


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
        cached(token, cache={"batch_size": 3}),
        ValueError,
        "cache has batch, heads and width (3, 6, 2), expected (2, 6, 2)",
    ),
    Row(
        "a cache of other heads",
        cached(token, options={"num_kv_heads": 3}),
        ValueError,
        "cache has batch, heads and width (2, 6, 2), expected (2, 3, 2)",
    ),
    Row(
        "a cache of another width",
        cached(token, held=0, cache={"head_dim": 3}),
        ValueError,
        "cache has batch, heads and width (2, 6, 3), expected (2, 6, 2)",
    ),
    Row(
        "a cache of another dtype",
        cached(token, held=0, cache={"dtype": torch.float64}),
        TypeError,
        "cache has dtype torch.float64, expected torch.float32 as query",
    ),
    Row(
        "a cache elsewhere",
        cached(token, held=0, cache={"device": "meta"}),
        ValueError,
        "cache is on meta, expected cpu as query",
    ),
    Row(
        "a mask that did not grow with the cache",
        cached(token, attn_mask=zeros(1, 5, dtype=torch.bool)),
        ValueError,
        "attn_mask has shape (1, 5), expected one that broadcasts to (2, 6, 1, 6)",
    ),
    Row(
        "a cache in cross-attention",
        cached(token, context),
        ValueError,
        "cache is for self-attention: leave out key and value",
    ),
    Row(
        "a cache with values of other tokens",
        cached(token, token, context[:, :1]),
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
        "a block without width",
        call(TransformerBlock, 0, 1),
        ValueError,
        "embed_dim=0 must be at least 1",
    ),
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
        "a block around attention of another width",
        lambda: partial(TransformerBlock, 8, attention=MultiHeadAttention(E, H)),
        ValueError,
        "attention has embed_dim=12, expected 8 as the block",
    ),
    Row(
        "a block around cross-attention of another width",
        lambda: partial(
            TransformerBlock, 8, 2, cross_attention=MultiHeadAttention(E, H)
        ),
        ValueError,
        "cross_attention has embed_dim=12, expected 8 as the block",
    ),
    Row(
        "a block with dropout in percent",
        call(TransformerBlock, E, H, dropout=10),
        ValueError,
        "dropout=10 must be at least 0 and below 1",
    ),
    Row(
        "a block of given parts with dropout in percent",
        lambda: partial(
            TransformerBlock,
            E,
            attention=MultiHeadAttention(E, H),
            feed_forward=FeedForward(E),
            dropout=10,
        ),
        ValueError,
        "dropout=10 must be at least 0 and below 1",
    ),
    Row(
        "a network of no tokens",
        call(FeedForward, 0),
        ValueError,
        "embed_dim=0 must be at least 1",
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
