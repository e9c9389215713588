"""Additive attention against a loop over pairs of a query and a key."""

import math

import pytest
import reference
import torch
from samples import close
from torch import Tensor

from attention_lib import additive_attention

B, L, S, DQ, DK, DV, A = 2, 5, 7, 3, 4, 9, 6


def draw(device) -> dict[str, Tensor]:
    shapes = {
        "query": (B, L, DQ),
        "key": (B, S, DK),
        "value": (B, S, DV),
        "query_weight": (A, DQ),
        "key_weight": (A, DK),
        "score_weight": (A,),
        "bias": (A,),
    }
    return {
        name: torch.randn(shape, dtype=torch.float64).to(device).requires_grad_()
        for name, shape in shapes.items()
    }


def score(query, key, query_weight, key_weight, score_weight, bias=None) -> Tensor:
    hidden = query_weight @ query + key_weight @ key + (0 if bias is None else bias)
    return torch.dot(score_weight, hidden.tanh())


MASKS = {
    "none": None,
    "bool": torch.arange(L)[:, None] > torch.arange(S),
    "of each sequence": torch.arange(S) < torch.tensor([7, 2])[:, None, None],
    "float": torch.arange(L * S).reshape(L, S).double().log(),  # one is minus infinity
}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_values_and_gradients(kind, with_bias, is_causal, device) -> None:
    inputs = draw(device)
    if not with_bias:
        del inputs["bias"]
    mask = MASKS[kind]
    steps = additive_attention(
        **inputs,
        attn_mask=None if mask is None else mask.to(device),
        is_causal=is_causal,
    )
    plain = {name: x.cpu() for name, x in inputs.items()}
    query, key, value = (plain.pop(name) for name in ("query", "key", "value"))
    pairs = [score(q, k, **plain) for b in range(B) for q in query[b] for k in key[b]]
    scores = torch.stack(pairs).reshape(B, L, S)
    weights, output = reference.average(scores, value, mask, is_causal)
    close(steps.scores, scores)
    close(steps.capped, scores)
    close(steps.weights, weights)
    close(steps.output, output)
    keep = reference.visible(scores.shape, mask, is_causal)
    assert torch.equal(steps.masked.cpu() > -math.inf, keep)

    upstream = torch.randn(output.shape, dtype=torch.float64)
    ours = torch.autograd.grad(steps.output, [*inputs.values()], upstream.to(device))
    theirs = torch.autograd.grad(output, [*inputs.values()], upstream)
    for got, want in zip(ours, theirs, strict=True):
        close(got, want)


def test_heads_are_leading_axes(device) -> None:
    inputs = draw(device)
    plain = additive_attention(**inputs)
    tensors = ("query", "key", "value")
    headed = {name: inputs[name][:, None].expand(-1, 3, -1, -1) for name in tensors}
    steps = additive_attention(**(inputs | headed))
    for head in range(3):
        close(steps.output[:, head], plain.output)


def test_one_sequence(device) -> None:
    inputs = draw(device)
    one = {name: inputs[name][0] for name in ("query", "key", "value")}
    close(
        additive_attention(**(inputs | one)).output,
        additive_attention(**inputs).output[0],
    )


def test_no_keys(device) -> None:
    inputs = draw(device)
    none = {name: inputs[name][:, :0] for name in ("key", "value")}
    steps = additive_attention(**(inputs | none))
    assert steps.weights.shape == (B, L, 0)
    assert (steps.output == 0).all() and steps.output.shape == (B, L, DV)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype, device) -> None:
    inputs = {name: x.detach() for name, x in draw(device).items()}
    want = additive_attention(**inputs)
    steps = additive_attention(**{name: x.to(dtype) for name, x in inputs.items()})
    assert steps.output.dtype == steps.weights.dtype == dtype
    close(steps.output.double(), want.output, 16 * torch.finfo(dtype).eps)


def test_dropout(device) -> None:
    inputs = draw(device)
    inputs["value"] = torch.eye(S, dtype=torch.float64, device=device).expand(B, S, S)
    plain = additive_attention(**inputs)
    dropped = additive_attention(**inputs, dropout_p=0.5)
    close(dropped.weights, plain.weights)
    gone = dropped.output == 0
    assert 0 < gone.sum() < gone.numel()
    close(dropped.output, (2 * plain.weights).masked_fill(gone, 0.0))
