"""Right and wrong answers to the exercises of chapter 11."""

import torch
from answers.chapter02 import scaled

from attention_lib.checks import chapter11 as check
from attention_lib.quantization import quantize


def tokens(budget, layers, B, Hkv, D, itemsize):
    return budget // (2 * layers * B * Hkv * D * itemsize)


def appended(q, k, v, keys, values, *, share=torch.Tensor.repeat_interleave):
    keys, values = torch.cat([keys, k], 1), torch.cat([values, v], 1)
    group = len(q) // len(k)
    return scaled(q, share(keys, group, 0), share(values, group, 0)), keys, values


def in_turn(heads, group, dim):
    return heads.repeat(group, 1, 1)


def before_appending(q, k, v, keys, values):
    group = len(q) // len(k)
    output = scaled(
        q, keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
    )
    return output, torch.cat([keys, k], 1), torch.cat([values, v], 1)


def held_for_each_query_head(*tensors):
    output, keys, values = appended(*tensors)
    return output, keys.repeat_interleave(3, 0), values.repeat_interleave(3, 0)


def ring(q, k, v, keys, values, t, *, place=None, full=None):
    w = len(keys)
    place = t % w if place is None else place(t, w)
    keys[place], values[place] = k, v
    filled = min(t + 1, w) if full is None else full
    return scaled(q[None], keys[:filled], values[:filled])[0]


def ring_late(q, k, v, keys, values, t):
    filled = max(min(t, len(keys)), 1)
    if t == 0:
        keys[0], values[0] = k, v
    output = scaled(q[None], keys[:filled], values[:filled])[0]
    keys[t % len(keys)], values[t % len(keys)] = k, v
    return output


def unwritten():
    past = []

    def step(q, k, v, keys, values, t):
        past.append((k, v))
        last = past[-len(keys) :]
        return scaled(q[None], *(torch.stack(part) for part in zip(*last)))[0]  # noqa: B905

    return step


def cast(weight, scale, *, rounded=True):
    ratio = weight / scale
    return (ratio.round() if rounded else ratio).to(torch.int8), scale


def largest(weight):
    return weight.abs().amax(1, keepdim=True)


def rows(weight):
    return cast(weight, (largest(weight) / 127).clamp(min=1e-12))


def decoder_test(pieces, length=20):
    def test(full, step):
        x = torch.randn(length, 8)
        for sizes in pieces:
            state, parts = None, []
            for part in x.split(sizes):
                y, state = step(part, state)
                parts.append(y)
            if not torch.allclose(torch.cat(parts), full(x), atol=1e-4):
                return True
        return False

    return test


def in_groups(weight, *, group=32, half=True):
    """Four bits a weight, two in a byte, and a scale for each group of a row."""
    groups = weight.unflatten(1, (-1, group))
    scales = groups.abs().amax(-1, keepdim=True) / 7
    scales = scales.half() if half else scales
    codes = ((groups / scales.float()).round().clamp(-7, 7) + 8).to(torch.uint8)
    codes = codes.flatten()
    return [codes[0::2] * 16 + codes[1::2], scales], ungrouped


def ungrouped(parts):
    packed, scales = parts
    codes = torch.stack([packed // 16, packed % 16], -1).float() - 8
    return (codes.view(96, scales.shape[1], -1) * scales.float()).flatten(1)


def in_a_closure(weight):
    return [], lambda parts: weight


SOLUTIONS = [
    (check.longest, tokens),
    (check.one_more, appended),
    (check.ring_step, ring),
    (check.to_int8, rows),
    (check.faulty, decoder_test([1, 3])),
    (check.squeezed, in_groups),
]

WRONG = [
    # exercise 1
    (
        check.longest,
        lambda b, n, B, H, D, i: b // (n * B * H * D * i),
        "values too",
    ),
    (check.longest, lambda b, n, B, H, D, i: b // (2 * B * H * D * i), "one layer"),
    (check.longest, lambda b, n, B, H, D, i: b // (2 * n * H * D * i), "one sequence"),
    (check.longest, lambda b, n, B, H, D, i: b / (2 * n * B * H * D * i), "round down"),
    (check.longest, lambda b, n, B, H, D, i: b // (2 * n * B * H * D), "numbers"),
    (check.longest, lambda b, n, B, H, D, i: 1 + tokens(b, n, B, H, D, i), "too many"),
    # exercise 2
    (check.one_more, before_appending, "does not see itself"),
    (
        check.one_more,
        lambda q, k, v, ks, vs: appended(q, k, v, ks, vs, share=in_turn),
        "neighbouring",
    ),
    (check.one_more, held_for_each_query_head, "grouped heads save"),
    (
        check.one_more,
        lambda q, k, v, ks, vs: (appended(q, k, v, ks, vs)[0], ks, vs),
        "expected (2, 6, 4)",
    ),
    (
        check.one_more,
        lambda q, k, v, ks, vs: (v.repeat_interleave(3, 0), ks, vs),
        "itself alone",
    ),
    (check.one_more, lambda q, *rest: appended(2 * q, *rest), "not scaled"),
    # exercise 3
    (
        check.ring_step,
        lambda *given: ring(*given, full=len(given[3])),
        "hold no token yet",
    ),
    (
        check.ring_step,
        lambda *given: ring(*given, place=lambda t, w: min(t, w - 1)),
        "place of the oldest",
    ),
    (check.ring_step, ring_late, "Token 1 is wrong"),
    (check.ring_step, unwritten(), "unchanged"),
    # exercise 4
    (check.to_int8, lambda weight: quantize(weight, None), "whole weight"),
    (check.to_int8, lambda weight: quantize(weight, 0), "each column"),
    (
        check.to_int8,
        lambda weight: cast(weight, largest(weight) / 127, rounded=False),
        "round before",
    ),
    (check.to_int8, lambda weight: cast(weight, largest(weight) / 128), "with 128"),
    (
        check.to_int8,
        lambda weight: cast(weight, largest(weight) / 127),
        "gets the scale 0",
    ),
    (
        check.to_int8,
        lambda weight: (rows(weight)[0].float(), rows(weight)[1]),
        "expected torch.int8",
    ),
    # exercise 5
    (check.faulty, decoder_test([1]), "new tokens see each other"),
    (check.faulty, decoder_test([3]), "the sequence before"),
    (check.faulty, decoder_test([1, 3], length=6), "last six"),
    (check.faulty, lambda full, step: True, "accuses a sound decoder"),
    # exercise 6
    (check.squeezed, lambda weight: ([weight], lambda parts: parts[0]), "4.00 bytes"),
    (
        check.squeezed,
        lambda weight: (rows(weight), lambda parts: parts[0] * parts[1]),
        "1.03 bytes",
    ),
    (check.squeezed, lambda weight: in_groups(weight, group=128), "part of a row"),
    (check.squeezed, lambda weight: in_groups(weight, group=8), "bytes a weight"),
    (check.squeezed, in_a_closure, "holds a tensor of its own"),
    (check.squeezed, lambda weight: weight.half(), "Return two things"),
]
