"""The faults that hand-written attention has most often, each looked for in our parts.

A test is named after the fault that would fail it.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from attention_lib import (
    KeyValueCache,
    LearnedEncoding,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryEmbedding,
    SinusoidalEncoding,
    alibi_slopes,
    masks,
    token_positions,
)

pytestmark = pytest.mark.usefixtures("on_device")

B, L, E, H = 2, 5, 12, 3


@pytest.fixture
def layer():
    return MultiHeadAttention(E, H, dtype=torch.float64).eval()


@pytest.fixture
def x():
    return torch.randn(B, L, E, dtype=torch.float64)


def close(got, want, tolerance=1e-9):
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def reach(function, x):
    """True at [b, i, c, j] where output i of row b depends on token j of row c."""
    before, found = function(x), []
    for row in range(x.shape[0]):
        for token in range(x.shape[1]):
            changed = x.clone()
            changed[row, token] = torch.randn_like(x[row, token])
            found.append((function(changed) != before).any(-1))
    return torch.stack(found, -1).unflatten(-1, x.shape[:2])


def within_rows(function, x):
    """The part of :func:`reach` inside each row, once nothing crosses rows."""
    found = reach(function, x)
    same = torch.eye(x.shape[0], dtype=torch.bool)[:, None, :, None]
    assert not (found & ~same).any()
    return torch.stack([found[row, :, row] for row in range(x.shape[0])])


def sees(keep):
    """Padding (B, L) as a mask of the keys of each query, (B, L, L)."""
    return keep[:, None, :].expand(-1, keep.shape[1], -1)


# Masks --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["meaning inverted", "fill too small", "plus inf"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_hidden_keys_change_nothing(layer, x, fault, need_weights):
    """All three: padding equals truncation, whatever the padding holds."""
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    junk = {"meaning inverted": 1.0, "fill too small": 1e3, "plus inf": 1e6}[fault]
    padded = torch.where(keep[..., None], x, junk)
    out = layer(padded, attn_mask=sees(keep), need_weights=need_weights)
    out = out[0] if need_weights else out
    close(out[1, :3], layer(x[1:, :3])[0])


def test_mask_after_softmax(layer, x):
    _, weights = layer(x, is_causal=True, need_weights=True)
    close(weights.sum(-1), torch.ones(B, H, L, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("need_weights", [False, True])
def test_mask_fill_overflows_half(layer, x, dtype, need_weights):
    keep = torch.arange(L) < 3
    out = layer.to(dtype)(
        x.to(dtype), attn_mask=keep, is_causal=True, need_weights=need_weights
    )
    out = out[0] if need_weights else out
    assert out.dtype == dtype and torch.isfinite(out).all()


@pytest.mark.parametrize("need_weights", [False, True])
def test_full_row_uniform_or_nan(layer, x, need_weights):
    keep = torch.ones(B, L, L, dtype=torch.bool)
    keep[1, 2] = False

    def run(tokens):
        out = layer(tokens, attn_mask=keep, need_weights=need_weights)
        return out[0] if need_weights else out

    assert not within_rows(run, x)[1, 2].any()
    run(x)[0].sum().backward()  # the blind query is not even in the loss
    assert torch.isfinite(run(x)).all()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


def test_mask_on_query_axis(layer, x):
    keep = torch.tensor([[True] * 5, [True, False, True, True, False]])
    found = within_rows(lambda t: layer(t, attn_mask=sees(keep)), x)
    itself = torch.eye(L, dtype=torch.bool)  # a hidden token still asks
    assert torch.equal(found, sees(keep) | itself)


@pytest.mark.parametrize("batch", [1, 2, H])
def test_mask_head_broadcast(layer, batch):
    x = torch.randn(batch, L, E, dtype=torch.float64)
    keep = torch.ones(batch, L, L, dtype=torch.bool)
    for row in range(batch):
        keep[row, :, 4 - row :] = False
    out = layer(x, attn_mask=keep)
    for row in range(batch):
        close(out[row], layer(x[row : row + 1], attn_mask=keep[row])[0])


def test_inplace_breaks_backward(layer, x):
    layer(x, is_causal=True, need_weights=True)[0].sum().backward()


# Causality ----------------------------------------------------------------------------


def test_causal_lost_with_mask(layer, x):
    everything = torch.ones(B, L, L, dtype=torch.bool)
    found = within_rows(lambda t: layer(t, attn_mask=everything, is_causal=True), x)
    assert torch.equal(found, masks.causal(L).expand(B, L, L))


def test_causal_sees_next(layer, x):
    found = within_rows(lambda t: layer(t, is_causal=True), x)
    assert torch.equal(found, masks.causal(L).expand(B, L, L))


def test_causal_top_left(layer, x):
    """Fewer queries than keys: said by an offset, or refused."""
    whole = layer(x, is_causal=True)
    for start in (3, 4):
        late = x[:, start:]
        keep = masks.causal(L - start, L, offset=start)
        close(layer(late, x, attn_mask=keep), whole[:, start:])
        with pytest.raises(ValueError, match="is_causal does not say how"):
            layer(late, x, is_causal=True)


def test_causal_table_too_short(layer):
    long = torch.randn(1, 300, E, dtype=torch.float64)
    close(layer(long, is_causal=True)[:, :L], layer(long[:, :L], is_causal=True))


def test_window_off_by_one(layer):
    x = torch.randn(1, 8, E, dtype=torch.float64)
    keep = masks.sliding_window(8, window=3)
    seen = within_rows(lambda t: layer(t, attn_mask=keep), x)[0].sum(-1)
    assert seen.tolist() == [1, 2, 3, 3, 3, 3, 3, 3]


# Softmax, scale, dropout --------------------------------------------------------------


def test_softmax_over_queries_or_heads_or_another_scale(layer, x):
    q, k, _ = (
        torch.stack(part.split(E // H, dim=-1), dim=1)
        for part in layer.qkv_proj(x).split(E, dim=-1)
    )
    weights = F.softmax(q @ k.mT / math.sqrt(E // H), dim=-1)
    close(layer(x, need_weights=True)[1], weights)


def test_dropout_at_eval(x):
    layer = MultiHeadAttention(E, H, dropout=0.5, dtype=torch.float64).eval()
    assert torch.equal(layer(x), layer(x))


# Heads --------------------------------------------------------------------------------


def test_heads_split_by_view_or_in_place_of_tokens_or_batch_attended(layer, x):
    assert within_rows(layer, x).all()


def test_heads_projection_unused():
    layer = MultiHeadAttention(E, H, key_bias=False)
    layer(torch.randn(B, L, E)).square().sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in layer.parameters())


def test_heads_share_projection(layer, x):
    """Every feature of a token changes the weights of every head."""
    x.requires_grad_()
    _, weights = layer(x, need_weights=True)
    for head in range(H):
        loss = weights[:, head].square().sum()
        (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
        assert (gradient.abs().sum((0, 1)) > 1e-12).all()


def test_heads_in_python_list(layer):
    assert sum(p.numel() for p in layer.parameters()) == 4 * (E * E + E)
    assert len(layer.state_dict()) == 4


def test_context_as_query(layer, x):
    context = torch.randn(B, 7, E, dtype=torch.float64)
    assert layer(x, context).shape == (B, L, E)


def test_needs_contiguous(layer, x):
    close(layer(x.mT.contiguous().mT), layer(x))


def test_weights_are_averaged(layer, x):
    """The weights rebuild the output."""
    out, weights = layer(x, need_weights=True)
    projected = layer.qkv_proj(x)[..., -E:]
    values = torch.stack(projected.split(E // H, dim=-1), dim=1)
    merged = torch.cat((weights @ values).unbind(1), dim=-1)
    close(layer.out_proj(merged), out)


# Positions ----------------------------------------------------------------------------


def test_odd_width_positions():
    assert SinusoidalEncoding(7)(torch.zeros(1, 4, 7)).shape == (1, 4, 7)


def test_positions_guess_layout_or_run_over_the_batch():
    for encode in (SinusoidalEncoding(8), LearnedEncoding(8, 32)):
        codes = encode(torch.zeros(32, 4, 8))  # a batch as large as the table
        assert torch.equal(codes[0], codes[-1])
        assert not torch.equal(codes[:, 0], codes[:, 1])


def test_position_frequencies_wrong():
    codes = SinusoidalEncoding(8)(torch.zeros(1, 12, 8, dtype=torch.float64))[0]
    pairs = codes.unflatten(-1, (4, 2)).square().sum(-1)
    close(pairs, torch.ones(12, 4, dtype=torch.float64))
    gram = codes @ codes.T
    for distance in range(12):
        assert gram.diagonal(distance).std(correction=0) < 1e-9


def test_learned_positions_too_large():
    words = torch.randn(100, 64) * 0.02
    places = LearnedEncoding(64, 32)(torch.zeros(1, 32, 64))[0]
    assert places.std() / words.std() < 1.2


def test_table_not_a_buffer():
    for module in (SinusoidalEncoding(8), LearnedEncoding(8, 32)):
        x = torch.zeros(1, 3, 8, dtype=torch.float16)
        assert module.half()(x).dtype == torch.float16
        module.to("meta")
        tensors = [v for v in vars(module).values() if isinstance(v, torch.Tensor)]
        tensors += [*module.buffers(), *module.parameters()]
        assert all(tensor.device.type == "meta" for tensor in tensors)


def test_rotary_over_heads():
    x = torch.randn(1, 1, 1, 8).expand(1, 3, 6, 8)
    turned = RotaryEmbedding(8)(x)
    assert torch.equal(turned[:, 0], turned[:, 1])
    assert not torch.allclose(turned[:, :, 0], turned[:, :, 3])


def test_rotary_low_precision_table():
    far = RotaryEmbedding(32).bfloat16()(torch.ones(1, 1, 2000, 32).bfloat16())
    angles = torch.arange(2000).double()[:, None] * 1e4 ** (
        -torch.arange(0, 32, 2).double() / 32
    )
    want = torch.cat((angles.cos() - angles.sin(), angles.cos() + angles.sin()), dim=-1)
    assert (far[0, 0].double() - want).abs().max() < 0.01


def test_alibi_slopes_odd_heads():
    assert alibi_slopes(6).tolist() == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]


def test_bucket_direction_flipped():
    bias = RelativePositionBias(1, num_buckets=8, bidirectional=False)
    past = bias(1, offset=3)[0, 0].tolist()
    assert len(set(past)) == 4


# Decoding -----------------------------------------------------------------------------


def test_decode_position_restarts(x):
    layer = MultiHeadAttention(E, H, dtype=torch.float64)
    encode = LearnedEncoding(E, 8, std=0.5, dtype=torch.float64)
    cache = KeyValueCache.for_layer(layer, B, 8)
    found = []
    for start, end in ((0, 3), (3, 4), (4, 5)):
        tokens = encode(x[:, start:end], offset=cache.offset)
        found.append(layer(tokens, is_causal=True, cache=cache))
    close(torch.cat(found, 1), layer(encode(x), is_causal=True))


def test_cache_holds_graph(layer, x):
    cache = KeyValueCache.for_layer(layer, B, 8)
    layer(x[:, :2], is_causal=True, cache=cache)
    layer(x[:, 2:], is_causal=True, cache=cache)
    assert not cache.keys.requires_grad and not cache.values.requires_grad


def test_left_padding_positions(x):
    layer = MultiHeadAttention(E, H, rotary=RotaryEmbedding(4), dtype=torch.float64)
    encode = LearnedEncoding(E, 8, std=0.5, dtype=torch.float64)
    keep = torch.tensor([[False, False, True, True, True], [True] * 5])
    places = token_positions(keep)
    out = layer(
        encode(x, positions=places),
        attn_mask=sees(keep),
        is_causal=True,
        positions=places,
    )
    alone = layer(encode(x[:1, 2:]), is_causal=True)
    close(out[0, 2:], alone[0])
