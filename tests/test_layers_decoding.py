"""Hooks of MultiHeadAttention, and decoding with a cache beside the full pass."""

import math

import pytest
import torch
from layer_samples import HKV, B, D, E, H, L, by_definition, wide
from samples import Kernels, close
from torch import nn

from attention_lib import (
    AlibiBias,
    KeyValueCache,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryEmbedding,
    masks,
    token_positions,
)

pytestmark = pytest.mark.usefixtures("on_device")

# Hooks --------------------------------------------------------------------------------


def test_norms_come_before_the_rotary_embedding():
    layer = wide(
        rotary=RotaryEmbedding(D),
        query_norm=nn.RMSNorm(D, dtype=torch.float64),
        key_norm=nn.RMSNorm(D, dtype=torch.float64),
    )
    # Uneven weights: turning and scaling the components do not commute.
    nn.init.uniform_(layer.query_norm.weight, 0.5, 2)
    nn.init.uniform_(layer.key_norm.weight, 0.5, 2)
    x = torch.randn(B, L, E, dtype=torch.float64)
    q, k, _ = layer.project(x)
    q = layer.rotary(layer.query_norm(q))
    k = layer.rotary(layer.key_norm(k)).repeat_interleave(H // HKV, 1)
    weights = (q @ k.mT / math.sqrt(D)).softmax(-1)
    close(layer(x, need_weights=True)[1], weights, 1e-10)


def test_a_score_bias_is_added_and_masks_still_hold():
    bias = RelativePositionBias(H, num_buckets=8, dtype=torch.float64)
    nn.init.normal_(bias.weight)
    layer = wide(score_bias=bias)
    x = torch.randn(B, L, E, dtype=torch.float64)
    keep, causal = torch.rand(B, L, L) > 0.3, torch.ones(L, L).tril().bool()
    floats = torch.randn(B, H, L, L, dtype=torch.float64)
    full = bias(L).detach().expand(B, H, L, L)
    cases = [
        ({}, full),
        ({"is_causal": True}, full.masked_fill(~causal, -math.inf)),
        ({"attn_mask": keep}, full.masked_fill(~keep[:, None], -math.inf)),
        ({"attn_mask": floats}, full + floats),
        (
            {"attn_mask": keep, "is_causal": True},
            full.masked_fill(~(keep[:, None] & causal), -math.inf),
        ),
    ]
    for arguments, mask in cases:
        output, weights = by_definition(layer, x, attn_mask=mask)
        close(layer(x, **arguments), output)
        close(layer(x, **arguments, need_weights=True)[1], weights)


def test_a_learned_score_bias_learns():
    layer = wide(score_bias=RelativePositionBias(H, dtype=torch.float64))
    x = torch.randn(B, L, E, dtype=torch.float64)
    layer(x, is_causal=True).square().sum().backward()
    assert layer.score_bias.weight.grad.abs().max() > 1e-6


def test_any_callable_is_a_hook():
    flip = wide(
        rotary=lambda x, offset, positions: -x,
        score_bias=lambda L, S, offset: torch.zeros(H, L, S, dtype=torch.float64),
    )
    x = torch.randn(B, L, E, dtype=torch.float64)
    close(flip(x), by_definition(flip, x)[0])
    of_the_batch = torch.randn(B, H, L, L, dtype=torch.float64)
    layer = wide(score_bias=lambda L, S, offset: of_the_batch)
    close(layer(x), by_definition(layer, x, attn_mask=of_the_batch)[0])


@pytest.mark.parametrize("shape", [(HKV, L, L), (H, L, L + 1), (1, 2, H, L, L)])
def test_what_a_score_bias_gives_is_checked(shape):
    layer = wide(score_bias=lambda L, S, offset: torch.zeros(shape))
    x = torch.randn(B, L, E, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"score_bias gave shape \("):
        layer(x)
    keep = wide(score_bias=lambda L, S, offset: torch.ones(L, S, dtype=torch.bool))
    with pytest.raises(ValueError, match="dtype torch.bool, expected a float"):
        keep(x)


def test_hooks_are_checked_against_the_layer():
    with pytest.raises(ValueError, match="rotary has head_dim=3, expected 4"):
        wide(rotary=RotaryEmbedding(3, rotary_dim=2))
    with pytest.raises(ValueError, match="score_bias has num_heads=4, expected 6"):
        wide(score_bias=AlibiBias(4))


# Decoding -----------------------------------------------------------------------------

KINDS = {
    "plain": dict,
    "rotary": lambda: {"rotary": RotaryEmbedding(D)},
    "partial rotary": lambda: {
        "rotary": RotaryEmbedding(D, rotary_dim=2, interleaved=True)
    },
    "ALiBi": lambda: {"score_bias": AlibiBias(H)},
    "buckets": lambda: {
        "score_bias": RelativePositionBias(H, num_buckets=8, bidirectional=False)
    },
    "norms": lambda: {
        "query_norm": nn.RMSNorm(D),
        "key_norm": nn.RMSNorm(D),
        "rotary": RotaryEmbedding(D),
    },
    "softcap": lambda: {"softcap": 2.0, "scale": 0.3},
}


@pytest.mark.parametrize("chunk", [1, 3, 8], ids=["one", "three", "all"])
@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_equals_the_full_pass(kind, chunk, need_weights):
    layer = wide(**KINDS[kind]()).double()
    x = torch.randn(B, 8, E, dtype=torch.float64)
    whole, all_weights = layer(x, is_causal=True, need_weights=True)
    cache = KeyValueCache.for_layer(layer, B, 8)
    for start in range(0, 8, chunk):
        out = layer(
            x[:, start : start + chunk],
            is_causal=True,
            cache=cache,
            need_weights=need_weights,
        )
        if need_weights:
            out, weights = out
            rows = all_weights[:, :, start : start + chunk, : cache.length]
            close(weights, rows)
        close(out, whole[:, start : start + chunk])
    assert cache.length == 8


@pytest.mark.parametrize("chunk", [1, 3, 8], ids=["one", "three", "all"])
def test_decoding_with_a_window(chunk):
    layer = wide(rotary=RotaryEmbedding(D))
    x = torch.randn(B, 8, E, dtype=torch.float64)
    whole = layer(x, attn_mask=masks.sliding_window(8, window=3))
    cache = KeyValueCache.for_layer(layer, B, 8)
    for start in range(0, 8, chunk):
        now = x[:, start : start + chunk]
        keep = masks.sliding_window(now.shape[1], window=3, offset=start)
        out = layer(now, attn_mask=keep, is_causal=True, cache=cache)
        close(out, whole[:, start : start + chunk])


@pytest.mark.parametrize("chunk", [1, 3, 8], ids=["one", "three", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_with_padding_on_the_left(kind, chunk):
    """A padded row gives what the row gives alone."""
    layer = wide(**KINDS[kind]()).double()
    x = torch.randn(B, 8, E, dtype=torch.float64)
    keep = torch.ones(B, 8, dtype=torch.bool)
    keep[0, :3] = False
    positions = token_positions(keep)
    alone = [layer(x[:1, 3:], is_causal=True), layer(x[1:], is_causal=True)]
    cache = KeyValueCache.for_layer(layer, B, 8)
    found = []
    for start in range(0, 8, chunk):
        end = min(start + chunk, 8)
        found.append(
            layer(
                x[:, start:end],
                attn_mask=keep[:, None, None, :end],
                is_causal=True,
                cache=cache,
                positions=positions[:, start:end] if layer.rotary else None,
            )
        )
    out = torch.cat(found, dim=1)
    close(out[0, 3:], alone[0][0], 1e-10)
    close(out[1], alone[1][0], 1e-10)


def test_float_masks_hold_with_a_cache():
    layer = wide()
    x = torch.randn(B, 8, E, dtype=torch.float64)
    bias = torch.randn(B, H, 8, 8, dtype=torch.float64)
    whole = layer(x, attn_mask=bias, is_causal=True)
    cache = KeyValueCache.for_layer(layer, B, 8)
    for start, end in ((0, 3), (3, 4), (4, 8)):
        mask = bias[:, :, start:end, :end]
        out = layer(x[:, start:end], attn_mask=mask, is_causal=True, cache=cache)
        close(out, whole[:, start:end])


def test_without_is_causal_a_cached_chunk_sees_all_of_itself():
    layer = wide()
    x = torch.randn(B, 8, E, dtype=torch.float64)
    cache = KeyValueCache.for_layer(layer, B, 8)
    layer(x[:, :5], cache=cache)
    close(layer(x[:, 5:], cache=cache), layer(x)[:, 5:])


def test_a_used_cache_serves_again_after_reset():
    layer = wide(rotary=RotaryEmbedding(D))
    x = torch.randn(B, 8, E, dtype=torch.float64)
    cache = KeyValueCache.for_layer(layer, B, 8)
    first = layer(x, is_causal=True, cache=cache)
    cache.reset()
    assert torch.equal(layer(x, is_causal=True, cache=cache), first)


def test_a_refused_call_leaves_the_cache_as_it_was():
    layer = wide()
    cache = KeyValueCache.for_layer(layer, B, 8)
    x = torch.randn(B, 5, E, dtype=torch.float64)
    layer(x, is_causal=True, cache=cache)
    with pytest.raises(ValueError, match="attn_mask has shape"):
        layer(x[:, :2], attn_mask=torch.ones(2, 5).bool(), cache=cache)
    with pytest.raises(
        ValueError, match="query has 5 tokens, the cache has room for 3"
    ):
        layer(x, is_causal=True, cache=cache)
    assert cache.length == 5


def operators(function):
    """The names of the operators that run."""
    with Kernels() as kernels:
        function()
    return [name.removeprefix("aten::").split(".")[0] for name in kernels.names]


@torch.no_grad()
def test_one_decoded_token_builds_no_mask(device):
    layer = MultiHeadAttention(E, H)
    cache = KeyValueCache.for_layer(layer, B, 8)
    layer(torch.randn(B, 3, E), is_causal=True, cache=cache)
    token = torch.randn(B, 1, E)
    names = operators(lambda: layer(token, is_causal=True, cache=cache))
    assert not {"arange", "le", "lt", "tril", "ones", "masked_fill", "where"} & set(
        names
    )
    # Two copies store the key and the value; nothing else is copied.
    assert names.count("copy_") == 2
    assert not {"clone", "cat", "_to_copy", "repeat_interleave"} & set(names)


@torch.no_grad()
def test_nothing_is_copied(device):
    if device.type != "cpu":
        pytest.skip("other kernels lay their output out in their own way")
    layer = MultiHeadAttention(E, H)
    x = torch.randn(B, L, E)
    names = operators(lambda: layer(x, is_causal=True))
    assert not {"clone", "copy_", "cat", "_to_copy"} & set(names)
    assert names.count("addmm") == 2
