"""SelfAttention and MultiHeadAttention against attention by its definition."""

import copy
import math
import pickle

import pytest
import reference
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from attention_lib import (
    AlibiBias,
    KeyValueCache,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryEmbedding,
    SelfAttention,
    masks,
    token_positions,
)

pytestmark = pytest.mark.usefixtures("on_device")

B, L, S, E = 2, 5, 7, 12
H, HKV, D = 6, 3, 4  # H * D is not E


def close(got, want, tolerance=1e-12):
    torch.testing.assert_close(got.cpu(), want.cpu(), rtol=tolerance, atol=tolerance)


def wide(**options):
    """A layer in which no two sizes agree, with biases that are not zero."""
    options = {"num_kv_heads": HKV, "head_dim": D, "dtype": torch.float64} | options
    layer = MultiHeadAttention(E, H, **options)
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return layer


def by_definition(layer, query, key=None, value=None, attn_mask=None, is_causal=False):
    """Output and weights from the layer's weights alone."""
    key = query if key is None else key
    value = key if value is None else value
    with torch.device("cpu"):
        q, k, v = (
            F.linear(x.cpu(), p.weight.cpu(), None if p.bias is None else p.bias.cpu())
            for x, p in (
                (query, layer.q_proj),
                (key, layer.k_proj),
                (value, layer.v_proj),
            )
        )
        heads = [torch.stack(x.split(layer.head_dim, dim=-1), dim=1) for x in (q, k, v)]
        weights, output = reference.attention(
            *heads,
            None if attn_mask is None else attn_mask.cpu(),
            is_causal,
            scale=layer.scale,
            softcap=layer.softcap,
        )
        merged = torch.cat(output.unbind(1), dim=-1)
        last = layer.out_proj
        bias = None if last.bias is None else last.bias.cpu()
        return F.linear(merged, last.weight.cpu(), bias), weights


# The definition ------------------------------------------------------------------------

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
        return {name for name, _ in layer.named_parameters() if name.endswith("bias")}

    q, k, v, out = (f"{p}_proj.bias" for p in ("q", "k", "v", "out"))
    assert biases() == {q, k, v, out}
    assert biases(bias=False) == set()
    assert biases(key_bias=False) == {q, v, out}
    assert biases(out_bias=False) == {q, k, v}
    assert biases(bias=False, out_bias=True) == {out}


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
        size = parameter.grad.abs().max().item()
        if name == "k_proj.bias":  # shifts a row of scores alike, which changes nothing
            assert size < 1e-12
        else:
            assert size > 1e-6, name


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


# SelfAttention -------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("kind", [k for k in MASKS if "H" not in k and k != "float32"])
def test_one_head(kind, is_causal, need_weights, bias):
    layer = SelfAttention(E, 4, 3, bias=bias, dtype=torch.float64)
    x = torch.randn(B, L, E, dtype=torch.float64)
    given, full = MASKS[kind](L)
    got = layer(x, attn_mask=given, is_causal=is_causal, need_weights=need_weights)
    q, k, v = (
        p(x).detach()[:, None].cpu() for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    with torch.device("cpu"):
        full = None if full is None else full.cpu()
        weights, output = reference.attention(q, k, v, full, is_causal)
    if need_weights:
        assert got[1].shape == (B, 1, L, L)
        close(got[1], weights)
        got = got[0]
    close(got, output[:, 0])


def test_one_head_has_the_widths_of_its_tokens_by_default():
    layer = SelfAttention(E)
    assert layer(torch.randn(B, L, E)).shape == (B, L, E)
    assert [tuple(p.shape) for p in layer.parameters()] == [(E, E)] * 3


# Dropout -------------------------------------------------------------------------------


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


# What a mask means ---------------------------------------------------------------------


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


# Hooks ---------------------------------------------------------------------------------


def test_norms_come_before_the_rotary_embedding():
    layer = wide(
        rotary=RotaryEmbedding(D),
        query_norm=nn.RMSNorm(D, dtype=torch.float64),
        key_norm=nn.RMSNorm(D, dtype=torch.float64),
    )
    # Uneven weights: turning and scaling the components do not commute.
    nn.init.uniform_(layer.query_norm.weight, 0.5, 2)
    nn.init.uniform_(layer.key_norm.weight, 0.5, 2)
    x = torch.randn(B, L, E, dtype=torch.float64)
    q = layer.q_proj(x).unflatten(-1, (H, D)).transpose(1, 2)
    k = layer.k_proj(x).unflatten(-1, (HKV, D)).transpose(1, 2)
    q = layer.rotary(layer.query_norm(q)).repeat_interleave(1, 1)
    k = layer.rotary(layer.key_norm(k)).repeat_interleave(H // HKV, 1)
    weights = (q @ k.mT / math.sqrt(D)).softmax(-1)
    close(layer(x, need_weights=True)[1], weights, 1e-10)


def test_a_score_bias_is_added_and_masks_still_hold():
    bias = RelativePositionBias(H, num_buckets=8, dtype=torch.float64)
    nn.init.normal_(bias.weight)
    layer = wide(score_bias=bias)
    x = torch.randn(B, L, E, dtype=torch.float64)
    keep, causal = torch.rand(B, L, L) > 0.3, torch.ones(L, L).tril().bool()
    floats = torch.randn(B, H, L, L, dtype=torch.float64)
    full = bias(L).detach().expand(B, H, L, L)
    cases = [
        ({}, full),
        ({"is_causal": True}, full.masked_fill(~causal, -math.inf)),
        ({"attn_mask": keep}, full.masked_fill(~keep[:, None], -math.inf)),
        ({"attn_mask": floats}, full + floats),
        (
            {"attn_mask": keep, "is_causal": True},
            full.masked_fill(~(keep[:, None] & causal), -math.inf),
        ),
    ]
    for arguments, mask in cases:
        output, weights = by_definition(layer, x, attn_mask=mask)
        close(layer(x, **arguments), output)
        close(layer(x, **arguments, need_weights=True)[1], weights)


def test_a_learned_score_bias_learns():
    layer = wide(score_bias=RelativePositionBias(H, dtype=torch.float64))
    x = torch.randn(B, L, E, dtype=torch.float64)
    layer(x, is_causal=True).square().sum().backward()
    assert layer.score_bias.weight.grad.abs().max() > 1e-6


def test_any_callable_is_a_hook():
    flip = wide(
        rotary=lambda x, offset, positions: -x,
        score_bias=lambda L, S, offset: torch.zeros(H, L, S, dtype=torch.float64),
    )
    x = torch.randn(B, L, E, dtype=torch.float64)
    close(flip(x), by_definition(flip, x)[0])


def test_hooks_are_checked_against_the_layer():
    with pytest.raises(ValueError, match="rotary has head_dim=3, expected 4"):
        wide(rotary=RotaryEmbedding(3, rotary_dim=2))
    with pytest.raises(ValueError, match="score_bias has num_heads=4, expected 6"):
        wide(score_bias=AlibiBias(4))


# Decoding ------------------------------------------------------------------------------

KINDS = {
    "plain": dict,
    "rotary": lambda: {"rotary": RotaryEmbedding(D)},
    "partial rotary": lambda: {
        "rotary": RotaryEmbedding(D, rotary_dim=2, interleaved=True)
    },
    "ALiBi": lambda: {"score_bias": AlibiBias(H)},
    "buckets": lambda: {
        "score_bias": RelativePositionBias(H, num_buckets=8, bidirectional=False)
    },
    "norms": lambda: {
        "query_norm": nn.RMSNorm(D),
        "key_norm": nn.RMSNorm(D),
        "rotary": RotaryEmbedding(D),
    },
    "softcap": lambda: {"softcap": 2.0, "scale": 0.3},
}


@pytest.mark.parametrize("chunk", [1, 3, 8], ids=["one", "three", "all"])
@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_equals_the_full_pass(kind, chunk, need_weights):
    layer = wide(**KINDS[kind]()).double()
    x = torch.randn(B, 8, E, dtype=torch.float64)
    whole, all_weights = layer(x, is_causal=True, need_weights=True)
    cache = KeyValueCache.for_layer(layer, B, 8)
    for start in range(0, 8, chunk):
        out = layer(
            x[:, start : start + chunk],
            is_causal=True,
            cache=cache,
            need_weights=need_weights,
        )
        if need_weights:
            out, weights = out
            rows = all_weights[:, :, start : start + chunk, : cache.length]
            close(weights, rows)
        close(out, whole[:, start : start + chunk])
    assert cache.length == 8


@pytest.mark.parametrize("chunk", [1, 3, 8], ids=["one", "three", "all"])
def test_decoding_with_a_window(chunk):
    layer = wide(rotary=RotaryEmbedding(D))
    x = torch.randn(B, 8, E, dtype=torch.float64)
    whole = layer(x, attn_mask=masks.sliding_window(8, window=3))
    cache = KeyValueCache.for_layer(layer, B, 8)
    for start in range(0, 8, chunk):
        now = x[:, start : start + chunk]
        keep = masks.sliding_window(now.shape[1], window=3, offset=start)
        out = layer(now, attn_mask=keep, is_causal=True, cache=cache)
        close(out, whole[:, start : start + chunk])


@pytest.mark.parametrize("chunk", [1, 3, 8], ids=["one", "three", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_decoding_with_padding_on_the_left(kind, chunk):
    """A padded row gives what the row gives alone."""
    layer = wide(**KINDS[kind]()).double()
    x = torch.randn(B, 8, E, dtype=torch.float64)
    keep = torch.ones(B, 8, dtype=torch.bool)
    keep[0, :3] = False
    positions = token_positions(keep)
    alone = [layer(x[:1, 3:], is_causal=True), layer(x[1:], is_causal=True)]
    cache = KeyValueCache.for_layer(layer, B, 8)
    found = []
    for start in range(0, 8, chunk):
        end = min(start + chunk, 8)
        found.append(
            layer(
                x[:, start:end],
                attn_mask=keep[:, None, None, :end],
                is_causal=True,
                cache=cache,
                positions=positions[:, start:end] if layer.rotary else None,
            )
        )
    out = torch.cat(found, dim=1)
    close(out[0, 3:], alone[0][0], 1e-10)
    close(out[1], alone[1][0], 1e-10)


def test_float_masks_hold_with_a_cache():
    layer = wide()
    x = torch.randn(B, 8, E, dtype=torch.float64)
    bias = torch.randn(B, H, 8, 8, dtype=torch.float64)
    whole = layer(x, attn_mask=bias, is_causal=True)
    cache = KeyValueCache.for_layer(layer, B, 8)
    for start, end in ((0, 3), (3, 4), (4, 8)):
        mask = bias[:, :, start:end, :end]
        out = layer(x[:, start:end], attn_mask=mask, is_causal=True, cache=cache)
        close(out, whole[:, start:end])


def test_without_is_causal_a_cached_chunk_sees_all_of_itself():
    layer = wide()
    x = torch.randn(B, 8, E, dtype=torch.float64)
    cache = KeyValueCache.for_layer(layer, B, 8)
    layer(x[:, :5], cache=cache)
    close(layer(x[:, 5:], cache=cache), layer(x)[:, 5:])


def test_a_used_cache_serves_again_after_reset():
    layer = wide(rotary=RotaryEmbedding(D))
    x = torch.randn(B, 8, E, dtype=torch.float64)
    cache = KeyValueCache.for_layer(layer, B, 8)
    first = layer(x, is_causal=True, cache=cache)
    cache.reset()
    assert torch.equal(layer(x, is_causal=True, cache=cache), first)


def test_a_refused_call_leaves_the_cache_as_it_was():
    layer = wide()
    cache = KeyValueCache.for_layer(layer, B, 8)
    x = torch.randn(B, 5, E, dtype=torch.float64)
    layer(x, is_causal=True, cache=cache)
    with pytest.raises(ValueError, match="attn_mask has shape"):
        layer(x[:, :2], attn_mask=torch.ones(2, 5).bool(), cache=cache)
    with pytest.raises(
        ValueError, match="query has 5 tokens, the cache has room for 3"
    ):
        layer(x, is_causal=True, cache=cache)
    assert cache.length == 5


class Calls(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def operators(function):
    with Calls() as calls:
        function()
    return calls.names


@torch.no_grad()
def test_one_decoded_token_builds_no_mask(device):
    layer = MultiHeadAttention(E, H)
    cache = KeyValueCache.for_layer(layer, B, 8)
    layer(torch.randn(B, 3, E), is_causal=True, cache=cache)
    token = torch.randn(B, 1, E)
    names = operators(lambda: layer(token, is_causal=True, cache=cache))
    assert not {"arange", "le", "lt", "tril", "ones", "masked_fill", "where"} & set(
        names
    )
    # Two copies store the key and the value; nothing else is copied.
    assert names.count("copy_") == 2
    assert not {"clone", "cat", "_to_copy", "repeat_interleave"} & set(names)


@torch.no_grad()
def test_nothing_is_copied(device):
    if device.type != "cpu":
        pytest.skip("other kernels lay their output out in their own way")
    layer = MultiHeadAttention(E, H)
    x = torch.randn(B, L, E)
    names = operators(lambda: layer(x, is_causal=True))
    assert not {"clone", "copy_", "cat", "_to_copy"} & set(names)
    assert names.count("addmm") == 4


# Shapes and dtypes ---------------------------------------------------------------------


@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize(("batch", "length"), [(0, L), (B, 0), (0, 0), (1, 1)])
def test_nothing_in_nothing_out(batch, length, need_weights):
    layer = wide(rotary=RotaryEmbedding(D, interleaved=True), score_bias=AlibiBias(H))
    x = torch.randn(batch, length, E, dtype=torch.float64, requires_grad=True)
    out = layer(x, is_causal=True, need_weights=need_weights)
    if need_weights:
        out, weights = out
        assert weights.shape == (batch, H, length, length)
    assert out.shape == (batch, length, E)
    out.sum().backward()
    assert x.grad.shape == x.shape
    assert SelfAttention(E, dtype=torch.float64)(x).shape == (batch, length, E)


def test_no_keys_at_all():
    layer = wide()
    query = torch.randn(B, L, E, dtype=torch.float64)
    out = layer(query, query[:, :0])
    close(out, layer.out_proj.bias.expand(B, L, E))


def test_strides_do_not_matter():
    layer = wide()
    x = torch.randn(L, B, E, dtype=torch.float64).transpose(0, 1)
    assert not x.is_contiguous()
    close(layer(x, is_causal=True), layer(x.contiguous(), is_causal=True))
    every_other = torch.randn(B, L, 2 * E, dtype=torch.float64)[..., ::2]
    close(layer(every_other), layer(every_other.contiguous()))
    keep = (torch.rand(L, L, B) > 0.3).permute(2, 1, 0)
    close(layer(x, attn_mask=keep), layer(x, attn_mask=keep.contiguous()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
def test_half_precision_stays_near_float64(dtype, need_weights):
    layer = wide(rotary=RotaryEmbedding(D), dtype=torch.float32).to(dtype)
    x = torch.randn(B, L, E).to(dtype)
    keep = masks.padding([L, 2], L)

    def run(module, tokens):
        out = module(tokens, attn_mask=keep, is_causal=True, need_weights=need_weights)
        return out[0] if need_weights else out

    exact = run(copy.deepcopy(layer).double(), x.double())
    got = run(layer, x)
    assert got.dtype == dtype
    naive = by_definition_in_half(layer, x, keep)
    error = (got.double() - exact).abs().max()
    bound = 2 * (naive.double() - exact).abs().max() + torch.finfo(dtype).eps
    assert error <= bound


def by_definition_in_half(layer, x, keep):
    """The textbook steps, each rounded to the dtype of x."""
    q = layer.rotary(layer.q_proj(x).unflatten(-1, (H, D)).transpose(1, 2))
    k = layer.rotary(layer.k_proj(x).unflatten(-1, (HKV, D)).transpose(1, 2))
    v = layer.v_proj(x).unflatten(-1, (HKV, D)).transpose(1, 2)
    k, v = (t.repeat_interleave(H // HKV, 1) for t in (k, v))
    scores = q @ k.mT / math.sqrt(D)
    hidden = ~(keep & torch.ones(L, L, dtype=torch.bool).tril())
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return layer.out_proj((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("need_weights", [False, True], ids=["", "weights"])
def test_autocast(device, need_weights):
    layer = MultiHeadAttention(
        E, H, rotary=RotaryEmbedding(E // H), score_bias=AlibiBias(H)
    )
    x = torch.randn(B, L, E)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = layer(x, is_causal=True, need_weights=need_weights)
        cache = KeyValueCache.for_layer(layer, B, L, dtype=torch.bfloat16)
        decoded = layer(x, is_causal=True, cache=cache)
    out = out[0] if need_weights else out
    assert out.dtype == decoded.dtype == torch.bfloat16
    torch.testing.assert_close(
        out.float(), layer(x, is_causal=True), atol=0.05, rtol=0.05
    )


# With the rest of torch ----------------------------------------------------------------


def full_layer(**options):
    """With every part that has a state."""
    return MultiHeadAttention(
        E,
        H,
        num_kv_heads=HKV,
        head_dim=D,
        rotary=RotaryEmbedding(D),
        score_bias=RelativePositionBias(H, **options),
        query_norm=nn.RMSNorm(D, **options),
        key_norm=nn.RMSNorm(D, **options),
        **options,
    )


def test_copies_and_pickles():
    layer = full_layer()
    x = torch.randn(B, L, E)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), layer(x))
        with torch.no_grad():
            twin.q_proj.weight.zero_()
        assert not torch.equal(twin(x), layer(x))


def test_state_dict_makes_another_layer_the_same():
    layer, twin = full_layer(), full_layer()
    x = torch.randn(B, L, E)
    assert not torch.allclose(twin(x), layer(x))
    twin.load_state_dict(layer.state_dict())
    assert torch.equal(twin(x), layer(x))
    assert set(layer.state_dict()) == {n for n, _ in layer.named_parameters()}


def test_meta_device_then_weights(device):
    layer = full_layer()
    x = torch.randn(B, L, E)
    with torch.device("meta"):
        twin = full_layer()
    assert twin(x.to("meta"), is_causal=True).shape == (B, L, E)
    twin.to_empty(device=device).load_state_dict(layer.state_dict())
    assert torch.equal(twin(x, is_causal=True), layer(x, is_causal=True))


def test_reset_parameters_after_the_meta_device(device):
    layer = MultiHeadAttention(E, H, device="meta").to_empty(device=device)
    layer.reset_parameters()
    for linear in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        bound = math.sqrt(6 / (2 * E))
        assert 0.8 * bound < linear.weight.abs().max() <= bound
        assert torch.equal(linear.bias, torch.zeros(E))


def test_factories_build_where_they_are_told():
    for layer in (
        full_layer(device="meta", dtype=torch.bfloat16),
        SelfAttention(E, device="meta", dtype=torch.bfloat16, bias=True),
    ):
        for parameter in layer.parameters():
            assert parameter.device.type == "meta"
            assert parameter.dtype == torch.bfloat16


def test_a_projection_may_be_replaced():
    """By a quantized one, say, whose weight is no float."""

    class Negated(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.linear = linear

        def forward(self, x):
            return -self.linear(x)

    layer = wide()
    x = torch.randn(B, L, E, dtype=torch.float64)
    expected = layer(x)
    layer.q_proj, layer.k_proj = Negated(layer.q_proj), Negated(layer.k_proj)
    close(layer(x), expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_over_an_ensemble():
    layers = [MultiHeadAttention(E, H, bias=False) for _ in range(3)]
    stacked, _ = torch.func.stack_module_state(layers)
    x = torch.randn(B, L, E)

    def call(parameters):
        return torch.func.functional_call(layers[0], parameters, (x,))

    out = torch.func.vmap(call)(stacked)
    torch.testing.assert_close(out, torch.stack([layer(x) for layer in layers]))


def test_compiles_into_one_graph():
    layer = full_layer().eval()
    x = torch.randn(B, L, E)
    keep = masks.padding([L, 3], L)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    close(
        compiled(x, attn_mask=keep, is_causal=True),
        layer(x, attn_mask=keep, is_causal=True),
        1e-5,
    )


def test_exports_with_any_batch_and_length():
    layer = full_layer().eval()
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=2)}
    program = torch.export.export(
        layer,
        (torch.randn(B, L, E),),
        {"is_causal": True},
        dynamic_shapes={"query": sizes, "is_causal": None},
    )
    x = torch.randn(3, 9, E)
    close(program.module()(x, is_causal=True), layer(x, is_causal=True), 1e-6)
