"""The Triton kernels, in Triton's interpreter where there is no GPU.

Without Triton the same calls go to torch, and the kernels' own tests are skipped.
"""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import reference
import torch
from samples import HALVES, HKV, MASKS, B, H, close, draw, explicit

from attention_lib import masks, scaled_dot_product_attention
from attention_lib.kernels import flash_attention, flash_attention_lse, runs_on

pytest.importorskip("triton", reason="Triton is not installed")
from attention_lib.kernels._launch import Launch, OutOfResources
from attention_lib.kernels.flash import flash_forward

L, S, D, DV = 37, 50, 24, 40  # no multiple of a block, no power of two


@pytest.fixture(autouse=True)
def _kernels_run(device):
    if not runs_on(device):
        pytest.skip("Triton runs neither compiled nor interpreted here")


def inputs(dtype=torch.float32, lengths=(L, S), widths=(D, DV), kv_heads=None, **where):
    drawn = draw(
        B, 4, lengths=lengths, widths=widths, kv_heads=kv_heads, dtype=dtype, **where
    )
    return list(drawn)


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.7},
    "negative scale": {"scale": -0.2, "is_causal": True},
    "padding": {"attn_mask": lambda L, S: masks.padding([S, 9], S)},
    "per head": {"attn_mask": lambda L, S: torch.rand(4, L, S) > 0.5},
    "(L, S), causal": {
        "attn_mask": lambda L, S: torch.rand(L, S) > 0.3,
        "is_causal": True,
    },
    "empty rows": {"attn_mask": lambda L, S: (torch.arange(L) % 3 == 0)[:, None]},
    "nothing is seen": {"attn_mask": lambda L, S: torch.zeros(L, S) > 0},
}


def options_of(name, device, L=L, S=S):
    options = dict(CASES[name])
    if "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"](L, S).to(device)
    return options


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_values_and_gradients(name, kv_heads, device):
    options = options_of(name, device)
    given = inputs(kv_heads=kv_heads, device=device)
    got = flash_attention(*given, enable_gqa=kv_heads is not None, **options)
    exact = [x.detach().double().requires_grad_() for x in given]
    want = explicit(*exact, enable_gqa=kv_heads is not None, **options)
    close(got.double(), want, 1e-5)
    upstream = torch.randn_like(want)
    for mine, theirs in zip(
        torch.autograd.grad(got, given, upstream.float()),
        torch.autograd.grad(want, exact, upstream),
        strict=True,
    ):
        assert mine.dtype == torch.float32
        close(mine.double(), theirs, 2e-5)


@pytest.mark.parametrize(
    "lengths", [(1, 5), (5, 1), (16, 16), (33, 17), (0, 4), (4, 0)]
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_lengths(lengths, is_causal, device):
    given = inputs(lengths=lengths, device=device)
    got = flash_attention(*given, is_causal=is_causal)
    close(got, explicit(*given, is_causal=is_causal), 1e-5)
    for grad, x in zip(torch.autograd.grad(got.sum(), given), given, strict=True):
        assert grad.shape == x.shape and grad.isfinite().all()


@pytest.mark.parametrize("widths", [(16, 16), (1, 3), (64, 64), (80, 128), (256, 256)])
def test_widths(widths, device):
    given = inputs(lengths=(19, 18), widths=widths, device=device)
    got = flash_attention(*given)
    close(got, explicit(*given), 2e-5)
    grads = torch.autograd.grad(got.sum(), given)
    want = torch.autograd.grad(explicit(*given).sum(), given)
    for mine, theirs in zip(grads, want, strict=True):
        close(mine, theirs, 2e-5)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_half_precision(dtype, device):
    """No further from float64 than torch's own kernel, up to a half."""
    given = inputs(dtype, device=device)
    _, want = reference.attention(*given, None, True)
    upstream = torch.randn(want.shape).to(device, dtype)
    exact = [x.detach().double().cpu().requires_grad_() for x in given]
    _, again = reference.attention(*exact, None, True)
    truth = torch.autograd.grad(again, exact, upstream.double().cpu())

    def errors(function):
        got = function(*given, is_causal=True)
        assert got.dtype == dtype
        found = [got, *torch.autograd.grad(got, given, upstream)]
        return [
            (x.double().cpu() - y).square().mean().sqrt().item()
            for x, y in zip(found, (want, *truth), strict=True)
        ]

    for ours, theirs in zip(
        errors(flash_attention), errors(scaled_dot_product_attention), strict=True
    ):
        assert ours <= 1.5 * theirs


@pytest.mark.parametrize("name", CASES)
def test_log_sum_exp(name, device):
    options = options_of(name, device)
    given = inputs(device=device)
    output, got = flash_attention_lse(*given, **options)
    close(output, explicit(*given, **options), 1e-5)
    scale = options.get("scale", D**-0.5)
    scores = given[0].double() @ given[1].double().mT * scale
    keep = reference.visible(
        tuple(scores.shape), options.get("attn_mask"), options.get("is_causal", False)
    ).to(device)
    want = scores.masked_fill(~keep, -math.inf).logsumexp(dim=-1)
    close(got.double(), want, 1e-5)
    assert not got.requires_grad


def test_partial_results_merge(device):
    """Two halves of the keys, merged by their log-sum-exp, are the whole."""
    query, key, value = inputs(device=device)
    parts = [
        flash_attention_lse(query, key[..., half, :], value[..., half, :])
        for half in (slice(0, 21), slice(21, S))
    ]
    log_sums = torch.stack([log_sum for _, log_sum in parts])
    shares = log_sums.softmax(dim=0).unsqueeze(-1)
    merged = sum(
        share * output for share, (output, _) in zip(shares, parts, strict=True)
    )
    close(merged, explicit(query, key, value), 1e-5)


def test_gradients_are_the_same_every_time(device):
    given = inputs(kv_heads=2, device=device)
    output = flash_attention(*given, enable_gqa=True)
    runs = [
        torch.autograd.grad(output.square().sum(), given, retain_graph=True)
        for _ in range(2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_layouts_in_memory_do_not_matter(device):
    query, key, value = inputs(lengths=(20, 20), widths=(D, D), device=device)
    packed = torch.stack([query, key, value], dim=2).transpose(1, 3)
    strided = [x.transpose(1, 2) for x in packed.unbind(dim=2)]
    assert not any(x.is_contiguous() for x in strided)
    close(flash_attention(*strided), explicit(*strided), 1e-5)


def test_one_head_of_several_sequences(device):
    """Such a tensor counts as contiguous whatever the stride of its heads."""
    given = torch.randn(3, B, 20, 1, D, device=device).transpose(2, 3).unbind(0)
    assert all(x.is_contiguous() and x.stride(1) == D for x in given)
    close(flash_attention(*given), explicit(*given), 1e-5)
    query = torch.randn(B, 4, 20, D, device=device)
    close(
        flash_attention(query, *given[1:], enable_gqa=True),
        explicit(query, *given[1:], enable_gqa=True),
        1e-5,
    )


@pytest.mark.parametrize("fits", [1, 4, 7])
def test_a_tile_that_does_not_fit_gives_way_to_a_smaller_one(fits):
    launch = Launch(*(torch.empty(2, 3, 70, 8, device="meta"),) * 3, None, True, 1.0)
    tried = []

    class Kernel:
        def __getitem__(self, grid):
            def run(*arguments, BLOCK_L, BLOCK_S, **options):
                tried.append((grid, BLOCK_L, BLOCK_S))
                if len(tried) < fits:
                    raise OutOfResources(2, 1, "shared memory")

            return run

    launch(Kernel(), "BLOCK_S")
    assert len(tried) == fits
    for (programs,), _, block in tried:  # for each of 2 * 3 heads, the same number
        blocks, rest = divmod(programs, 6)
        assert rest == 0 and (blocks - 1) * block < 70 <= blocks * block
    sizes = [block_l * block_s for _, block_l, block_s in tried]
    assert sizes == sorted(sizes, reverse=True)
    tried.clear()
    fits = 9
    with pytest.raises(OutOfResources):
        launch(Kernel(), "BLOCK_L")


def test_the_kernels_compile_for_gpus_and_find_room(tmp_path):
    pytest.importorskip("triton.backends.nvidia")
    script = Path(__file__).with_name("compile_kernels.py")
    settings = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, script],
        check=False,
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 6


def test_the_operator_keeps_torch_s_rules(device):
    given = inputs(lengths=(9, 7), widths=(16, 16), device=device)
    keep = torch.rand(B, 4, 9, 7, device=device) > 0.4
    for mask in (None, keep):
        torch.library.opcheck(flash_forward, (*given, mask, mask is None, 0.25))


@pytest.mark.parametrize("kind", MASKS)
def test_what_the_kernels_do_not_take_goes_to_torch(kind, device):
    drawn = MASKS[kind](5, 7)
    mask = drawn if drawn is None else drawn.to(device)
    given = draw(B, H, kv_heads=HKV, device=device)  # float64
    got = flash_attention(*given, mask, enable_gqa=True, softcap=3.0)
    close(got, explicit(*given, mask, enable_gqa=True, softcap=3.0))
    output, log_sum = flash_attention_lse(*given, mask, enable_gqa=True)
    close(output, explicit(*given, mask, enable_gqa=True))
    assert log_sum.shape == output.shape[:-1] and log_sum.dtype == torch.float64


def test_one_head_and_more_axes(device):
    for leading in ((), (3,), (2, 3, 2)):
        given = draw(*leading, dtype=torch.float32, device=device)
        close(flash_attention(*given), explicit(*given), 1e-5)


def test_wrong_calls_are_refused(device):
    query, key, value = inputs(device=device)
    with pytest.raises(ValueError, match="value has length 49, expected 50 as key"):
        flash_attention(query, key, value[..., :-1, :])
    with pytest.raises(ValueError, match="broadcasts to"):
        flash_attention_lse(query, key, value, torch.ones(3, 3) > 0)
