"""Encodings against their formulas, and what all kinds of position have in common."""

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


# SinusoidalEncoding -------------------------------------------------------------------


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
    torch.testing.assert_close(encode(x, positions=shared[None]), x + whole[shared])
    own = torch.tensor([[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]])
    torch.testing.assert_close(encode(x, positions=own), x + whole[own])


# LearnedEncoding ----------------------------------------------------------------------


def test_learned_tables_start_small():
    for table, std in (
        (LearnedEncoding(64, 512), 0.02),
        (LearnedEncoding(64, 512, std=0.5), 0.5),
        (LearnedEncoding(1, 1, std=0.0), 0.0),
        (RelativePositionBias(64, num_buckets=512, max_distance=999), 0.02),
    ):
        found = table.weight.std(correction=0).item()
        assert found == pytest.approx(std, rel=0.05)


def test_learned_encoding_of_no_tokens():
    encode = LearnedEncoding(D, 16)
    none = torch.zeros(0, dtype=torch.int64)
    assert encode(torch.zeros(B, 0, D), positions=none).shape == (B, 0, D)
    assert encode(torch.zeros(B, 0, D), offset=16).shape == (B, 0, D)


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


# token_positions ----------------------------------------------------------------------


def test_token_positions_count_the_real_tokens():
    keep = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    expected = [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4], [0, 1, 1, 1, 1]]
    assert token_positions(keep).tolist() == expected
    assert token_positions(torch.zeros(1, 3, dtype=torch.bool)).tolist() == [[0, 0, 0]]


# All of them --------------------------------------------------------------------------


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


def test_modules_say_what_they_are():
    expected = {
        "SinusoidalEncoding": "SinusoidalEncoding(8, base=10000.0)",
        "LearnedEncoding": "LearnedEncoding(8, max_len=16)",
        "RotaryEmbedding": "RotaryEmbedding(8, rotary_dim=6, interleaved=False)",
        "AlibiBias": "AlibiBias(3)",
        "RelativePositionBias": (
            "RelativePositionBias(3, num_buckets=8, max_distance=128, "
            "bidirectional=True)"
        ),
    }
    assert {kind: repr(make()) for kind, make in MODULES.items()} == expected


@pytest.mark.parametrize("kind", MODULES)
def test_everything_is_built_where_the_module_is(kind):
    module = MODULES[kind]().to("meta")
    if kind in ("AlibiBias", "RelativePositionBias"):
        assert module(L, offset=2).device.type == "meta"
    else:
        x = torch.zeros(B, H, L, D, device="meta")
        x = x if kind == "RotaryEmbedding" else x[:, 0]
        assert module(x, offset=2).device.type == "meta"


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


def test_frequencies_fall_from_1_to_nearly_1_in_10000():
    expected = [1.0, 0.1, 0.01, 0.001]
    assert RotaryEmbedding(8).table.tolist() == pytest.approx(expected)
    assert SinusoidalEncoding(8).table.tolist() == pytest.approx(expected)
    assert RotaryEmbedding(4, base=0.25).table.tolist() == [1.0, 2.0]


def test_tables_are_float32_whatever_the_default(device):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        tables = [make().table for make in MODULES.values() if hasattr(make(), "table")]
        assert len(tables) == 3
        assert {table.dtype for table in tables} == {torch.float32}
        assert {m.half().table.dtype for m in (RotaryEmbedding(8),)} == {torch.float32}
        assert alibi_slopes(H).dtype == alibi_bias(H, L).dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
