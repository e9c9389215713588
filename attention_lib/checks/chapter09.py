"""Checks for the exercises of chapter 9, troubleshooting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.checks._report import (
    NotYet,
    check,
    demand_bool,
)

__all__ = [
    "diagnosis",
    "finders",
    "first_nonfinite",
    "is_causal",
    "patient",
    "planted",
]

Attend = Callable[[Tensor], Tensor]

CHECKS = ("shapes", "rows", "causality", "twin")


def _causal(L: int) -> Tensor:
    return torch.ones(L, L, dtype=torch.bool).tril()


def _sound(x: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention of x (L, E) to itself: output and weights."""
    scores = x @ x.mT / math.sqrt(x.shape[-1])
    weights = scores.masked_fill(~_causal(len(x)), -torch.inf).softmax(-1)
    return weights @ x, weights


def _bug(name: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The same with one of the five bugs of exercise 9.1."""
    scores, keep = x @ x.mT / math.sqrt(x.shape[-1]), _causal(len(x))
    if name == "no mask":
        weights = scores.softmax(-1)
    elif name == "triangle upside down":
        weights = scores.masked_fill(~keep.mT, -torch.inf).softmax(-1)
    elif name == "base 2":
        scores = scores * math.log(2)
        weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)
    elif name == "divided by S":
        weights = scores.exp().masked_fill(~keep, 0.0) / len(x)
    else:  # "not itself"
        lowest = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~keep.tril(-1), lowest).softmax(-1)
        weights = weights * keep.tril(-1)
    return weights @ x, weights


BUGS = ("no mask", "triangle upside down", "base 2", "divided by S", "not itself")

WHY = {
    "shapes": "All five return the right shape and finite numbers.",
    "rows": "The rows check adds up each row of weights: does every one give 1?",
    "causality": "Replace a token: which outputs before it move?",
    "twin": "A twin with the same numbers differs as soon as one weight does.",
}


def _found_by(name: str) -> set[str]:
    """The checks that find a bug, measured."""
    x = torch.randn(7, 5)
    output, weights = _bug(name, x)
    found = set()
    if output.shape != x.shape or not bool(output.isfinite().all()):
        found.add("shapes")
    if bool(((weights.sum(-1) - 1).abs() > 1e-4).any()):
        found.add("rows")
    if not _holds(lambda x: _bug(name, x[0])[0][None], x[None]):
        found.add("causality")
    if not torch.allclose(output, _sound(x)[0], atol=1e-4):
        found.add("twin")
    return found


def _holds(attend: Attend, x: Tensor) -> bool:
    """Whether no output moves when a later token is replaced."""
    before = attend(x)
    for j in range(1, x.shape[1]):
        other = x.clone()
        other[:, j] = torch.randn_like(x[:, j])
        if not torch.equal(attend(other)[:, :j], before[:, :j]):
            return False
    return True


@check("9.1")
def finders(answer: Callable[[str], Any]) -> str:
    """Check ``finders(bug)`` against what four checks find of five bugs.

    Examples
    --------
    >>> finders(lambda bug: {"twin"})  # doctest: +ELLIPSIS
    Exercise 9.1: not yet. "no mask": causality is missing. Replace a token: ...
    """
    for name in BUGS:
        said = answer(name)
        if said is None:
            raise NotYet("The function returns nothing yet.")
        if not isinstance(said, (set, frozenset, list, tuple)):
            raise NotYet(f'Return a set of names, such as {{"rows"}}, not {said!r}.')
        if unknown := [word for word in said if word not in CHECKS]:
            raise NotYet(f"There is no check {unknown[0]!r}; there are {CHECKS}.")
        measured = _found_by(name)
        for one in CHECKS:
            if (one in said) != (one in measured):
                slip = "is missing" if one in measured else "does not find it"
                raise NotYet(f'"{name}": {one} {slip}. {WHY[one]}')
    return "Five bugs, four checks, measured: as you say."


def _attention(
    offset: int = 0, *, leak: float = 0.0, norm: str = "", late: bool = False
) -> Attend:
    """Attention over x (B, L, E) that looks ``offset`` tokens too far."""

    def attend(x: Tensor) -> Tensor:
        y = x
        # Rounded, so that no shift and no factor shows by a last bit.
        if norm == "layer":
            y = nn.functional.layer_norm(x, x.shape[-1:]).round(decimals=3)
        elif norm == "rms":
            y = (x / x.pow(2).mean(-1, keepdim=True).sqrt()).round(decimals=3)
        L = x.shape[1]
        scores = y @ y.mT / math.sqrt(x.shape[-1])
        keep = torch.ones(L, L, dtype=torch.bool).tril(offset)
        weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)
        if late:
            weights = scores.softmax(-1) * keep
        output = weights @ y
        if leak:
            corner = torch.zeros(L, 1, dtype=x.dtype)
            corner[0] = leak
            output = output + corner * y[:, -1:]
        return output

    return attend


@check("9.2")
def is_causal(answer: Callable[[Attend, Tensor], Any]) -> str:
    """Check a causality check on attentions that leak and on some that do not.

    Examples
    --------
    >>> is_causal(lambda attend, x: attend(x).shape == x.shape)  # doctest: +ELLIPSIS
    Exercise 9.2: not yet. An attention without a causal mask passes your check. ...
    """
    x = torch.randn(2, 7, 5)
    kept = x.clone()
    for words, hint, attend, holds in (
        ("A sound causal attention", "", _attention(), True),
        (
            "An attention without a causal mask",
            "Compare numbers, not shapes.",
            _attention(7),
            False,
        ),
        ("A triangle that starts one column late", "", _attention(1), False),
        (
            "A mask applied after the softmax",
            "The future leaks through the sum below the line.",
            _attention(late=True),
            False,
        ),
        (
            "A leak from the last token to the first, of size 1e-4,",
            "What is hidden must not move at all: ask for equal, not for close.",
            _attention(leak=1e-4),
            False,
        ),
        (
            "A late triangle behind a layer normalisation",
            "A constant added to a token vanishes there: replace the token.",
            _attention(1, norm="layer"),
            False,
        ),
        (
            "A late triangle behind a division by the root mean square",
            "A factor vanishes there: replace the token.",
            _attention(1, norm="rms"),
            False,
        ),
        ("A window of one token", "Seeing too little is no leak.", _window, True),
    ):
        said = demand_bool(answer(attend, x))
        if not torch.equal(x, kept):
            raise NotYet("The caller's x is changed. Replace the token in a copy.")
        if said != holds:
            verdict = "is accused" if holds else "passes"
            raise NotYet(
                f"{words} {verdict} {'by ' if holds else ''}your check. {hint}"
            )
    return "Six leaks found, also a tiny one and two behind a norm; none invented."


def _window(x: Tensor) -> Tensor:
    """Each position sees itself alone."""
    return 2 * x


class _Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class _Wrong(nn.Module):
    """Listed as late, early, whole; called early, late."""

    def __init__(self, early: nn.Module, late: nn.Module) -> None:
        super().__init__()
        self.late, self.early = late, early

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.late(self.early(x)))


@check("9.3", forbids=("find_nonfinite",))
def first_nonfinite(answer: Callable[[nn.Module, Tensor], Any]) -> str:
    """Check a hunt for the first output that is not finite.

    Examples
    --------
    >>> first_nonfinite(lambda model, x: "0")
    Exercise 9.3: not yet. Everything is finite, and you name '0'; return None.
    """
    x = torch.ones(2, 3)
    overflow, finite = _Scale(1e39), _Scale(2.0)
    zero, hide = _Scale(0.0), nn.Hardtanh()
    seq = nn.Sequential
    for model, wanted, hint in (
        (seq(finite, seq(finite, zero)), None, ""),
        (
            seq(finite, seq(_Scale(1e38), _Scale(1e38)), zero),
            "1.1",
            "It returns an infinity, which is not a NaN yet.",
        ),
        (
            seq(seq(finite, overflow), hide),
            "0.1",
            "A later module hides it again: look at every output, not at the last.",
        ),
        (
            _Wrong(seq(finite, overflow), seq(zero, finite)),
            "early.1",
            "The order of the calls counts, not that of the list.",
        ),
    ):
        before = {
            name: len(part._forward_hooks) for name, part in model.named_modules()
        }
        said = answer(model, x)
        after = {name: len(part._forward_hooks) for name, part in model.named_modules()}
        if said is None and wanted is not None:
            if answer(seq(overflow), x) is None:
                raise NotYet("The function returns nothing yet.")
            raise NotYet(f"You find nothing; it is module {wanted!r}. {hint}")
        if after != before:
            raise NotYet("Hooks are left on the model: remove them when you are done.")
        if wanted is None and said is not None:
            raise NotYet(f"Everything is finite, and you name {said!r}; return None.")
        if said != wanted:
            holder = isinstance(said, str) and str(wanted).startswith(f"{said}.")
            cause = "That module holds the first one: go inside." if holder else hint
            raise NotYet(f"You name {said!r}; it is {wanted!r}. {cause}")
    return (
        "The first one is named, hidden or not, in whatever order modules are called."
    )


class _Patient(nn.Module):
    """Exercise 9.4; do not read on if you want to solve it."""

    def __init__(self, causal: bool, *, split: bool = True, merge: bool = True) -> None:
        super().__init__()
        self.H, self.causal, self.bad = 3, causal, (split, merge)
        self.q, self.k, self.v, self.o = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        B, L, E = x.shape

        def heads(t: Tensor) -> Tensor:
            if self.bad[0]:
                return t.view(B, self.H, L, E // self.H)
            return t.view(B, L, self.H, E // self.H).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        scores = q @ k.mT / math.sqrt(E // self.H)
        if self.causal:
            keep = torch.ones(L, L, dtype=torch.bool, device=x.device).tril()
            scores = scores.masked_fill(~keep, -torch.inf)
        output = scores.softmax(-1) @ v
        merged = output if self.bad[1] else output.transpose(1, 2)
        return torch.as_tensor(self.o(merged.reshape(B, L, E)))


def patient(causal: bool = True) -> nn.Module:
    """The module of exercise 9.4, with two bugs.

    Parameters
    ----------
    causal
        Whether it has a causal mask.

    Returns
    -------
    nn.Module
        Maps x of shape (B, L, 24) to the same shape, with 3 heads; the same parameters
        at each call.

    Examples
    --------
    >>> patient()(torch.ones(2, 5, 24)).shape
    torch.Size([2, 5, 24])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _Patient(causal).eval()


REFUTED = {
    "scale": "A wrong scale changes how much is seen, not who is: look for outputs that "
    "do not move at all.",
    "mask off by one": "Replace a token: in the patient no output before it moves.",
    "mask after softmax": "Then the future would show through the sum; no output before "
    "a replaced token moves.",
    "softmax axis": "Over another axis a row no longer adds up to 1 in most places: "
    "equal tokens would give outputs that differ.",
    "batch axis": "Change one item of a batch: the others stay as they are.",
    "values from keys": "That hides no token from another; the map has holes.",
    "queries and keys swapped": "That hides no token from another; the map has holes.",
    "dropout in eval": "Called twice, it gives the same.",
}


@check("9.4")
def diagnosis(answer: Callable[[], Any]) -> str:
    """Check the two bugs that a reader found in :func:`patient`.

    Examples
    --------
    >>> diagnosis(lambda: {"scale", "head split"})  # doctest: +ELLIPSIS
    Exercise 9.4: not yet. "scale" is not among them. A wrong scale changes how much ...
    """
    said = answer()
    if said is None:
        raise NotYet("The function returns nothing yet.")
    if isinstance(said, str) or not isinstance(said, Iterable):
        raise NotYet(f"Return a set of two suspects, not {type(said).__name__}.")
    named, right = set(said), {"head split", "head merge"}
    if unknown := sorted(str(name) for name in named - set(REFUTED) - right):
        raise NotYet(f"{unknown[0]!r} is not on the list of suspects.")
    if innocent := sorted(named - right):
        raise NotYet(f'"{innocent[0]}" is not among them. {REFUTED[innocent[0]]}')
    if named != right:
        (one,) = named or {""}
        if not one:
            raise NotYet("Name two suspects.")
        x = torch.randn(1, 6, 24)
        repaired = _Patient(True, split=one != "head split", merge=one != "head merge")
        worse = "now fails" if not _holds(repaired, x) else "still passes"
        raise NotYet(
            f'"{one}" is one. With it repaired the causality check {worse}: what undid '
            "its effect before?"
        )
    return (
        "Split by a view and merged by a view: each third of the sequence attends to "
        "itself alone, in order, so no test for leaks can see it."
    )


@check("9.5")
def planted(
    answer: Callable[[], Any], checks: Iterable[Callable[[nn.Module], bool]]
) -> str:
    """Check a bug that passes some checks: does the doctor find it?

    ``checks`` are functions that take the module and say whether it passes.

    Examples
    --------
    >>> planted(lambda: nn.Linear(4, 4), [lambda module: False])
    Exercise 9.5: not yet. It does not pass <lambda>.
    """
    from attention_lib.doctor import examine

    module = answer()
    if module is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(module, nn.Module):
        raise NotYet(f"Return a module, not {type(module).__name__}.")
    for passes in checks:
        if not passes(module):
            raise NotYet(f"It does not pass {passes.__name__}.")
    report = examine(
        module,
        embed_dim=getattr(module, "E", None),
        num_heads=getattr(module, "H", None),
        causal="flag",
        context=False,
    )
    if report.healthy:
        raise NotYet(
            "It passes them all, and the doctor finds it healthy: either there is no "
            "bug, or you have found one that the doctor cannot see."
        )
    if not report.findings:
        raise NotYet(f"The doctor could not examine it: {report.examination.error}")
    worst = report.findings[0]
    return f"It passes them all, and the doctor finds {worst.code}: {worst.message}."
