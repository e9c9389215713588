"""The cache of a sliding window: the mask's output, in the memory of the window."""

import copy

import pytest
import torch
from layer_samples import HKV, B, D, E, H, by_definition, wide
from samples import Kernels, close
from torch import nn

from attention_lib import (
    AlibiBias,
    KeyValueCache,
    MultiHeadAttention,
    RelativePositionBias,
    RollingCache,
    RotaryEmbedding,
    masks,
    token_positions,
)

pytestmark = pytest.mark.usefixtures("on_device")

LENGTH, WINDOW = 29, 5
CHUNKS = {
    "one": [1] * LENGTH,
    "three": [3] * 9 + [2],
    "the window": [WINDOW] * 5 + [4],
    "all": [LENGTH],
    "prompt, then one": [13] + [1] * 16,
    "uneven": [2, 11, 1, 0, 1, 6, 1, 7],
}
KINDS = {
    "plain": dict,
    "rotary": lambda: {"rotary": RotaryEmbedding(D)},
    "ALiBi": lambda: {"score_bias": AlibiBias(H)},
    "buckets": lambda: {
        "score_bias": RelativePositionBias(H, num_buckets=8, bidirectional=False)
    },
    "norms": lambda: {"query_norm": nn.RMSNorm(D), "key_norm": nn.RMSNorm(D)},
    "softcap": lambda: {"softcap": 2.0, "scale": 0.3},
}


def draw(length=LENGTH):
    return torch.randn(B, length, E, dtype=torch.float64)


def keys_and_values(length, batch=B, heads=HKV, width=D, **kwargs):
    return torch.randn(2, batch, heads, length, width, **kwargs).unbind(0)


@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_chunks_give_the_full_pass_under_the_mask(kind, sizes):
    layer = wide(**KINDS[kind]()).double()
    x = draw()
    keep = masks.sliding_window(LENGTH, window=WINDOW)
    whole, weights = layer(x, attn_mask=keep, need_weights=True)
    cache = RollingCache.for_layer(layer, B, WINDOW)
    end = 0
    for piece in x.split(sizes, dim=1):
        start, end = end, end + piece.shape[1]
        first = start - cache.length
        assert cache.offset == start and first == max(start - WINDOW + 1, 0)
        out, found = layer(
            piece, is_causal=True, cache=copy.deepcopy(cache), need_weights=True
        )
        close(out, whole[:, start:end], 1e-12)
        close(found, weights[:, :, start:end, first:end], 1e-12)
        close(layer(piece, cache=cache), whole[:, start:end], 1e-12)
    assert cache.offset == LENGTH and cache.length == WINDOW - 1


@pytest.mark.parametrize("window", [1, 2, 4, LENGTH, LENGTH + 8])
@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
def test_windows_of_any_size(window, sizes):
    layer = wide()
    x = draw()
    keep = masks.sliding_window(LENGTH, window=window)
    cache = RollingCache.for_layer(layer, B, window)
    found = [layer(piece, cache=cache) for piece in x.split(sizes, dim=1)]
    close(torch.cat(found, dim=1), by_definition(layer, x, attn_mask=keep)[0], 1e-12)


def test_memory_stays_that_of_the_window():
    cache = RollingCache(B, HKV, WINDOW, D)
    places = cache.keys.data_ptr(), cache.values.data_ptr()
    size = cache.keys.nbytes + cache.values.nbytes
    assert size <= 1.25 * 2 * B * HKV * WINDOW * D * 4
    for length in (1, 3, 40, 0, 1, 1, 1, 1, 1, 9):
        keys, values = cache.update(*keys_and_values(length))
        assert keys.shape == values.shape
        assert (cache.keys.data_ptr(), cache.values.data_ptr()) == places
        assert cache.keys.nbytes + cache.values.nbytes == size


def test_returns_the_reach_of_the_new_tokens_in_order():
    cache = RollingCache(B, HKV, WINDOW, D)
    key, value = keys_and_values(LENGTH)
    end = 0
    for size in (1, 2, 1, 1, 1, 1, 7, 1, 1, 0, 12, 1):
        start, end = end, end + size
        keys, values = cache.update(key[:, :, start:end], value[:, :, start:end])
        first = max(start - WINDOW + 1, 0)
        assert torch.equal(keys, key[:, :, first:end])
        assert torch.equal(values, value[:, :, first:end])
    assert end == LENGTH == cache.offset


@torch.no_grad()
def test_a_token_is_copied_rarely_and_needs_no_mask():
    window, steps = 64, 160
    layer = MultiHeadAttention(E, H)
    cache = RollingCache.for_layer(layer, B, window)
    layer(torch.randn(B, window, E), cache=cache)
    moves = 0
    for _ in range(steps):
        with Kernels() as kernels:
            layer(torch.randn(B, 1, E), cache=cache)
        names = {name.removeprefix("aten::").split(".")[0] for name in kernels.names}
        assert not {"arange", "le", "gt", "tril", "masked_fill", "where"} & names
        moves += "cat" in names
    assert 0 < moves <= steps / (window // 4)


def test_reset_starts_another_text():
    layer = wide(rotary=RotaryEmbedding(D))
    cache = RollingCache.for_layer(layer, B, WINDOW)
    x = draw(11)
    first = [layer(piece, cache=cache) for piece in x.split(4, dim=1)]
    cache.reset()
    assert cache.offset == cache.length == 0
    again = [layer(piece, cache=cache) for piece in x.split(4, dim=1)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("sizes", [[1] * 12, [7, 1, 1, 3], [12]], ids=str)
def test_padding_on_the_left(sizes):
    """A padded row gives what the row gives alone; the mask covers what is held."""
    layer = wide(rotary=RotaryEmbedding(D))
    x = draw(12)
    keep = torch.ones(B, 12, dtype=torch.bool)
    keep[0, :3] = False
    positions = token_positions(keep)
    alone = layer(x[:1, 3:], attn_mask=masks.sliding_window(9, window=WINDOW))
    cache = RollingCache.for_layer(layer, B, WINDOW)
    found, end = [], 0
    for piece in x.split(sizes, dim=1):
        start, end = end, end + piece.shape[1]
        found.append(
            layer(
                piece,
                attn_mask=keep[:, None, None, start - cache.length : end],
                cache=cache,
                positions=positions[:, start:end],
            )
        )
    close(torch.cat(found, dim=1)[0, 3:], alone[0], 1e-12)


def test_a_refused_call_leaves_the_cache_as_it_was():
    layer = wide()
    cache = RollingCache.for_layer(layer, B, WINDOW)
    x = draw(9)
    layer(x, cache=cache)
    before = cache.keys.clone()
    with pytest.raises(ValueError, match="attn_mask has shape"):
        layer(x[:, :2], attn_mask=torch.ones(2, 11).bool(), cache=cache)
    with pytest.raises(ValueError, match="cache is for self-attention"):
        layer(x, x.clone(), cache=cache)
    key, value = keys_and_values(2, dtype=torch.float64)
    wrong = [
        ((key[:, 1:], value), ValueError, r"key has shape \(2, 2, 2, 4\), expected"),
        ((key, value[:, :, :1]), ValueError, "value has 1 tokens, expected 2 as key"),
        ((key.half(), value), TypeError, "key has dtype torch.float16, expected"),
        ((key, value.to("meta")), ValueError, "value is on meta, expected"),
    ]
    for arguments, error, message in wrong:
        with pytest.raises(error, match=message):
            cache.update(*arguments)
    assert (cache.offset, cache.length) == (9, 4)
    assert torch.equal(cache.keys, before)


@torch.no_grad()
def test_compiles_into_one_graph():
    layer = wide(rotary=RotaryEmbedding(D))
    x = draw(12)
    whole = layer(x, attn_mask=masks.sliding_window(12, window=WINDOW))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    cache = RollingCache.for_layer(layer, B, WINDOW)
    found = [compiled(piece, cache=cache) for piece in x.split([3, 1, 1, 1, 6], dim=1)]
    close(torch.cat(found, dim=1), whole, 1e-12)


@pytest.mark.parametrize("learning", [(True, True), (True, False), (False, True)])
def test_holds_no_graph(learning):
    cache = RollingCache(B, HKV, WINDOW, D)
    for length in (2, 1, 1, 1, 9):  # views, and what is joined
        pair = keys_and_values(length)
        for x, learns in zip(pair, learning, strict=True):
            x.requires_grad_(learns)
        keys, values = cache.update(*pair)
        assert not keys.requires_grad and not values.requires_grad
    assert not cache.keys.requires_grad and not cache.values.requires_grad


def test_a_copy_goes_its_own_way():
    cache = RollingCache(B, HKV, WINDOW, D)
    cache.update(*keys_and_values(7))
    twin = copy.deepcopy(cache)
    twin.update(*keys_and_values(3))
    twin.keys.zero_()
    assert (cache.offset, twin.offset) == (7, 10)
    assert cache.update(*keys_and_values(0))[0].abs().min() > 0


def test_for_layer_takes_the_layer_s_shape_and_dtype():
    layer = MultiHeadAttention(
        8, 4, num_kv_heads=2, head_dim=5, dtype=torch.bfloat16, device="meta"
    )
    cache = RollingCache.for_layer(layer, 3, 16)
    assert cache.keys.shape == cache.values.shape == (3, 2, 20, 5)
    assert cache.keys.dtype == torch.bfloat16
    assert cache.values.device.type == "meta"
    assert RollingCache.for_layer(layer, 3, 16, dtype=torch.float16).keys.dtype == (
        torch.float16
    )


@pytest.mark.parametrize("name", ["batch_size", "num_kv_heads", "window", "head_dim"])
def test_sizes_are_checked(name):
    sizes = {"batch_size": B, "num_kv_heads": HKV, "window": WINDOW, "head_dim": D}
    with pytest.raises(ValueError, match=f"{name}=-1 must be at least"):
        RollingCache(**(sizes | {name: -1}))
    with pytest.raises(TypeError, match=f"{name} must be an integer"):
        RollingCache(**(sizes | {name: 2.0}))


def test_a_layer_refuses_a_cache_of_another_shape():
    cache = RollingCache(B + 1, HKV, WINDOW, D, dtype=torch.float64)
    with pytest.raises(ValueError, match="cache has batch, heads and width"):
        wide()(draw(), cache=cache)


def test_repr_says_how_far_it_is():
    cache = RollingCache(2, 3, 6, 7)
    cache.update(*keys_and_values(9, 2, 3, 7))
    assert repr(cache) == (
        "RollingCache(batch_size=2, num_kv_heads=3, window=6, head_dim=7, offset=9)"
    )


def test_it_serves_where_a_cache_does():
    assert issubclass(RollingCache, KeyValueCache) and KeyValueCache.window is None
