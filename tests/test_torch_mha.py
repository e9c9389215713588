"""MultiHeadAttention beside ``nn.MultiheadAttention`` with the same weights.

Where theirs gives a number, ours gives the same. Where theirs gives NaN, a query sees
nothing: ours is what the output projection makes of zero. Where theirs raises, there is
nothing to attend with or to.
"""

import itertools
import math

import pytest
import torch
from torch import nn

from attention_lib import masks
from attention_lib.interop import from_torch

pytestmark = pytest.mark.usefixtures("on_device")

E, H = 8, 4
LENGTHS = [(5, 5), (5, 7), (7, 5), (1, 6), (0, 5), (5, 0)]
TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 1e-5,
    torch.bfloat16: 4e-2,
}
# Each kind gives a mask in our words, (B, H, L, S) or less, or None.
KINDS = {
    "none": lambda B, L, S, dtype: None,
    "bool": lambda B, L, S, dtype: see_first(torch.rand(L, S) > 0.3),
    "per head": lambda B, L, S, dtype: see_first(torch.rand(B, H, L, S) > 0.3),
    "causal": lambda B, L, S, dtype: masks.causal(L, S),
    "float": lambda B, L, S, dtype: torch.randn(L, S, dtype=dtype),
    "empty row": lambda B, L, S, dtype: torch.arange(L)[:, None].expand(L, S) > 0,
}
PADDINGS = {
    "no padding": lambda B, S: None,
    "right": lambda B, S: masks.padding([max(S - n, 0) for n in range(B)], S),
    "left": lambda B, S: masks.padding([max(S - n, 0) for n in range(B)], S).flip(-1),
    "an empty sequence": lambda B, S: masks.padding(
        [S * (n != 1) for n in range(B)], S
    ),
}


def see_first(keep):
    """No query is left without a key."""
    keep[..., :1] = True
    return keep


def pair(dtype, training, **options):
    """Theirs and ours, with the same weights and biases that are not zero."""
    theirs = nn.MultiheadAttention(E, H, batch_first=True, dtype=dtype, **options)
    if theirs.in_proj_bias is not None:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    theirs.train(training)
    return theirs, from_torch(theirs)


def in_their_words(mask, keep):
    """Our mask and padding as attn_mask and key_padding_mask, True = hidden."""
    padding = None if keep is None else ~keep[:, 0, 0]
    if mask is not None and mask.is_floating_point() and keep is not None:
        padding = torch.zeros_like(padding, dtype=mask.dtype).masked_fill(
            padding, -math.inf
        )
    elif mask is not None and mask.dtype == torch.bool:
        mask = ~mask
        mask = mask.flatten(0, 1) if mask.ndim == 4 else mask
    return {"attn_mask": mask, "key_padding_mask": padding}


def in_our_words(mask, keep):
    if mask is None or keep is None:
        return keep if mask is None else mask
    if mask.is_floating_point():
        return mask.masked_fill(~keep, -math.inf)
    return masks.combine(mask, keep)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_grid(kind, padding, dtype):
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    compared = 0
    for training in (True, False):
        theirs, ours = pair(dtype, training)
        for batch, (L, S), need_weights, grad in itertools.product(
            (0, 1, 3), LENGTHS, (False, True), (False, True)
        ):
            query = torch.randn(batch, L, E, dtype=dtype, requires_grad=grad)
            key = query if L == S else torch.randn(batch, S, E, dtype=dtype)
            mask, keep = KINDS[kind](batch, L, S, dtype), PADDINGS[padding](batch, S)
            with torch.set_grad_enabled(grad):
                got = ours(
                    query,
                    key,
                    attn_mask=in_our_words(mask, keep),
                    need_weights=need_weights,
                )
                got, weights = got if need_weights else (got, None)
                assert torch.isfinite(got).all()
                try:
                    want, want_weights = theirs(
                        query,
                        key,
                        key,
                        **in_their_words(mask, keep),
                        need_weights=need_weights,
                        average_attn_weights=False,
                    )
                except RuntimeError:
                    assert batch == 0 or S == 0
                    assert got.shape == (batch, L, E)
                    continue
            lost = want.isnan().any(-1)  # (B, L)
            blind = blind_heads(mask, keep, lost.shape)  # (B, L, H)
            assert torch.equal(lost, lost & blind.any(-1))
            silent = ours.out_proj.bias.expand_as(got)[blind.all(-1)]
            torch.testing.assert_close(got[blind.all(-1)], silent, **tolerance)
            torch.testing.assert_close(got[~lost], want[~lost], **tolerance)
            if need_weights:
                assert weights.shape == (batch, H, L, S)
                torch.testing.assert_close(
                    weights, want_weights.nan_to_num(0.0), **tolerance
                )
            if grad and not lost.any():
                mine, other = (
                    torch.autograd.grad(out.square().sum(), query)[0]
                    for out in (got, want)
                )
                torch.testing.assert_close(
                    mine, other, atol=30 * TOLERANCE[dtype], rtol=TOLERANCE[dtype]
                )
            compared += 1
    assert compared > 50


def blind_heads(mask, keep, shape):
    """Which heads of which queries, (B, L, H), may attend to nothing."""
    given = in_our_words(mask, keep)
    if given is None:
        return torch.zeros(*shape, H, dtype=torch.bool)
    given = given > -math.inf if given.is_floating_point() else given
    return ~given.any(-1).expand(shape[0], H, shape[1]).transpose(1, 2)


# Each of these is NaN or an exception in nn.MultiheadAttention of torch 2.13.
MISTAKES = {
    "weights on, a padded sequence": (3, 5, True, True, True),
    "weights on, in eval without gradients": (3, 5, True, False, False),
    "weights off, in eval without gradients": (3, 5, False, False, False),
    "an empty batch, weights off": (0, 5, False, True, True),
    "no keys, weights off": (3, 0, False, True, True),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_result_is_defined_where_theirs_is_not(name):
    batch, S, need_weights, training, grad = MISTAKES[name]
    _, ours = pair(torch.float64, training)
    query = torch.randn(batch, 5, E, dtype=torch.float64, requires_grad=grad)
    key = query if S == 5 else query[:, :S]
    keep = PADDINGS["an empty sequence"](batch, S)
    with torch.set_grad_enabled(grad):
        out = ours(query, key, attn_mask=keep, need_weights=need_weights)
    out, weights = out if need_weights else (out, None)
    silent = ours.out_proj.bias.expand(5, E)
    rows = range(batch) if S == 0 else range(1, min(batch, 2))
    for row in rows:
        torch.testing.assert_close(out[row], silent)
        if need_weights:
            assert torch.equal(weights[row], torch.zeros_like(weights[row]))
    if grad:
        out.sum().backward()
        parameters = [query, *ours.parameters()]
        assert all(torch.isfinite(p.grad).all() for p in parameters)


def test_a_mask_per_sequence_needs_no_copy_per_head():
    """Theirs takes (B * H, L, S) alone; ours takes (B, L, S)."""
    theirs, ours = pair(torch.float64, True)
    x = torch.randn(3, 5, E, dtype=torch.float64)
    keep = see_first(torch.rand(3, 5, 5) > 0.3)
    want, _ = theirs(x, x, x, attn_mask=(~keep).repeat_interleave(H, 0))
    torch.testing.assert_close(ours(x, attn_mask=keep), want)


def test_is_causal_needs_no_mask_beside_it():
    theirs, ours = pair(torch.float64, True)
    x = torch.randn(3, 5, E, dtype=torch.float64)
    want, _ = theirs(x, x, x, attn_mask=~masks.causal(5), is_causal=True)
    torch.testing.assert_close(ours(x, is_causal=True), want)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [{}, {"kdim": 6}, {"kdim": 6, "vdim": 10}], ids=str)
def test_other_widths_and_no_bias(widths, bias):
    theirs, ours = pair(torch.float64, True, bias=bias, **widths)
    query = torch.randn(3, 5, E, dtype=torch.float64)
    key = torch.randn(3, 7, theirs.kdim, dtype=torch.float64)
    value = torch.randn(3, 7, theirs.vdim, dtype=torch.float64)
    want, _ = theirs(query, key, value)
    torch.testing.assert_close(ours(query, key, value), want)
