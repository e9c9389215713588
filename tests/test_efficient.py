"""Checkpointed, chunked and local attention: the explicit version's output, less memory."""

import math
from functools import partial

import pytest
import reference
import torch
from samples import DV, HALVES, HKV, MASKS, B, D, H, L, S, close, draw, explicit

from attention_lib import masks, scaled_dot_product_attention
from attention_lib.efficient import (
    checkpointed_attention,
    chunked_attention,
    local_attention,
)
from attention_lib.memory import peak_bytes, saved_bytes

# Chunks of 3 leave a rest of both lengths; a window of 100 hides nothing.
WAYS = {
    "checkpointed": checkpointed_attention,
    "chunks of 3": partial(chunked_attention, chunk_size=3),
    "one chunk": chunked_attention,
    "wide window": partial(local_attention, window=100, after=100),
}
EVERY = pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
CHUNKED = WAYS["chunks of 3"]


def windowed(query, key, value, attn_mask=None, *, window, after=0, **options):
    """Explicit attention under the window's mask, and the caller's."""
    L, S = query.shape[-2], key.shape[-2]
    keep = masks.sliding_window(L, S, window=window, after=after, device=query.device)
    if attn_mask is None or attn_mask.dtype == torch.bool:
        attn_mask = keep if attn_mask is None else keep & attn_mask
    else:
        attn_mask = torch.where(keep, attn_mask, -math.inf)
    return explicit(query, key, value, attn_mask, **options)


def agree(way, same, inputs, *learned, tolerance=1e-11):
    """Values, and the gradient of every input that records one."""
    got, want = way(*inputs), same(*inputs)
    close(got, want, tolerance)
    assert got.dtype == want.dtype
    upstream = torch.randn_like(want)
    asked = [*inputs, *learned]
    for mine, theirs in zip(
        torch.autograd.grad(got, asked, upstream),
        torch.autograd.grad(want, asked, upstream),
        strict=True,
    ):
        close(mine, theirs, tolerance)


@EVERY
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_equals_the_explicit_version(way, kind, is_causal, grouped, device):
    mask = MASKS[kind](L, S)
    mask = mask if mask is None else mask.to(device)
    inputs = draw(B, H, kv_heads=HKV if grouped else None, device=device)
    options = {"attn_mask": mask, "is_causal": is_causal, "enable_gqa": grouped}
    learned = [mask] if mask is not None and mask.requires_grad else []
    agree(partial(way, **options), partial(explicit, **options), inputs, *learned)


@EVERY
def test_equals_the_definition(way, device):
    keep = torch.rand(B, H, L, S) > 0.5
    keep[:, :, 2] = False  # a query that sees nothing
    inputs = draw(B, H, device=device)
    _, want = reference.attention(*inputs, keep, True, scale=0.3, softcap=2.0)
    got = way(*inputs, keep.to(device), 0.0, True, scale=0.3, softcap=2.0)
    close(got, want)
    assert (got[:, :, 2] == 0).all()
    grads = torch.autograd.grad(got.sum(), inputs)
    assert (grads[0][:, :, 2] == 0).all()
    assert all(grad.isfinite().all() for grad in grads)


@EVERY
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("lengths", [(5, 7), (7, 5), (1, 4), (0, 4), (4, 0)], ids=str)
def test_one_head_of_one_sequence(way, lengths, softcap, device):
    inputs = draw(lengths=lengths, device=device)
    options = {"is_causal": True, "softcap": softcap}
    agree(partial(way, **options), partial(explicit, **options), inputs)


@pytest.mark.parametrize("lengths", [(40, 40), (33, 50), (50, 33), (300, 300)], ids=str)
@pytest.mark.parametrize(
    ("window", "after"), [(1, 0), (4, 0), (5, 3), (1, 2), (70, 0), (1, 400)]
)
def test_a_window_is_its_mask(lengths, window, after, device):
    inputs = draw(2, lengths=lengths, device=device)
    reach = {"window": window, "after": after}
    agree(partial(local_attention, **reach), partial(windowed, **reach), inputs)


@pytest.mark.parametrize("kind", MASKS)
def test_a_window_and_a_mask(kind, device):
    drawn = MASKS[kind](90, 80)
    mask = drawn if drawn is None else drawn.to(device)
    options = {"attn_mask": mask, "window": 9, "after": 4, "is_causal": True}
    inputs = draw(B, H, lengths=(90, 80), device=device)
    learned = [mask] if mask is not None and mask.requires_grad else []
    same = partial(windowed, **(options | {"after": 0}))
    agree(partial(local_attention, **options), same, inputs, *learned)


@EVERY
def test_no_axis_is_taken_for_another(way, device):
    inputs = draw(2, 3, 4, device=device)  # an axis before the batch
    agree(way, explicit, inputs)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("way", [chunked_attention, CHUNKED, WAYS["wide window"]])
def test_half_precision(way, dtype, device):
    """No further from float64 than torch's own kernel, up to a half."""
    inputs = draw(B, H, lengths=(33, 65), dtype=dtype, device=device)
    _, want = reference.attention(*inputs, None, True)
    errors = [
        (f(*inputs, is_causal=True).double().cpu() - want).square().mean().sqrt()
        for f in (way, scaled_dot_product_attention)
    ]
    assert errors[0] <= 1.5 * errors[1]
    grads = torch.autograd.grad(way(*inputs).float().sum(), inputs)
    assert [grad.dtype for grad in grads] == [dtype] * 3


@EVERY
def test_autocast(way, device):
    inputs = draw(B, H, dtype=torch.float32, device=device)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        got = way(*inputs)
    assert got.dtype == torch.bfloat16
    close(got.float(), explicit(*inputs), 3e-2)


@pytest.mark.parametrize("way", [checkpointed_attention, CHUNKED])
def test_dropout_is_drawn_again_for_the_gradient(way, device):
    def dropped(*inputs):
        torch.manual_seed(7)
        return way(*inputs, dropout_p=0.4)

    inputs = draw(2, lengths=(4, 5), widths=(3, 2), device=device)
    assert torch.autograd.gradcheck(dropped, inputs)
    assert not torch.equal(dropped(*inputs), way(*inputs))


def test_dropout_keeps_the_mean_and_differs_between_tiles_and_calls(device):
    query, key, _ = draw(1, 1, lengths=(200, 8), device=device)
    value = torch.eye(8, dtype=torch.float64, device=device)[None, None]
    even = 0 * query
    kept = chunked_attention(even, key, value, dropout_p=0.25, chunk_size=4)
    weights = kept[0, 0].detach()  # 1/8 each, dropped or grown
    assert set(weights.unique().tolist()) == {0.0, 1 / 6}
    assert abs((weights == 0).double().mean().item() - 0.25) < 0.05
    assert not torch.equal(weights[:4, :4], weights[:4, 4:])
    assert not torch.equal(weights[:4], weights[4:8])
    again = chunked_attention(even, key, value, dropout_p=0.25, chunk_size=4)
    assert not torch.equal(kept, again)


def test_gradcheck_in_chunks(device):
    bias = torch.randn(2, 1, 5, dtype=torch.float64, device=device).requires_grad_()
    inputs = draw(2, lengths=(4, 5), widths=(3, 2), device=device)
    assert torch.autograd.gradcheck(
        lambda *given: CHUNKED(*given, is_causal=True, softcap=2.0), (*inputs, bias)
    )


def test_there_is_no_second_derivative(device):
    inputs = draw(2, device=device)
    error = CHUNKED(*inputs).square().sum()
    (grad,) = torch.autograd.grad(error, inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


# Memory --------------------------------------------------------------------------------


def long(length):
    return draw(1, 2, lengths=(length, length), widths=(D, D), dtype=torch.float32)


def test_explicit_attention_saves_every_weight_and_the_others_do_not():
    inputs = long(256)
    output = 2 * 256 * D * 4
    assert saved_bytes(explicit, *inputs) >= 2 * 256 * 256 * 4
    assert saved_bytes(checkpointed_attention, *inputs) == 0
    row = 2 * 256 * 4  # the log-sum-exp
    assert saved_bytes(chunked_attention, *inputs) == output + row


@pytest.mark.parametrize(
    "way",
    [
        partial(chunked_attention, chunk_size=32),
        partial(local_attention, window=32),
        scaled_dot_product_attention,
    ],
)
def test_memory_grows_with_length_and_not_its_square(way):
    def train(*inputs):
        way(*inputs, is_causal=True).sum().backward()

    small, large = (peak_bytes(train, *long(length)) for length in (512, 1024))
    assert large < 2.2 * small
    once, twice = (saved_bytes(way, *long(length)) for length in (512, 1024))
    assert once > 0 and twice < 2.1 * once
    steep = [peak_bytes(explicit, *long(length)) for length in (512, 1024)]
    assert steep[1] > 3.8 * steep[0]


def test_a_chunk_holds_a_few_tiles():
    """Forward and backward: no more than the gradients, the output and ten tiles."""

    def train(*inputs):
        chunked_attention(*inputs, chunk_size=64).sum().backward()

    tensor, tile = 2 * 1024 * D * 4, 2 * 64 * 64 * 4
    assert peak_bytes(train, *long(1024)) < 8 * tensor + 10 * tile


def test_bytes_are_counted_without_memory_on_meta_tensors():
    real, meta = long(256), [x.to("meta") for x in long(256)]
    for way in (explicit, checkpointed_attention, CHUNKED):  # no fused kernel is there
        way = partial(way, is_causal=True)
        assert saved_bytes(way, *meta) == saved_bytes(way, *real)
        assert peak_bytes(way, *meta) == peak_bytes(way, *real)


def test_peak_bytes_forgets_what_is_freed():
    def loop():
        for _ in range(5):
            torch.zeros(1000)

    assert peak_bytes(loop) == 4000
    x = torch.zeros(1000)
    assert peak_bytes(lambda x: x.add_(1).view(10, 100), x) == 0


def test_saved_bytes_counts_shared_memory_once():
    x = torch.randn(1000, requires_grad=True)
    assert saved_bytes(lambda x: x.exp() * x.exp().detach(), x) == 3 * 4000 - 4000
    weight = torch.nn.Parameter(torch.randn(1000))
    assert saved_bytes(lambda x: x * weight, x) == 0


# Wrong calls ---------------------------------------------------------------------------

q, k = torch.zeros(2, 5, 4), torch.zeros(2, 7, 4)
WRONG = [
    (chunked_attention, {"chunk_size": 0}, ValueError, "chunk_size=0 must be at least"),
    (
        chunked_attention,
        {"chunk_size": 2.0},
        TypeError,
        "chunk_size must be an integer",
    ),
    (local_attention, {"window": 0}, ValueError, "window=0 must be at least 1"),
    (local_attention, {"window": 2, "after": -1}, ValueError, "after=-1 must be at"),
    (checkpointed_attention, {"dropout_p": 1.0}, ValueError, "dropout_p=1.0 must be"),
    (chunked_attention, {"scale": math.inf}, ValueError, "scale=inf must be finite"),
    (chunked_attention, {"attn_mask": torch.ones(5, 5)}, ValueError, "broadcasts to"),
    (
        partial(local_attention, window=3),
        {"attn_mask": torch.ones(5, 7).int()},
        TypeError,
        "torch.bool",
    ),
]


@pytest.mark.parametrize(("function", "options", "error", "message"), WRONG)
def test_wrong_calls_are_refused(function, options, error, message):
    with pytest.raises(error, match=message):
        function(q, k, k, **options)


def test_widths_of_values_may_differ():
    assert chunked_attention(q, k, torch.zeros(2, 7, DV + 1)).shape == (2, 5, DV + 1)
