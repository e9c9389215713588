"""A sequence over several processes gives what one process gives."""

import pytest
import torch
from ring_worker import CASES, DV, HKV, B, D, H, draw, every_case, launch, one_dies
from samples import explicit

from attention_lib.context_parallel import Ring, context_parallel_attention

SIZES = (2, 4)


@pytest.fixture(scope="module", params=SIZES, ids="{} ranks".format)
def ranks(request, tmp_path_factory):
    """What each rank found; one launch for all cases."""
    folder = tmp_path_factory.mktemp("ring")
    launch(every_case, request.param, folder)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(request.param)]


@pytest.mark.parametrize("name", CASES)
def test_equals_one_process(ranks, name):
    _, is_causal, grouped, dtype = CASES[name]
    inputs, upstream = draw(name)
    inputs = [x.double().requires_grad_() for x in inputs]
    want = explicit(*inputs, is_causal=is_causal, enable_gqa=grouped)
    grads = torch.autograd.grad(want, inputs, upstream.double())
    tolerance = 1e-12 if dtype == torch.float64 else 3e-2
    for found in ranks:
        for mine, theirs in zip(found[name]["results"], (want, *grads), strict=True):
            assert mine.dtype == dtype
            torch.testing.assert_close(
                mine.double(), theirs, rtol=tolerance, atol=tolerance
            )


def test_bytes_sent_are_those_of_the_formula(ranks):
    P = len(ranks)
    for name, (length, _, grouped, dtype) in CASES.items():
        numbers = (
            B * (HKV if grouped else H) * length // P * (D + DV)
        )  # keys and values
        work = 8 if dtype == torch.float64 else 4
        for found in ranks:
            assert found[name]["forward"] == (P - 1) * numbers * dtype.itemsize
            both = (P - 1) * dtype.itemsize + P * work
            assert found[name]["backward"] == numbers * both


def test_memory_is_shared_out(ranks, tmp_path):
    """Each rank holds 1/P of what one process would, and its neighbour's keys on the way."""
    peaks = [found["peak"] for found in ranks]
    tokens = 2048 // len(ranks)
    tensor = 2 * tokens * D * 4
    assert max(peaks) < 14 * tensor + 20 * 2 * 16 * 16 * 4
    # a backend may hold what it sent (k, v, their gradients) a moment after its receipt
    assert max(peaks) - min(peaks) <= 4 * tensor


def test_each_rank_knows_its_positions(ranks):
    P = len(ranks)
    held = torch.stack([found["positions"] for found in ranks])
    assert held[0].tolist()[:4] == [0, 1, 2, 3]  # the first chunk, and the last
    assert held[0].tolist()[4:] == [8 * P - 4, 8 * P - 3, 8 * P - 2, 8 * P - 1]
    assert sorted(held.flatten().tolist()) == list(range(8 * P))
    assert held.sum(dim=1).unique().numel() == 1  # the same work under a causal mask


def test_parts_that_differ_are_refused_on_every_rank(ranks):
    for rank, found in enumerate(ranks):
        assert "every rank needs the same" in found["uneven"]
        other = 1 if rank == 0 else 0
        assert f"rank {other} brings (1, 2, {4 + 2 * other}, 8)" in found["uneven"]


def test_a_rank_that_dies_ends_the_run_with_a_word(tmp_path):
    launch(one_dies, 2, tmp_path)
    text = (tmp_path / "rank0.txt").read_text()
    assert "rank 0 of 2 lost a neighbour" in text and "rank 1" in text


def test_one_process_is_a_ring_too(device):
    inputs = [torch.randn(2, 6, 4, dtype=torch.float64, device=device) for _ in "qkv"]
    got = context_parallel_attention(*inputs, True, ring=Ring(), scale=0.4)
    want = explicit(*inputs, is_causal=True, scale=0.4)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


odd, short = torch.zeros(2, 5, 4), torch.zeros(2, 4, 4)
WRONG = [
    ((odd, odd, odd), {}, "query has 5 tokens, expected an even number"),
    ((short, short[:, :2], short[:, :2]), {}, "key has 2 tokens, expected 4 as query"),
    ((short, short, short), {"chunk_size": 0}, "chunk_size=0 must be at least 1"),
    ((short, short, odd), {}, "value has length 5, expected 4 as key"),
]


@pytest.mark.parametrize(("inputs", "options", "message"), WRONG)
def test_wrong_calls_are_refused(inputs, options, message):
    with pytest.raises(ValueError, match=message):
        context_parallel_attention(*inputs, ring=Ring(), **options)


def test_a_length_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="5 tokens must be a multiple of 2"):
        Ring().shard(odd)
