"""Right and wrong answers to the exercises of chapter 6."""

import math

import torch

from attention_lib.checks import chapter06 as check


def least_loss(keep, layers, sides):
    reach = torch.linalg.matrix_power(keep.double(), layers)
    return math.log(sides) * (1 - (reach.diagonal(1) > 0).sum().item() / len(keep))


def by_positions(L, S, offset):
    return torch.arange(S) <= torch.arange(L)[:, None] + offset


def real_keys(lengths, S):
    return torch.arange(S) >= S - lengths[:, None, None, None]


def decoder(lengths, L, S, *, axis=-1, more=0):
    real = real_keys(lengths, S)
    return by_positions(L, S, S - L + more) & (
        real if axis == -1 else real.mT[:, :, -L:]
    )


def window_and_stride(w=8, S=64):
    back = torch.arange(S)[:, None] - torch.arange(S)
    return (back >= 0) & (back < w), (back >= 0) & (back % w == 0)


def hubs(S=64):
    """Halve again and again: the left half writes to the middle, the right reads it."""
    first, second = torch.eye(S).bool(), torch.eye(S).bool()

    def halve(low, high):
        if high - low > 1:
            middle = (low + high) // 2
            first[middle - 1, low:middle] = True
            second[middle:high, middle - 1] = True
            halve(low, middle)
            halve(middle, high)

    halve(0, S)
    return first, second


def exchanges(attend, L, E, *, places=None, before=lambda j: j):
    x = torch.randn(L, E)
    out = attend(x)
    for j in range(1, L) if places is None else places:
        other = x.clone()
        other[j] = torch.randn(E)
        if bool((attend(other) - out)[: before(j)].abs().max() > 1e-6):
            return True
    return False


def full_triangle(attend, L, E):
    """Wrong: demands that everything earlier is seen."""
    jacobian = torch.autograd.functional.jacobian(attend, torch.randn(L, E))
    reach = jacobian.abs().sum((1, 3)) > 0
    return not torch.equal(reach, torch.ones(L, L).tril().bool())


def safe(scores, keep):
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~keep, lowest).softmax(-1) * keep


def infinite(scores, keep):
    return scores.masked_fill(~keep, -math.inf).softmax(-1)


def added(scores, keep):
    bias = torch.zeros(keep.shape).masked_fill(~keep, -math.inf)
    return (scores + bias).softmax(-1)


def late(scores, keep, eps):
    weights = scores.softmax(-1) * keep
    return weights / (weights.sum(-1, keepdim=True) + eps)


def border(keep, num_heads):
    return ~keep[:, 0].repeat_interleave(num_heads, dim=0)


SOLUTIONS = [
    (check.least_loss, least_loss),
    (check.decoder_mask, decoder),
    (check.leaks, exchanges),
    (check.masked_softmax, safe),
    (check.masked_softmax, lambda s, keep: infinite(s, keep).nan_to_num(0.0)),
    (check.for_torch, border),
    (check.sparse, window_and_stride),
    (check.sparse, hubs),
]

WRONG = [
    # exercise 1
    (
        check.least_loss,
        lambda keep, n, sides: least_loss(keep, 1, sides),
        "in two steps",
    ),
    (
        check.least_loss,
        lambda keep, n, sides: least_loss(keep, n, sides) * 8 / 7 - math.log(sides) / 7,
        "not in the input at all",
    ),
    (
        check.least_loss,
        lambda keep, n, sides: least_loss(keep, n, sides) / math.log(2),
        "are bits",
    ),
    (
        check.least_loss,
        lambda keep, n, sides: math.log(sides) - least_loss(keep, n, sides),
        "what the leak saves",
    ),
    (check.least_loss, lambda keep, n, sides: math.log(sides), "sees 7 of 8 answers"),
    (check.least_loss, lambda keep, n, sides: math.inf, "must be finite"),
    # exercise 2
    (check.decoder_mask, lambda n, L, S: decoder(n, L, S)[:, 0], "(B, L, S)"),
    (check.decoder_mask, lambda n, L, S: ~decoder(n, L, S), "upside down"),
    (check.decoder_mask, lambda n, L, S: decoder(n, L, S, axis=-2), "as queries"),
    (check.decoder_mask, lambda n, L, S: real_keys(n, S), "later tokens"),
    (
        check.decoder_mask,
        lambda n, L, S: by_positions(L, S, S - L),
        "padding can be seen",
    ),
    (
        check.decoder_mask,
        lambda n, L, S: by_positions(L, S, 0) & real_keys(n, S),
        "offset is missing",
    ),
    (check.decoder_mask, lambda n, L, S: decoder(n, L, S, more=-1), "not with <"),
    (check.decoder_mask, lambda n, L, S: decoder(n, L, S, more=1), "should predict"),
    (
        check.decoder_mask,
        lambda n, L, S: by_positions(L, S, S - L) & real_keys(n, S).flip(-1),
        "on the left",
    ),
    (
        check.decoder_mask,
        lambda n, L, S: by_positions(S, S, 0).mT[-L:] & real_keys(n, S),
        "causal mask is upside down",
    ),
    (check.decoder_mask, lambda n, L, S: decoder(n - 1, L, S), "first real token"),
    (check.decoder_mask, lambda n, L, S: decoder(n + 1, L, S), "place of the padding"),
    (
        check.decoder_mask,
        lambda n, L, S: by_positions(L, S, S - L) | real_keys(n, S),
        "must pass both",
    ),
    (check.decoder_mask, lambda n, L, S: decoder(n, L, S)[..., :3], "broadcasts"),
    (check.decoder_mask, lambda n, L, S: decoder(n, L, S).float(), "torch.bool"),
    # exercise 3
    (check.leaks, lambda attend, L, E: False, "one place ahead"),
    (check.leaks, lambda attend, L, E: True, "in a causal attention"),
    (
        check.leaks,
        lambda attend, L, E: exchanges(attend, L, E, places=[L - 1]),
        "place 3 alone",
    ),
    (
        check.leaks,
        lambda attend, L, E: exchanges(attend, L, E, before=lambda j: j + 1),
        "in a causal attention",
    ),
    (
        check.leaks,
        lambda attend, L, E: attend(torch.randn(L, E)).shape != (L, E),
        "one place ahead",
    ),
    (check.leaks, full_triangle, "a window"),
    # exercise 4
    (
        check.masked_softmax,
        lambda s, keep: s.masked_fill(~keep, -1e9).softmax(-1),
        "evenly",
    ),
    (check.masked_softmax, infinite, "empty row is NaN"),
    (
        check.masked_softmax,
        lambda s, keep: added(s, keep).nan_to_num(0.0),
        "replaced too late",
    ),
    (
        check.masked_softmax,
        lambda s, keep: s.softmax(-1) * keep,
        "after the softmax",
    ),
    (check.masked_softmax, lambda s, keep: late(s, keep, 0), "empty row is NaN"),
    (check.masked_softmax, lambda s, keep: late(s, keep, 1e-9), "far above"),
    (check.masked_softmax, lambda s, keep: safe(s.detach(), keep), "cut off"),
    (check.masked_softmax, lambda s, keep: safe(2 * s, keep), "wrong by up to"),
    # exercise 5
    (check.for_torch, lambda keep, H: ~border(keep, H), "still means"),
    (check.for_torch, lambda keep, H: ~keep[:, 0].repeat(H, 1, 1), "neighbours"),
    (check.for_torch, lambda keep, H: keep[:, 0].repeat(H, 1, 1), "and the sequences"),
    (check.for_torch, lambda keep, H: ~keep.expand(-1, H, -1, -1), "join the first"),
    (check.for_torch, lambda keep, H: ~keep[:, 0], "expected (6, 4, 4)"),
    # exercise 6
    (check.sparse, lambda: hubs()[::-1], "exchanged"),
    (check.sparse, lambda: window_and_stride(64), "2144 pairs"),
    (check.sparse, lambda: (torch.eye(64).bool(),) * 2, "Output 1 does not depend"),
    (check.sparse, lambda: (torch.ones(64, 64).bool(),) * 2, "which is later"),
    (check.sparse, lambda: torch.eye(64).bool(), "Return two masks"),
    (check.sparse, lambda: torch.ones(2, 64, 64).unbind(), "torch.bool"),
]
