"""Right and wrong answers to the exercises of chapter 8."""

import copy

import torch
import torch.nn.functional as F

from attention_lib.checks import chapter08 as check


def norm(x, gain, shift):
    centred = x - x.mean(-1, keepdim=True)
    return (
        gain * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() + shift
    )


def unbiased(x, gain, shift):
    return (
        gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5) + shift
    )


def epsilon_outside(x, gain, shift):
    deviation = x.std(-1, correction=0, keepdim=True)
    return gain * (x - x.mean(-1, keepdim=True)) / (deviation + 1e-5) + shift


def no_epsilon(x, gain, shift):
    deviation = x.std(-1, correction=0, keepdim=True)
    return gain * (x - x.mean(-1, keepdim=True)) / deviation + shift


def block(x, norm_1, attend, norm_2, feed_forward):
    x = x + attend(norm_1(x))
    return x + feed_forward(norm_2(x))


def top_k(logits, temperature, k):
    least = logits.topk(k, dim=-1).values[..., -1:]
    return (logits.masked_fill(logits < least, -torch.inf) / temperature).softmax(-1)


def leak_in(model, mode):
    torch.manual_seed(0)
    ids = torch.randint(model.vocabulary, (4, 6))
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % model.vocabulary
    before = model.training
    model.train(mode)
    outputs = []
    for row in (ids, changed):
        torch.manual_seed(1)
        outputs.append(model(row)[:, :-1])
    model.train(before)
    return not torch.allclose(*outputs, atol=1e-5)


def detector(model):
    return leak_in(model, True) or leak_in(model, False)


def noisy(model):
    ids = torch.randint(model.vocabulary, (4, 6))
    changed = ids.clone()
    changed[:, -1] = (ids[:, -1] + 1) % model.vocabulary
    before = model.training
    found = False
    for mode in (True, False):
        model.train(mode)
        found |= not torch.allclose(model(ids)[:, :-1], model(changed)[:, :-1])
    model.train(before)
    return found


def left_in_eval(model):
    found = detector(model)
    model.eval()
    return found


def shrink(blocks, factor, *, attention=True, feed_forward=True):
    with torch.no_grad():
        for block in blocks:
            if attention:
                block.attention.out_proj.weight.mul_(factor)
            if feed_forward:
                block.feed_forward.down_proj.weight.mul_(factor)
                block.feed_forward.down_proj.bias.mul_(factor)
    return blocks


SOLUTIONS = [
    (check.layer_norm, norm),
    (check.pre_norm_block, block),
    (check.count_parameters, lambda E, H: 12 * E**2 + 13 * E),
    (check.next_probabilities, top_k),
    (check.sees_future, detector),
    (check.alive, lambda blocks: shrink(blocks, 96**-0.5)),
]

WRONG = [
    # exercise 1
    (check.layer_norm, unbiased, "E - 1"),
    (check.layer_norm, epsilon_outside, "inside the root"),
    (check.layer_norm, no_epsilon, "four equal entries"),
    (check.layer_norm, lambda x, gain, shift: norm(x, 1, 0), "gain and the shift"),
    (check.layer_norm, lambda x, gain, shift: norm(x, gain, 0), "shift is missing"),
    (check.layer_norm, lambda x, gain, shift: norm(x, 1, shift), "gain is missing"),
    (
        check.layer_norm,
        lambda x, gain, shift: (
            gain
            * (x - x.mean(-1, keepdim=True))
            / x.var(-1, correction=0, keepdim=True)
            + shift
        ),
        "not by its root",
    ),
    (
        check.layer_norm,
        lambda x, gain, shift: gain * F.rms_norm(x, (4,), eps=1e-5) + shift,
        "mean is not taken away",
    ),
    (
        check.layer_norm,
        lambda x, gain, shift: gain * norm(x.mT, 1, 0).mT + shift,
        "over the positions",
    ),
    (
        check.layer_norm,
        lambda x, gain, shift: gain * F.layer_norm(x, x.shape) + shift,
        "over all numbers",
    ),
    # exercise 2
    (
        check.pre_norm_block,
        lambda x, n1, a, n2, f: n2(n1(x + a(x)) + f(n1(x + a(x)))),
        "post-norm",
    ),
    (check.pre_norm_block, lambda x, n1, a, n2, f: f(n2(a(n1(x)))), "no residual"),
    (
        check.pre_norm_block,
        lambda x, n1, a, n2, f: f(n2(x + a(n1(x)))),
        "second part is not added",
    ),
    (
        check.pre_norm_block,
        lambda x, n1, a, n2, f: a(n1(x)) + f(n2(a(n1(x)))),
        "first part is not added",
    ),
    (
        check.pre_norm_block,
        lambda x, n1, a, n2, f: x + a(n1(x)) + f(n2(x)),
        "parallel parts",
    ),
    (
        check.pre_norm_block,
        lambda x, n1, a, n2, f: x + f(n2(x + a(n1(x)))),
        "what attention added is lost",
    ),
    (
        check.pre_norm_block,
        lambda x, n1, a, n2, f: block(x, lambda y: y, a, lambda y: y, f),
        "norms are not used",
    ),
    (
        check.pre_norm_block,
        lambda x, n1, a, n2, f: n2(n1(x) + a(n1(x))) + f(n2(n1(x) + a(n1(x)))),
        "norm stands in the stream",
    ),
    (
        check.pre_norm_block,
        lambda x, n1, a, n2, f: block(x, n1, a, n1, f),
        "use the first norm",
    ),
    # exercise 3
    (check.count_parameters, lambda E, H: 12 * E**2, "biases and the norms"),
    (check.count_parameters, lambda E, H: 12 * E**2 + 9 * E, "norms are missing"),
    (check.count_parameters, lambda E, H: 12 * E**2 + 11 * E, "One of the two norms"),
    (check.count_parameters, lambda E, H: 12 * E**2 + 4 * E, "six matrices"),
    (check.count_parameters, lambda E, H: 11 * E**2 + 12 * E, "output projection"),
    (
        check.count_parameters,
        lambda E, H: H * (4 * E**2 + 4 * E) + 8 * E**2 + 9 * E,
        "share their width",
    ),
    (check.count_parameters, lambda E, H: 7, "you say 7"),
    # exercise 4
    (check.next_probabilities, lambda z, t, k: (z / t).softmax(-1), "k is not used"),
    (
        check.next_probabilities,
        lambda z, t, k: (
            (z / t).softmax(-1).masked_fill(z < z.topk(k).values[:, -1:], 0.0)
        ),
        "add up to 1",
    ),
    (check.next_probabilities, lambda z, t, k: top_k(z, 1.0, k), "temperature is not"),
    (check.next_probabilities, lambda z, t, k: top_k(z, 1 / t, k), "You multiply"),
    (
        check.next_probabilities,
        lambda z, t, k: (z.masked_fill(z < z.topk(k).values[:, -1:], 0.0) / t).softmax(
            -1
        ),
        "minus infinity",
    ),
    (
        check.next_probabilities,
        lambda z, t, k: (
            z.masked_fill(-z < (-z).topk(k).values[:, -1:], -torch.inf) / t
        ).softmax(-1),
        "k worst",
    ),
    # exercise 5
    (check.sees_future, lambda model: False, "without any mask leaks"),
    (check.sees_future, lambda model: True, "does not leak"),
    (check.sees_future, lambda model: leak_in(model, True), "Look in eval mode too"),
    (check.sees_future, lambda model: leak_in(model, False), "Look in train mode too"),
    (check.sees_future, noisy, "Dropout also changes"),
    (check.sees_future, left_in_eval, "another mode"),
    (check.sees_future, lambda model: 3, "not int"),
    # exercise 6
    (check.alive, lambda blocks: blocks, "expected at least 0.8"),
    (check.alive, lambda blocks: shrink(blocks, 0.0), "One attention moves"),
    (
        check.alive,
        lambda blocks: shrink(shrink(blocks, 0.1), 0.0, attention=False),
        "One feed-forward network moves",
    ),
    (check.alive, lambda blocks: shrink(blocks, 0.5), "tokens differ by"),
    (check.alive, lambda blocks: copy.deepcopy(blocks[:12]), "Return the 48 blocks"),
    (check.alive, lambda blocks: shrink(blocks, float("nan")), "NaN or infinity"),
]
