"""Checks for the exercises of chapter 11, inference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_lib import masks
from attention_lib.checks._report import (
    NotYet,
    check,
    copies,
    demand_bool,
    demand_number,
    demand_tensor,
    draws,
    explain,
    same,
)
from attention_lib.functional import scaled_dot_product_attention

__all__ = ["faulty", "longest", "one_more", "ring_step", "squeezed", "to_int8"]

Full = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


@check("11.1")
def longest(answer: Callable[[int, int, int, int, int, int], int]) -> str:
    """Check ``longest(budget, layers, B, Hkv, D, itemsize)``: tokens that fit.

    Examples
    --------
    >>> longest(lambda budget, layers, B, Hkv, D, itemsize: None)
    Exercise 11.1: not yet. The function returns nothing yet.
    """
    for budget, layers, B, Hkv, D, itemsize in (
        (2**20, 5, 3, 2, 16, 4),
        (8 * 2**30, 32, 16, 8, 128, 2),
        (1000, 1, 1, 2, 4, 4),
    ):
        found = demand_number(
            answer(budget, layers, B, Hkv, D, itemsize), "a number of tokens"
        )
        token = 2 * layers * B * Hkv * D * itemsize  # bytes
        true = budget // token
        if found == true:
            continue
        mistakes = {
            budget // (token // 2): "Keys are held, and values too.",
            budget // (token // layers): "That is one layer: each has its own cache.",
            budget // (token // B): "That is one sequence: there are B of them.",
            budget // (token // itemsize): "That counts numbers: an element takes "
            "itemsize bytes.",
            -(-budget // token): "That is one token too many: it would not fit whole.",
        }
        hint = mistakes.get(int(found), "Count the bytes of one token first.")
        if found == budget / token:
            hint = "Only whole tokens are held: round down."
        raise NotYet(
            f"{true} tokens fit into {budget} bytes with layers={layers}, B={B}, "
            f"Hkv={Hkv}, D={D}, itemsize={itemsize}; you say {found:g}. {hint}"
        )
    return "Three caches filled to the last token."


@check("11.2", forbids=("keyvaluecache",))
def one_more(
    answer: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]
    ],
) -> str:
    """Check ``one_more(query, key, value, keys, values)``: one step of decoding.

    Examples
    --------
    >>> one_more(lambda query, key, value, keys, values: None)
    Exercise 11.2: not yet. The function returns nothing yet.
    """
    H, Hkv, S, D = 6, 2, 5, 4
    all_q = torch.randn(H, S + 1, D)
    all_k, all_v = torch.randn(2, Hkv, S + 1, D)
    parts = all_q[:, S:], all_k[:, S:], all_v[:, S:], all_k[:, :S], all_v[:, :S]
    found = answer(*copies(*parts))
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(found, (tuple, list)) or len(found) != 3:
        raise NotYet("Return three tensors: the output, all keys, all values.")
    output = demand_tensor(found[0], (H, 1, D), "The output")

    def attend(k: Tensor, v: Tensor, scale: float = D**-0.5) -> Tensor:
        return (scale * all_q[:, S:] @ k.mT).softmax(-1) @ v

    k, v = (t.repeat_interleave(H // Hkv, dim=0) for t in (all_k, all_v))
    wrong = [t.repeat(H // Hkv, 1, 1) for t in (all_k, all_v)]
    explain(
        output,
        attend(k, v),
        {
            "The new token does not see itself: append first, attend then.": attend(
                k[:, :S], v[:, :S]
            ),
            "The new token sees itself alone: are the keys held in use?": v[:, S:],
            "Each key head serves H / Hkv neighbouring query heads: 0, 0, 0, 1, 1, 1 "
            "and not 0, 1, 0, 1, 0, 1.": attend(*wrong),
            "The query sees the oldest key alone: is a causal mask cut at the top "
            "left?": v[:, :1],
            "The scores are not scaled.": attend(k, v, 1.0),
        },
    )
    for name, held, whole in (("keys", found[1], all_k), ("values", found[2], all_v)):
        if not isinstance(held, Tensor):
            raise NotYet(f"Return all {name} as a tensor.")
        if held.shape[:1] == (H,):
            raise NotYet(
                f"The output is right, but the {name} are held once for each query "
                "head: that is the memory which grouped heads save."
            )
        if not same(held, whole):
            raise NotYet(
                f"The output is right, but the {name} for the next step have shape "
                f"{tuple(held.shape)}, expected {tuple(whole.shape)} in the order in "
                "which they came."
            )
    return "Six query heads on two key heads, and the cache one token longer."


@check("11.3")
def ring_step(
    answer: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], Tensor],
) -> str:
    """Check ``ring_step(query, key, value, keys, values, t)``: a window in a ring.

    Examples
    --------
    >>> ring_step(lambda query, key, value, keys, values, t: None)
    Exercise 11.3: not yet. The function returns nothing yet.
    """
    L, w, D = 11, 4, 3
    q, k, v = torch.randn(3, L, D)
    want = scaled_dot_product_attention(q, k, v, masks.sliding_window(L, window=w))
    keys, values = 5 * torch.randn(2, w, D)  # what happened to be there
    before = keys.clone()
    for t in range(L):
        found = demand_tensor(
            answer(q[t], k[t], v[t], keys, values, t), (D,), "The output"
        )
        if same(found, want[t]):
            continue
        near = dict(enumerate(_windows(q, k, v, t, w)))
        if same(found, near[0]):
            raise NotYet(
                f"Token {t} sees {w + 1} tokens: the window of {w} counts itself."
            )
        if t + 1 < w:
            raise NotYet(
                f"Token {t} is wrong. {w - t - 1} of the {w} places hold no token yet: "
                "are they left out?"
            )
        if t < w:
            raise NotYet(f"Token {t} is wrong: it is the first to fill the ring.")
        if same(found, near[1]):
            raise NotYet(f"Token {t} does not see itself: write first, attend then.")
        raise NotYet(
            f"Right until token {w - 1}, wrong at token {t}: the newest token goes to "
            "the place of the oldest."
        )
    if same(keys, before):
        raise NotYet("The memory you were given is unchanged: write into it.")
    if not same(keys.sort(dim=0).values, k[L - w :].sort(dim=0).values):
        raise NotYet(
            f"The outputs are right, but after {L} tokens the memory does not hold "
            f"the last {w} keys."
        )
    return "Eleven tokens through a ring of four places, and nothing was moved."


def _windows(q: Tensor, k: Tensor, v: Tensor, t: int, w: int) -> list[Tensor]:
    """What token t makes of a window too wide by one, and of one without itself."""
    scores = k @ q[t] / math.sqrt(len(q[t]))
    wide = slice(max(0, t - w), t + 1)
    past = slice(max(0, t + 1 - w), max(t, 1))
    return [scores[part].softmax(0) @ v[part] for part in (wide, past)]


@check("11.4", forbids=("quantiz",))
def to_int8(answer: Callable[[Tensor], tuple[Tensor, Tensor]]) -> str:
    """Check ``to_int8(weight)``: integers and one scale for each output channel.

    Examples
    --------
    >>> from attention_lib.quantization import quantize
    >>> to_int8(quantize).passed
    True
    """
    weight = torch.randn(5, 9) * torch.tensor([1.0, 30.0, 1e-4, 2.0, 0.3])[:, None]
    integers, scales = _pair(answer(weight.clone()), weight)
    largest = weight.abs().amax(dim=1, keepdim=True)  # (out, 1)
    if scales.shape == (5,):
        raise NotYet("The scales have shape (5,): give them (5, 1), to broadcast.")
    if scales.numel() == 1:
        raise NotYet("One scale for the whole weight: give each row its own.")
    if scales.shape == (1, 9):
        raise NotYet("One scale for each column: an output channel is a row.")
    demand_tensor(scales, (5, 1), "The scales")
    if same(scales, 127 / largest):
        raise NotYet("These are 127 over the largest: a scale is the other way round.")
    if not torch.allclose(scales.float(), largest / 127, rtol=1e-3):
        if torch.allclose(scales.float(), largest / 128, rtol=1e-3):
            raise NotYet("Divide by 127: with 128 the largest weight does not fit.")
        raise NotYet("A scale is the row's largest absolute value over 127.")
    error = (integers.double() * scales.double() - weight.double()).abs()
    worst = (error / scales.double()).max().item()
    if worst > 0.51:
        cause = "round before you cast, for a cast cuts off" if worst < 1.01 else ""
        raise NotYet(
            f"An element is off by {worst:.2f} of its scale, half is the most: "
            f"{cause or 'did the integers wrap around?'}."
        )
    weight[3] = 0.0
    integers, scales = _pair(answer(weight.clone()), weight)
    if not bool(scales.isfinite().all()) or bool(integers[3].any()):
        raise NotYet("A row of zeros does not come back as zeros: its largest is 0.")
    if not bool((scales[3] > 0).all()):
        raise NotYet("A row of zeros gets the scale 0: dividing by it gives NaN.")
    return "Every element within half its scale, and a row of zeros survives."


def _pair(found: object, weight: Tensor) -> tuple[Tensor, Tensor]:
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise NotYet("Return two tensors: the integers and the scales.")
    integers, scales = found
    if not isinstance(integers, Tensor) or not isinstance(scales, Tensor):
        raise NotYet("Return the integers and the scales as tensors.")
    if integers.dtype != torch.int8:
        raise NotYet(f"The integers have dtype {integers.dtype}, expected torch.int8.")
    if integers.shape != weight.shape:
        raise NotYet(
            f"The integers have shape {tuple(integers.shape)}, "
            f"expected {tuple(weight.shape)}."
        )
    return integers, scales


@check("11.5")
def faulty(answer: Callable[[Full, Step], bool]) -> str:
    """Check a test of decoders: True where steps do not give the full pass.

    Examples
    --------
    >>> faulty(lambda full, step: False)
    Exercise 11.5: not yet. It clears a decoder whose positions restart at each step.
    """
    subjects = {
        "a sound decoder": "",
        "a decoder whose positions restart at each step": "restart",
        "a decoder whose new tokens see each other, later ones too": "open",
        "a decoder that holds the last six tokens only": "short",
        "a decoder that does not forget the sequence before": "stale",
    }
    for seed in draws(3):
        for words, fault in subjects.items():
            torch.manual_seed(seed)
            decoder = _Decoder(fault)
            verdict = demand_bool(answer(decoder.full, decoder.step))
            if verdict != bool(fault):
                raise NotYet(f"It {'clears' if fault else 'accuses'} {words}.")
    return "A sound decoder cleared, four faulty ones found, on three draws each."


class _Decoder:
    """One causal head on eight numbers a token, with a table of positions."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.table = 0.5 * torch.randn(64, 8)
        self.weights = torch.randn(3, 8, 8) / 2
        self.left: Tensor | None = None

    def _attend(self, new: Tensor, held: Tensor, keep: Tensor) -> Tensor:
        q, k, v = new @ self.weights[0], held @ self.weights[1], held @ self.weights[2]
        return scaled_dot_product_attention(q, k, v, keep)

    def full(self, x: Tensor) -> Tensor:
        x = x + self.table[: len(x)]
        return self._attend(x, x, masks.causal(len(x)))

    def step(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        seen, held = (0, x[:0]) if state is None else state
        if self.fault == "stale" and state is None and self.left is not None:
            held = self.left
        start = 0 if self.fault == "restart" else seen
        x = x + self.table[start : start + len(x)]
        offset = len(held)
        held = torch.cat([held, x])
        keep = masks.causal(len(x), len(held), offset=offset)
        if self.fault == "open":
            keep = torch.ones_like(keep)
        y = self._attend(x, held, keep)
        if self.fault == "short":
            held = held[-6:]
        self.left = held
        return y, (seen + len(x), held)


@check("11.6")
def squeezed(answer: Callable[[Tensor], tuple[Any, Any]]) -> str:
    """Check ``squeezed(weight)``: tensors that hold a weight, and how to get it back.

    Examples
    --------
    >>> squeezed(lambda weight: ([weight.half()], lambda parts: parts[0].float()))
    Exercise 11.6: not yet. 2.00 bytes a weight, expected 0.6 at most. The error is 0%.
    """
    weight = torch.randn(96, 128) * torch.rand(96, 1).exp()
    weight[torch.randperm(96)[:2]] *= 50  # two channels are far larger
    found = answer(weight.clone())
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(found, tuple) or len(found) != 2 or not callable(found[1]):
        raise NotYet("Return two things: a list of tensors, and a function of it.")
    parts, restore = found
    if not all(isinstance(part, Tensor) for part in parts):
        raise NotYet("The first of the two must be a list of tensors, nothing else.")
    cells = getattr(restore, "__closure__", None) or ()
    if any(isinstance(cell.cell_contents, Tensor) for cell in cells):
        raise NotYet("The function holds a tensor of its own: take all from the list.")
    again = demand_tensor(restore(parts), (96, 128), "The weight that comes back")
    x = torch.randn(256, 128)
    true, got = x @ weight.T, x @ again.float().T  # (256, 96)
    error = float(((got - true).norm(dim=0) / true.norm(dim=0)).mean())
    size = sum(part.nbytes for part in parts) / weight.numel()
    if size > 0.6:
        raise NotYet(
            f"{size:.2f} bytes a weight, expected 0.6 at most. The error is {error:.0%}."
        )
    if error > 0.11:
        raise NotYet(
            f"{size:.2f} bytes a weight, and an output channel is wrong by {error:.0%} "
            "on average, expected 11% at most. A scale can serve part of a row."
        )
    return (
        f"{size:.2f} bytes a weight, and outputs wrong by {error:.1%}. How much less?"
    )
