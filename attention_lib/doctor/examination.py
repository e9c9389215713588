"""Runs the probes of a kind on a subject and gathers what they find."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attention_lib.doctor import probes_reach
from attention_lib.doctor.adapters import adapt, describe
from attention_lib.doctor.catalogue import PROBES
from attention_lib.doctor.copies import modules_of, unchanged
from attention_lib.doctor.findings import Examination, Finding
from attention_lib.doctor.prepare import prepare
from attention_lib.doctor.probing import (
    Bench,
    SubjectError,
    TimeUp,
    time_limit,
    unchanged_surroundings,
)
from attention_lib.doctor.roots import fold
from attention_lib.doctor.running import Running
from attention_lib.doctor.subject import KINDS, Facts

if TYPE_CHECKING:
    from attention_lib.doctor.report import Report

__all__ = ["PROBES", "dependency_map", "examine", "run_examination"]


def examine(
    subject: Any,
    kind: str = "attention",
    *,
    embed_dim: int | None = None,
    num_heads: int | None = None,
    causal: str | None = None,
    pattern: str | Callable[[int, int], Tensor] | None = None,
    masks: str | None = None,
    context: bool | None = None,
    weights: str | None = None,
    positions: str | None = None,
    normalization: str = "softmax",
    residual: bool = False,
    scale: float | None = None,
    differentiable: bool = True,
    dtype: torch.dtype | None = None,
    reference: Any = None,
    allow: dict[str, str] | None = None,
    seed: int = 0,
) -> Report:
    """Examine an attention from outside, by what it does.

    The subject is copied first and stays as it is. What is not declared is found out
    where a call can tell; what it is meant to hide is never guessed.

    Parameters
    ----------
    subject
        A module, a callable, or a class that takes the sizes. Torch's attention and
        layers, those of this package, of ``transformers`` and of x-transformers are
        known; anything else is called by the names of its parameters.
    kind
        ``"attention"``: ``f(x, *, context=None, mask=None, causal=False,
        need_weights=False)`` on x (B, L, E). ``"core"``: ``f(q, k, v)`` on (B, H, L,
        D). ``"encoding"``: ``f(x, offset=0)``, x with positions added; an instance, or
        a class that takes the width. ``"rotary"``: ``f(t, offset=0)`` on (B, H, L, D).
        ``"bias"``: ``f(L, S)``, a bias (H, L, S) of the scores. ``"decoder"``: an
        object with ``full(x)`` and ``step(x_t, state)``, which returns (y, state).
    embed_dim, num_heads
        E and H, where attributes do not tell.
    causal
        ``"flag"``: causal when asked; ``"always"``; ``"never"``.
    pattern
        What it hides by itself: ``"full"``, ``"causal"``, ``"window:3"`` (the token and
        two before it), ``"local:3"``, ``"prefix:3"``, ``"band:1"``, ``"blocks:4"``, or
        a function of (L, S) that returns the mask. With ``causal="flag"`` it holds when
        causal is asked for.
    masks
        ``"any"`` or ``"none"``.
    context
        Whether cross-attention is possible.
    weights
        ``"heads"``, (B, H, L, S), or ``"mean"``, (B, L, S).
    positions
        ``"relative"`` or ``"absolute"`` where it knows the order of tokens.
    normalization
        ``"softmax"``; ``"sigmoid"``, or ``"sink"`` for rows that need not sum to 1,
        as with a sink, talking heads or a difference of two softmaxes.
    residual
        Whether x itself is in the output, as in a block.
    scale
        Factor of the scores where it is not 1 / sqrt(D).
    differentiable
        False where there is no backward on this device.
    dtype
        A dtype that is promised, ``torch.float16`` say: what goes wrong in it is then a
        fault. Half precision is tried in any case, and gives notes.
    reference
        A module or callable of the same kind that is right, with the same parameters.
    allow
        Codes that are meant to be, each with the reason.
    seed
        Of every random number.

    Returns
    -------
    Report
        What was found; print it.

    Raises
    ------
    ValueError
        If a declaration means nothing, or the subject's signature is unknown: then the
        message shows the adapter to write.

    Examples
    --------
    >>> examine(torch.nn.MultiheadAttention(8, 2)).healthy
    True
    """
    from attention_lib.doctor.report import Report

    facts = Facts(
        embed_dim,
        num_heads,
        causal,
        pattern,
        masks,
        context,
        weights,
        positions,
        normalization,
        residual,
        scale,
        differentiable,
        dtype,
        reference,
        dict(allow or {}),
    )
    return Report(run_examination(subject, kind, facts, seed=seed))


def run_examination(
    subject: Any,
    kind: str = "attention",
    facts: Facts | None = None,
    *,
    seed: int = 0,
    deadline: float = 10.0,
    **declared: Any,
) -> Examination:
    """Everything :func:`examine` does but the report.

    Parameters
    ----------
    subject, kind
        As in :func:`examine`.
    facts
        What is declared; or give the same by name.
    seed
        Of every random number.
    deadline
        Seconds after which a probe is interrupted.

    Returns
    -------
    Examination
        Findings, what passed, what was not checked.

    Examples
    --------
    >>> run_examination(torch.nn.MultiheadAttention(8, 2)).passed[0]
    'control'
    """
    start = time.perf_counter()
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} must be one of {', '.join(map(repr, KINDS))}")
    facts = Facts(**declared) if facts is None else facts
    facts.check()
    said = _declared(facts)
    name = describe(subject)
    run = Running(kind, facts, deadline)
    error = ""
    bench: Bench | None = None
    with unchanged_surroundings():
        adapted = adapt(subject, facts, kind)
        with unchanged(subject, adapted.thing):
            try:
                with time_limit(deadline):
                    bench = prepare(adapted, kind, seed)
            except (SubjectError, TimeUp) as raised:
                run.stopped(raised, "prepare")
            if bench is not None:
                run.all(bench)
    found, allowed = _allowed(fold(run.found), facts.allow)
    words = "".join(f", {k}={v!r}" for k, v in said.items() if k != "allow")
    return Examination(
        subject=name,
        kind=kind,
        device="cpu",
        dtype=str(bench.dtype)[6:] if bench is not None else "",
        seed=seed,
        findings=tuple(found),
        passed=tuple(run.passed),
        not_checked=tuple(run.skipped),
        allowed=tuple(allowed),
        error=error,
        seconds=time.perf_counter() - start,
        repeat=f'examine(subject, "{kind}"{words}, seed={seed})',
        declared=said,
    )


def _declared(facts: Facts) -> dict[str, Any]:
    plain = Facts()
    return {
        name: value
        for name, value in vars(facts).items()
        if value != getattr(plain, name)
    }


def _allowed(
    found: tuple[Finding, ...], allow: dict[str, str]
) -> tuple[list[Finding], list[tuple[Finding, str]]]:
    """What is meant to be, with all that follows from it, and the rest."""
    kept: list[Finding] = []
    allowed: list[tuple[Finding, str]] = []
    for f in found:
        inner = [g for g in f.follows if g.code in allow]
        allowed += [(g, allow[g.code]) for g in inner if f.code not in allow]
        if f.code in allow:
            allowed.append((f, allow[f.code]))
        else:
            follows = tuple(g for g in f.follows if g not in inner)
            kept.append(replace(f, follows=follows))
    return kept, allowed


def dependency_map(
    subject: Any,
    x: Tensor,
    *,
    context: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    seed: int = 0,
    **declared: Any,
) -> Tensor:
    """How far each output moves when each token is replaced.

    Parameters
    ----------
    subject
        As in :func:`examine`, of kind ``"attention"``.
    x
        Tokens, (B, L, E).
    context, mask, causal
        Passed on.
    seed
        Of the tokens that replace.
    declared
        As in :func:`examine`.

    Returns
    -------
    Tensor
        Shape (L, S), float64: row i, column j is the largest move of output i, over
        batch and features, when token j is replaced. Exactly 0 where there is no
        dependence.

    Raises
    ------
    ValueError
        If the subject's signature is unknown.
    RuntimeError
        If the subject raises.

    Examples
    --------
    >>> layer = torch.nn.MultiheadAttention(8, 2)
    >>> seen = dependency_map(layer, torch.randn(1, 3, 8), causal=True)
    >>> (seen > 0).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    facts = Facts(**declared)
    facts.check()
    with unchanged_surroundings():
        adapted = adapt(subject, facts)
        B, L, E = x.shape
        bench = Bench(adapted, facts, seed, B, L, E=E)
        bench.dtype = x.dtype
        how: dict[str, Any] = {"context": context, "mask": mask, "causal": causal}
        try:
            with unchanged(subject, adapted.thing):
                for module in modules_of(adapted.thing):
                    module.eval()
                size = probes_reach.reach_of(bench, x.detach(), **how)
        except SubjectError as error:
            raise RuntimeError(
                f"{error.what} (called with {error.scenario})"
            ) from error
    return size.amax(0)
