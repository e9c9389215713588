"""Masks against loops that follow the sentence in each docstring."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attention_lib import attention_steps, masks

SIZES = st.integers(0, 6)


def loop(L: int, S: int, allowed) -> list[list[bool]]:
    return [[allowed(i, j) for j in range(S)] for i in range(L)]


def same(mask: Tensor, rows: list[list[bool]]) -> None:
    assert mask.dtype == torch.bool
    assert mask.shape[-2] == len(rows)
    assert mask.tolist() == rows


@given(L=SIZES, S=SIZES, offset=st.integers(-7, 7))
def test_causal(L: int, S: int, offset: int) -> None:
    same(masks.causal(L, S, offset=offset), loop(L, S, lambda i, j: j <= i + offset))


@given(L=SIZES, offset=st.integers(0, 7))
def test_causal_without_a_number_of_keys(L: int, offset: int) -> None:
    """The last query sees every key, behind a cache too."""
    mask = masks.causal(L, offset=offset)
    same(mask, loop(L, L + offset, lambda i, j: j <= i + offset))
    assert mask[-1:].all()


def test_causal_is_aligned_with_the_first_key() -> None:
    same(masks.causal(2, 3), [[True, False, False], [True, True, False]])
    same(masks.causal(3, 2), [[True, False], [True, True], [True, True]])


def test_causal_of_a_decoding_step_sees_the_whole_cache() -> None:
    assert masks.causal(1, offset=5).tolist() == [[True] * 6]


@given(
    L=SIZES,
    S=SIZES,
    window=st.integers(1, 7),
    after=st.none() | st.integers(0, 7),
    offset=st.integers(-7, 7),
)
def test_sliding_window(L, S, window, after, offset) -> None:
    far = S + L + 7 if after is None else after
    same(
        masks.sliding_window(L, S, window=window, after=after, offset=offset),
        loop(L, S, lambda i, j: i + offset - window < j <= i + offset + far),
    )


def test_a_window_of_one_sees_itself_alone() -> None:
    assert torch.equal(masks.sliding_window(4, window=1), torch.eye(4).bool())


def test_a_window_as_long_as_the_sequence_is_causal() -> None:
    assert torch.equal(masks.sliding_window(4, window=4), masks.causal(4))


def test_a_symmetric_window_is_symmetric() -> None:
    mask = masks.sliding_window(5, window=2, after=1)
    assert torch.equal(mask, mask.mT)
    assert mask.sum() == 5 + 4 + 4


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_every_sequence_with_its_own_offset(dtype, device) -> None:
    offsets = torch.tensor([0, 3, 1], dtype=dtype, device=device)
    causal = masks.causal(2, 5, offset=offsets)
    window = masks.sliding_window(2, 5, window=2, offset=offsets)
    assert causal.shape == window.shape == (3, 1, 2, 5)
    assert causal.device == window.device == offsets.device
    for index, offset in enumerate(offsets.tolist()):
        alone = masks.causal(2, 5, offset=offset, device=device)
        assert torch.equal(causal[index, 0], alone)
        alone = masks.sliding_window(2, 5, window=2, offset=offset, device=device)
        assert torch.equal(window[index, 0], alone)


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.int32, torch.uint8])
def test_padding(dtype, device) -> None:
    lengths = [2, 0, 5]
    given = lengths if dtype is None else torch.tensor(lengths, dtype=dtype)
    mask = masks.padding(given, 5, device=device)
    assert mask.shape == (3, 1, 1, 5)
    assert mask.device == device or mask.device.type == device.type
    same(mask[:, 0, 0], loop(3, 5, lambda b, j: j < lengths[b]))


def test_padding_stays_where_the_lengths_are() -> None:
    lengths = torch.zeros(3, dtype=torch.int64, device="meta")
    assert masks.padding(lengths, 5).device.type == "meta"
    assert masks.padding(lengths, 5).shape == (3, 1, 1, 5)


def test_padding_of_no_sequence_and_of_no_key() -> None:
    assert masks.padding([], 5).shape == (0, 1, 1, 5)
    assert masks.padding([0, 0], 0).shape == (2, 1, 1, 0)
    assert masks.padding(range(3), 2).tolist()[2] == [[[True, True]]]


@given(ids=st.lists(st.integers(0, 3), max_size=6), keys=st.lists(st.integers(0, 3)))
def test_document(ids, keys) -> None:
    here, there = (torch.tensor(x, dtype=torch.int64) for x in (ids, keys))
    same(masks.document(here), loop(len(ids), len(ids), lambda i, j: ids[i] == ids[j]))
    same(
        masks.document(here, there),
        loop(len(ids), len(keys), lambda i, j: ids[i] == keys[j]),
    )


def test_document_of_a_batch() -> None:
    ids, keys = torch.tensor([[0, 0, 1], [2, 3, 3]]), torch.tensor([[0, 1], [3, 2]])
    mask = masks.document(ids, keys)
    assert mask.shape == (2, 1, 3, 2)
    for index in range(2):
        assert torch.equal(mask[index, 0], masks.document(ids[index], keys[index]))


@given(data=st.data())
def test_combine(data) -> None:
    """What all allow, entry by entry, in the shape to which all broadcast."""
    full = data.draw(st.lists(st.integers(1, 3), max_size=4))
    joined = []
    for _ in range(data.draw(st.integers(1, 4))):
        axes = [data.draw(st.sampled_from([1, size])) for size in full]
        axes = axes[data.draw(st.integers(0, len(axes))) :]
        flat = data.draw(
            st.lists(st.booleans(), min_size=math.prod(axes), max_size=math.prod(axes))
        )
        joined.append(torch.tensor(flat, dtype=torch.bool).reshape(axes))
    got = masks.combine(None, *joined, None)
    shapes = [mask.shape for mask in joined]
    assert got is not None and got.shape == torch.broadcast_shapes(*shapes)
    together = torch.stack([mask.expand(got.shape) for mask in joined])
    assert torch.equal(got, together.all(0))


def test_combine_of_nothing_is_nothing() -> None:
    assert masks.combine() is None
    assert masks.combine(None, None) is None


def test_combine_gives_one_mask_back() -> None:
    mask = masks.causal(3)
    assert masks.combine(None, mask) is mask


def test_combine_leaves_its_masks_as_they_were() -> None:
    first, second = masks.causal(3), masks.sliding_window(3, window=1)
    masks.combine(first, second)
    assert first.sum() == 6 and second.sum() == 3


def test_all_builders_on_the_device(device) -> None:
    ids = torch.zeros(3, dtype=torch.int64, device=device)
    built = [
        masks.causal(3, device=device),
        masks.sliding_window(3, window=2, device=device),
        masks.padding([1, 2], 3, device=device),
        masks.document(ids),
    ]
    joined = masks.combine(*built)
    assert joined is not None and joined.shape == (2, 1, 3, 3)
    assert {mask.device.type for mask in (*built, joined)} == {device.type}


def test_masks_reach_the_weights(device) -> None:
    """Padding, documents and a window at once: what is left is what is weighted."""
    ids = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1]], device=device)
    keep = masks.combine(
        masks.padding([5, 3], 5, device=device),
        masks.document(ids),
        masks.sliding_window(5, window=2, device=device),
    )
    query = torch.randn(2, 3, 5, 4, device=device)
    weights = attention_steps(query, query, query, keep).weights
    assert torch.equal(weights > 0, keep.expand_as(weights))
    sums = keep.any(-1).expand(2, 3, 5).float()
    torch.testing.assert_close(weights.sum(-1), sums)
