"""Right and wrong answers to the exercises of chapter 5."""

import math

import torch

from attention_lib import scaled_dot_product_attention
from attention_lib.checks import chapter05 as check


def counted(E, H, Hkv, D, bias):
    columns = (H + 2 * Hkv) * D
    return E * columns + H * D * E + bias * (columns + E)


def cut_head(layer, x, h):
    heads = scaled_dot_product_attention(*layer.project(x)).clone()
    heads[:, h] = 0
    return layer.out_proj(heads.transpose(1, 2).flatten(2))


def cut_columns(columns):
    """Zero columns of the output projection, and put them back."""

    def answer(layer, x, h):
        weight = layer.out_proj.weight
        before = weight.detach().clone()
        with torch.no_grad():
            weight[:, columns(h)] = 0
            output = layer(x)
            weight.copy_(before)
        return output

    return answer


def and_leave_it(layer, x, h):
    with torch.no_grad():
        layer.out_proj.weight[:, 4 * h : 4 * h + 4] = 0
    return layer(x)


def on_paper(codes, *, ahead=(1, 5), sharp=40.0, value=16, reads_notes=0.0):
    """Two heads whose names and notes are the rows of `codes`, (16, D)."""
    codes = codes.double() / codes.double().norm(dim=-1, keepdim=True)
    D = codes.shape[1]
    W_q, W_k, W_v = torch.zeros(3, 2, 32, D, dtype=torch.float64)
    W_o = torch.zeros(2 * D, 32, dtype=torch.float64)
    for h, step in enumerate(ahead):
        W_q[h, :16] = sharp * codes.roll(-step, 0)
        W_k[h, :16], W_k[h, 16:] = codes, reads_notes * codes
        W_v[h, value : value + 16] = codes
        W_o[h * D : (h + 1) * D, 16 * h : 16 * h + 16] = codes.T
    return W_q, W_k, W_v, W_o


def bits():
    """Four signs a number."""
    return (torch.arange(16)[:, None] >> torch.arange(4) & 1) * 2 - 1


def circle():
    angle = torch.arange(16) * math.pi / 8
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def seen(layer, L=6):
    """Which tokens each output row of a layer of width 12 depends on."""
    x = torch.randn(1, L, 12)
    columns = []
    for j in range(L):
        other = x.clone()
        other[0, j] = torch.randn(12)
        columns.append((layer(other) - layer(x))[0].abs().amax(-1) > 0)
    return torch.stack(columns, dim=1)  # (row, token)


def transpose(layer):
    rows = seen(layer)
    if rows.triu(1).any():
        return "merge" if rows[0, :3].all() else "split"
    return "none" if rows.equal(torch.ones(6, 6).tril().bool()) else "both"


SOLUTIONS = [
    (check.merge, lambda heads: torch.cat(heads.unbind(1), dim=-1)),
    (check.parameters, counted),
    (check.share, lambda kv, H: kv.repeat_interleave(H // kv.shape[1], 1)),
    (check.without, cut_head),
    (check.forgotten, transpose),
    (check.two_heads, lambda: on_paper(bits())),
    (check.two_heads, lambda: on_paper(circle(), sharp=100.0)),
]

WRONG = [
    # exercise 1
    (check.merge, lambda t: t.reshape(2, 5, 12), "mix positions"),
    (check.merge, lambda t: t.permute(0, 2, 3, 1).flatten(2), "interleaved"),
    (check.merge, lambda t: t.flip(1).transpose(1, 2).flatten(2), "opposite order"),
    (check.merge, lambda t: t.mean(1).repeat(1, 1, 3), "side by side"),
    (check.merge, lambda t: t.transpose(1, 2), "expected (2, 5, 12)"),
    # exercise 2
    (
        check.parameters,
        lambda E, H, Hkv, D, b: E * (H + 2 * Hkv) * D,
        "output projection is",
    ),
    (check.parameters, lambda E, H, Hkv, D, b: 4 * E * E, "need not be E"),
    (check.parameters, lambda E, H, Hkv, D, b: 4 * E * H * D, "have Hkv heads"),
    (
        check.parameters,
        lambda E, H, Hkv, D, b: counted(E, H, Hkv, D, False),
        "biases are missing",
    ),
    (
        check.parameters,
        lambda E, H, Hkv, D, b: counted(E, H, Hkv, D, b) - b * E,
        "The output's has E",
    ),
    (
        check.parameters,
        lambda E, H, Hkv, D, b: E * (H + Hkv) * D + E * H * D,
        "two matrices",
    ),
    (
        check.parameters,
        lambda E, H, Hkv, D, b: E * (H + 3 * Hkv) * D,
        "reads H heads",
    ),
    (check.parameters, lambda E, H, Hkv, D, b: 7, "you count 7"),
    # exercise 3
    (check.share, lambda kv, H: kv.repeat(1, H // kv.shape[1], 1, 1), "in turn"),
    (check.share, lambda kv, H: kv[:, :1].expand(-1, H, -1, -1), "the first head"),
    (
        check.share,
        lambda kv, H: kv.mean(1, keepdim=True).expand(-1, H, -1, -1),
        "the mean of the heads",
    ),
    (check.share, lambda kv, H: kv.repeat_interleave(3, 1), "a single head not"),
    (check.share, lambda kv, H: kv.repeat_interleave(H // 2, 2), "expected (3, 6"),
    # exercise 4
    (check.without, lambda layer, x, h: layer(x), "head 1 still contributes"),
    (check.without, and_leave_it, "changed afterwards"),
    (
        check.without,
        lambda layer, x, h: layer(x) - cut_head(layer, x, h),
        "return the rest",
    ),
    (
        check.without,
        lambda layer, x, h: cut_head(layer, x, h) - layer.out_proj.bias,
        "it belongs to none",
    ),
    (check.without, cut_columns(lambda h: slice(h, None, 3)), "D columns in a row"),
    (check.without, cut_columns(lambda h: h), "One column"),
    (
        check.without,
        lambda layer, x, h: layer(x) - cut_head(layer, x, h) + layer.out_proj.bias,
        "and the bias",
    ),
    # exercise 5
    (check.forgotten, lambda layer: "none", "in its split is called 'none'"),
    (
        check.forgotten,
        lambda layer: "split" if seen(layer).triu(1).any() else "none",
        "in its merge is called 'split'",
    ),
    (
        check.forgotten,
        lambda layer: transpose(layer).replace("both", "none"),
        "split and merge is called 'none'",
    ),
    (check.forgotten, lambda layer: "both", "sound layer is called 'both'"),
    (check.forgotten, lambda layer: True, "not True"),
    # exercise 6
    (check.two_heads, lambda: on_paper(0 * bits() + 1), "looks at no card"),
    (check.two_heads, lambda: on_paper(bits(), ahead=(-1, -5)), "1 back instead of 1"),
    (check.two_heads, lambda: on_paper(bits(), ahead=(5, 1)), "other head is for"),
    (check.two_heads, lambda: on_paper(bits(), ahead=(1, 1)), "Head 1 looks 1 ahead"),
    (check.two_heads, lambda: on_paper(bits(), ahead=(0, 5)), "its own card"),
    (check.two_heads, lambda: on_paper(bits(), sharp=8.0), "with a weight of"),
    (check.two_heads, lambda: on_paper(bits(), value=0), "the name of the card"),
    (check.two_heads, lambda: on_paper(bits(), reads_notes=2.0), "the name alone"),
    (check.two_heads, lambda: on_paper(torch.eye(16)), "8 or less"),
    (check.two_heads, lambda: on_paper(bits())[:3], "four tensors"),
    (
        check.two_heads,
        lambda: (*on_paper(bits())[:3], torch.randn(8, 32)),
        "answer 0 names the right note",
    ),
    (check.two_heads, lambda: (torch.zeros(2, 32),) * 4, "expected (2, 32, 32)"),
]
