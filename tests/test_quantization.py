"""Integers and scales against a float64 reference, and what they refuse."""

import copy

import pytest
import torch
from torch import nn

from attention_lib import MultiHeadAttention, TransformerBlock
from attention_lib.quantization import (
    Int8Linear,
    dequantize,
    int_product,
    quantize,
    quantize_linears,
)

pytestmark = pytest.mark.usefixtures("on_device")

B, L, WIDTH, OUT = 3, 7, 24, 16


def reference(x, dim):
    """Integers and scales in float64."""
    x = x.double()
    largest = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    scales = torch.where(largest > 0, largest / 127, 1.0)
    return (x / scales).round(), scales


@pytest.mark.parametrize("dim", [-1, 0, 1, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_integers_and_scales_are_those_of_float64(dim, dtype):
    x = (torch.randn(5, 9) * torch.tensor([1, 30, 1e-4, 2, 0.3])[:, None]).to(dtype)
    integers, scales = quantize(x, dim)
    want, want_scales = reference(x, dim)
    torch.testing.assert_close(scales.double(), want_scales.expand(scales.shape))
    assert integers.dtype == torch.int8 and scales.dtype == torch.float32
    assert (integers.double() - want).abs().max() <= 1  # a tie may fall either way
    assert (integers.double() != want).double().mean() < 0.05
    off = (dequantize(integers, scales).double() - x.double()).abs()
    assert (off <= 0.5001 * scales).all()
    assert integers.min() >= -127


def test_the_largest_of_each_slice_is_exact_and_uses_the_whole_range():
    x = torch.tensor([[0.5, -2.0], [3.0, 1.0]])
    integers, scales = quantize(x)
    assert integers.tolist() == [[32, -127], [127, 42]]
    torch.testing.assert_close(scales, torch.tensor([[2.0], [3.0]]) / 127)
    assert quantize(x, 0)[1].shape == (1, 2)
    assert quantize(x, None)[1].shape == (1, 1)


def test_zeros_stay_zeros():
    x = torch.zeros(2, 3)
    x[1, 0] = 5
    integers, scales = quantize(x)
    assert integers.tolist() == [[0, 0, 0], [127, 0, 0]]
    assert scales[0].item() == 1
    assert quantize(torch.zeros(4), None)[0].tolist() == [0] * 4


def test_quantize_keeps_no_graph_and_its_argument():
    x = torch.randn(3, 4, requires_grad=True)
    before = x.detach().clone()
    assert not any(part.requires_grad for part in quantize(x))
    assert torch.equal(x, before)


def test_quantize_refuses():
    with pytest.raises(TypeError, match="x must be a Tensor, got list"):
        quantize([1.0])
    with pytest.raises(TypeError, match="x has dtype torch.int64, expected a float"):
        quantize(torch.arange(3))
    with pytest.raises(ValueError, match=r"x has shape \(0, 3\), expected no size"):
        quantize(torch.empty(0, 3))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
def test_the_layer_computes_with_what_its_integers_stand_for(
    bias, per_channel, dynamic
):
    linear = nn.Linear(WIDTH, OUT, bias=bias)
    x = torch.randn(B, L, WIDTH)
    layer = Int8Linear(linear, dynamic=dynamic, per_channel=per_channel)
    integers, scales = reference(linear.weight.detach(), -1 if per_channel else None)
    weight = integers * scales
    inputs = x.double()
    if dynamic:
        rows, row_scales = reference(x, -1)
        inputs = rows * row_scales
    want = inputs @ weight.mT
    if bias:
        want = want + linear.bias.detach().double()
    found = layer(x)
    assert found.shape == (B, L, OUT) and found.dtype == x.dtype
    torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=2e-3)
    error = (found - linear(x)).norm() / linear(x).norm()
    assert error < 0.03


@pytest.mark.parametrize("rows", [1, 16, 17, 40])
@pytest.mark.parametrize("width", [8, 24, 13])
@pytest.mark.parametrize("out", [8, 5])
def test_the_integer_product_is_exact(rows, width, out):
    a = torch.randint(-127, 128, (rows, width), dtype=torch.int8)
    b = torch.randint(-127, 128, (out, width), dtype=torch.int8)
    found = int_product(a, b)
    assert found.dtype == torch.int32
    assert torch.equal(found.double(), a.double() @ b.double().mT)


def test_the_integer_product_does_without_the_kernel_on_another_device():
    a, b = (torch.empty(n, 8, dtype=torch.int8, device="meta") for n in (3, 5))
    found = int_product(a, b)
    assert found.shape == (3, 5) and found.dtype == torch.int32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("dynamic", [True, False])
def test_other_dtypes_come_back_as_they_came(dtype, dynamic):
    linear = nn.Linear(WIDTH, OUT)
    layer = Int8Linear(linear, dynamic=dynamic).to(dtype)
    x = torch.randn(B, WIDTH)
    found = layer(x.to(dtype))
    assert found.dtype == dtype
    assert layer.weight.dtype == torch.int8
    assert (found.float() - linear(x)).norm() / linear(x).norm() < 0.03


def test_no_rows_and_one_row():
    layer = Int8Linear(nn.Linear(WIDTH, OUT), dynamic=True)
    assert layer(torch.empty(0, WIDTH)).shape == (0, OUT)
    assert layer(torch.randn(WIDTH)).shape == (OUT,)


def test_tokens_do_not_mix():
    layer = Int8Linear(nn.Linear(WIDTH, OUT), dynamic=True)
    x = torch.randn(4, WIDTH)
    one = layer(x)
    x[2] *= 1000
    assert torch.equal(layer(x)[[0, 1, 3]], one[[0, 1, 3]])


def test_an_outlier_channel_spoils_the_others_only_with_one_scale():
    linear = nn.Linear(WIDTH, OUT, bias=False)
    with torch.no_grad():
        linear.weight[0] *= 1000
    x = torch.randn(50, WIDTH)
    right = linear(x)[:, 1:]
    errors = [
        ((Int8Linear(linear, per_channel=each)(x)[:, 1:] - right).norm() / right.norm())
        for each in (True, False)
    ]
    assert errors[0] < 0.02 and errors[1] > 0.5


def test_the_layer_is_small_has_no_parameters_and_saves():
    linear = nn.Linear(WIDTH, OUT)
    layer = Int8Linear(linear)
    assert list(layer.parameters()) == []
    state = layer.state_dict()
    assert {name: t.dtype for name, t in state.items()} == {
        "weight": torch.int8,
        "scale": torch.float32,
        "bias": torch.float32,
    }
    other = Int8Linear(nn.Linear(WIDTH, OUT))
    other.load_state_dict(state)
    x = torch.randn(2, WIDTH)
    assert torch.equal(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    with torch.no_grad():
        linear.bias += 1  # the copy stays as it was
    assert torch.equal(other(x), layer(x))


def test_the_layer_refuses():
    layer = Int8Linear(nn.Linear(WIDTH, OUT))
    with pytest.raises(TypeError, match="linear must be nn.Linear, got ReLU"):
        Int8Linear(nn.ReLU())
    with pytest.raises(ValueError, match=r"x has shape \(2, 5\), expected \(..., 24\)"):
        layer(torch.randn(2, 5))
    with pytest.raises(TypeError, match="x has dtype torch.int64, expected a float"):
        layer(torch.ones(2, WIDTH, dtype=torch.int64))


def test_says_what_it_is():
    linear = nn.Linear(WIDTH, OUT)
    assert "24, 16, per channel, weight-only" in repr(Int8Linear(linear))
    words = repr(Int8Linear(linear, dynamic=True, per_channel=False))
    assert "24, 16, per tensor, dynamic" in words


@pytest.mark.parametrize("dynamic", [True, False])
def test_every_linear_of_a_model_is_replaced_and_it_still_attends(dynamic):
    attention = MultiHeadAttention(WIDTH, 4, num_kv_heads=2)
    block = TransformerBlock(WIDTH, attention=attention)
    x = torch.randn(B, L, WIDTH)
    right = block(x, is_causal=True)
    assert quantize_linears(block, dynamic=dynamic) is block
    linears = [m for m in block.modules() if isinstance(m, nn.Linear)]
    small = [m for m in block.modules() if isinstance(m, Int8Linear)]
    assert not linears and len(small) == 4
    assert all(m.dynamic == dynamic and m.per_channel for m in small)
    found = block(x, is_causal=True)
    assert (found - right).norm() / right.norm() < 0.03


def test_a_model_that_is_a_linear_is_replaced_and_no_model_refused():
    assert isinstance(quantize_linears(nn.Linear(3, 4)), Int8Linear)
    layer = quantize_linears(nn.Sequential(nn.Linear(3, 4)), per_channel=False)
    assert layer[0].scale.shape == (1, 1)
    with pytest.raises(TypeError, match="model must be a Module, got int"):
        quantize_linears(3)
