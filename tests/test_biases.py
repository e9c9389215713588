"""Biases of the scores against their definitions."""

import pytest
import torch

from attention_lib import AlibiBias, RelativePositionBias, alibi_bias, alibi_slopes

pytestmark = pytest.mark.usefixtures("on_device")


def test_alibi_slopes_of_any_number_of_heads():
    assert alibi_slopes(1).tolist() == [2**-8]
    assert alibi_slopes(8).tolist() == [2**-h for h in range(1, 9)]
    assert alibi_slopes(6).tolist() == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    assert alibi_slopes(3).tolist() == [2**-4, 2**-8, 2**-2]
    assert alibi_slopes(6).dtype == torch.float32


def test_alibi_bias_falls_with_distance():
    bias = alibi_bias(4, 3, 7, offset=2)
    assert bias.shape == (4, 3, 7)
    for h, slope in enumerate(alibi_slopes(4).tolist()):
        for i in range(3):
            for j in range(7):
                assert bias[h, i, j].item() == -slope * abs(i + 2 - j)
    assert torch.equal(alibi_bias(4, 3, offset=4), alibi_bias(4, 7)[:, 4:])
    assert torch.equal(AlibiBias(4)(3, 7, offset=2), bias)
    assert torch.equal(AlibiBias(4)(3), alibi_bias(4, 3))


def bucket_by_hand(past, buckets, farthest, bidirectional):
    """The bucket of one distance, in exact comparisons of powers."""
    first = 0
    if bidirectional:
        buckets //= 2
        first, past = (buckets, -past) if past < 0 else (0, past)
    past = max(past, 0)
    exact = buckets // 2
    if past < exact:
        return first + past
    # The k-th shared bucket begins at exact * (farthest / exact) ** (k / shared).
    shared = buckets - exact
    k = 0
    while k + 1 < shared and past**shared * exact ** (k + 1) >= exact**shared * (
        farthest ** (k + 1)
    ):
        k += 1
    return first + exact + k


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (6, 50)])
def test_relative_buckets_are_the_definition(bidirectional, buckets, farthest):
    bias = RelativePositionBias(
        3, num_buckets=buckets, max_distance=farthest, bidirectional=bidirectional
    )
    found = bias.buckets(1, 2 * farthest, offset=farthest)[0].tolist()
    expected = [
        bucket_by_hand(farthest - j, buckets, farthest, bidirectional)
        for j in range(2 * farthest)
    ]
    assert found == expected


def test_relative_bias_looks_up_its_table():
    bias = RelativePositionBias(3, num_buckets=8, max_distance=16)
    assert bias(4, 7).shape == (3, 4, 7)
    buckets = bias.buckets(4, 7)
    for h in range(3):
        assert torch.equal(bias(4, 7)[h], bias.weight[:, h][buckets])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_relative_bias_of_a_chunk_is_rows_of_the_whole(bidirectional):
    bias = RelativePositionBias(3, num_buckets=8, bidirectional=bidirectional)
    assert torch.equal(bias(2, offset=5), bias(7)[:, 5:])


def test_relative_buckets_can_be_two():
    bias = RelativePositionBias(1, num_buckets=2, bidirectional=False)
    assert bias.buckets(1, offset=3).tolist() == [[1, 1, 1, 0]]
    both = RelativePositionBias(1, num_buckets=4)
    assert both.buckets(2, 3, offset=1).tolist() == [[1, 0, 3], [1, 1, 0]]


def test_relative_bias_tells_past_distances_apart():
    bias = RelativePositionBias(1, num_buckets=8, bidirectional=False)
    past = bias.buckets(1, offset=3)[0]
    assert len(set(past.tolist())) == 4
    ahead = bias.buckets(1, 4)[0]
    assert ahead.tolist() == [0, 0, 0, 0]
