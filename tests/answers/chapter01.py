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


SOLUTIONS = [
    (check.receptive_field, field),
    (check.bias_for, bias),
    (check.gradient_sizes, sizes),
    (check.rate, spectral_radius),
    (check.keeps_apart, apart),
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
]
