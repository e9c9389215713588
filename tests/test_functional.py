"""Attention's two faces against pencil and paper, and against float64 by definition."""

import inspect
import math
from fractions import Fraction

import pytest
import reference
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import DV, FACES, HKV, MASKS, B, D, H, L, S, close, draw, explicit
from torch import Tensor

from attention_lib import attention_steps, scaled_dot_product_attention

# Three tokens A, B, C = A + B, worked with a pencil -----------------------------------

TOKENS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
UNIT = math.sqrt(2) * math.log(2)  # scores become multiples of ln 2
THIRDS = {
    "symmetric": (
        [[1, 0], [0, 1]],
        False,
        ["2/5 1/5 2/5", "1/5 2/5 2/5", "1/4 1/4 1/2"],
        ["4/5 3/5", "3/5 4/5", "3/4 3/4"],
    ),
    "causal": (
        [[1, 0], [0, 1]],
        True,
        ["1 0 0", "1/3 2/3 0", "1/4 1/4 1/2"],
        ["1 0", "1/3 2/3", "3/4 3/4"],
    ),
    "asymmetric": (
        [[1, 1], [0, 1]],
        False,
        ["1/4 1/4 1/2", "1/5 2/5 2/5", "1/7 2/7 4/7"],
        ["3/4 3/4", "3/5 4/5", "5/7 6/7"],
    ),
}


def fractions(rows: list[str]) -> Tensor:
    numbers = [[float(Fraction(part)) for part in row.split()] for row in rows]
    return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("example", THIRDS)
def test_three_tokens_give_exact_fractions(example: str, device) -> None:
    matrix, is_causal, weights, output = THIRDS[example]
    query = TOKENS @ (UNIT * torch.tensor(matrix, dtype=torch.float64))
    inputs = [x.to(device) for x in (query, TOKENS, TOKENS)]
    steps = attention_steps(*inputs, is_causal=is_causal)
    close(steps.weights, fractions(weights), 1e-15)
    close(steps.output, fractions(output), 1e-15)
    fast = scaled_dot_product_attention(*inputs, is_causal=is_causal)
    close(fast, fractions(output), 1e-15)


# The definition, in float64 -----------------------------------------------------------


@FACES
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("kv_heads", [None, HKV, 1])
@pytest.mark.parametrize("lengths", [(L, S), (S, L)], ids=["L<S", "L>S"])
@pytest.mark.parametrize("is_causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("kind", MASKS)
def test_values_and_gradients(
    kind, is_causal, lengths, kv_heads, softcap, face, device
) -> None:
    inputs = draw(B, H, lengths=lengths, kv_heads=kv_heads, device=device)
    mask = MASKS[kind](*lengths)
    on_device = mask if mask is None else mask.to(device)
    got = face(
        *inputs, on_device, is_causal=is_causal, enable_gqa=True, softcap=softcap
    )
    _, want = reference.attention(*inputs, mask, is_causal, softcap=softcap)
    close(got, want)

    wanted = [*inputs]
    if mask is not None and mask.requires_grad:
        wanted.append(mask)
    upstream = torch.randn(want.shape, dtype=torch.float64)
    ours = torch.autograd.grad(got, wanted, upstream.to(device), retain_graph=True)
    theirs = torch.autograd.grad(want, wanted, upstream)
    for tensor, expected in zip(ours, theirs, strict=True):
        close(tensor, expected)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_every_step(kind, is_causal, softcap, device) -> None:
    query, key, value = draw(B, H, device=device)
    mask = MASKS[kind](L, S)
    on_device = mask if mask is None else mask.to(device)
    steps = attention_steps(
        query, key, value, on_device, is_causal=is_causal, softcap=softcap
    )
    weights, output = reference.attention(
        query, key, value, mask, is_causal, softcap=softcap
    )
    raw = torch.einsum("bhid,bhjd->bhij", query, key).cpu() / math.sqrt(D)
    capped = raw if softcap is None else softcap * torch.tanh(raw / softcap)
    bias = 0.0 if mask is None or mask.dtype == torch.bool else mask
    keep = reference.visible(raw.shape, mask, is_causal)
    close(steps.scores, raw)
    close(steps.capped, capped)
    close(steps.masked, torch.where(keep, capped + bias, -math.inf))
    close(steps.weights, weights)
    close(steps.output, output)


@FACES
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [0.3, 1, 0.0, -0.7])
def test_scale(scale, is_causal, face, device) -> None:
    inputs = draw(B, H, device=device)
    got = face(*inputs, is_causal=is_causal, scale=scale)
    _, want = reference.attention(*inputs, None, is_causal, scale=scale)
    close(got, want)


@FACES
@pytest.mark.parametrize("widths", [(D, DV), (DV, D), (D, D), (1, 3)], ids=str)
@pytest.mark.parametrize(
    "leading", [(), (H,), (B, H), (3, B, H), (3, 1, B, H)], ids=str
)
def test_any_leading_axes(leading, widths, face, device) -> None:
    inputs = draw(*leading, widths=widths, device=device)
    over_heads = [1] * min(len(leading), 1)
    axes = [(), *(leading[-n:] for n in (1, 2, 3)), (*leading[:-1], *over_heads)]
    for mask in (None, *(torch.rand(*some, L, S) > 0.3 for some in axes)):
        on_device = mask if mask is None else mask.to(device)
        got = face(*inputs, on_device)
        _, want = reference.attention(*inputs, mask)
        close(got, want)
        ours = torch.autograd.grad(got.sum(), inputs, retain_graph=True)
        theirs = torch.autograd.grad(want.sum(), inputs)
        for tensor, expected in zip(ours, theirs, strict=True):
            close(tensor, expected)


@settings(max_examples=150)
@given(data=st.data())
def test_any_shape(data) -> None:
    torch.manual_seed(data.draw(st.integers(0, 999)))
    size = st.integers(0, 4)
    batch, kv_heads, queries, keys, dv = (data.draw(size) for _ in range(5))
    served, width = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    is_causal = data.draw(st.booleans())
    query, key, value = draw(
        batch,
        kv_heads * served,
        lengths=(queries, keys),
        widths=(width, dv),
        kv_heads=kv_heads,
    )
    scores = (batch, kv_heads * served, queries, keys)
    axes = [data.draw(st.sampled_from([1, size])) for size in scores]
    axes = axes[data.draw(st.integers(0, 4)) :]
    mask = data.draw(
        st.sampled_from([None, torch.rand(axes) > 0.5, torch.randn(axes).double()])
    )
    weights, output = reference.attention(query, key, value, mask, is_causal)
    steps = attention_steps(
        query, key, value, mask, is_causal=is_causal, enable_gqa=True
    )
    fast = scaled_dot_product_attention(
        query, key, value, mask, is_causal=is_causal, enable_gqa=True
    )
    close(steps.weights, weights)
    close(steps.output, output)
    close(fast, output)
    for got in (steps.output, fast):
        grads = torch.autograd.grad(got.sum(), (query, key, value))
        assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("kind", ["none", "float with holes", "learned (H, L, S)"])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_numerical_derivatives(kind, softcap) -> None:
    inputs = draw(2, 3, lengths=(2, 3), widths=(2, 1))
    mask = {
        "none": None,
        "float with holes": torch.tensor([[0.0, -math.inf, 0.5], [-math.inf] * 3]),
        "learned (H, L, S)": torch.randn(3, 2, 3).double().requires_grad_(),
    }[kind]

    def steps(*args):
        return explicit(*args, is_causal=True, softcap=softcap)

    def fast(*args):
        return scaled_dot_product_attention(*args, is_causal=True, softcap=softcap)

    assert torch.autograd.gradcheck(steps, (*inputs, mask))
    assert torch.autograd.gradcheck(fast, (*inputs, mask))
    assert torch.autograd.gradgradcheck(steps, (*inputs, mask))


# The signature ------------------------------------------------------------------------


def test_both_faces_take_the_arguments_that_torch_takes_and_softcap() -> None:
    ours = inspect.signature(scaled_dot_product_attention).parameters
    steps = inspect.signature(attention_steps).parameters
    assert list(ours.items()) == list(steps.items())
    assert list(ours) == [
        "query",
        "key",
        "value",
        "attn_mask",
        "dropout_p",
        "is_causal",
        "scale",
        "enable_gqa",
        "softcap",
    ]


def test_replaces_torch(device) -> None:
    query, key, value = draw(B, H, widths=(D, D), device=device)
    mask = (torch.rand(L, S) > 0.2).to(device)
    for arguments in ((mask,), (mask, 0.0, False), (None, 0.0, True)):
        got = scaled_dot_product_attention(query, key, value, *arguments)
        close(got, F.scaled_dot_product_attention(query, key, value, *arguments))
