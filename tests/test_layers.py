"""SelfAttention and MultiHeadAttention against attention by its definition."""

import math

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_samples import HKV, B, D, E, H, L, S, by_definition, parts, wide
from samples import close
from torch import nn

from attention_lib import MultiHeadAttention, RotaryEmbedding, SelfAttention, masks

pytestmark = pytest.mark.usefixtures("on_device")

# The definition -----------------------------------------------------------------------

MASKS = {
    "none": lambda S: (None, None),
    "(L, S)": lambda S: alike(torch.rand(L, S) > 0.3),
    "(S,)": lambda S: alike(torch.rand(S) > 0.3),
    "(B, L, S)": lambda S: per_row(torch.rand(B, L, S) > 0.3),
    "(1, L, S)": lambda S: per_row(torch.rand(1, L, S) > 0.3),
    "(B, H, L, S)": lambda S: alike(torch.rand(B, H, L, S) > 0.3),
    "(1, H, L, 1)": lambda S: alike(torch.rand(1, H, L, 1) > 0.3),
    "padding": lambda S: alike(masks.padding([S, 2], S)),
    "float (L, S)": lambda S: alike(torch.randn(L, S, dtype=torch.float64)),
    "float (B, L, S)": lambda S: per_row(torch.randn(B, L, S, dtype=torch.float64)),
    "float32": lambda S: alike(torch.randn(B, H, L, S)),
    "empty rows": lambda S: per_row(torch.rand(B, L, 1) > 0.5),
}


def alike(mask):
    """The mask as given and as the definition takes it."""
    return mask, mask


def per_row(mask):
    return mask, mask[:, None]


@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("kind", MASKS)
def test_self_attention_of_many_heads(kind, is_causal, need_weights):
    layer = wide()
    x = torch.randn(B, L, E, dtype=torch.float64)
    given, full = MASKS[kind](L)
    got = layer(x, attn_mask=given, is_causal=is_causal, need_weights=need_weights)
    output, weights = by_definition(layer, x, attn_mask=full, is_causal=is_causal)
    if need_weights:
        assert got[1].shape == (B, H, L, L)
        close(got[1], weights)
        got = got[0]
    close(got, output)


@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("kind", MASKS)
def test_cross_attention(kind, need_weights):
    layer = wide(kdim=8, vdim=10)
    query = torch.randn(B, L, E, dtype=torch.float64)
    key = torch.randn(B, S, 8, dtype=torch.float64)
    value = torch.randn(B, S, 10, dtype=torch.float64)
    given, full = MASKS[kind](S)
    got = layer(query, key, value, attn_mask=given, need_weights=need_weights)
    output, weights = by_definition(layer, query, key, value, full)
    if need_weights:
        assert got[1].shape == (B, H, L, S)
        close(got[1], weights)
        got = got[0]
    close(got, output)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_shape(data):
    size, some = st.integers(0, 4), st.integers(1, 4)
    batch, queries, keys = (data.draw(size) for _ in range(3))
    kv_heads, served, width, embed = (data.draw(some) for _ in range(4))
    made = {"head_dim": width, "num_kv_heads": kv_heads, "dtype": torch.float64}
    layer = MultiHeadAttention(embed, kv_heads * served, **made)
    query = torch.randn(batch, queries, embed, dtype=torch.float64)
    key = torch.randn(batch, keys, embed, dtype=torch.float64)
    keep = torch.rand(batch, queries, keys) > 0.4
    want, weights = by_definition(layer, query, key, attn_mask=keep[:, None])
    close(layer(query, key, attn_mask=keep), want)
    got = layer(query, key, attn_mask=keep, need_weights=True)
    close(got[0], want)
    close(got[1], weights)


def test_values_come_from_the_keys_by_default():
    layer = wide(kdim=8)
    query = torch.randn(B, L, E, dtype=torch.float64)
    context = torch.randn(B, S, 8, dtype=torch.float64)
    assert torch.equal(layer(query, context), layer(query, context, context))
    x = torch.randn(B, L, E, dtype=torch.float64)
    layer = wide()
    assert torch.equal(layer(x), layer(x, x, x))


@pytest.mark.parametrize(
    "options",
    [
        {"num_kv_heads": 1},
        {"num_kv_heads": H},
        {"head_dim": None},
        {"scale": 0.7},
        {"softcap": 1.5},
        {"bias": False},
        {"key_bias": False},
        {"bias": False, "key_bias": True},
        {"out_bias": False},
        {"bias": False, "out_bias": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
def test_options(options, need_weights):
    layer = wide(**options)
    x = torch.randn(B, L, E, dtype=torch.float64)
    got = layer(x, is_causal=True, need_weights=need_weights)
    output, weights = by_definition(layer, x, is_causal=True)
    close(got[0] if need_weights else got, output)
    if need_weights:
        close(got[1], weights)


def test_biases_are_where_they_were_asked_for():
    def biases(**options):
        layer = MultiHeadAttention(E, H, **options)
        found = [bias for _, bias in layer.parts()] + [layer.out_proj.bias]
        named = zip("qkvo", found, strict=True)
        return "".join(name for name, bias in named if bias is not None)

    assert biases() == "qkvo"
    assert biases(bias=False) == ""
    assert biases(key_bias=False) == "qvo"
    assert biases(out_bias=False) == "qkv"
    assert biases(bias=False, out_bias=True) == "o"
    assert biases(bias=False, key_bias=True) == "k"


@pytest.mark.parametrize("options", [{}, {"kdim": E}, {"key_bias": False}], ids=str)
def test_parts_and_heads_are_the_same_however_stored(options):
    layer = wide(**options)
    assert ("qkv_proj.weight" in layer.state_dict()) == (not options)
    for (weight, bias), (by_hand, bias_by_hand) in zip(
        layer.parts(), parts(layer), strict=True
    ):
        assert torch.equal(weight.cpu(), by_hand)
        assert (bias is None) == (bias_by_hand is None)
        assert bias is None or torch.equal(bias.cpu(), bias_by_hand)
    x, context = torch.randn(B, L, E).double(), torch.randn(B, S, E).double()
    own = (x,), (x, x, 2 * x), (x, 2 * x, x)
    for inputs in (*own, (x, context), (x, context, 2 * context)):
        whole = [inputs[min(i, len(inputs) - 1)] for i in range(3)]
        for heads, tokens, (weight, bias) in zip(
            layer.project(*inputs), whole, layer.parts(), strict=True
        ):
            by_hand = nn.functional.linear(tokens, weight, bias).split(D, dim=-1)
            close(heads, torch.stack(by_hand, dim=1))


def test_parameters_start_as_glorot_has_them():
    layer = MultiHeadAttention(E, H, num_kv_heads=HKV, head_dim=D)
    last = layer.out_proj
    for weight, bias in (*layer.parts(), (last.weight, last.bias)):
        bound = math.sqrt(6 / sum(weight.shape))
        assert 0.8 * bound < weight.abs().max() <= bound
        assert not bias.any()


def test_parts_are_views():
    layer = wide()
    with torch.no_grad():
        for weight, bias in layer.parts():
            weight.zero_()
            bias.zero_()
    assert not layer.qkv_proj.weight.any() and not layer.qkv_proj.bias.any()


def test_gradients_of_both_paths_agree():
    layer = wide(softcap=None)
    x = torch.randn(B, L, E, dtype=torch.float64, requires_grad=True)
    keep = torch.rand(B, L, L) > 0.3
    inputs = (x, *layer.parameters())
    probe = torch.randn(B, L, E, dtype=torch.float64)

    def gradients(output):
        return torch.autograd.grad((output * probe).sum(), inputs)

    fast = gradients(layer(x, attn_mask=keep, is_causal=True))
    slow = gradients(layer(x, attn_mask=keep, is_causal=True, need_weights=True)[0])
    defined = gradients(by_definition(layer, x, None, None, keep[:, None], True)[0])
    for got, same, want in zip(fast, slow, defined, strict=True):
        close(got, want, 1e-10)
        close(same, want, 1e-10)


def test_every_parameter_matters():
    layer = wide()
    layer(torch.randn(B, L, E, dtype=torch.float64)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad.abs().max() > 1e-6, name
    # A bias of the keys shifts a row of scores alike, which changes nothing.
    stacked = layer.qkv_proj.bias.grad.abs()
    _, of_keys, _ = stacked.split((H * D, HKV * D, HKV * D))
    assert of_keys.max() < 1e-12
    assert (stacked > 1e-9).sum() == (H + HKV) * D


@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
def test_a_query_that_sees_nothing(need_weights):
    """Its output is what the projection makes of zero, its gradient is zero."""
    layer = wide()
    x = torch.randn(B, L, E, dtype=torch.float64, requires_grad=True)
    keep = torch.ones(B, L, L, dtype=torch.bool)
    keep[1, 2] = False
    out = layer(x, attn_mask=keep, need_weights=need_weights)
    if need_weights:
        out, weights = out
        assert torch.equal(weights[1, :, 2], torch.zeros_like(weights[1, :, 2]))
    close(out[1, 2], layer.out_proj.bias)
    (gradient,) = torch.autograd.grad(out[1, 2].sum(), x, retain_graph=True)
    assert torch.equal(gradient, torch.zeros_like(gradient))
    out.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


# SelfAttention ------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("kind", [k for k in MASKS if "H" not in k and k != "float32"])
def test_one_head(kind, is_causal, need_weights, bias):
    layer = SelfAttention(E, 4, 3, bias=bias, dtype=torch.float64)
    x = torch.randn(B, L, E, dtype=torch.float64)
    given, full = MASKS[kind](L)
    got = layer(x, attn_mask=given, is_causal=is_causal, need_weights=need_weights)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj)
    assert all((part.bias is not None) == bias for part in projections)
    q, k, v = (project(x).detach()[:, None].cpu() for project in projections)
    with torch.device("cpu"):
        full = None if full is None else full.cpu()
        weights, output = reference.attention(q, k, v, full, is_causal)
    if need_weights:
        assert got[1].shape == (B, 1, L, L)
        close(got[1], weights)
        got = got[0]
    close(got, output[:, 0])


def test_one_head_sees_everything_by_default():
    layer = SelfAttention(E)
    x = torch.randn(B, L, E)
    assert torch.equal(layer(x), layer(x, is_causal=False))
    assert not torch.allclose(layer(x), layer(x, is_causal=True))


def test_one_head_has_the_widths_of_its_tokens_by_default():
    layer = SelfAttention(E)
    assert layer(torch.randn(B, L, E)).shape == (B, L, E)
    assert [tuple(p.shape) for p in layer.parameters()] == [(E, E)] * 3


# Dropout ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: SelfAttention(E, dropout=0.5),
        lambda: MultiHeadAttention(E, H, dropout=0.5),
    ],
    ids=["SelfAttention", "MultiHeadAttention"],
)
@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
def test_dropout_acts_in_training_only(make, need_weights):
    layer = make()
    x = torch.randn(B, L, E)

    def run():
        out = layer(x, need_weights=need_weights)
        return out if need_weights else (out, None)

    first, weights = run()
    second, again = run()
    assert not torch.allclose(first, second)
    if need_weights:  # before dropout
        assert torch.equal(weights, again)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    layer.eval()
    assert torch.equal(run()[0], run()[0])


def test_dropout_leaves_the_mean_where_it_is():
    layer = MultiHeadAttention(E, H, dropout=0.3, dtype=torch.float64)
    x = torch.randn(1, L, E, dtype=torch.float64)
    mean = layer(x.expand(4000, L, E)).mean(0)
    torch.testing.assert_close(mean, layer.eval()(x)[0], atol=0.03, rtol=0)


# What a mask means --------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 3, H])
def test_three_axes_are_batch_queries_keys_whatever_the_batch(batch):
    layer = wide()
    x = torch.randn(batch, L, E, dtype=torch.float64)
    keep = torch.rand(batch, L, L) > 0.4
    out = layer(x, attn_mask=keep)
    for row in range(batch):
        alone = layer(x[row : row + 1], attn_mask=keep[row])
        close(out[row], alone[0])


def test_a_mask_per_head_needs_four_axes():
    layer = wide()
    x = torch.randn(B, L, E, dtype=torch.float64)
    keep = torch.rand(H, L, L) > 0.4
    with pytest.raises(ValueError, match=r"a mask per head is \(1, H, L, S\)"):
        layer(x, attn_mask=keep)
    output, _ = by_definition(layer, x, attn_mask=keep)
    close(layer(x, attn_mask=keep[None]), output)


def test_hidden_keys_do_not_reach_real_tokens():
    layer = wide().eval()
    x = torch.randn(B, L, E, dtype=torch.float64)
    keep = torch.ones(B, L, dtype=torch.bool)
    keep[0, :2] = False  # padding on the left
    keep[1, 2] = False  # a hole
    other = torch.where(keep[..., None], x, torch.randn_like(x))
    for is_causal in (False, True):
        a, b = (
            layer(t, attn_mask=keep[:, None, None], is_causal=is_causal)
            for t in (x, other)
        )
        assert torch.equal(a[keep], b[keep])
    short = layer(x[:1, 2:], is_causal=True)
    close(layer(x, attn_mask=keep[:, None, None], is_causal=True)[0, 2:], short[0])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "mask"])
def test_the_future_does_not_leak(training, need_weights, masked):
    layer = wide(dropout=0.4, rotary=RotaryEmbedding(D)).train(training)
    x = torch.randn(B, L, E, dtype=torch.float64)
    keep = torch.ones(B, L, L, dtype=torch.bool) if masked else None

    def run(tokens):
        torch.manual_seed(5)
        out = layer(tokens, is_causal=True, attn_mask=keep, need_weights=need_weights)
        return out[0] if need_weights else out

    before = run(x)
    for t in range(L):
        changed = x.clone()
        changed[:, t] = torch.randn(B, E, dtype=torch.float64)
        after = run(changed)
        assert torch.equal(after[:, :t], before[:, :t])
        moved = (after[:, t:] != before[:, t:]).any(-1)
        assert training or moved.all()


def test_without_positions_the_order_of_the_keys_is_nothing():
    layer = wide()
    query = torch.randn(B, L, E, dtype=torch.float64)
    context = torch.randn(B, S, E, dtype=torch.float64)
    shuffled = context[:, torch.randperm(S)]
    close(layer(query, context), layer(query, shuffled))
