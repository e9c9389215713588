"""The cache alone: what it holds, where it ends, what it refuses."""

import copy

import pytest
import torch

from attention_lib import KeyValueCache, MultiHeadAttention

pytestmark = pytest.mark.usefixtures("on_device")

B, HKV, ROOM, D = 2, 3, 7, 5


def tokens(length, batch=B, heads=HKV, width=D, **kwargs):
    return torch.randn(2, batch, heads, length, width, **kwargs).unbind(0)


def test_holds_what_it_was_given():
    cache = KeyValueCache(B, HKV, ROOM, D)
    chunks = [tokens(length) for length in (3, 1, 2, 0, 1)]
    for n, (key, value) in enumerate(chunks, start=1):
        keys, values = cache.update(key, value)
        assert torch.equal(keys, torch.cat([k for k, _ in chunks[:n]], dim=2))
        assert torch.equal(values, torch.cat([v for _, v in chunks[:n]], dim=2))
        assert cache.length == cache.offset == keys.shape[2]
    assert cache.length == ROOM


def test_returns_views_of_memory_that_never_moves():
    cache = KeyValueCache(B, HKV, ROOM, D)
    address = cache.keys.data_ptr(), cache.values.data_ptr()
    for _ in range(ROOM):
        keys, values = cache.update(*tokens(1))
        assert (keys.data_ptr(), values.data_ptr()) == address
        assert keys.stride() == (HKV * ROOM * D, ROOM * D, D, 1)


def test_keys_and_values_do_not_share_memory():
    cache = KeyValueCache(B, HKV, ROOM, D)
    key, value = tokens(2)
    keys, values = cache.update(key, value)
    assert torch.equal(keys, key) and torch.equal(values, value)


def test_reset_forgets_and_starts_over():
    cache = KeyValueCache(B, HKV, ROOM, D)
    cache.update(*tokens(ROOM))
    cache.reset()
    assert cache.length == 0
    key, value = tokens(2)
    keys, values = cache.update(key, value)
    assert torch.equal(keys, key) and torch.equal(values, value)


def test_refuses_what_does_not_fit_and_stays_as_it_was():
    cache = KeyValueCache(B, HKV, ROOM, D)
    cache.update(*tokens(4))
    with pytest.raises(
        ValueError, match=r"key has 4 tokens, the cache has room for 3: it holds 4 of"
    ):
        cache.update(*tokens(4))
    assert cache.length == 4
    cache.update(*tokens(3))
    with pytest.raises(ValueError, match="room for 0"):
        cache.update(*tokens(1))


def test_refuses_other_shapes_dtypes_and_devices():
    cache = KeyValueCache(B, HKV, ROOM, D)
    key, value = tokens(2)
    wrong = [
        (tokens(2, batch=1), ValueError, r"key has shape \(1, 3, 2, 5\), expected"),
        (tokens(2, heads=1), ValueError, r"key has shape \(2, 1, 2, 5\), expected"),
        (tokens(2, width=1), ValueError, r"key has shape \(2, 3, 2, 1\), expected"),
        ((key[0], value), ValueError, r"key has shape \(3, 2, 5\), expected"),
        ((key, value[:1]), ValueError, r"value has shape \(1, 3, 2, 5\), expected"),
        ((key, value[:, :, :1]), ValueError, "value has 1 tokens, expected 2 as key"),
        ((key.half(), value), TypeError, "key has dtype torch.float16, expected"),
        ((key, value.double()), TypeError, "value has dtype torch.float64, expected"),
        ((key.to("meta"), value), ValueError, "key is on meta, expected"),
    ]
    for arguments, error, message in wrong:
        with pytest.raises(error, match=message):
            cache.update(*arguments)
    assert cache.length == 0


@pytest.mark.parametrize("learning", [(True, True), (True, False), (False, True)])
def test_holds_no_graph(learning):
    cache = KeyValueCache(B, HKV, ROOM, D)
    key, value = (
        x.requires_grad_(learns) for x, learns in zip(tokens(2), learning, strict=True)
    )
    keys, values = cache.update(key, value)
    assert not keys.requires_grad and not values.requires_grad
    assert not cache.keys.requires_grad and not cache.values.requires_grad


def test_a_copy_goes_its_own_way():
    cache = KeyValueCache(B, HKV, ROOM, D)
    first = tokens(2)
    cache.update(*first)
    twin = copy.deepcopy(cache)
    twin.update(*tokens(3))
    twin.keys.zero_()
    assert cache.length == 2 and twin.length == 5
    assert torch.equal(cache.update(*tokens(0))[0], first[0])


def test_takes_an_empty_batch():
    cache = KeyValueCache(0, HKV, ROOM, D)
    keys, _ = cache.update(*tokens(2, batch=0))
    assert keys.shape == (0, HKV, 2, D)


def test_for_layer_takes_the_layer_s_shape_and_dtype():
    layer = MultiHeadAttention(
        8, 4, num_kv_heads=2, head_dim=5, dtype=torch.bfloat16, device="meta"
    )
    cache = KeyValueCache.for_layer(layer, B, ROOM)
    assert cache.keys.shape == cache.values.shape == (B, 2, ROOM, 5)
    assert cache.keys.dtype == torch.bfloat16
    assert cache.values.device.type == "meta"
    other = KeyValueCache.for_layer(layer, B, ROOM, dtype=torch.float16)
    assert other.keys.dtype == other.values.dtype == torch.float16


@pytest.mark.parametrize("name", ["batch_size", "num_kv_heads", "max_len", "head_dim"])
def test_sizes_are_checked(name):
    sizes = {"batch_size": B, "num_kv_heads": HKV, "max_len": ROOM, "head_dim": D}
    with pytest.raises(ValueError, match=f"{name}=-1 must be at least"):
        KeyValueCache(**(sizes | {name: -1}))
    with pytest.raises(TypeError, match=f"{name} must be an integer"):
        KeyValueCache(**(sizes | {name: 2.0}))


def test_repr_says_how_full_it_is():
    cache = KeyValueCache(B, HKV, ROOM, D)
    cache.update(*tokens(4))
    assert repr(cache) == (
        "KeyValueCache(batch_size=2, num_kv_heads=3, max_len=7, head_dim=5, length=4)"
    )
