"""Checks for the exercises of chapter 1, the limits of recurrence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

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
    "bias_for",
    "fixed_state",
    "gradient_sizes",
    "keeps_apart",
    "rate",
    "receptive_field",
]

Layer = Callable[[Tensor], Tensor]
Write = Callable[[Tensor, int, int], Tensor]
Read = Callable[[Tensor, int], int]


@check("1.1")
def receptive_field(answer: Callable[[Sequence[int], Sequence[int]], int]) -> str:
    """Check ``receptive_field(kernels, dilations)`` against the gradients of a stack.

    Examples
    --------
    >>> receptive_field(lambda kernels, dilations: sum(kernels))
    Exercise 1.1: not yet. For kernels [3, 3, 3], dilations [1, 1, 1] you say 9; the \
gradients reach 7. Layers share positions: each adds its kernel less one.
    """
    for kernels, dilations in (
        ([3, 3, 3], [1, 1, 1]),
        ([5, 3, 7], [1, 1, 1]),
        ([3, 5, 3, 3], [1, 2, 3, 8]),
    ):
        found = demand_number(answer(kernels, dilations))
        reached = _positions_reached(kernels, dilations)
        if found == reached:
            continue
        added = sum(k - 1 for k in kernels)
        causes: dict[float, str] = {
            sum(kernels): "Layers share positions: each adds its kernel less one.",
            1 + added: "The dilations are missing: they spread a kernel's taps.",
            reached - 1: "The position itself is missing: add one.",
            1 + len(kernels) * (kernels[0] - 1): "The kernels differ from layer to "
            "layer: add each one's part.",
            1 + sum(k * d for k, d in zip(kernels, dilations, strict=True)): "A kernel "
            "of k taps has k - 1 gaps, and the dilation stretches the gaps.",
        }
        cause = f" {causes[found]}" if found in causes else ""
        raise NotYet(
            f"For kernels {kernels}, dilations {dilations} you say {found:g}; the "
            f"gradients reach {reached}.{cause}"
        )
    return "Three stacks, and the gradients reach as far as you say."


@check("1.2")
def bias_for(answer: Callable[[float, int], float]) -> str:
    """Check the forget gate's bias that keeps a share of the cell over T steps.

    Examples
    --------
    >>> bias_for(lambda share, T: math.log(share / (1 - share)))
    Exercise 1.2: not yet. This keeps 0.5 after one step. Where did T go?
    """
    for share, T in ((0.5, 100), (0.9, 30), (0.1, 1000)):
        found = demand_number(answer(share, T))
        gate = share ** (1 / T)
        kept = (1 / (1 + math.exp(-found))) ** T if abs(found) < 700 else 0.0
        if math.isclose(kept, share, rel_tol=1e-3):
            continue
        for cause, wrong in (
            (
                f"This keeps {share} after one step. Where did T go?",
                math.log(share / (1 - share)),
            ),
            ("This is the gate. Its bias is what the sigmoid turns into it.", gate),
            ("The sign is turned: an open gate has a positive bias.", -_logit(gate)),
            (
                (
                    "The gates of T steps multiply, they do not add: take the root of "
                    "the share, not a T-th part of what is lost."
                ),
                _logit(1 - (1 - share) / T),
            ),
        ):
            if math.isclose(found, wrong, rel_tol=1e-6):
                raise NotYet(cause)
        raise NotYet(
            f"With bias {found:.3g} the gate keeps {kept:.3g} after {T} steps; {share} "
            "was asked for."
        )
    return "Three shares, three lengths, and the gates keep what was asked."


@check("1.3")
def gradient_sizes(answer: Callable[[Layer, Tensor], Tensor]) -> str:
    """Check ``gradient_sizes(model, x)``: norms of the last output's Jacobians.

    Examples
    --------
    >>> gradient_sizes(lambda model, x: x.norm(dim=-1))
    Exercise 1.3: not yet. These sizes do not depend on the model.
    """
    x, first, last = torch.randn(5, 3), torch.randn(3, 4), torch.randn(3, 4)
    decay = torch.tensor([0.3, 0.5, 0.8, 1.0, 2.0])  # at the tokens, the first first
    before = x.clone()

    def summing(x: Tensor) -> Tensor:
        """The last output is decay[t] x[t] A added up, here with another A at t = 1."""
        parts = [w * x[:, t] @ (last if t == 1 else first) for t, w in enumerate(decay)]
        outputs = torch.stack(parts, dim=1).cumsum(dim=1)
        return outputs  # (B, L, 4)

    matrices = [w * (last if t == 1 else first) for t, w in enumerate(decay)]
    wanted = torch.stack([matrix.norm() for matrix in matrices])
    found = demand_tensor(answer(summing, x), (5,), "The tensor of sizes")
    if x.requires_grad or not torch.equal(x, before):
        raise NotYet("The reader's x was changed. Work on a detached copy.")
    if same(found, wanted):
        other = answer(lambda x: summing(2 * x), x)
        if not same(demand_tensor(other, (5,), "The tensor of sizes"), 2 * wanted):
            raise NotYet("For a model that doubles its input the sizes must double.")
        return "The last output of a model you could not see, heard at every token."
    sums = torch.stack([matrix.sum(1).norm() for matrix in matrices])
    every = decay * torch.arange(5, 0, -1)
    for cause, wrong in (
        ("The order is turned: the first token comes first.", wanted.flip(0)),
        (
            (
                "The outputs are added up before the gradient, so that their signs "
                "cancel. Take each entry's gradient, then the root of the sum of squares."
            ),
            sums,
        ),
        ("These are squares: take the root.", wanted**2),
        (
            "The gradient of all outputs together was taken. Take the last one's.",
            torch.stack([m.sum(1).norm() for m in matrices]) * every / decay,
        ),
        ("These sizes do not depend on the model.", x.norm(dim=-1)),
        (
            "This is the largest entry at each token, not the norm.",
            torch.stack([matrix.abs().max() for matrix in matrices]),
        ),
    ):
        if same(found, wrong):
            raise NotYet(cause)
    gap = (found - wanted).abs().max().item()
    raise NotYet(
        f"The shape is right, the sizes are not: the largest gap is {gap:.2g}."
    )


@check("1.4")
def rate(answer: Callable[[Tensor], float]) -> str:
    """Check the predicted factor a step of a linear recurrence against 16,384 steps.

    Examples
    --------
    >>> rate(lambda W: torch.linalg.matrix_norm(W, 2).item())  # doctest: +ELLIPSIS
    Exercise 1.4: not yet. This is the largest singular value: ...
    """
    turn = torch.tensor([[0.0, 0.9], [-0.9, 0.0]], dtype=torch.float64)
    shear = torch.tensor([[0.5, 8.0], [0.0, -0.7]], dtype=torch.float64)
    drawn = torch.randn(6, 6, dtype=torch.float64) / 2
    for words, W in (("drawn at random", drawn), ("a shear", shear), ("a turn", turn)):
        found = demand_number(answer(W.clone()))
        wanted = _measured_rate(W)
        if math.isclose(found, wanted, rel_tol=1e-3):
            continue
        values = torch.linalg.eigvals(W)
        for cause, wrong in (
            (
                (
                    "This is the largest singular value: it bounds one step. Over many "
                    "steps only the largest eigenvalue counts, by its absolute value."
                ),
                torch.linalg.matrix_norm(W, 2).item(),
            ),
            (
                "An eigenvalue may be negative or complex: take its absolute value.",
                values.real.max().item(),
            ),
            ("This is the norm of all entries.", W.norm().item()),
            (
                (
                    "The largest eigenvalue outlives the others: take the largest "
                    "absolute value, not the mean."
                ),
                values.abs().mean().item(),
            ),
        ):
            if math.isclose(found, wrong, rel_tol=1e-6, abs_tol=1e-9):
                raise NotYet(cause)
        raise NotYet(
            f"For a matrix that is {words} you say {found:.4g} a step; over 16,384 "
            f"steps the product changes by {wanted:.4g} a step."
        )
    return "A random matrix, a shear and a turn, each multiplied 16,384 times."


@check("1.5")
def keeps_apart(answer: Callable[[Layer], bool]) -> str:
    """Check a test of batches: True if no sequence of a batch reads another.

    Examples
    --------
    >>> keeps_apart(lambda model: True)
    Exercise 1.5: not yet. It passes an LSTM that reads along the batch.
    """
    for seed in draws(3):
        torch.manual_seed(seed)
        sound: dict[str, Layer] = {
            "an LSTM with batch_first=True": _output(nn.LSTM(8, 8, batch_first=True)),
            "a layer that treats each token by itself": nn.Linear(8, 8),
            "a mean over the tokens": lambda x: x.mean(1, keepdim=True).expand_as(x),
        }
        along = _output(nn.LSTM(8, 8))
        attention = nn.MultiheadAttention(8, 2)
        faulty: dict[str, Layer] = {
            "an LSTM that reads along the batch": along,
            "an LSTM that reads along the batch, from its end": (
                lambda x, along=along: along(x.flip(0)).flip(0)  # type: ignore[misc]
            ),
            "an attention that looks along the batch": (
                lambda x, attention=attention: attention(x, x, x)[0].detach()  # type: ignore[misc]
            ),
            "a model that subtracts the mean of the batch": lambda x: x - x.mean(0),
            "a model that does not read its input": torch.zeros_like,
        }
        for name, subject in (sound | faulty).items():
            if demand_bool(answer(subject)) != (name in sound):
                says = "passes" if name in faulty else "rejects"
                raise NotYet(f"It {says} {name}.")
    return "Three sound models cleared, five faulty ones found, on three draws each."


@check("1.6")
def fixed_state(answer: Callable[[], tuple[Write, Read]]) -> str:
    """Check how many pairs 32 numbers in bfloat16 hold, by ``write`` and ``read``.

    Examples
    --------
    >>> fixed_state(lambda: (lambda state, key, value: state, lambda state, key: 0))
    Exercise 1.6: not yet. It holds 0 pairs, and at least 12 are asked for. With one \
more, key 0 gives 0, not 63.
    """
    found = answer()
    if found is None:
        raise NotYet("The function returns nothing yet.")
    try:
        write, read = found
    except (TypeError, ValueError):
        raise NotYet("Return two functions: write and read.") from None
    if not (callable(write) and callable(read)):
        raise NotYet("Return two functions: write and read.")
    streams = [_pairs(63 - b) for b in range(4)]  # written in turn
    held, trouble = _held(write, read, streams)
    if held >= 12:
        return f"{held} pairs in 32 numbers, each found again by its key."
    if held == 0 and _held(write, read, streams[:1])[0] >= 12:
        raise NotYet(
            "One sequence is remembered, but two in turn are mixed up: keep nothing "
            "outside the state."
        )
    if _held(write, read, streams, rounded=False)[0] >= 12:
        raise NotYet(
            f"It would hold 12 pairs if nothing were rounded, but it holds {held}: "
            "bfloat16 has every whole number up to 256, and few beyond."
        )
    raise NotYet(
        f"It holds {held} pair{'s' * (held != 1)}, and at least 12 are asked for. {trouble}"
    )


def _pairs(first: int) -> list[tuple[int, int]]:
    """64 different keys under 256 with values under 64, the extremes first."""
    keys = [0, 255, *(1 + torch.randperm(254)[:62]).tolist()]
    return list(zip(keys, [first, 0, *torch.randint(64, (62,)).tolist()], strict=True))


def _held(
    write: Write, read: Read, streams: list[list[tuple[int, int]]], rounded: bool = True
) -> tuple[int, str]:
    """Pairs that every stream still holds, and what goes wrong with one more."""
    states = [torch.zeros(32) for _ in streams]
    for n, pairs in enumerate(zip(*streams, strict=True)):
        try:
            for b, (key, value) in enumerate(pairs):
                state = write(states[b].clone(), key, value)
                state = demand_tensor(state, (32,), "The state").float()
                state = state.bfloat16().float() if rounded else state
                states[b] = demand_tensor(state, (32,), "The state in bfloat16")
            for state, stream in zip(states, streams, strict=True):
                for key, value in stream[: n + 1]:
                    said = read(state.clone(), key)
                    if said is None or demand_number(said, "the value") != value:
                        return n, f"With one more, key {key} gives {said}, not {value}."
        except NotYet:
            raise
        except Exception as error:  # noqa: BLE001 - a full state may well raise
            return n, f"One more raises {type(error).__name__}: {error}"
    return len(streams[0]), ""


def _measured_rate(W: Tensor) -> float:
    """Growth a step of the product of 16,384 matrices, by squaring 14 times."""
    log = 0.0
    for _ in range(14):
        size = W.norm()
        log, W = 2 * (log + size.log().item()), (W / size) @ (W / size)
    return math.exp((log + W.norm().log().item()) / 2**14)


def _positions_reached(kernels: Sequence[int], dilations: Sequence[int]) -> int:
    """From the first to the last position with a gradient, in a stack of ones."""
    x = torch.ones(1, 1, 201, dtype=torch.float64, requires_grad=True)
    y: Tensor = x
    for k, d in zip(kernels, dilations, strict=True):
        ones = torch.ones(1, 1, k, dtype=torch.float64)
        y = nn.functional.conv1d(y, ones, padding="same", dilation=d)
    (gradient,) = torch.autograd.grad(y[0, 0, 100], x)
    places = gradient[0, 0].nonzero()
    return int(places.max() - places.min()) + 1


def _output(layer: nn.LSTM) -> Layer:
    return lambda x: layer(x)[0].detach()


def _logit(p: float) -> float:
    return math.log(p / (1 - p))
