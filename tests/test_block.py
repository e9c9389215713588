"""FeedForward and TransformerBlock, beside torch's own encoder and decoder layers."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention_lib import (
    FeedForward,
    KeyValueCache,
    MultiHeadAttention,
    RotaryEmbedding,
    TransformerBlock,
    masks,
)
from attention_lib.interop import load_weights

pytestmark = pytest.mark.usefixtures("on_device")

B, L, S, E, H, WIDE = 2, 5, 7, 12, 3, 20


def close(got, want, tolerance=1e-12):
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def unsettle(module):
    """Every parameter away from zeros and ones, which would hide a mistake."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


# FeedForward --------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [F.gelu, F.relu, F.silu])
def test_feed_forward(activation, bias):
    layer = FeedForward(E, WIDE, activation=activation, bias=bias)
    x = torch.randn(B, L, E)
    up, down = layer.up_proj, layer.down_proj
    assert up.weight.shape == (WIDE, E) and down.weight.shape == (E, WIDE)
    assert (up.bias is not None) == (down.bias is not None) == bias
    close(layer(x), down(activation(up(x))), 1e-6)


@pytest.mark.parametrize("bias", [False, True])
def test_gated_feed_forward(bias):
    layer = FeedForward(E, WIDE, activation=F.silu, gated=True, bias=bias)
    x = torch.randn(B, L, E)
    gate = F.silu(F.linear(x, layer.gate_proj.weight, layer.gate_proj.bias))
    close(layer(x), layer.down_proj(gate * layer.up_proj(x)), 1e-6)
    assert (layer.gate_proj.bias is not None) == bias


def test_feed_forward_is_four_times_as_wide_by_default():
    assert FeedForward(E).up_proj.weight.shape == (4 * E, E)


def test_feed_forward_drops_hidden_components_in_training_only():
    layer = FeedForward(E, WIDE, dropout=0.5)
    x = torch.randn(B, L, E)
    assert not torch.equal(layer(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
    # Dropped before the last map: its bias always arrives.
    layer.train().dropout.p = 1.0
    close(layer(x), layer.down_proj.bias.expand(B, L, E), 1e-6)


# TransformerBlock ---------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["", "causal"])
def test_is_torch_s_encoder_layer(norm_first, bias, is_causal):
    options = {"norm_first": norm_first, "bias": bias, "dtype": torch.float64}
    theirs = nn.TransformerEncoderLayer(
        E, H, WIDE, dropout=0.0, batch_first=True, activation="gelu", **options
    )
    unsettle(theirs)
    norm = partial(nn.LayerNorm, bias=bias)
    ours = TransformerBlock(E, H, hidden_dim=WIDE, norm=norm, **options)
    load_weights(ours, theirs.state_dict(), names="torch")
    x = torch.randn(B, L, E, dtype=torch.float64)
    mask = ~masks.causal(L) if is_causal else None
    close(ours(x, is_causal=is_causal), theirs(x, mask, is_causal=is_causal))
    keep = masks.padding([L, 3], L)
    want = theirs(x, mask, src_key_padding_mask=~keep[:, 0, 0])
    close(ours(x, attn_mask=keep, is_causal=is_causal), want)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_is_torch_s_decoder_layer(norm_first):
    options = {"norm_first": norm_first, "dtype": torch.float64}
    theirs = nn.TransformerDecoderLayer(
        E, H, WIDE, dropout=0.0, batch_first=True, activation=F.relu, **options
    )
    unsettle(theirs)
    ours = TransformerBlock(
        E,
        H,
        hidden_dim=WIDE,
        activation=F.relu,
        cross_attention=MultiHeadAttention(E, H, dtype=torch.float64),
        **options,
    )
    state = theirs.state_dict()
    load_weights(ours.attention, state, names="torch", prefix="self_attn.")
    load_weights(ours.cross_attention, state, names="torch", prefix="multihead_attn.")
    for mine, other in (
        ("attention_norm", "norm1"),
        ("cross_attention_norm", "norm2"),
        ("feed_forward_norm", "norm3"),
        ("feed_forward.up_proj", "linear1"),
        ("feed_forward.down_proj", "linear2"),
    ):
        ours.get_submodule(mine).load_state_dict(
            theirs.get_submodule(other).state_dict()
        )
    x = torch.randn(B, L, E, dtype=torch.float64)
    context = torch.randn(B, S, E, dtype=torch.float64)
    keep = masks.padding([S, 4], S)
    got = ours(x, context, is_causal=True, context_mask=keep)
    want = theirs(
        x,
        context,
        tgt_mask=~masks.causal(L),
        tgt_is_causal=True,
        memory_key_padding_mask=~keep[:, 0, 0],
    )
    close(got, want)


def test_parts_can_be_made_elsewhere():
    attention = MultiHeadAttention(
        E, H, num_kv_heads=1, rotary=RotaryEmbedding(E // H), bias=False
    )
    feed_forward = FeedForward(E, WIDE, activation=F.silu, gated=True)
    block = TransformerBlock(
        E, attention=attention, feed_forward=feed_forward, norm=nn.RMSNorm
    )
    x = torch.randn(B, L, E)
    assert isinstance(block.attention_norm, nn.RMSNorm)
    assert isinstance(block.feed_forward_norm, nn.RMSNorm)
    middle = x + attention(block.attention_norm(x), is_causal=True)
    expected = middle + feed_forward(block.feed_forward_norm(middle))
    close(block(x, is_causal=True), expected, 1e-6)


def test_options_reach_the_parts():
    block = TransformerBlock(
        E, H, hidden_dim=WIDE, dropout=0.25, bias=False, activation=F.relu
    )
    assert block.attention.dropout == 0.25
    assert block.feed_forward.dropout.p == block.dropout.p == 0.25
    assert block.feed_forward.activation is F.relu
    assert block.feed_forward.up_proj.weight.shape == (WIDE, E)
    biases = {n for n, _ in block.named_parameters() if n.endswith("bias")}
    assert biases == {"attention_norm.bias", "feed_forward_norm.bias"}
    assert block.norm_first


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_weights_are_those_of_self_attention(norm_first):
    block = unsettle(TransformerBlock(E, H, norm_first=norm_first))
    x = torch.randn(B, L, E)
    out, weights = block(x, is_causal=True, need_weights=True)
    tokens = block.attention_norm(x) if norm_first else x
    close(weights, block.attention(tokens, is_causal=True, need_weights=True)[1], 1e-6)
    close(out, block(x, is_causal=True), 1e-5)


@pytest.mark.parametrize("chunk", [1, 3, 8], ids=["one", "three", "all"])
def test_stacked_blocks_decode_what_they_compute_at_once(chunk):
    blocks = [
        TransformerBlock(
            E,
            attention=MultiHeadAttention(
                E, H, rotary=RotaryEmbedding(E // H), dtype=torch.float64
            ),
            dtype=torch.float64,
        )
        for _ in range(2)
    ]
    x = torch.randn(B, 8, E, dtype=torch.float64)

    def run(tokens, caches):
        for block, cache in zip(blocks, caches, strict=True):
            tokens = block(tokens, is_causal=True, cache=cache)
        return tokens

    whole = run(x, [None, None])
    caches = [KeyValueCache.for_layer(block.attention, B, 8) for block in blocks]
    parts = [run(x[:, t : t + chunk], caches) for t in range(0, 8, chunk)]
    close(torch.cat(parts, dim=1), whole)


def test_positions_reach_the_rotary_embedding():
    block = TransformerBlock(
        E, attention=MultiHeadAttention(E, H, rotary=RotaryEmbedding(E // H))
    )
    x = torch.randn(B, L, E)
    spread = torch.arange(0, 2 * L, 2)
    assert not torch.allclose(block(x, positions=spread), block(x))
    close(block(x, positions=spread + 4), block(x, positions=spread), 1e-4)


def test_dropout_acts_in_training_only():
    block = TransformerBlock(E, H, dropout=0.3)
    x = torch.randn(B, L, E)
    assert not torch.equal(block(x), block(x))
    assert torch.equal(block.eval()(x), block(x))


def test_residual_dropout_drops_what_a_part_adds():
    block = TransformerBlock(E, H)
    block.dropout.p = 1.0
    x = torch.randn(B, L, E)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
def test_the_future_does_not_leak(norm_first, training):
    block = TransformerBlock(E, H, norm_first=norm_first, dropout=0.3).train(training)
    x = torch.randn(B, L, E)

    def run(tokens):
        torch.manual_seed(5)
        return block(tokens, is_causal=True)

    for t in range(L):
        changed = x.clone()
        changed[:, t] = torch.randn(B, E)
        assert torch.equal(run(changed)[:, :t], run(x)[:, :t])


def test_copies_states_and_the_meta_device(device):
    def make():
        return TransformerBlock(
            E,
            H,
            hidden_dim=WIDE,
            cross_attention=MultiHeadAttention(E, H, kdim=8),
        )

    block = make()
    x, context = torch.randn(B, L, E), torch.randn(B, S, 8)
    with torch.device("meta"):
        twin = make()
    twin.to_empty(device=device).load_state_dict(block.state_dict())
    assert torch.equal(twin(x, context), block(x, context))
    assert torch.equal(copy.deepcopy(block)(x, context), block(x, context))
    built = TransformerBlock(E, H, device="meta", dtype=torch.bfloat16)
    for parameter in built.parameters():
        assert parameter.device.type == "meta" and parameter.dtype == torch.bfloat16


def test_a_width_of_one():
    assert FeedForward(1)(torch.ones(B, L, 1)).shape == (B, L, 1)
    assert TransformerBlock(1, 1)(torch.ones(B, L, 1)).shape == (B, L, 1)


@pytest.mark.parametrize(("batch", "length"), [(0, L), (B, 0)])
def test_nothing_in_nothing_out(batch, length):
    block = TransformerBlock(E, H)
    x = torch.randn(batch, length, E)
    assert block(x, is_causal=True).shape == x.shape


def test_a_block_compiles_into_one_graph():
    block = TransformerBlock(E, H, dropout=0.1)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    x = torch.randn(B, L, E)
    block.eval()
    close(compiled(x, is_causal=True), block(x, is_causal=True), 1e-5)
