"""What every check shares: the verdict, and the promise never to raise."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")

# What an exercise forbids: parts of the names, in lower case, of what may not be called.
FORBIDS: dict[str, tuple[str, ...]] = {}
READY_ATTENTION = (
    "scaled_dot_product",
    "attention_steps",
    "additive_attention",
    "chunked_attention",
    "local_attention",
    "flash_attention",
    "flex_attention",
    "context_parallel",
    "multi_head",
    "multihead",
    "selfattention",
)

_SEED: ContextVar[int] = ContextVar("seed", default=0)


class NotYet(Exception):
    """The answer is not right yet; the message says why."""


@dataclass(frozen=True)
class Result:
    """The outcome of a check.

    Attributes
    ----------
    exercise
        The exercise's number, such as ``"2.1"``.
    passed
        Whether the answer is right.
    message
        What was found, in words.

    Examples
    --------
    >>> Result("2.1", False, "it returns nothing yet")
    Exercise 2.1: not yet. it returns nothing yet
    """

    exercise: str
    passed: bool
    message: str

    def __repr__(self) -> str:
        verdict = "passed" if self.passed else "not yet"
        return f"Exercise {self.exercise}: {verdict}. {self.message}"


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let the checks inside draw other examples than those a notebook sees.

    Examples
    --------
    >>> from attention_lib.checks import chapter06
    >>> with seeded(7):
    ...     chapter06.masked_softmax(lambda scores, keep: None)
    Exercise 6.4: not yet. The function returns nothing yet.
    """
    before = _SEED.set(seed)
    try:
        yield
    finally:
        _SEED.reset(before)


def draws(number: int) -> range:
    """Seeds for several draws: 0, 1, 2, ... where a notebook runs the check."""
    first = 1000 * _SEED.get()
    return range(first, first + number)


def check(
    exercise: str, *, forbids: tuple[str, ...] = ()
) -> Callable[
    [Callable[Concatenate[Callable[..., Any], P], str]],
    Callable[Concatenate[Callable[..., Any], P], Result],
]:
    """Make a check of a function that raises `NotYet` or returns the praise.

    ``forbids`` is for graders, which read the answer; the check itself only calls it.
    """
    FORBIDS[exercise] = forbids

    def decorate(
        body: Callable[Concatenate[Callable[..., Any], P], str],
    ) -> Callable[Concatenate[Callable[..., Any], P], Result]:
        @functools.wraps(body)
        def run(
            answer: Callable[..., Any], /, *args: P.args, **kwargs: P.kwargs
        ) -> Result:
            if not callable(answer):
                kind = type(answer).__name__
                return Result(exercise, False, f"Pass the function itself, not {kind}.")
            try:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(draws(1)[0])
                    return Result(exercise, True, body(answer, *args, **kwargs))
            except NotYet as found:
                return Result(exercise, False, str(found))
            except Exception as error:  # noqa: BLE001 - the reader's own code may raise anything
                kind, name = type(error).__name__, _name(answer)
                return Result(exercise, False, f"{name} raised {kind}: {error}")

        return run

    return decorate


def copies(*tensors: Tensor) -> Iterator[Tensor]:
    """What the reader's function may change in place while the check keeps its own."""
    return (tensor.clone() for tensor in tensors)


def demand_tensor(found: object, shape: tuple[int, ...], what: str) -> Tensor:
    """The reader's tensor, once it is one of the right shape and finite."""
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(found, Tensor):
        raise NotYet(f"Return {what} as a tensor, not {type(found).__name__}.")
    if found.shape != shape:
        raise NotYet(f"{what} has shape {tuple(found.shape)}, expected {shape}.")
    if not bool(torch.isfinite(found).all()):
        raise NotYet(f"{what} holds NaN or infinity.")
    return found.detach()


def demand_bool(found: object) -> bool:
    """The reader's yes or no, also where it is a tensor of one element."""
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if isinstance(found, Tensor):
        if found.numel() != 1:
            raise NotYet(f"Return one True or False, not {found.numel()} of them.")
        found = found.item()
    if not isinstance(found, bool):
        raise NotYet(f"Return True or False, not {type(found).__name__}.")
    return found


def demand_partial(found: object, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The reader's output over part of the keys, and its log-sum-exp, once they fit."""
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(found, tuple) or len(found) != 2:
        raise NotYet("Return two tensors: the output and the log-sum-exp.")
    output, level = found
    if not isinstance(output, Tensor) or not isinstance(level, Tensor):
        raise NotYet("Return two tensors: the output and the log-sum-exp.")
    if output.shape != shape or level.shape != shape[:1]:
        raise NotYet(
            f"Output and log-sum-exp have shapes {tuple(output.shape)} and "
            f"{tuple(level.shape)}, expected {shape} and {shape[:1]}."
        )
    return output.detach(), level.detach()


def demand_number(
    found: object, what: str = "a number", *, positive: bool = False
) -> float:
    """The reader's number, once it is one: finite and, if asked for, above 0."""
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if isinstance(found, Tensor) and found.numel() == 1:
        found = found.item()
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise NotYet(f"Return {what}, not {type(found).__name__}.")
    if not math.isfinite(found) or (positive and found <= 0):
        expected = "positive and finite" if positive else "finite"
        raise NotYet(f"The number must be {expected}; {found} came.")
    return float(found)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors agree in shape and up to rounding."""
    return a.shape == b.shape and torch.allclose(
        a.double(), b.double(), rtol=1e-4, atol=1e-5
    )


def explain(found: Tensor, wanted: Tensor, mistakes: Mapping[str, Tensor]) -> None:
    """Raise with the mistake that gives exactly the reader's result, if one does."""
    if same(found, wanted):
        return
    for cause, result in mistakes.items():
        if same(found, result):
            raise NotYet(cause)
    gap = (found.double() - wanted.double()).abs().max().item()
    raise NotYet(
        f"The shape is right, the numbers are not: the largest gap is {gap:.2g}. "
        "Try it on tokens A, B and C, where every number is a fraction."
    )


def _name(answer: Callable[..., Any]) -> str:
    return f"Your function {getattr(answer, '__name__', type(answer).__name__)}"
