"""What a subject is: the declared facts, and one way to call it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

__all__ = ["Facts", "Subject", "pattern_mask"]

Kind = Literal["attention", "core", "encoding", "rotary", "bias", "decoder"]
KINDS = ("attention", "core", "encoding", "rotary", "bias", "decoder")


@dataclass
class Facts:
    """What is declared of a subject; ``None`` where it is to be found out.

    See :func:`attention_lib.doctor.examine` for the meaning of each.
    """

    embed_dim: int | None = None
    num_heads: int | None = None
    causal: str | None = None
    pattern: str | Callable[[int, int], Tensor] | None = None
    masks: str | None = None
    context: bool | None = None
    weights: str | None = None
    positions: str | None = None
    normalization: str = "softmax"
    residual: bool = False
    scale: float | None = None
    differentiable: bool = True
    dtype: torch.dtype | None = None
    reference: Any = None
    allow: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse words that mean nothing here.

        Raises
        ------
        ValueError
            That names the argument, what came and what was expected.
        """
        for name, words in (
            ("causal", (None, "flag", "always", "never")),
            ("masks", (None, "any", "none")),
            ("context", (None, True, False)),
            ("weights", (None, "heads", "mean")),
            ("positions", (None, "relative", "absolute")),
            ("normalization", ("softmax", "sigmoid", "sink")),
        ):
            value = getattr(self, name)
            if value not in words:
                raise ValueError(
                    f"{name}={value!r} must be one of {', '.join(map(repr, words))}"
                )
        for name in ("embed_dim", "num_heads"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name}={value!r} must be an integer of at least 1")
        if self.pattern is not None:
            pattern_mask(self.pattern, 4, 4)
        for code, reason in self.allow.items():
            if not re.fullmatch(r"AT\d{3}", code) or not str(reason).strip():
                raise ValueError(
                    f"allow={{{code!r}: {reason!r}}} must map a code such as 'AT201' "
                    "to a reason"
                )


def pattern_mask(
    pattern: str | Callable[[int, int], Tensor], L: int, S: int
) -> Tensor:
    """What a declared pattern lets queries see.

    Parameters
    ----------
    pattern
        ``"full"``; ``"causal"``; ``"window:n"``, the token itself and n - 1 before it;
        ``"local:n"``, up to n - 1 tokens on either side; ``"prefix:n"``, causal but for
        the first n tokens, which everyone sees; ``"band:n"``, causal and n tokens
        ahead; ``"blocks:n"``, blocks of n tokens that see only themselves; or a
        function of (L, S) that returns the mask.
    L, S
        Numbers of queries and keys. The last query stands at the last key.

    Returns
    -------
    Tensor
        Shape (L, S), bool, True = may attend.

    Raises
    ------
    ValueError
        If the pattern is not one of these.

    Examples
    --------
    >>> pattern_mask("window:2", 3, 3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 1, 1]], dtype=torch.int32)
    """
    if callable(pattern):
        return pattern(L, S).bool().cpu()
    name, _, number = pattern.partition(":")
    n = int(number) if number.isdigit() else None
    if (name in ("full", "causal")) != (n is None) or name not in (
        *("full", "causal", "window", "local", "prefix", "band", "blocks"),
    ):
        raise ValueError(
            f"pattern={pattern!r} must be 'full', 'causal', 'window:n', 'local:n', "
            "'prefix:n', 'band:n', 'blocks:n' or a function of (L, S)"
        )
    i = torch.arange(L)[:, None] + S - L
    j = torch.arange(S)[None]
    n = 0 if n is None else n
    past = j <= i
    return {
        "full": torch.ones(L, S, dtype=torch.bool),
        "causal": past,
        "window": past & (i - j < n),
        "local": (i - j).abs() < max(n, 1),
        "prefix": past | (j < n),
        "band": j <= i + n,
        "blocks": i // max(n, 1) == j // max(n, 1),
    }[name]


@dataclass
class Subject:
    """A private copy of what is examined, behind one calling convention.

    Attributes
    ----------
    call
        For attention ``call(x, context, mask, causal, need_weights)``, which returns
        what the subject returns; for the other kinds as in their probes.
    thing
        The private copy that ``call`` uses.
    name
        A line that says what it is.
    facts
        Declared, and completed by what the adapter knows.
    takes
        Which of ``"context"``, ``"mask"``, ``"causal"`` and ``"weights"`` it takes.
    """

    call: Callable[..., Any]
    thing: Any
    name: str
    facts: Facts
    takes: frozenset[str] = frozenset()
    padding_only: bool = False
    #: Where the caller aligns queries and keys, "causal with L != S" promises nothing.
    causal_rectangle: bool = True
