"""Checks for the exercises of chapter 12, fused kernels. None needs Triton."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_lib.checks._report import (
    READY_ATTENTION,
    NotYet,
    check,
    copies,
    demand_number,
    demand_partial,
    demand_tensor,
    draws,
    explain,
    same,
)
from attention_lib.functional import attention_steps
from attention_lib.memory import peak_bytes

__all__ = ["forgets", "merge", "moved", "power", "query_gradient", "tiles_of"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@check("12.1")
def moved(answer: Callable[[int, int, int, int], int]) -> str:
    """Check ``moved(H, L, S, D)``: bytes that masked attention reads and writes.

    Examples
    --------
    >>> moved(lambda H, L, S, D: 8 * H * L * S + 2 * H * (L + S) * D + L * S)
    Exercise 12.1: not yet. That is a count of numbers: a float32 takes 4 bytes.
    """
    for H, L, S, D in ((1, 64, 64, 8), (2, 48, 80, 16), (4, 96, 32, 24)):
        table, ends = H * L * S, 2 * H * (L + S) * D
        true = 4 * (8 * table + ends) + L * S
        found = demand_number(answer(H, L, S, D), "a number of bytes")
        mistakes = {
            8 * table + ends + L * S: "That is a count of numbers: a float32 takes 4 "
            "bytes.",
            4 * (8 * table + ends): "The mask is read as well.",
            4 * (8 * table + ends) + table: "The mask has no head axis: all heads read "
            "the same L x S bytes.",
            4 * (8 * table + ends + L * S): "A boolean of the mask takes one byte.",
            4 * (6 * table + ends) + L * S: "masked_fill reads the scores and writes a "
            "new table.",
            4 * (4 * table + ends) + L * S: "Each operator between the products reads "
            "the table and writes one.",
            4 * 8 * table + L * S: "Queries, keys and values are read, and the output "
            "is written.",
        }
        if found != true:
            words = f"{true} bytes are moved for H={H}, L={L}, S={S}, D={D}; you say "
            hint = "How often does each operator read the table, and write one?"
            raise NotYet(mistakes.get(int(found), f"{words}{found}. {hint}"))
    return "Every byte predicted, for three shapes."


@check("12.2")
def tiles_of(answer: Callable[[int, int, int], tuple[int, int]]) -> str:
    """Check ``tiles_of(L, block_l, block_s)``: tiles visited, and partly hidden.

    Examples
    --------
    >>> tiles_of(lambda L, block_l, block_s: (9, 3))
    Exercise 12.2: not yet. For L=6 in tiles of 2 x 2 that is every tile: a tile whose \
first key comes after its last query is skipped.
    """
    for L, block_l, block_s in ((6, 2, 2), (12, 3, 2), (12, 2, 4), (37, 8, 16)):
        i = torch.arange(L)
        keep = i <= i[:, None]
        parts = [t for rows in keep.split(block_l) for t in rows.split(block_s, 1)]
        seen = [t for t in parts if bool(t.any())]
        partly = sum(not bool(t.all()) for t in seen)
        found = answer(L, block_l, block_s)
        if found is None:
            raise NotYet("The function returns nothing yet.")
        if not isinstance(found, (tuple, list)) or len(found) != 2:
            raise NotYet("Return two numbers: tiles visited, tiles partly hidden.")
        where = f"For L={L} in tiles of {block_l} x {block_s}"
        if tuple(found) == (partly, len(seen)):
            raise NotYet("The two numbers are in the wrong order: visited comes first.")
        if found[0] == len(parts) != len(seen):
            raise NotYet(
                f"{where} that is every tile: a tile whose first key comes after its "
                "last query is skipped."
            )
        if found[0] != len(seen):
            raise NotYet(
                f"{where}, {len(seen)} tiles hold a visible pair; you say {found[0]}. "
                "The last query of a block sees the most keys."
            )
        if found[1] != partly:
            raise NotYet(
                f"{where}, {partly} tiles are partly hidden; you say {found[1]}. The "
                "first query of a block sees the fewest keys: does it see the last one?"
            )
    return "Four tables, of squares and of oblongs, and one with cut edges."


@check("12.3", forbids=READY_ATTENTION)
def merge(
    answer: Callable[[list[Tensor], list[Tensor]], tuple[Tensor, Tensor]],
) -> str:
    """Check ``merge(outputs, log_sums)``: partial results become one.

    Examples
    --------
    >>> merge(lambda outputs, log_sums: (sum(outputs) / len(outputs), log_sums[0]))
    Exercise 12.3: not yet. The outputs are averaged: each counts by the exponential of \
its log-sum-exp.
    """
    scores, value = 2 * torch.randn(5, 12), torch.randn(12, 3)
    outputs, levels = _parts(scores, value)
    found, level = demand_partial(answer(list(outputs), list(levels)), (5, 3))
    explain(
        found,
        scores.softmax(-1) @ value,
        {
            "The outputs are averaged: each counts by the exponential of its "
            "log-sum-exp.": torch.stack(outputs).mean(0),
            "The outputs are weighed by the log-sum-exps: take their exponentials.": (
                torch.stack(levels)[..., None] * torch.stack(outputs)
            ).sum(0)
            / torch.stack(levels).sum(0)[:, None],
            "The shares are not divided by their sum.": (
                torch.stack(levels).exp()[..., None] * torch.stack(outputs)
            ).sum(0),
        },
    )
    if not same(level, scores.logsumexp(-1)):
        raise NotYet(
            "The output is right, the log-sum-exp is not: it is the logarithm of the "
            "sum of the exponentials of all parts."
        )
    large = scores + 3000
    outputs, levels = _parts(large, value)
    found, _ = demand_partial(answer(outputs, levels), (5, 3))
    if not torch.allclose(found, large.softmax(-1) @ value, atol=1e-3):
        raise NotYet(
            "Right for small log-sum-exps, but the exponentials of large ones overflow: "
            "subtract before the exponential."
        )
    scores[1, 4:9], scores[2] = -math.inf, -math.inf
    outputs, levels = _parts(scores, value)
    found, level = demand_partial(answer(outputs, levels), (5, 3))
    want = scores.softmax(-1).nan_to_num() @ value
    if not bool(found.isfinite().all()):
        raise NotYet(
            "A query that sees no key of any part gives NaN: minus infinity minus minus "
            "infinity. Its output is zeros."
        )
    if not same(found, want) or not torch.equal(level[2], torch.tensor(-math.inf)):
        raise NotYet("A part in which a query sees nothing must count for nothing.")
    return "Three parts: ordinary, with sums in the thousands, and with empty rows."


def _parts(scores: Tensor, value: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and log-sum-exps of three parts of the keys."""
    cuts = zip(scores.split((4, 5, 3), -1), value.split((4, 5, 3)), strict=True)
    pairs = [(s.softmax(-1).nan_to_num() @ v, s.logsumexp(-1)) for s, v in cuts]
    return [output for output, _ in pairs], [level for _, level in pairs]


@check("12.4")
def forgets(answer: Callable[[Attend], bool]) -> str:
    """Check a detector: True where a tile loop forgets to shrink what it has.

    Examples
    --------
    >>> forgets(lambda attend: False)
    Exercise 12.4: not yet. It clears an attention that does not shrink its mixture.
    """
    subjects = {
        "the explicit attention": (lambda q, k, v: attention_steps(q, k, v).output, 0),
        "a sound attention in tiles of 16": (_tiled(16), 0),
        "a sound attention in tiles of 64": (_tiled(64), 0),
        "an attention that does not shrink its mixture": (_tiled(16, mixed=False), 1),
        "an attention that does not shrink its sum": (_tiled(64, total=False), 1),
    }
    for seed in draws(3):
        for words, (attend, faulty) in subjects.items():
            torch.manual_seed(seed)
            verdict = answer(attend)
            if verdict is None:
                raise NotYet("The function returns nothing yet.")
            if bool(verdict) != bool(faulty):
                hint = "" if faulty else " Two sound ones differ by rounding."
                raise NotYet(f"{('It accuses', 'It clears')[faulty]} {words}.{hint}")
    return "Three sound attentions cleared, two faulty ones found, on three draws each."


def _tiled(block: int, *, mixed: bool = True, total: bool = True) -> Attend:
    """An attention in tiles of keys; False forgets to shrink."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        top = query.new_full((len(query), 1), -math.inf)
        powers_sum, mixture = torch.zeros_like(top), query.new_zeros(())
        for k, v in zip(key.split(block), value.split(block), strict=True):
            scores = query @ k.mT / math.sqrt(query.shape[-1])
            above = torch.maximum(top, scores.amax(-1, keepdim=True))
            shrink, powers = (top - above).exp(), (scores - above).exp()
            powers_sum = powers_sum * (shrink if total else 1)
            powers_sum = powers_sum + powers.sum(-1, keepdim=True)
            mixture = mixture * (shrink if mixed else 1) + powers @ v
            top = above
        return mixture / powers_sum

    return attend


@check("12.5", forbids=(*READY_ATTENTION, "autograd", "backward", "flash_"))
def query_gradient(answer: Callable[..., Tensor]) -> str:
    """Check the queries' gradient from output and log-sum-exp, block by block.

    Examples
    --------
    >>> query_gradient(lambda query, *rest: query.new_zeros(query.shape)).passed
    False
    """
    given = _kept(13, 75, 4, 6)
    query, key, value, output, level, grad = given
    found = demand_tensor(answer(*copies(*given)), (13, 4), "The gradient")
    scores = query @ key.mT / 2
    weights = (scores - level[:, None]).exp()
    products = grad @ value.mT
    delta = (grad * output).sum(-1, keepdim=True)
    true = weights * (products - delta) @ key / 2
    explain(
        found,
        true,
        {
            "The scale is missing at the end: the scores were divided by the root of "
            "the width, so their gradient is as well.": 2 * true,
            "The average is not subtracted: the softmax's gradient is the weight times "
            "the product minus delta.": weights * products @ key / 2,
            "The weights are missing from the gradient of the scores.": (
                products - delta
            )
            @ key
            / 2,
            "The scores are made again without the scale.": (
                2 * scores - level[:, None]
            ).exp()
            * (products - delta)
            @ key
            / 2,
            "Only the last block counts: add up over the blocks.": (
                weights * (products - delta)
            )[:, 64:]
            @ key[64:]
            / 2,
        },
    )
    given = _kept(64, 2048, 16, 16)
    held = peak_bytes(answer, *given)
    table = 4 * 64 * 2048
    if held > table / 2:
        raise NotYet(
            f"Right, but it holds {held // 1024} KiB at the most; one table of L x S is "
            f"{table // 1024}. Walk along the keys in blocks of 32."
        )
    return f"The same gradient, and {held // 1024} KiB at the most."


def _kept(L: int, S: int, D: int, DV: int) -> tuple[Tensor, ...]:
    """Query, key, value, and what a forward pass keeps, and a gradient."""
    query, key, value = torch.randn(L, D), torch.randn(S, D), torch.randn(S, DV)
    scores = query @ key.mT / math.sqrt(D)
    output, level = scores.softmax(-1) @ value, scores.logsumexp(-1)
    return query, key, value, output, level, torch.randn(L, DV)


@check("12.6")
def power(answer: Callable[[Any], Any]) -> str:
    """Check ``power(f)``: 2 to the power of f in [0, 1), from additions and products.

    Examples
    --------
    >>> power(lambda f: 1 + f)
    Exercise 12.6: not yet. The largest relative error is 0.061, expected below 0.002, \
with 0 multiplications. Up to 3 are allowed.
    """
    f = torch.linspace(0, 1, 1001, dtype=torch.float64)
    found = answer(_Counted(f, spent := [0]))
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(found, _Counted):
        kind = type(found).__name__
        raise NotYet(f"Return what f became by +, - and *, not {kind}.")

    def error(true: Tensor) -> float:
        return float((found.value / true - 1).abs().max())

    if error(f.exp2()) < 0.002 and spent[0] <= 3:
        count = f"{spent[0]} multiplications, relative error {error(f.exp2()):.1g}"
        return f"{count}: lost in the rounding of bfloat16. Is one less enough?"
    if error(f.exp()) < 0.01:
        raise NotYet("That is e to the power of f: the base is 2.")
    if error(f.exp2()) < 0.002:
        raise NotYet(
            f"It is precise, and takes {spent[0]} multiplications: 3 are allowed. In "
            "Horner's form a polynomial takes one for each degree."
        )
    series = torch.ones_like(f)
    for degree in range(1, 4):
        series = series + (f * math.log(2)) ** degree / math.factorial(degree)
        if error(series) < 1e-6:
            raise NotYet(
                f"That is Taylor's series: exact near 0, wrong by "
                f"{error(f.exp2()):.1g} at 1. Spread the error over the whole range."
            )
    raise NotYet(
        f"The largest relative error is {error(f.exp2()):.2g}, expected below 0.002, "
        f"with {spent[0]} multiplications. Up to 3 are allowed."
    )


class _Counted:
    """Numbers that know addition and multiplication, and count the latter."""

    def __init__(self, value: Tensor, spent: list[int]) -> None:
        self.value, self.spent = value, spent

    def __add__(self, other: Any) -> _Counted:
        return _Counted(self.value + _plain(other), self.spent)

    def __mul__(self, other: Any) -> _Counted:
        self.spent[0] += 1
        return _Counted(self.value * _plain(other), self.spent)

    def __neg__(self) -> _Counted:
        return _Counted(-self.value, self.spent)

    def __sub__(self, other: Any) -> _Counted:
        return _Counted(self.value - _plain(other), self.spent)

    def __rsub__(self, other: Any) -> _Counted:
        return _Counted(_plain(other) - self.value, self.spent)

    __radd__, __rmul__ = __add__, __mul__

    def __getattr__(self, name: str) -> Any:
        raise NotYet(f"Only +, - and * are there, not {name}.")

    def __pow__(self, other: Any) -> Any:
        raise NotYet("Only +, - and * are there, not **: multiply.")

    def __truediv__(self, other: Any) -> Any:
        raise NotYet("Only +, - and * are there, not /: multiply by the inverse.")

    __rpow__, __rtruediv__ = __pow__, __truediv__


def _plain(other: Any) -> Any:
    """The numbers behind an operand."""
    if isinstance(other, _Counted):
        return other.value
    if isinstance(other, (int, float)):
        return other
    raise NotYet(f"Combine f with numbers, not {type(other).__name__}.")
