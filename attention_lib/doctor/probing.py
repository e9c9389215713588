"""The bench of an examination: tokens, calls that cannot hurt, exact comparisons.

Two rules run through every probe. Tokens are replaced, never shifted or scaled, because
a norm undoes both. Outputs of the same shape are compared exactly, because a sound
module changes by exactly 0 where it must not change; outputs of different shapes are
compared in float64 against a noise floor.
"""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.doctor.copies import double, modules_of
from attention_lib.doctor.subject import Facts, Subject, pattern_mask

__all__ = ["Bench", "Skip", "SubjectError", "TimeUp", "moved", "time_limit"]


class Skip(Exception):
    """A probe cannot run, or cannot tell."""

    def __init__(self, reason: str, cannot_be_told: bool = False) -> None:
        super().__init__(reason)
        self.cannot_be_told = cannot_be_told


class SubjectError(Exception):
    """The subject raised, or returned what is no answer."""

    def __init__(self, what: str, scenario: str, error: BaseException | None = None):
        super().__init__(what)
        self.what, self.scenario, self.error = what, scenario, error

    @property
    def clear(self) -> bool:
        """Whether it is a refusal: an error of its own whose text says what to do."""
        refusals = (ValueError, TypeError, NotImplementedError)
        return type(self.error) in refusals and len(str(self.error)) > 15


class TimeUp(BaseException):
    """Raised by the alarm; a subject's ``except Exception`` does not catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt Python code that runs longer.

    Works by ``SIGALRM``, so in the main thread alone and not on Windows; elsewhere
    there is no limit. One long call into compiled code is interrupted when it returns.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def stop(signum: int, frame: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def unchanged_surroundings() -> Iterator[None]:
    """Whatever a subject sets for the whole process is set back."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    threads = torch.get_num_threads()
    exact = torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_grad_enabled(grad)
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(exact)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


def moved(before: Tensor, after: Tensor) -> Tensor:
    """How far each token's output moved: (..., L, E) to (..., L).

    NaN in both places counts as unmoved, NaN in one as infinitely far.
    """
    change = (after.double() - before.double()).abs()
    odd = before.isnan() | after.isnan()
    both = before.isnan() & after.isnan()
    same = both | (before == after)  # infinities too
    change = torch.where(odd & ~both, torch.inf, change)
    return torch.where(same, 0.0, change).nan_to_num(torch.inf).amax(-1)


def leaked(before: Tensor, after: Tensor) -> Tensor:
    """As :func:`moved`, without the last digit: 0 up to 64 units of rounding.

    Weights that are masked and then normalised again move by that much.
    """
    size = moved(before, after)
    largest = before.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return torch.where(size <= 64 * torch.finfo(before.dtype).eps * largest, 0.0, size)


def pick(candidates: tuple[int, ...], taken: set[int | None]) -> int:
    """The first size that is not taken, so that no two axes can be confused."""
    return next((n for n in candidates if n not in taken), candidates[0])


@dataclass
class Bench:
    """Everything a probe needs: the subject, sizes that differ pairwise, calls.

    Attributes
    ----------
    subject, facts
        What is examined, and what is known of it.
    B, L, S, E, H
        Items, queries, keys of cross-attention, width, heads (1 where unknown).
    dtype
        float64 where the subject runs in it.
    noise
        Relative size below which a change is rounding, where shapes differ.
    """

    subject: Subject
    facts: Facts
    seed: int = 0
    B: int = 2
    L: int = 7
    S: int = 11
    E: int = 8
    H: int = 1
    dtype: torch.dtype = torch.float64
    noise: float = 1e-9
    calls: int = 0
    deadline: float = 10.0
    notes: dict[str, Any] = field(default_factory=dict)

    # Tokens ---------------------------------------------------------------------------

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * self.seed + seed)

    def tokens(
        self, seed: int = 1, B: int | None = None, L: int | None = None, size: float = 1
    ) -> Tensor:
        """Random tokens, (B, L, E)."""
        shape = (self.B if B is None else B, self.L if L is None else L, self.E)
        drawn = torch.randn(
            shape, generator=self.generator(seed), dtype=torch.float64
        )
        return (size * drawn).to(self.dtype)

    def replaced(self, x: Tensor, where: Tensor, seed: int = 77) -> Tensor:
        """Other tokens where ``where`` (L,) or (B, L) is True."""
        fresh = self.tokens(seed, *x.shape[:2], size=float(x.std()))
        return torch.where(where.expand(x.shape[:2])[..., None], fresh, x)

    # Calls ----------------------------------------------------------------------------

    @property
    def modules(self) -> list[nn.Module]:
        return modules_of(self.subject.thing)

    def raw(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        need_weights: bool = False,
        grad: bool = False,
        reseed: bool = True,
        as_is: bool = False,
    ) -> Any:
        """What the subject returns, its errors as :class:`SubjectError`.

        ``reseed`` draws the same random numbers in every call, ``as_is`` keeps strides.
        """
        self.calls += 1
        if reseed:
            torch.manual_seed(self.seed)
        if self.facts.causal == "always":
            causal = False
        if not as_is:  # strides have a probe of their own
            x = x.contiguous()
            context = None if context is None else context.contiguous()
        try:
            with torch.set_grad_enabled(grad):
                return self.subject.call(x, context, mask, causal, need_weights)
        except (TimeUp, KeyboardInterrupt, SubjectError):
            raise
        except BaseException as error:
            text = " ".join(str(error).split())[:200]
            said = scenario(x, context, mask, causal, need_weights)
            raise SubjectError(
                f"{type(error).__name__}: {text}", said, error
            ) from error
        finally:
            torch.set_grad_enabled(True)

    def both(
        self, x: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The output and, where there are any, the weights."""
        made = self.raw(x, *args, **kwargs)
        said = scenario(x, *args, **{k: v for k, v in kwargs.items() if k in _SAID})
        out, weights = parts_of(made)
        if out is None:
            raise SubjectError(
                f"returned {type(made).__name__}, not a tensor", said
            )
        if not out.is_floating_point() or out.dim() != 3:
            raise SubjectError(
                f"returned {str(out.dtype)[6:]} of shape {tuple(out.shape)}, not "
                f"floats of shape (B, L, E)",
                said,
            )
        return out, weights

    def out(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The output, checked to have a row for each query: (B, L, E)."""
        out, _ = self.both(x, *args, **kwargs)
        if out.shape[:2] != x.shape[:2]:
            said = scenario(x, *args, **{k: v for k, v in kwargs.items() if k in _SAID})
            raise SubjectError(
                f"returned shape {tuple(out.shape)} for {x.shape[0]} x {x.shape[1]} "
                "queries",
                said,
            )
        return out.detach() if not kwargs.get("grad") else out

    def weights(self, x: Tensor, **kwargs: Any) -> Tensor:
        """The weights by head, (B, H, L, S)."""
        _, weights = self.both(x, need_weights=True, **kwargs)
        if weights is None:
            raise Skip("it returns no weights")
        weights = weights.detach()
        return weights[:, None] if weights.dim() == 3 else weights

    def works(self, x: Tensor, **kwargs: Any) -> bool:
        """Whether a call gives an answer."""
        try:
            self.out(x, **kwargs)
        except SubjectError:
            return False
        return True

    # What is expected -----------------------------------------------------------------

    def expected(self, L: int, S: int | None = None, causal: bool = False) -> Tensor:
        """What may be seen, (L, S), True = may."""
        S = L if S is None else S
        pattern, always = self.facts.pattern, self.facts.causal == "always"
        if pattern is not None and (self.facts.causal != "flag" or causal):
            return pattern_mask(pattern, L, S)
        return pattern_mask("causal" if causal or always else "full", L, S)

    @property
    def has_mask(self) -> bool:
        return self.facts.masks == "any" and "mask" in self.subject.takes

    @property
    def has_flag(self) -> bool:
        return self.facts.causal == "flag" and "causal" in self.subject.takes

    @property
    def has_context(self) -> bool:
        return bool(self.facts.context) and "context" in self.subject.takes

    @property
    def has_weights(self) -> bool:
        return self.facts.weights is not None

    def ways(self) -> list[tuple[str, dict[str, Any]]]:
        """The ways in which attention to the own tokens can be asked for."""
        ways: list[tuple[str, dict[str, Any]]] = [("plain", {})]
        if self.has_flag:
            ways.append(("causal", {"causal": True}))
        if self.has_mask:
            ways.append(("mask", {"mask": holes(self.B, self.L)}))
        return ways

    def close(self, a: Tensor, b: Tensor, floor: float = 1.0) -> float:
        """The largest difference, relative to the size of ``b``."""
        size = float(b.abs().nan_to_num(0.0).max()) if b.numel() else 0.0
        gap = float(moved(b, a).max()) if b.numel() else 0.0
        return gap / max(size, 1e-30) * floor


_SAID = ("context", "mask", "causal", "need_weights")


def scenario(
    x: Tensor,
    context: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    need_weights: bool = False,
    **_: Any,
) -> str:
    """A call in words: its shapes and its arguments."""
    words = [f"x {tuple(x.shape)}"]
    if context is not None:
        words.append(f"context {tuple(context.shape)}")
    if mask is not None:
        words.append(f"mask {tuple(mask.shape)}")
    if causal:
        words.append("causal=True")
    if need_weights:
        words.append("need_weights=True")
    return ", ".join(words)


def parts_of(made: Any) -> tuple[Tensor | None, Tensor | None]:
    """Output and weights of a tensor, a tuple, a mapping or an output object."""
    if isinstance(made, Tensor):
        return made, None
    if isinstance(made, dict):
        made = tuple(made.values())
    if isinstance(made, (tuple, list)):
        tensors = [t for t in made if isinstance(t, Tensor)]
        if not tensors or not isinstance(made[0], Tensor):
            return None, None
        weights = next((t for t in tensors[1:] if t.dim() in (3, 4)), None)
        return tensors[0], weights
    return None, None


def holes(B: int, L: int) -> Tensor:
    """Padding of a batch as a mask (B, L, L): left, and a hole, never on the right.

    A causal rule hides padding on the right by itself, so that would show nothing.
    """
    keep = torch.ones(B, L, dtype=torch.bool)
    for row in range(B):
        if row % 2 == 0:
            keep[row, : max(L // 3, 1)] = False
        else:
            keep[row, L // 2] = False
    if L < 3:
        keep[:] = True
    return keep[:, None].expand(B, L, L).contiguous()


def scattered(B: int, L: int, S: int, seed: int = 5) -> Tensor:
    """A mask without symmetry, (B, L, S): each query sees some keys and misses some.

    Each key is also seen by some and missed by some, so that the mask's opposite and
    its transpose leave no row empty. Where L = S a query sees itself.
    """
    drawn = torch.Generator().manual_seed(seed)
    keep = torch.rand(B, L, S, generator=drawn) < 0.5
    i, b = torch.arange(L), torch.arange(B)[:, None]
    keep[b, i, (i + 1 + b) % S] = True
    keep[b, i, (i + 2 + b) % S] = False
    return keep


def to_double(bench: Bench) -> str:
    """Run in float64 where the subject can, and say so where it cannot."""
    double(bench.subject.thing)
    return ""
