"""Right and wrong answers to the exercises of chapter 12."""

import math

import torch
from answers.chapter02 import scaled

from attention_lib.checks import chapter12 as check


def bytes_moved(H, L, S, D, *, trips=8, mask=1, shared=True, ends=2, each=4):
    masks = mask * L * S * (1 if shared else H)
    return each * (trips * H * L * S + ends * H * (L + S) * D) + masks


def tiles(L, block_l, block_s):
    i = torch.arange(L)
    keep = i <= i[:, None]
    parts = [t for rows in keep.split(block_l) for t in rows.split(block_s, dim=1)]
    return (
        sum(bool(t.any()) for t in parts),
        sum(bool(t.any() and not t.all()) for t in parts),
    )


def merged(outputs, log_sums, *, stable=True, guard=True):
    levels = torch.stack(log_sums)
    largest = levels.amax(0) if stable else torch.zeros_like(levels[0])
    if guard:
        largest = largest.nan_to_num(neginf=0.0)
    powers = (levels - largest).exp()
    total = powers.sum(0)
    mixed = (powers[..., None] * torch.stack(outputs)).sum(0)
    if guard:
        mixed = mixed / torch.where(total == 0, 1.0, total)[:, None]
    else:
        mixed = mixed / total[:, None]
    return mixed, largest + total.log()


def rising(attend, keys=200):
    query, key, value = torch.randn(3, 6), torch.randn(keys, 6), torch.randn(keys, 5)
    query[1:] = query[0]
    order = (key @ query[0]).argsort()
    key, value = key[order], value[order]
    return not torch.allclose(
        attend(query, key, value), scaled(query, key, value), atol=1e-4
    )


def gradient(query, key, value, output, log_sum, grad, *, scale=True, delta=True):
    found = torch.zeros_like(query)
    root = math.sqrt(query.shape[-1])
    mean = (grad * output).sum(-1, keepdim=True) if delta else 0
    for k, v in zip(key.split(32), value.split(32), strict=True):
        weights = (query @ k.mT / root - log_sum[:, None]).exp()
        found += weights * (grad @ v.mT - mean) @ k / (root if scale else 1)
    return found


def in_one_piece(query, key, value, output, log_sum, grad):
    root = math.sqrt(query.shape[-1])
    weights = (query @ key.mT / root).softmax(-1)
    mean = (grad * output).sum(-1, keepdim=True)
    return weights * (grad @ value.mT - mean) @ key / root


def horner(f, *coefficients):
    total = coefficients[0]
    for one in coefficients[1:]:
        total = total * f + one
    return total


def taylor(degree, base=2.0):
    rate = math.log(base)
    return [rate**n / math.factorial(n) for n in range(degree, -1, -1)]


SOLUTIONS = [
    (check.moved, bytes_moved),
    (check.tiles_of, tiles),
    (check.merge, merged),
    (check.forgets, rising),
    (check.query_gradient, gradient),
    (check.power, lambda f: horner(f, 0.0790, 0.2241, 0.6967, 0.9999)),
    (check.power, lambda f: horner(f, 0.3371, 0.6576, 1.0017)),
]

WRONG = [
    # exercise 1
    (check.moved, lambda *s: bytes_moved(*s, each=1), "count of numbers"),
    (check.moved, lambda *s: bytes_moved(*s, mask=0), "mask is read as well"),
    (check.moved, lambda *s: bytes_moved(*s, shared=False), "no head axis"),
    (check.moved, lambda *s: bytes_moved(*s, mask=4), "takes one byte"),
    (check.moved, lambda *s: bytes_moved(*s, trips=6), "masked_fill reads"),
    (check.moved, lambda *s: bytes_moved(*s, trips=4), "Each operator between"),
    (check.moved, lambda *s: bytes_moved(*s, ends=0), "Queries, keys and values"),
    (check.moved, lambda *s: 17, "you say 17"),
    # exercise 2
    (check.tiles_of, lambda L, a, b: (-(-L // a) * -(-L // b), 0), "every tile"),
    (check.tiles_of, lambda *s: tiles(*s)[::-1], "wrong order"),
    (check.tiles_of, lambda *s: (tiles(*s)[0] - 1, 3), "sees the most keys"),
    (check.tiles_of, lambda L, a, b: (tiles(L, a, b)[0], -(-L // a)), "the fewest"),
    # exercise 3
    (check.merge, lambda o, l: (torch.stack(o).mean(0), l[0]), "are averaged"),
    (
        check.merge,
        lambda o, l: (
            (torch.stack(l).exp()[..., None] * torch.stack(o)).sum(0),
            torch.stack(l).logsumexp(0),
        ),
        "not divided",
    ),
    (check.merge, lambda o, l: (merged(o, l)[0], sum(l)), "the log-sum-exp is not"),
    (check.merge, lambda o, l: merged(o, l, stable=False), "overflow"),
    (check.merge, lambda o, l: merged(o, l, guard=False), "gives NaN"),
    # exercise 4
    (check.forgets, lambda attend: True, "accuses the explicit"),
    (check.forgets, lambda attend: False, "does not shrink its mixture"),
    (check.forgets, lambda attend: rising(attend, keys=12), "does not shrink its mix"),
    (check.forgets, lambda attend: rising(attend, keys=60), "does not shrink its sum"),
    (
        check.forgets,
        lambda attend: (
            not torch.equal(attend(*(x := torch.randn(3, 90, 8))), scaled(*x))
        ),
        "differ by rounding",
    ),
    # exercise 5
    (check.query_gradient, lambda *x: gradient(*x, scale=False), "scale is missing"),
    (check.query_gradient, lambda *x: gradient(*x, delta=False), "not subtracted"),
    (check.query_gradient, in_one_piece, "Right, but it holds"),
    # exercise 6
    (check.power, lambda f: 1 + f, "0.061"),
    (check.power, lambda f: horner(f, *taylor(3)), "Taylor's series"),
    (check.power, lambda f: horner(f, *taylor(5)), "3 are allowed"),
    (check.power, lambda f: horner(f, *taylor(7, math.e)), "the base is 2"),
    (check.power, lambda f: 2**f, "not **"),
    (check.power, lambda f: f.exp(), "not exp"),
    (check.power, lambda f: 1 / f, "not /"),
    (check.power, lambda f: torch.tensor(1.0), "not Tensor"),
]
