"""Right and wrong answers to the exercises of chapter 7."""

import math

import torch

from attention_lib.checks import chapter07 as check


def code(L, width, *, exponent=2, start=0, swap=False, both=True):
    entry = torch.arange(width)
    i = entry // 2 if both else entry
    angle = (torch.arange(L)[:, None] + start) * 10000 ** (-exponent * i / width)
    even = ((entry % 2 == 0) != swap).expand(L, width)
    return torch.where(even, angle.sin(), angle.cos())


def sines_first(L, width):
    table = torch.cat([code(L, width)[:, ::2], code(L, width)[:, 1::2]], dim=1)
    return table


def turn(x, positions, omega):
    angle = positions[:, None] * omega
    a, b = x[..., 0::2], x[..., 1::2]
    parts = (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos())
    return torch.stack(parts, dim=-1).flatten(-2)


def halves(x, positions, omega):
    mixed = torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)
    mixed = turn(mixed, positions, omega)
    return torch.cat([mixed[..., 0::2], mixed[..., 1::2]], dim=-1)


def as_complex(x, positions, omega):
    angle = positions[:, None] * omega
    return torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.polar(
        torch.ones_like(angle), angle
    )


def of_power(n):
    return [2 ** (-8 * h / n) for h in range(1, n + 1)]


def slopes(H, skip=2, first=0):
    below = 2 ** int(math.log2(H))
    return of_power(below) + of_power(2 * below)[first::skip][: H - below]


def bucket(distance, n, M, rounding=int, base=None):
    exact = n // 2
    if distance < exact:
        return distance
    along = math.log(distance / (base or exact)) / math.log(M / exact)
    return min(exact + rounding(along * (n - exact)), n - 1)


def no_end(distance, n, M):
    exact = n // 2
    if distance < exact:
        return distance
    return exact + int(math.log(distance / exact) / math.log(M / exact) * (n - exact))


def toeplitz(scores):
    q, k = torch.randn(2, 1, 6)
    found = scores(q.expand(17, 6), k.expand(17, 6))
    return torch.allclose(found[1:, 1:], found[:-1, :-1], atol=1e-4)


def different_rows(scores):
    found = scores(*torch.randn(2, 17, 6))
    return torch.allclose(found[1:, 1:], found[:-1, :-1], atol=1e-4)


def one_diagonal(scores):
    q, k = torch.randn(2, 1, 6)
    main = scores(q.expand(17, 6), k.expand(17, 6)).diagonal()
    return torch.allclose(main, main[:1].expand_as(main), atol=1e-4)


SOLUTIONS = [
    (check.sinusoidal, code),
    (check.turn_pairs, turn),
    (check.slopes, slopes),
    (check.bucket_of, bucket),
    (check.offset_only, toeplitz),
]

WRONG = [
    # exercise 1
    (check.sinusoidal, lambda L, w: code(L, w, both=False), "sine beside it"),
    (check.sinusoidal, lambda L, w: code(L, w, exponent=1), "-i / width"),
    (check.sinusoidal, lambda L, w: code(L, w, start=1), "start at 1"),
    (check.sinusoidal, lambda L, w: code(L, w, swap=True), "swapped"),
    (check.sinusoidal, sines_first, "sines come first"),
    (check.sinusoidal, lambda L, w: code(L, w - w % 2), "expected (5, 9)"),
    # exercise 2
    (check.turn_pairs, lambda x, p, w: x, "Nothing is turned"),
    (check.turn_pairs, lambda x, p, w: turn(x, -p, w), "wrong way round"),
    (check.turn_pairs, halves, "half-split"),
    (check.turn_pairs, lambda x, p, w: turn(x, torch.arange(5), w), "from 0"),
    (check.turn_pairs, as_complex, "view_as_real"),
    # exercise 3
    (check.slopes, of_power, "6 is none"),
    (check.slopes, lambda H: [s / 2 for s in of_power(H)], "differs: slope 1 is 0.25"),
    (check.slopes, lambda H: [2 ** (-8 * h / H) for h in range(H)], "begin at 1"),
    (check.slopes, lambda H: slopes(H, skip=1), "follow each other"),
    (check.slopes, lambda H: slopes(H, first=1), "second of the power"),
    (check.slopes, lambda H: of_power(2 ** int(math.log2(H))), "expected 6"),
    (check.slopes, lambda H: ["half"] * H, "list of floats"),
    # exercise 4
    (check.bucket_of, lambda d, n, M: min(d, n - 1), "widen"),
    (check.bucket_of, lambda d, n, M: bucket(d, n, M, math.ceil), "round down"),
    (check.bucket_of, no_end, "into the last bucket"),
    (check.bucket_of, lambda d, n, M: d // 2, "a bucket each"),
    (check.bucket_of, lambda d, n, M: bucket(d, n, M, base=1), "log(distance / (n/2))"),
    (check.bucket_of, lambda d, n, M: float(bucket(d, n, M)), "Return an int"),
    # exercise 5
    (check.offset_only, lambda scores: True, "sinusoids added"),
    (check.offset_only, lambda scores: False, "attention without positions"),
    (check.offset_only, different_rows, "you see their content"),
    (check.offset_only, one_diagonal, "restart"),
    (check.offset_only, lambda scores: 1.0, "True or False"),
]
