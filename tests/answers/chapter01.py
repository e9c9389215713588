"""Right and wrong answers to the exercises of chapter 1."""

import math

import torch

from attention_lib.checks import chapter01 as check


def field(kernels, dilations):
    return 1 + sum(d * (k - 1) for k, d in zip(kernels, dilations, strict=True))


def bias(share, T):
    gate = share ** (1 / T)
    return math.log(gate / (1 - gate))


def jacobians(model, x):
    """(E', L, E)"""
    return torch.autograd.functional.jacobian(lambda x: model(x[None])[0, -1], x)


def sizes(model, x):
    return jacobians(model, x).square().sum(dim=(0, 2)).sqrt()


def of_a_sum(model, x, *, last):
    x = x.detach().clone().requires_grad_()
    y = model(x[None])[0]
    (gradient,) = torch.autograd.grad((y[-1] if last else y).sum(), x)
    return gradient.norm(dim=-1)


def in_place(model, x):
    x.requires_grad_()
    y = model(x[None])[0, -1]
    rows = [torch.autograd.grad(entry, x, retain_graph=True)[0] for entry in y]
    return torch.stack(rows).square().sum(dim=(0, 2)).sqrt()


def spectral_radius(W):
    return torch.linalg.eigvals(W).abs().max().item()


def apart(model, changed=range(5), B=5):
    """Replace a sequence: its own output moves, and no other."""
    x = torch.randn(B, 3, 8)
    before = model(x)
    for b in changed:
        other = x.clone()
        other[b] = torch.randn(3, 8)
        moved = (model(other) - before).abs().amax(dim=(1, 2)) > 1e-6
        if moved.nonzero().flatten().tolist() != [b]:
            return False
    return True


def two_numbers_a_pair(first=0, size=32):
    """Keys and values, each plus 1, in the next two numbers that are 0."""

    def write(state, key, value):
        place = first + 2 * int((state[first:size:2] != 0).sum())
        state[place], state[place + 1] = key + 1, value + 1
        return state

    def read(state, key):
        place = first + 2 * int((state[first:size:2] == key + 1).nonzero()[0])
        return int(state[place + 1]) - 1

    return write, read


def one_number_a_pair():
    def write(state, key, value):
        state[int((state != 0).sum())] = 64 * key + value + 1
        return state

    def read(state, key):
        found = state - 1
        return int(found[(found // 64 == key) & (state != 0)][0]) % 64

    return write, read


def bits_of_a_pair():
    """Fourteen bits in the sixteen of a bfloat16: 32 pairs."""

    def write(state, key, value):
        bits = state.bfloat16().view(torch.int16)
        bits[int((bits != 0).sum())] = 64 * key + value + 1
        return bits.view(torch.bfloat16).float()

    def read(state, key):
        bits = state.bfloat16().view(torch.int16)
        pair = bits[bits != 0] - 1
        return int(pair[pair // 64 == key][0]) % 64

    return write, read


def a_sum():
    """A matrix of 4 x 8 into which the pairs are added up, as linear attention does."""
    names, notes = torch.randn(256, 4).sign(), torch.randn(64, 8).sign()

    def write(state, key, value):
        return state + torch.outer(names[key], notes[value]).flatten()

    def read(state, key):
        return int((notes @ (names[key] @ state.view(4, 8))).argmax())

    return write, read


def a_slot_for_each_key():
    def write(state, key, value):
        state[key % 32] = value
        return state

    return write, lambda state, key: state[key % 32]


def a_diary():
    kept = {}

    def write(state, key, value):
        kept[key] = value
        return state

    return write, lambda state, key: kept[key]


SOLUTIONS = [
    (check.receptive_field, field),
    (check.bias_for, bias),
    (check.gradient_sizes, sizes),
    (check.rate, spectral_radius),
    (check.keeps_apart, apart),
    (check.fixed_state, two_numbers_a_pair),
    (check.fixed_state, bits_of_a_pair),
]

WRONG = [
    # exercise 1
    (check.receptive_field, lambda k, d: sum(k), "Layers share positions"),
    (check.receptive_field, lambda k, d: field(k, [1] * len(k)), "dilations are"),
    (check.receptive_field, lambda k, d: field(k, d) - 1, "add one"),
    (check.receptive_field, lambda k, d: 1 + len(k) * (k[0] - 1), "kernels differ"),
    (
        check.receptive_field,
        lambda k, d: 1 + sum(a * b for a, b in zip(k, d, strict=True)),
        "k - 1 gaps",
    ),
    (check.receptive_field, lambda k, d: 100, "gradients reach 7"),
    # exercise 2
    (check.bias_for, lambda share, T: math.log(share / (1 - share)), "Where did T go"),
    (check.bias_for, lambda share, T: share ** (1 / T), "This is the gate"),
    (check.bias_for, lambda share, T: -bias(share, T), "sign is turned"),
    (
        check.bias_for,
        lambda share, T: math.log(T / (1 - share) - 1),
        "multiply, they do not add",
    ),
    (check.bias_for, lambda share, T: 1.0, "was asked for"),
    (check.bias_for, lambda share, T: -1e9, "keeps 0 after"),
    # exercise 3
    (check.gradient_sizes, lambda m, x: sizes(m, x).flip(0), "order is turned"),
    (check.gradient_sizes, lambda m, x: of_a_sum(m, x, last=True), "signs cancel"),
    (check.gradient_sizes, lambda m, x: of_a_sum(m, x, last=False), "all outputs"),
    (check.gradient_sizes, lambda m, x: sizes(m, x) ** 2, "take the root"),
    (check.gradient_sizes, lambda m, x: jacobians(m, x).abs().amax((0, 2)), "largest"),
    (check.gradient_sizes, lambda m, x: x.norm(dim=-1), "do not depend"),
    (check.gradient_sizes, in_place, "was changed"),
    (check.gradient_sizes, lambda m, x: torch.ones(5), "largest gap"),
    (
        check.gradient_sizes,
        lambda m, x: sizes(m, x) / sizes(m, x).norm() * 8,
        "largest gap",
    ),
    # exercise 4
    (check.rate, lambda W: torch.linalg.matrix_norm(W, 2).item(), "singular value"),
    (check.rate, lambda W: torch.linalg.eigvals(W).real.max().item(), "absolute"),
    (check.rate, lambda W: W.norm().item(), "all entries"),
    (check.rate, lambda W: torch.linalg.eigvals(W).abs().mean().item(), "the mean"),
    (check.rate, lambda W: 0.5, "you say 0.5"),
    # exercise 5
    (check.keeps_apart, lambda model: True, "reads along the batch."),
    (check.keeps_apart, lambda model: False, "rejects an LSTM"),
    (check.keeps_apart, lambda model: apart(model, B=1, changed=[0]), "passes an LSTM"),
    (check.keeps_apart, lambda model: apart(model, changed=[0]), "from its end"),
    (check.keeps_apart, lambda model: apart(model, changed=[4]), "passes an LSTM"),
    (
        check.keeps_apart,
        lambda model: torch.allclose(
            model(x := torch.randn(5, 3, 8)),
            torch.cat([model(row[None]) for row in x]),
            atol=1e-6,
        ),
        "does not read its input",
    ),
    (check.keeps_apart, lambda model: "yes", "True or False"),
    # exercise 6
    (check.fixed_state, a_diary, "nothing outside the state"),
    (check.fixed_state, one_number_a_pair, "if nothing were rounded"),
    (check.fixed_state, lambda: two_numbers_a_pair(size=20), "holds 10 pairs"),
    (check.fixed_state, a_sum, "at least 12"),
    (check.fixed_state, a_slot_for_each_key, "With one more"),
    (check.fixed_state, lambda: (0, 1), "two functions"),
    (
        check.fixed_state,
        lambda: (lambda state, key, value: state[:3], lambda state, key: 0),
        "expected (32,)",
    ),
    (
        check.fixed_state,
        lambda: (lambda state, key, value: state + 1e39, lambda state, key: 0),
        "NaN or infinity",
    ),
]
