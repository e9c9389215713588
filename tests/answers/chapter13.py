"""Right and wrong answers to the exercises of chapter 13."""

import math

import torch
from answers.chapter02 import scaled

from attention_lib.checks import chapter13 as check


def bytes_sent(L, P, H, Hkv, D, *, keys=2, home=0, values=2, each=4):
    own = values * Hkv * D * L // P
    return each * own * (keys * (P - 1) + P + home)


def dealt(L, P, rank, *, chunks=None):
    parts = torch.arange(L).view(-1, P)
    if chunks is None:
        return parts[:, rank]
    order = torch.arange(L).view(chunks * P, -1)
    return torch.cat([order[rank], order[-1 - rank]])


def part(query, key, value, i, j, *, rule=torch.le, scale=True, safe=True):
    scores = query @ key.mT / (math.sqrt(query.shape[-1]) if scale else 1)
    scores = torch.where(rule(j, i[:, None]), scores, -math.inf)
    level = scores.logsumexp(-1)
    if not safe:
        return scores.softmax(-1) @ value, level
    return scores.softmax(-1).nan_to_num() @ value, level


def overflowing(query, key, value, i, j):
    powers = (query @ key.mT / 2).exp() * (j <= i[:, None])
    total = powers.sum(-1)
    finite = torch.where(total == 0, 1.0, total)[:, None]
    return powers @ value / finite, total.log()


def level_of(*given, change):
    output, level = part(*given)
    return output, change(level)


def compared(attend, ranks=4, tolerance=1e-4):
    x = torch.randn(3, 40, 6)
    scores = (x[0] @ x[1].mT / math.sqrt(6)).masked_fill(
        torch.ones(40, 40).triu(1).bool(), -math.inf
    )
    return not torch.allclose(
        attend(*x, ranks), scores.softmax(-1) @ x[2], atol=tolerance, rtol=0
    )


def last_row_only(attend):
    x = torch.randn(3, 40, 6)
    return not torch.allclose(attend(*x, 2)[-1:], scaled(x[0, -1:], *x[1:]), atol=1e-4)


def loads(lengths, chunk):
    return [chunk * n + (chunk + 1) / 2 for x in lengths for n in range(x // chunk)]


def snake(lengths, ranks, chunk):
    work = loads(lengths, chunk)
    order = sorted(range(len(work)), key=work.__getitem__)
    held = [[] for _ in range(ranks)]
    for turn in range(0, len(order), ranks):
        row = order[turn : turn + ranks]
        for rank, c in enumerate(row if turn // ranks % 2 else row[::-1]):
            held[rank].append(c)
    return held


def contiguous(lengths, ranks, chunk):
    return [part.tolist() for part in torch.arange(sum(lengths) // chunk).chunk(ranks)]


def early_and_late(lengths, ranks, chunk):
    parts = torch.arange(sum(lengths) // chunk).chunk(2 * ranks)
    return [[*parts[r].tolist(), *parts[-1 - r].tolist()] for r in range(ranks)]


def longest_first(lengths, ranks, chunk):
    work = loads(lengths, chunk)
    held, load = [[] for _ in range(ranks)], [0.0] * ranks
    for c in sorted(range(len(work)), key=lambda c: -work[c]):
        rank = load.index(min(load))
        held[rank].append(c)
        load[rank] += work[c]
    return held


SOLUTIONS = [
    (check.sent, bytes_sent),
    (check.places, lambda L, P, rank: dealt(L, P, rank, chunks=2)),
    (check.attend_part, part),
    (check.broken, compared),
    (check.schedule, snake),
]

WRONG = [
    # exercise 1
    (
        check.sent,
        lambda L, P, *s: bytes_sent(L, P, *s, keys=1, home=-P),
        "forward pass",
    ),
    (check.sent, lambda L, P, *s: bytes_sent(L, P, *s, home=-P), "gradients of keys"),
    (check.sent, lambda *s: bytes_sent(*s, keys=1), "not their gradients alone"),
    (check.sent, lambda *s: bytes_sent(*s, home=-1), "one rank short of home"),
    (check.sent, lambda *s: bytes_sent(*s, home=2), "P - 1 times, not P"),
    (check.sent, lambda *s: bytes_sent(*s, each=1), "takes 4 bytes"),
    (check.sent, lambda *s: bytes_sent(*s, values=1), "values are"),
    (check.sent, lambda L, P, *s: P * bytes_sent(L, P, *s), "what all ranks send"),
    (check.sent, lambda L, P, H, K, D: bytes_sent(L, P, K, H, D), "stay at home"),
    (check.sent, lambda *s: 17, "you say 17"),
    # exercise 2
    (check.places, lambda L, P, rank: torch.arange(L).chunk(P)[rank], "A late query"),
    (check.places, lambda L, P, rank: torch.arange(L // P), "some are missing"),
    (check.places, lambda L, P, rank: torch.arange(L // P) + 0.5, "do not exist"),
    (check.places, lambda L, P, rank: torch.arange(L), "has shape"),
    # exercise 3
    (check.attend_part, lambda *x: part(*x, rule=lambda j, i: j < 99 + i), "no mask"),
    (
        check.attend_part,
        lambda q, k, v, i, j: part(q, k, v, torch.arange(5), torch.arange(6)),
        "within the parts",
    ),
    (check.attend_part, lambda *x: part(*x, rule=torch.lt), "is strict"),
    (check.attend_part, lambda *x: part(*x, rule=torch.ge), "wrong way round"),
    (check.attend_part, lambda *x: part(*x, safe=False), "not NaN"),
    (check.attend_part, overflowing, "overflow"),
    (
        check.attend_part,
        lambda *x: level_of(*x, change=torch.exp),
        "Take its logarithm",
    ),
    (
        check.attend_part,
        lambda *x: level_of(*x, change=lambda level: level.clamp(min=-99)),
        "is minus infinity",
    ),
    (
        check.attend_part,
        lambda *x: (part(*x)[0], part(*x, scale=False)[1]),
        "without the scale",
    ),
    # exercise 4
    (check.broken, lambda attend: True, "accuses a sound attention over contiguous"),
    (check.broken, lambda attend: False, "place within a part"),
    (check.broken, lambda attend: compared(attend, ranks=1), "place within a part"),
    (check.broken, lambda attend: compared(attend, ranks=2), "nothing to forget"),
    (check.broken, lambda attend: compared(attend, tolerance=0), "differ by rounding"),
    (check.broken, last_row_only, "place within a part"),
    # exercise 5
    (check.schedule, contiguous, "times the mean work"),
    (check.schedule, early_and_late, "late in a long document is dear"),
    (check.schedule, longest_first, "the same number of chunks"),
    (check.schedule, lambda *x: contiguous(*x)[:3], "3 came"),
    (check.schedule, lambda *x: [[0] * 16] * 4, "exactly one rank"),
]
