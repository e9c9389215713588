"""Rotary embeddings against pairs turned by hand."""

import math

import pytest
import torch

from attention_lib import RotaryEmbedding, apply_rotary

pytestmark = pytest.mark.usefixtures("on_device")

B, H, L, D = 2, 3, 5, 8


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


def test_apply_rotary_pairs_halves_unless_told():
    """A quarter turn makes (a, b) into (-b, a)."""
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    quarter = torch.zeros(1, 2), torch.ones(1, 2)
    assert apply_rotary(x, *quarter).tolist() == [[-3, -4, 1, 2]]
    assert apply_rotary(x, *quarter, interleaved=True).tolist() == [[-2, 1, -4, 3]]


def test_apply_rotary_leaves_what_is_past_the_pairs():
    x = torch.randn(B, L, D)
    angles = torch.randn(L, 3)
    out = apply_rotary(x, angles.cos(), angles.sin())
    assert torch.equal(out[..., 6:], x[..., 6:])
    assert not torch.allclose(out[..., :6], x[..., :6])
