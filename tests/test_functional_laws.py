"""What holds for attention whatever the numbers, in every precision."""

import math

import pytest
import reference
import torch
from samples import FACES, HALVES, B, D, H, L, S, close, draw
from torch import Tensor

from attention_lib import attention_steps, masks


@FACES
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("spread", [1.0, 8.0])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision(dtype, spread, is_causal, face, device) -> None:
    """At most twice the error of computing every step in half precision, and a floor.

    The error is the root of the mean square: the largest of thousands is luck.
    """
    drawn = draw(B, H, lengths=(33, 65), widths=(D, D), dtype=dtype, device=device)
    half = [x.detach().requires_grad_() for x in (drawn[0] * spread, *drawn[1:])]
    exact = [x.detach().double().requires_grad_() for x in half]
    _, want = reference.attention(*exact, None, is_causal)
    hidden = ~reference.visible((33, 65), None, is_causal).to(device)
    scores = (half[0] @ half[1].mT / math.sqrt(D)).masked_fill(hidden, -math.inf)
    naive = (scores - scores.amax(-1, keepdim=True)).exp()
    naive = naive / naive.sum(-1, keepdim=True) @ half[2]
    got = face(*half, is_causal=is_causal)
    assert got.dtype == dtype

    upstream = torch.randn(want.shape, dtype=torch.float64).to(dtype)

    def results(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        grads = torch.autograd.grad(output, inputs, upstream.to(output))
        return [x.detach().double().cpu() for x in (output, *grads)]

    for ours, plain, truth in zip(
        results(got, half), results(naive, half), results(want, exact), strict=True
    ):
        error, allowed = (
            (x - truth).square().mean().sqrt().item() for x in (ours, plain)
        )
        floor = torch.finfo(dtype).eps * truth.square().mean().sqrt().item() / 8
        assert error <= 2 * allowed + floor


@FACES
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision_empty_rows_and_float32_bias(dtype, face, device) -> None:
    inputs = draw(B, H, dtype=dtype, device=device)
    bias = torch.randn(H, L, S).masked_fill(torch.arange(L)[:, None] == 1, -math.inf)
    got = face(*inputs, bias.to(device))
    _, want = reference.attention(*inputs, bias)
    close(got.double(), want, 4 * torch.finfo(dtype).eps)
    assert (got[:, :, 1] == 0).all()
    grads = torch.autograd.grad(got.float().square().sum(), inputs)
    assert (grads[0][:, :, 1] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_lowest_half_score_is_not_minus_infinity(is_causal, device) -> None:
    """What is hidden stays hidden beside scores at the end of float16's range."""
    lowest = torch.finfo(torch.float16).min
    query = torch.full((2, 1), 256.0, dtype=torch.float16, device=device)
    key = torch.full((2, 1), lowest / 256, dtype=torch.float16, device=device)
    keep = None if is_causal else masks.causal(2, device=device)
    steps = attention_steps(query, key, key, keep, is_causal=is_causal)
    assert (steps.scores == lowest).all()
    assert steps.weights.tolist() == [[1.0, 0.0], [0.5, 0.5]]


# What holds whatever the numbers ------------------------------------------------------


@FACES
def test_order_of_the_keys_does_not_matter(face, device) -> None:
    query, key, value = draw(B, H, device=device)
    mask = (torch.rand(B, 1, L, S) > 0.3).to(device)
    order = torch.randperm(S, device=device)
    want = face(query, key, value, mask)
    got = face(query, key[..., order, :], value[..., order, :], mask[..., order])
    close(got, want)


@FACES
def test_queries_do_not_see_each_other(face, device) -> None:
    query, key, value = draw(B, H, device=device)
    order = torch.randperm(L, device=device)
    want = face(query, key, value)[..., order, :]
    close(face(query[..., order, :], key, value), want)


@FACES
def test_the_same_bias_on_every_key_changes_nothing(face, device) -> None:
    query, key, value = draw(B, H, device=device)
    bias = torch.randn(D, dtype=torch.float64, device=device)
    close(face(query, key + bias, value), face(query, key, value))


@FACES
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("by", ["causal", "mask", "float mask", "both"])
def test_what_is_hidden_has_no_influence(by, dtype, face, device) -> None:
    query, key, value = draw(B, H, lengths=(S, S), dtype=dtype, device=device)
    diagonal = masks.causal(S, device=device)
    bias = torch.zeros(S, S, dtype=dtype, device=device)
    options = {
        "causal": {"is_causal": True},
        "mask": {"attn_mask": diagonal},
        "float mask": {"attn_mask": bias.masked_fill(~diagonal, -math.inf)},
        "both": {"attn_mask": diagonal, "is_causal": True},
    }[by]
    before = face(query, key, value, **options)
    for changed in range(1, S):
        other_key, other_value = key.clone(), value.clone()
        other_key[..., changed:, :] += 3.0
        other_value[..., changed:, :] -= 1000.0
        after = face(query, other_key, other_value, **options)
        assert torch.equal(after[..., :changed, :], before[..., :changed, :])
        assert not torch.equal(after[..., changed:, :], before[..., changed:, :])


@FACES
def test_output_lies_between_the_values(face, device) -> None:
    query, key, value = draw(B, H, device=device)
    output = face(5 * query, key, value)
    assert (output >= value.amin(-2, keepdim=True) - 1e-12).all()
    assert (output <= value.amax(-2, keepdim=True) + 1e-12).all()


@FACES
def test_arguments_are_left_as_they_were(face, device) -> None:
    inputs = [x.detach() for x in draw(B, H, device=device)]
    mask = torch.randn(H, L, S, dtype=torch.float64, device=device)
    before = [x.clone() for x in (*inputs, mask)]
    face(*inputs, mask, is_causal=True, softcap=None)
    face(*inputs, mask, is_causal=True, softcap=2.0)
    assert all(map(torch.equal, before, (*inputs, mask)))


# Dropout ------------------------------------------------------------------------------


@FACES
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_dropout_takes_its_share_and_scales_the_rest(softcap, face, device) -> None:
    query, key, _ = draw(B, H, lengths=(61, 67), device=device)
    value = torch.eye(67, dtype=torch.float64, device=device).expand(B, H, 67, 67)
    mask = masks.padding([67, 40], 67, device=device)
    weights = attention_steps(query, key, value, mask, softcap=softcap).weights
    dropped = face(query, key, value, mask, 0.25, softcap=softcap)  # the weights used
    gone = dropped == 0
    close(dropped, (weights / 0.75).masked_fill(gone, 0.0))
    shares = gone[0].double().mean((-2, -1))  # of each head: 4087 weights
    assert ((shares - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / 4087)).all()


def test_steps_return_the_weights_before_dropout(device) -> None:
    inputs = draw(B, H, device=device)
    plain = attention_steps(*inputs)
    dropped = attention_steps(*inputs, dropout_p=0.5)
    close(dropped.weights, plain.weights)
    assert not torch.equal(dropped.output, plain.output)


@FACES
def test_dropout_has_the_gradient_of_what_it_kept(face, device) -> None:
    query, key, value = draw(B, H, device=device)
    output = face(query, key, value, None, 0.4)
    # The output is linear in the values: its gradient gives the output back.
    (grad,) = torch.autograd.grad(output, value, torch.ones_like(output))
    close((grad * value).sum((-2, -1)), output.sum((-2, -1)), 1e-10)
