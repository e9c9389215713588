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


def unfinished(D, L, base, *, exponent=2, largest=-1, turn=2 * math.pi):
    angles = [(L + largest) * base ** (-exponent * m / D) for m in range(D // 2)]
    return sum(angle < turn for angle in angles)


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
    (check.unfinished, unfinished),
    (check.bucket_of, bucket),
    (check.offset_only, toeplitz),
    (check.frequencies, lambda: [1000 ** (-m / 4) for m in range(4)]),
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
    (check.unfinished, lambda *s: unfinished(*s, turn=math.pi), "half turns"),
    (check.unfinished, lambda *s: unfinished(*s, exponent=1), "not entries"),
    (check.unfinished, lambda *s: unfinished(*s, largest=0), "is L - 1"),
    (check.unfinished, lambda *s: 2 * unfinished(*s), "a pair has two"),
    (check.unfinished, lambda D, L, b: D // 2 - unfinished(D, L, b), "do complete"),
    (check.unfinished, lambda D, L, base: 7, "Which offsets occur"),
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
    # exercise 6
    (check.frequencies, lambda: [1.0, 0.1, 0.01, 0.001], "Offset 6 looks like"),
    (check.frequencies, lambda: [0.5] * 4, "of one speed are one pair"),
    (check.frequencies, lambda: [3.0, 2.0, 1.0, 0.5], "turn too fast"),
    (check.frequencies, lambda: [0.1, 0.01, 0.001, 0.0001], "turn too slowly"),
    (check.frequencies, lambda: [0.5, 0.3], "four finite floats"),
]
