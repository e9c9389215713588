"""Checks for the exercises of chapter 6, masking."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from attention_lib import masks
from attention_lib.checks._report import (
    NotYet,
    check,
    demand_bool,
    demand_number,
    demand_tensor,
    draws,
    same,
)

__all__ = [
    "decoder_mask",
    "for_torch",
    "leaks",
    "least_loss",
    "masked_softmax",
    "sparse",
]

Attend = Callable[[Tensor], Tensor]


@check("6.1")
def least_loss(answer: Callable[[Tensor, int, int], float]) -> str:
    """Check the predicted least loss on dice against what a stack of layers can see.

    Examples
    --------
    >>> least_loss(lambda keep, layers, sides: 0.0)
    Exercise 6.1: not yet. For a mask that sees one place ahead, 1 layer and 16 sides \
you say 0.0000; the stack sees 7 of 8 answers, so that 0.3466 is the least. There are L \
answers; the last one is not in the input at all.
    """
    L = 8
    place = torch.arange(L)
    ahead = place - place[:, None]  # (L, S): how far a key is ahead of the query
    one_pair = masks.causal(L)
    one_pair[3, 4] = True
    for words, keep in (
        ("a mask that sees one place ahead", ahead <= 1),
        ("a causal mask", masks.causal(L)),
        ("a mask that hides the answer and nothing else", ahead != 1),
        ("a causal mask in which place 3 sees place 4", one_pair),
        (
            "a mask of one back, itself and two ahead",
            (ahead == -1) | (ahead == 0) | (ahead == 2),
        ),
    ):
        in_one = _answers_in_sight(keep, 1)
        for layers, sides in ((1, 16), (2, 6)):
            said = demand_number(answer(keep.clone(), layers, sides), "a loss in nats")
            seen = _answers_in_sight(keep, layers)
            guess = math.log(sides)
            least = guess * (1 - seen / L)
            if math.isclose(said, least, abs_tol=1e-3):
                continue
            mistakes = {
                "A second layer reads what the first has gathered: an answer may come "
                "in two steps.": guess * (1 - in_one / L),
                "There are L answers; the last one is not in the input at all.": (
                    guess * (1 - seen / (L - 1))
                ),
                "These are bits: take the natural logarithm.": least / math.log(2),
                "This is what the leak saves, not what is left.": guess - least,
            }
            cause = next((c for c, x in mistakes.items() if abs(x - said) < 1e-3), "")
            raise NotYet(
                f"For {words}, {layers} layer{'s' * (layers > 1)} and {sides} sides you "
                f"say {said:.4f}; the stack sees {seen} of {L} answers, so that "
                f"{least:.4f} is the least. {cause}".rstrip()
            )
    return "Ten stacks, and each sees as many answers as you say."


@check("6.2")
def decoder_mask(answer: Callable[[Tensor, int, int], Tensor]) -> str:
    """Check ``decoder_mask(lengths, L, S)``: all S places (B = H, L = S), and the last L.

    Examples
    --------
    >>> decoder_mask(lambda lengths, L, S: masks.padding(lengths, S).flip(-1))
    Exercise 6.2: not yet. The padding is hidden, but later tokens are not: add the causal rule.
    """
    for L, S, lengths in ((5, 5, [5, 3, 1]), (2, 5, [5, 3, 1]), (1, 7, [7, 6, 2])):
        _decoder_mask(answer(torch.tensor(lengths), L, S), L, S, torch.tensor(lengths))
    return "Causal, padded, behind a cache, and it serves any number of heads."


def _decoder_mask(found: object, L: int, S: int, lengths: Tensor) -> None:
    shape, before = (3, 1, L, S), S - L
    if isinstance(found, Tensor) and found.shape == (3, L, S):
        raise NotYet(
            "The mask has shape (B, L, S). Against scores (B, H, L, S) its first axis "
            "would be read as heads: put an axis of size 1 in its place."
        )
    if isinstance(found, Tensor) and found.shape != shape:
        try:
            found = found.expand(shape)
        except RuntimeError:
            raise NotYet(
                f"The mask has shape {tuple(found.shape)}, expected one that "
                "broadcasts to (B, H, L, S) for any H."
            ) from None
    found = _demand_mask(found, shape)

    def real(lengths: Tensor) -> Tensor:
        return masks.padding(lengths, S).flip(-1)  # (B, 1, 1, S)

    def order(offset: int) -> Tensor:
        return masks.causal(L, S, offset=offset)

    keep = order(before) & real(lengths)
    mistakes = {
        "It is upside down: True means that the query may attend.": ~keep,
        "The padding is hidden, but later tokens are not: add the causal rule.": (
            real(lengths).expand(shape)
        ),
        "It is causal, but the padding can be seen.": order(before).expand(shape),
        "The offset is missing: query i is at place i + S - L.": (
            order(0) & real(lengths)
        ),
        "A query does not see itself: compare with <=, not with <.": (
            order(before - 1) & real(lengths)
        ),
        "A query sees the key after its own: it could read what it should predict.": (
            order(before + 1) & real(lengths)
        ),
        "The real tokens are the last ones here: the padding is on the left.": (
            order(before) & masks.padding(lengths, S)
        ),
        "The padding is hidden as queries: hide it as keys, which are the columns.": (
            order(before) & real(lengths).mT[..., before:, :]
        ),
        "The two are joined with or: a pair must pass both.": order(before)
        | real(lengths),
        "The causal mask is upside down.": (
            (torch.arange(S) >= torch.arange(before, S)[:, None]) & real(lengths)
        ),
        "The first real token is hidden too: the real places are the last "
        "lengths[b] of S.": order(before) & real(lengths - 1),
        "One place of the padding can be seen.": order(before) & real(lengths + 1),
    }
    words = ", ".join(map(str, lengths.tolist()))
    _explain(found, keep, mistakes, f"For L={L}, S={S} and lengths {words}")


@check("6.3")
def leaks(answer: Callable[[Attend, int, int], bool]) -> str:
    """Check a detector of leaks: False for causal attentions, True for leaking ones.

    Examples
    --------
    >>> leaks(lambda attend, L, E: False)
    Exercise 6.3: not yet. It finds no leak in an attention that sees one place ahead.
    """
    L, E = 7, 4
    plain, one_place, first = masks.causal(L), masks.causal(L), masks.causal(L)
    one_place[3, 4] = True
    first[0, L - 1] = True

    def under(keep: Tensor) -> Attend:
        return lambda x: _weights(x, keep) @ x

    def late(x: Tensor) -> Tensor:
        return ((x @ x.mT / math.sqrt(E)).softmax(-1) * plain) @ x

    sound: dict[str, Attend] = {
        "a causal attention": under(plain),
        "a causal attention with a window (to see less is no leak)": under(
            masks.sliding_window(L, window=2)
        ),
        "a layer that leaves every place alone": lambda x: 2 * x,
    }
    faulty: dict[str, Attend] = {
        "that sees one place ahead": under(masks.causal(L, L, offset=1)),
        "without a mask": under(torch.ones(L, L, dtype=torch.bool)),
        "in which place 3 alone sees place 4": under(one_place),
        "in which the first place sees the last": under(first),
        "whose weights are masked after the softmax (the hidden scores are in the "
        "denominator)": late,
        "whose inputs are centred over all places first": lambda x: under(plain)(
            x - x.mean(0)
        ),
    }
    for seed in draws(2):
        for name, subject in sound.items():
            torch.manual_seed(seed)
            if demand_bool(answer(subject, L, E)):
                raise NotYet(f"It finds a leak in {name}.")
        for name, subject in faulty.items():
            torch.manual_seed(seed)
            if not demand_bool(answer(subject, L, E)):
                raise NotYet(f"It finds no leak in an attention {name}.")
    return "Three sound ones cleared, six leaks found, on two draws each."


@check("6.4")
def masked_softmax(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check ``masked_softmax(scores, keep)``: empty rows, tall scores and gradients.

    Examples
    --------
    >>> masked_softmax(lambda scores, keep: scores.masked_fill(~keep, -1e9).softmax(-1))
    Exercise 6.4: not yet. An empty row spreads its weight evenly over the hidden keys: it must be 0.
    """
    scores = torch.randn(2, 3, 4)
    keep = masks.causal(3, 4).repeat(2, 1, 1)
    keep[1, 1] = False  # an empty row
    scores[0, 0, 3] = 300.0  # a hidden score far above the kept ones
    wanted, slope = _reference(scores, keep)

    asked = scores.clone().requires_grad_()
    found = answer(asked, keep)
    if isinstance(found, Tensor) and found.shape == scores.shape:
        _check_rows(found.detach(), scores, keep)
    found_values = demand_tensor(found, tuple(scores.shape), "The tensor of weights")
    if not same(found_values, wanted):
        gap = (found_values - wanted).abs().max().item()
        raise NotYet(f"The weights are wrong by up to {gap:.2g} in rows with keys.")
    if not found.requires_grad:
        raise NotYet("The weights are right, but cut off from the scores' gradient.")
    (found * _ramp(found)).sum().backward()
    if asked.grad is None or not bool(asked.grad.isfinite().all()):
        raise NotYet(
            "The weights are right but the gradient is NaN: the empty row's NaN is "
            "replaced too late, and backward passes through it. Keep it from arising."
        )
    if not same(asked.grad, slope):
        raise NotYet("The weights are right and finite, but their gradient is not.")
    return "Exact where there are keys, 0 where there are none, finite all through."


@check("6.5")
def for_torch(answer: Callable[[Tensor, int], Tensor]) -> str:
    """Check the mask handed to ``nn.MultiheadAttention``, (B * H, L, S), True = hidden.

    Examples
    --------
    >>> for_torch(lambda keep, num_heads: keep[:, 0].repeat_interleave(num_heads, 0))
    Exercise 6.5: not yet. Order and shape are right, but True still means that a query may attend.
    """
    B, H, L = 2, 3, 4
    keep = masks.causal(L) & masks.padding([4, 2], L)  # (B, 1, L, S)
    found = answer(keep.clone(), H)
    if isinstance(found, Tensor) and found.shape == (B, H, L, L):
        raise NotYet("Nearly: join the first two axes, B and H, into one.")
    found = _demand_mask(found, (B * H, L, L))
    hidden = ~keep[:, 0].repeat_interleave(H, dim=0)
    _explain(
        found,
        hidden,
        {
            "Order and shape are right, but True still means that a query may "
            "attend.": ~hidden,
            "The sequences alternate: the heads of one sequence must be neighbours.": (
                ~keep[:, 0].repeat(H, 1, 1)
            ),
            "True still means that a query may attend, and the sequences alternate.": (
                keep[:, 0].repeat(H, 1, 1)
            ),
        },
        "For two sequences and three heads",
    )
    return "Turned, repeated, and in torch's order."


@check("6.6")
def sparse(answer: Callable[[], tuple[Tensor, Tensor]]) -> str:
    """Check two causal masks through which all that came before is within two steps.

    Examples
    --------
    >>> sparse(lambda: (masks.causal(64), torch.eye(64).bool()))
    Exercise 6.6: not yet. Everything is within reach, with 2144 pairs. Now do it with 800 or fewer.
    """
    found = answer()
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise NotYet("Return two masks: of the first layer and of the second.")
    S = 64
    first, second = (_demand_mask(mask, (S, S)) for mask in found)
    for words, mask in (("first", first), ("second", second)):
        if bool((mask & ~masks.causal(S)).any()):
            i, j = (mask & ~masks.causal(S)).nonzero()[0].tolist()
            raise NotYet(f"In the {words} mask query {i} sees key {j}, which is later.")
    reached = second.double() @ first.double() > 0  # (L, S)
    if not torch.equal(reached, masks.causal(S)):
        i, j = (masks.causal(S) & ~reached).nonzero()[0].tolist()
        turned = torch.equal(first.double() @ second.double() > 0, masks.causal(S))
        hint = " With the two masks exchanged it would." if turned else ""
        raise NotYet(f"Output {i} does not depend on token {j}.{hint}")
    pairs = int(first.sum() + second.sum())
    if pairs > 800:
        raise NotYet(
            f"Everything is within reach, with {pairs} pairs. Now do it with 800 or fewer."
        )
    return f"{pairs} pairs in two layers; the causal mask of a single one has 2080."


def _answers_in_sight(keep: Tensor, layers: int) -> int:
    """Places of a stack whose output moves when the token after their own does."""
    L = len(keep)
    x = torch.randn(L, 4, dtype=torch.float64, requires_grad=True)
    y: Tensor = x
    for _ in range(layers):
        y = _weights(y, keep) @ y
    seen = 0
    for i in range(L - 1):
        (gradient,) = torch.autograd.grad(y[i].sum(), x, retain_graph=True)
        seen += bool((gradient[i + 1] != 0).any())
    return seen


def _demand_mask(found: object, shape: tuple[int, ...]) -> Tensor:
    """The reader's mask, once it is a bool tensor of the right shape."""
    mask = demand_tensor(found, shape, "The mask")
    if mask.dtype != torch.bool:
        raise NotYet(f"The mask has dtype {mask.dtype}, expected torch.bool.")
    return mask


def _explain(
    found: Tensor, wanted: Tensor, mistakes: Mapping[str, Tensor], where: str
) -> None:
    """Raise with the mistake that gives exactly the reader's mask, if one does."""
    if torch.equal(found, wanted):
        return
    for cause, mask in mistakes.items():
        if mask.shape == found.shape and torch.equal(found, mask):
            raise NotYet(cause)
    wrong = (found != wanted).nonzero()[0].tolist()
    raise NotYet(
        f"{where} the shape is right, but entry {wrong} is {bool(found[tuple(wrong)])}."
    )


def _weights(x: Tensor, keep: Tensor) -> Tensor:
    scores = x @ x.mT / math.sqrt(x.shape[-1])
    return scores.masked_fill(~keep, -math.inf).softmax(-1)


def _reference(scores: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and the gradient of their ramp sum, row by row over the kept keys."""
    weights, slope = torch.zeros_like(scores), torch.zeros_like(scores)
    ramp = _ramp(scores)
    for row in map(tuple, keep.any(-1).nonzero().tolist()):
        kept = keep[row]
        part = scores[row][kept].softmax(-1)
        weights[row][kept] = part
        slope[row][kept] = part * (ramp[row][kept] - (part * ramp[row][kept]).sum())
    return weights, slope


def _ramp(like: Tensor) -> Tensor:
    """Unequal factors: the plain sum of a row of weights has no gradient."""
    return torch.arange(1.0, like.numel() + 1).view(like.shape) / like.numel()


def _check_rows(found: Tensor, scores: Tensor, keep: Tensor) -> None:
    """The mistakes that show in single rows."""
    empty = ~keep.any(-1)
    if bool(found[empty].isnan().any()):
        raise NotYet("The empty row is NaN: 0 divided by 0.")
    if bool((found[empty] - 1 / scores.shape[-1]).abs().max() < 1e-6):
        raise NotYet(
            "An empty row spreads its weight evenly over the hidden keys: it must be 0."
        )
    if same(found, scores.softmax(-1) * keep):
        raise NotYet("Masked after the softmax: rows no longer sum to 1.")
    tall = found[0, 0]
    if bool(tall.isnan().any()) or bool(tall.sum() < 0.5):
        raise NotYet(
            "A row whose hidden score is far above the kept ones loses its weight: "
            "mask the scores before the softmax."
        )
