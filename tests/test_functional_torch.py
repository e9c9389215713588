"""Attention under the rest of torch: compile, export, vmap, autocast, layouts, kernels."""

import pytest
import reference
import torch
from samples import DV, FACES, HKV, B, D, H, Kernels, L, S, close, draw, explicit
from torch import Tensor, nn

from attention_lib import (
    additive_attention,
    attention_steps,
    masks,
    scaled_dot_product_attention,
)


def every_branch(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Calls that go through each branch of the functions and the mask builders."""
    L, S = query.shape[-2], key.shape[-2]
    keep = masks.combine(
        masks.causal(L, S, offset=1, device=query.device),
        masks.sliding_window(L, S, window=2, after=1, device=query.device),
        masks.document(torch.arange(L) // 2, torch.arange(S) // 3).to(query.device),
    )
    output = query.new_zeros(())
    for face in (explicit, scaled_dot_product_attention):
        output = output + face(query, key, value, keep, enable_gqa=True)
        output = output + face(query, key, value, bias, 0.0, True, enable_gqa=True)
        output = output + face(
            query, key, value, is_causal=True, enable_gqa=True, scale=-0.5, softcap=2.0
        )
        output = output + face(query[0, :HKV], key[0], value[0], scale=0.0).sum()
    return output


def test_compiles_into_one_graph(device) -> None:
    query, key, value = draw(B, H, kv_heads=HKV, device=device)
    bias = torch.randn(H, L, S, dtype=torch.float64, device=device, requires_grad=True)
    compiled = torch.compile(every_branch, fullgraph=True, backend="aot_eager")
    close(
        compiled(query, key, value, bias), every_branch(query, key, value, bias), 1e-10
    )


def test_compiles_with_other_lengths_and_numbers(device) -> None:
    """One graph for every length and scale: none is built in."""

    def run(query, key, value, scale):
        keep = masks.padding(torch.arange(2, device=query.device) + 3, key.shape[-2])
        return scaled_dot_product_attention(query, key, value, keep, scale=scale)

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="eager")
    for length, scale in ((5, 0.5), (8, 0.25), (9, 0.125)):
        inputs = draw(B, H, lengths=(length, length + 2), device=device)
        close(compiled(*inputs, scale), run(*inputs, scale))


class Attend(nn.Module):
    def __init__(self, face) -> None:
        super().__init__()
        self.face = face

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keep = masks.causal(query.shape[-2], key.shape[-2], offset=1)
        return self.face(query, key, value, keep, enable_gqa=True)


@FACES
def test_exports_with_free_batch_and_lengths(face) -> None:
    inputs = [x.detach() for x in draw(B, H, kv_heads=HKV)]
    batch, queries, keys = (
        torch.export.Dim(name) for name in ("batch", "queries", "keys")
    )
    axes = (
        {0: batch, 2: queries},
        {0: batch, 2: keys},
        {0: batch, 2: keys},
    )
    module = Attend(face)
    exported = torch.export.export(module, tuple(inputs), dynamic_shapes=axes)
    others = [x.detach() for x in draw(B + 1, H, lengths=(9, 11), kv_heads=HKV)]
    for arguments in (inputs, others):
        close(exported.module()(*arguments), module(*arguments))


@FACES
def test_vmap_over_the_batch_and_over_masks(face, device) -> None:
    inputs = [x.detach() for x in draw(B, H, device=device)]
    keep = (torch.rand(B, H, L, S) > 0.3).to(device)
    want = face(*inputs, keep)
    close(torch.func.vmap(face)(*inputs, keep), want)

    one = [x[0] for x in inputs]
    over_masks = torch.func.vmap(face, in_dims=(None, None, None, 0))
    want = torch.stack([face(*one, mask) for mask in keep])
    close(over_masks(*one, keep), want)

    causal = torch.func.vmap(lambda *args: face(*args, is_causal=True))
    close(causal(*inputs, keep), face(*inputs, keep, is_causal=True))


@FACES
def test_gradient_of_each_sample(face, device) -> None:
    inputs = [x.detach() for x in draw(B, H, device=device)]
    gradient = torch.func.grad(lambda *args: face(*args).square().sum())
    each = torch.func.vmap(gradient)(*inputs)
    alone = [gradient(*(x[index] for x in inputs)) for index in range(B)]
    close(each, torch.stack(alone))


def test_forward_derivative_of_the_steps(device) -> None:
    query, key, value = (x.detach() for x in draw(B, H, device=device))
    direction = torch.randn_like(query)

    def run(query):
        return explicit(query, key, value, is_causal=True)

    _, tangent = torch.func.jvp(run, (query,), (direction,))
    step = 1e-6
    difference = run(query + step * direction) - run(query - step * direction)
    close(tangent, difference / (2 * step), 1e-7)


@FACES
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_autocast_brings_the_dtypes_together(softcap, face, device) -> None:
    query, key, value = draw(B, H, dtype=torch.float32, device=device)
    bias = torch.randn(H, L, S, device=device)
    want = face(query, key, value, bias, softcap=softcap)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        got = face(query, key.bfloat16(), value, bias, softcap=softcap)
        half = face(query, key, value, bias.bfloat16(), softcap=softcap)
    assert got.dtype == half.dtype == torch.bfloat16
    close(got.float(), want, 0.05)
    close(half.float(), want, 0.05)


@FACES
def test_autocast_lets_no_integer_mask_pass(face, device) -> None:
    inputs = draw(B, H, dtype=torch.float32, device=device)
    mask = torch.ones(L, S, dtype=torch.int64, device=device)
    with (
        torch.autocast(device.type, dtype=torch.bfloat16),
        pytest.raises(TypeError, match="attn_mask has dtype torch.int64"),
    ):
        face(*inputs, mask)


@FACES
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("widths", [(D, DV), (DV, D)])
def test_meta_tensors_give_shapes(widths, is_causal, face) -> None:
    inputs = draw(B, H, widths=widths, kv_heads=HKV, device="meta")
    keep = masks.causal(L, S, device="meta")
    output = face(*inputs, keep, is_causal=is_causal, enable_gqa=True)
    assert output.device.type == "meta"
    assert output.shape == (B, H, L, widths[1])


@FACES
@pytest.mark.parametrize("is_causal", [False, True])
def test_layouts_in_memory_do_not_matter(is_causal, face, device) -> None:
    inputs = [x.detach() for x in draw(B, H, widths=(D, D), device=device)]
    want = face(*inputs, is_causal=is_causal)
    layouts = {
        "heads inside": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "width outside": lambda x: x.mT.contiguous().mT,
        "every second": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    }
    for layout in layouts.values():
        moved = [layout(x) for x in inputs]
        assert not any(x.is_contiguous() for x in moved)
        close(face(*moved, is_causal=is_causal), want)
    shared = [x[:1].expand(B, -1, -1, -1) for x in inputs]
    close(face(*shared), face(*(x.contiguous() for x in shared)))


@FACES
@pytest.mark.parametrize("axes", [2, 3, 4])
def test_a_float32_mask_beside_float64_queries(axes, face, device) -> None:
    """Torch's kernel on a CPU reads such a mask as float64 once there are 64 queries."""
    inputs = draw(B, H, lengths=(64, 75), device=device)
    bias = torch.randn(B, H, 64, 75, device=device)[(0,) * (4 - axes)]
    close(face(*inputs, bias), face(*inputs, bias.double()))
    _, want = reference.attention(*inputs, bias)
    close(face(*inputs, bias), want)


FUSED = {
    "plain": lambda q, k, v: scaled_dot_product_attention(q, k, v),
    "causal": lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
    "one sequence": lambda q, k, v: scaled_dot_product_attention(q[0], k[0], v[0]),
    "one head": lambda q, k, v: scaled_dot_product_attention(q[0, 0], k[0, 0], v[0, 0]),
    "two batch axes": lambda q, k, v: scaled_dot_product_attention(
        q[None], k[None], v[None], torch.ones(B, H, L, S, dtype=torch.bool)
    ),
    "narrow values": lambda q, k, v: scaled_dot_product_attention(q, k, v[..., :DV]),
    "wide values": lambda q, k, v: scaled_dot_product_attention(
        q[..., :DV], k[..., :DV], v
    ),
    "a mask of each head": lambda q, k, v: scaled_dot_product_attention(
        q, k, v, torch.ones(H, L, S, dtype=torch.bool)
    ),
    "a mask and causal": lambda q, k, v: scaled_dot_product_attention(
        q, k, v, masks.padding([S, 2], S), is_causal=True
    ),
    "grouped heads": lambda q, k, v: scaled_dot_product_attention(
        q, k[:, :HKV], v[:, :HKV], enable_gqa=True
    ),
    "query columns first": lambda q, k, v: scaled_dot_product_attention(
        q.mT.contiguous().mT, k, v
    ),
    "key columns first": lambda q, k, v: scaled_dot_product_attention(
        q, k.mT.contiguous().mT, v
    ),
    "value columns first": lambda q, k, v: scaled_dot_product_attention(
        q, k, v.mT.contiguous().mT
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_the_fused_kernel_runs(name) -> None:
    """On a CPU: the weights of all pairs are nowhere held."""
    if name == "grouped heads" and torch.__version__ < "2.13":
        pytest.skip("older torch repeats the heads and takes every step")
    inputs = draw(B, H, widths=(D, D), dtype=torch.float32)
    with Kernels() as kernels:
        FUSED[name](*inputs)
    assert any("flash_attention_for_cpu" in name for name in kernels.names)
    assert not any("softmax" in name for name in kernels.names)


def test_additive_attention_compiles_and_maps(device) -> None:
    query, key = (
        torch.randn(B, L, 3, device=device),
        torch.randn(B, S, 4, device=device),
    )
    weights = [torch.randn(n, device=device) for n in ((6, 3), (6, 4), (6,))]

    def run(query, key):
        return additive_attention(query, key, key, *weights, is_causal=True).output

    want = run(query, key)
    close(torch.compile(run, fullgraph=True, backend="eager")(query, key), want, 1e-6)
    close(torch.func.vmap(run)(query, key), want, 1e-6)


def test_steps_unpack_by_name_and_by_place(device) -> None:
    steps = attention_steps(*draw(B, H, device=device))
    scores, capped, masked, weights, output = steps
    assert steps._fields == ("scores", "capped", "masked", "weights", "output")
    assert weights is steps.weights and output is steps.output
    assert scores is capped is masked
