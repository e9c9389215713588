"""Layers with empty, strided and half-precision inputs, and with the rest of torch."""

import copy
import math
import pickle

import pytest
import torch
from layer_samples import HKV, B, D, E, H, L, wide
from samples import close
from torch import nn

from attention_lib import (
    AlibiBias,
    KeyValueCache,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryEmbedding,
    SelfAttention,
    masks,
)

pytestmark = pytest.mark.usefixtures("on_device")

# Shapes and dtypes --------------------------------------------------------------------


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
    q, k, v = layer.project(x)
    q, k = layer.rotary(q), layer.rotary(k)
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


# With the rest of torch ---------------------------------------------------------------


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
            twin.qkv_proj.weight.zero_()
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
    last = layer.out_proj
    for weight, bias in (*layer.parts(), (last.weight, last.bias)):
        bound = math.sqrt(6 / (2 * E))
        assert 0.8 * bound < weight.abs().max() <= bound
        assert torch.equal(bias, torch.zeros(E))


def test_factories_build_where_they_are_told():
    for layer in (
        full_layer(device="meta", dtype=torch.bfloat16),
        SelfAttention(E, device="meta", dtype=torch.bfloat16, bias=True),
    ):
        for parameter in layer.parameters():
            assert parameter.device.type == "meta"
            assert parameter.dtype == torch.bfloat16


def test_a_layer_says_what_it_is():
    first = repr(wide()).splitlines()
    assert first[0] == "MultiHeadAttention("
    assert first[1].strip() == "12, num_heads=6, num_kv_heads=3, head_dim=4"


def test_a_projection_may_be_replaced():
    """By a quantized one, say, whose weight is no float."""

    class Negated(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.linear = linear

        def forward(self, x):
            return -self.linear(x)

    layer, apart = wide(out_bias=False), wide(kdim=E)
    x = torch.randn(B, L, E, dtype=torch.float64)
    expected = layer(x), apart(x)
    layer.qkv_proj, layer.out_proj = Negated(layer.qkv_proj), Negated(layer.out_proj)
    apart.q_proj, apart.k_proj = Negated(apart.q_proj), Negated(apart.k_proj)
    # Two changes of sign, in the scores and in the output, or in the scores alone.
    close(layer(x), expected[0])
    close(apart(x), expected[1])


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
