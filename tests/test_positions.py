"""Encodings, rotary embeddings and biases, against formulas written out in float64."""

import copy
import math

import pytest
import torch
from torch import nn

from attention_lib import (
    AlibiBias,
    LearnedEncoding,
    RelativePositionBias,
    RotaryEmbedding,
    SinusoidalEncoding,
    alibi_bias,
    alibi_slopes,
    apply_rotary,
    token_positions,
)

pytestmark = pytest.mark.usefixtures("on_device")

B, H, L, D = 2, 3, 5, 8

MODULES = {
    "SinusoidalEncoding": lambda: SinusoidalEncoding(D),
    "LearnedEncoding": lambda: LearnedEncoding(D, 16),
    "RotaryEmbedding": lambda: RotaryEmbedding(D, rotary_dim=6),
    "AlibiBias": lambda: AlibiBias(H),
    "RelativePositionBias": lambda: RelativePositionBias(H, num_buckets=8),
}


# --- SinusoidalEncoding


@pytest.mark.parametrize("width", [1, 2, 7, 8])
def test_sinusoidal_is_the_formula(width):
    encode = SinusoidalEncoding(width, base=100.0)
    codes = encode(torch.zeros(1, L, width, dtype=torch.float64))[0]
    for p in range(L):
        for c in range(width):
            angle = p * 100.0 ** (-(c - c % 2) / width)
            expected = math.cos(angle) if c % 2 else math.sin(angle)
            assert codes[p, c].item() == pytest.approx(expected, abs=1e-6)


def test_sinusoidal_adds_one_code_per_token_and_the_same_to_every_row():
    x = torch.randn(B, L, D)
    added = SinusoidalEncoding(D)(x) - x
    torch.testing.assert_close(added[0], added[1])
    assert not torch.allclose(added[0, 1], added[0, 2])


def test_sinusoidal_has_no_longest_length():
    encode = SinusoidalEncoding(6)
    far = encode(torch.zeros(1, 3, 6), offset=100_000)
    assert torch.isfinite(far).all()
    pairs = far.unflatten(-1, (3, 2)).square().sum(-1)
    torch.testing.assert_close(pairs, torch.ones(1, 3, 3))


def test_sinusoidal_products_depend_on_distance_alone():
    codes = SinusoidalEncoding(D)(torch.zeros(1, 12, D, dtype=torch.float64))[0]
    gram = codes @ codes.T
    for distance in range(12):
        diagonal = gram.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))


@pytest.mark.parametrize("kind", ["SinusoidalEncoding", "LearnedEncoding"])
def test_encodings_take_offsets_and_positions(kind):
    encode = MODULES[kind]()
    x = torch.randn(B, L, D)
    whole = encode(torch.zeros(1, 9, D))[0]
    torch.testing.assert_close(encode(x, offset=3), x + whole[3 : 3 + L])
    shared = torch.tensor([4, 0, 7, 7, 1])
    torch.testing.assert_close(encode(x, positions=shared), x + whole[shared])
    own = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
    torch.testing.assert_close(encode(x, positions=own), x + whole[own])


# --- LearnedEncoding


def test_learned_starts_small():
    encode = LearnedEncoding(64, 512)
    assert encode.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert LearnedEncoding(64, 512, std=0.5).weight.std().item() == pytest.approx(
        0.5, rel=0.05
    )


def test_learned_gives_gradients_to_the_rows_it_used():
    encode = LearnedEncoding(D, 16)
    encode(torch.zeros(B, L, D), offset=2).sum().backward()
    used = encode.weight.grad.abs().sum(-1) > 0
    assert used.nonzero().flatten().tolist() == [2, 3, 4, 5, 6]


def test_learned_ends_at_max_len(device):
    encode = LearnedEncoding(D, 16)
    encode(torch.zeros(1, 4, D), offset=12)
    encode(torch.zeros(1, 1, D), positions=torch.tensor([15]))
    with pytest.raises(ValueError, match="position 16, past max_len=16"):
        encode(torch.zeros(1, 5, D), offset=12)
    if device.type != "cpu":
        pytest.skip("reading positions would stop an accelerator: there indexing fails")
    with pytest.raises(ValueError, match="between 0 and 16, expected 0 to 15"):
        encode(torch.zeros(1, 2, D), positions=torch.tensor([0, 16]))
    with pytest.raises(ValueError, match="between -1 and 0"):
        encode(torch.zeros(1, 2, D), positions=torch.tensor([0, -1]))


# --- token_positions


def test_token_positions_count_the_real_tokens():
    keep = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    expected = [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 1, 1, 1]]
    assert token_positions(keep).tolist() == expected
    assert token_positions(torch.zeros(1, 3, dtype=torch.bool)).tolist() == [[0, 0, 0]]


# --- Rotary


def turned_by_hand(x, place, frequencies, interleaved):
    """One vector, turned pair by pair in Python numbers."""
    pairs = len(frequencies)
    turned = list(x)
    for i, frequency in enumerate(frequencies):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
        c, s = math.cos(place * frequency), math.sin(place * frequency)
        turned[a], turned[b] = x[a] * c - x[b] * s, x[b] * c + x[a] * s
    return turned


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [2, 4, 8])
def test_rotary_is_the_formula(interleaved, rotary_dim):
    rotary = RotaryEmbedding(
        D, rotary_dim=rotary_dim, base=50.0, interleaved=interleaved
    )
    frequencies = [50.0 ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)]
    x = torch.randn(B, H, L, D, dtype=torch.float64)
    out = rotary(x, offset=4)
    for b in range(B):
        for h in range(H):
            for t in range(L):
                expected = turned_by_hand(
                    x[b, h, t].tolist(), 4 + t, frequencies, interleaved
                )
                assert out[b, h, t].tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_scores_depend_on_distance_alone(interleaved):
    rotary = RotaryEmbedding(D, interleaved=interleaved)
    query, key = torch.randn(2, 1, 1, 1, D, dtype=torch.float64)
    query, key = (rotary(t.expand(1, H, 9, D)) for t in (query, key))
    scores = query @ key.mT
    for distance in range(-8, 9):
        diagonal = scores.diagonal(distance, -2, -1)
        torch.testing.assert_close(diagonal, diagonal[..., :1].expand_as(diagonal))
    assert not torch.allclose(scores[0, 0, 0, 0], scores[0, 0, 0, 3])


def test_rotary_keeps_lengths_and_the_first_token():
    rotary = RotaryEmbedding(D)
    x = torch.randn(B, H, L, D, dtype=torch.float64)
    torch.testing.assert_close(rotary(x).norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotary(x)[:, :, 0], x[:, :, 0])


def test_rotary_takes_offsets_and_positions():
    rotary = RotaryEmbedding(D)
    x = torch.randn(B, H, L, D)
    whole = rotary(torch.cat((torch.zeros(B, H, 3, D), x), dim=2))[:, :, 3:]
    torch.testing.assert_close(rotary(x, offset=3), whole)
    torch.testing.assert_close(rotary(x, positions=torch.arange(3, 3 + L)), whole)
    own = torch.tensor([[0, 0, 0, 1, 2], [3, 4, 5, 6, 7]])
    out = rotary(x, positions=own)
    torch.testing.assert_close(out[1], whole[1])
    torch.testing.assert_close(out[0, :, 2:], rotary(x[:1, :, 2:])[0])


def test_rotary_takes_own_frequencies():
    own = RotaryEmbedding(D, rotary_dim=4, frequencies=[0.5, 0.25])
    x = torch.randn(1, 1, 2, D, dtype=torch.float64)
    expected = turned_by_hand(x[0, 0, 1].tolist(), 1, [0.5, 0.25], False)
    assert own(x)[0, 0, 1].tolist() == pytest.approx(expected)
    tensor = RotaryEmbedding(D, rotary_dim=4, frequencies=torch.tensor([0.5, 0.25]))
    assert torch.equal(own(x), tensor(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rotary_phases_are_exact_far_from_the_start(dtype):
    """A phase rounded to half precision would be off by radians at 2000 tokens."""
    rotary = RotaryEmbedding(32).to(dtype)
    x = torch.ones(1, 1, 2000, 32, dtype=dtype)
    exact = RotaryEmbedding(32)(x.double())
    half_ulp = torch.finfo(dtype).eps
    torch.testing.assert_close(rotary(x).double(), exact, atol=2 * half_ulp, rtol=0)
    assert rotary(x).dtype == dtype


def test_rotary_of_no_tokens():
    for interleaved in (False, True):
        rotary = RotaryEmbedding(D, interleaved=interleaved)
        assert rotary(torch.zeros(B, H, 0, D)).shape == (B, H, 0, D)
        assert rotary(torch.zeros(0, H, L, D)).shape == (0, H, L, D)


def test_apply_rotary_leaves_what_is_past_the_pairs():
    x = torch.randn(B, L, D)
    angles = torch.randn(L, 3)
    out = apply_rotary(x, angles.cos(), angles.sin())
    assert torch.equal(out[..., 6:], x[..., 6:])
    assert not torch.allclose(out[..., :6], x[..., :6])


# --- Biases


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


def test_relative_bias_tells_past_distances_apart():
    bias = RelativePositionBias(1, num_buckets=8, bidirectional=False)
    past = bias.buckets(1, offset=3)[0]
    assert len(set(past.tolist())) == 4
    ahead = bias.buckets(1, 4)[0]
    assert ahead.tolist() == [0, 0, 0, 0]


# --- All of them


def output(module):
    if isinstance(module, (AlibiBias, RelativePositionBias)):
        return module(L, 7, offset=1)
    if isinstance(module, RotaryEmbedding):
        return module(torch.ones(B, H, L, D), offset=1)
    return module(torch.ones(B, L, D), offset=1)


@pytest.mark.parametrize("kind", MODULES)
def test_only_what_is_learned_is_saved(kind):
    module = MODULES[kind]()
    learned = {name for name, _ in module.named_parameters()}
    assert set(module.state_dict()) == learned
    twin = copy.deepcopy(module)
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    twin.load_state_dict(module.state_dict())
    assert torch.equal(output(twin), output(module))


@pytest.mark.parametrize("kind", MODULES)
def test_tables_survive_casts_and_the_meta_device(kind, device):
    module = MODULES[kind]()
    expected = output(module)
    there = copy.deepcopy(module).to("meta")
    tensors = [*there.parameters(), *there.buffers()]
    assert all(t.device.type == "meta" for t in tensors)
    back = there.to_empty(device=device)
    back.load_state_dict(module.state_dict())
    assert torch.equal(output(back), expected)
    # Half precision and back rounds what is learned, and nothing else.
    rounded = copy.deepcopy(module).half().float()
    if list(module.parameters()):
        torch.testing.assert_close(output(rounded), expected, atol=1e-3, rtol=1e-3)
    else:
        assert torch.equal(output(rounded), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tokens_keep_their_dtype(dtype):
    x = torch.randn(B, L, D, dtype=dtype)
    assert SinusoidalEncoding(D)(x).dtype == dtype
    assert SinusoidalEncoding(D).to(dtype)(x).dtype == dtype
    assert LearnedEncoding(D, 16, dtype=dtype)(x).dtype == dtype
    assert RotaryEmbedding(D)(x[:, None]).dtype == dtype


def test_factories_build_where_they_are_told():
    assert SinusoidalEncoding(D, device="meta").table.device.type == "meta"
    assert RotaryEmbedding(D, device="meta").table.device.type == "meta"
    assert AlibiBias(H, device="meta")(L).device.type == "meta"
    assert alibi_slopes(H, device="meta").device.type == "meta"
    assert alibi_bias(H, L, device="meta").device.type == "meta"
    learned = LearnedEncoding(D, 16, device="meta", dtype=torch.bfloat16)
    assert (learned.weight.device.type, learned.weight.dtype) == (
        "meta",
        torch.bfloat16,
    )
    relative = RelativePositionBias(H, device="meta", dtype=torch.float64)
    assert relative(L).device.type == "meta" and relative(L).dtype == torch.float64
