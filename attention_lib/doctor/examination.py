"""Runs the probes of a kind on a subject and gathers what they find."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attention_lib.doctor import (
    probes_cache,
    probes_core,
    probes_gradients,
    probes_layout,
    probes_masks,
    probes_numerics,
    probes_positions,
    probes_reach,
    probes_reference,
    probes_state,
    probes_weights,
    refit,
)
from attention_lib.doctor.adapters import UnknownSubject, adapt, describe
from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Examination, Finding, Skipped
from attention_lib.doctor.prepare import prepare
from attention_lib.doctor.probing import (
    Bench,
    Skip,
    SubjectError,
    TimeUp,
    time_limit,
    unchanged_surroundings,
)
from attention_lib.doctor.roots import fold
from attention_lib.doctor.subject import KINDS, Facts

if TYPE_CHECKING:
    from attention_lib.doctor.report import Report

__all__ = ["PROBES", "Probe", "dependency_map", "examine", "run_examination"]

Run = Callable[[Bench], Iterator[Finding]]


@dataclass(frozen=True)
class Probe:
    """A probe: its name, the codes it may give, what it looks at in a line."""

    name: str
    codes: tuple[str, ...]
    about: str
    run: Run
    kinds: tuple[str, ...] = ("attention",)


def _probe(run: Run, codes: str, *kinds: str) -> Probe:
    about = (run.__doc__ or run.__name__).strip().splitlines()[0]
    kinds = kinds or ("attention",)
    return Probe(run.__name__, tuple(codes.split()), about, run, kinds)


PROBES: tuple[Probe, ...] = (
    _probe(probes_reach.control, "AT100 AT503", "attention", "decoder"),
    _probe(probes_state.repeatable, "AT401", "attention", "decoder"),
    _probe(probes_state.hidden_state, "AT402", "attention", "decoder"),
    _probe(probes_layout.lengths, "AT520"),
    _probe(probes_layout.ones, "AT521 AT301", "attention", "decoder"),
    _probe(probes_reach.items, "AT301", "attention", "decoder"),
    _probe(probes_weights.order, "AT204"),
    _probe(probes_reach.reach, "AT101 AT102 AT120 AT311"),
    _probe(probes_reach.train_reach, "AT101"),
    _probe(probes_reach.cross, "AT130 AT102"),
    _probe(probes_masks.mask_per_item, "AT113"),
    _probe(probes_masks.mask_reach, "AT110 AT111 AT112 AT113"),
    _probe(probes_masks.scattered_causal, "AT101 AT110 AT112"),
    _probe(probes_masks.padding, "AT110 AT202 AT210"),
    _probe(probes_masks.empty_row, "AT501 AT505"),
    _probe(probes_weights.rows, "AT201"),
    _probe(probes_weights.reported, "AT314 AT201"),
    _probe(probes_weights.same_output, "AT315"),
    _probe(probes_weights.features, "AT313"),
    _probe(probes_weights.length, "AT202 AT102"),
    _probe(probes_cache.late_queries, "AT601"),
    _probe(probes_state.untouched, "AT403", "attention", "decoder"),
    _probe(probes_state.registered, "AT320"),
    _probe(probes_state.round_trip, "AT404"),
    _probe(probes_layout.strides, "AT302"),
    _probe(probes_layout.constants, "AT510"),
    _probe(probes_numerics.half, "AT502 AT510"),
    _probe(probes_numerics.explodes, "AT503"),
    _probe(probes_numerics.fast_path, "AT504"),
    _probe(probes_gradients.backward, "AT701 AT702 AT505"),
    _probe(probes_gradients.used, "AT310 AT701"),
    _probe(probes_gradients.direction, "AT703"),
    _probe(refit.reproduced, "AT203 AT201 AT101 AT110 AT111 AT112 AT311 AT314"),
    _probe(probes_reference.like_reference, "AT330"),
    _probe(probes_core.core_control, "AT100", "core"),
    _probe(probes_core.core_repeatable, "AT401 AT403", "core"),
    _probe(probes_core.core_items, "AT301 AT311", "core"),
    _probe(probes_core.core_weights, "AT201 AT101 AT102", "core"),
    _probe(probes_core.core_scores, "AT203", "core"),
    _probe(probes_core.core_numerics, "AT503 AT502", "core"),
    _probe(probes_core.core_gradients, "AT702 AT505 AT703", "core"),
    _probe(probes_positions.encoding_sizes, "AT520 AT220", "encoding"),
    _probe(probes_positions.encoding_added, "AT220 AT100", "encoding"),
    _probe(probes_positions.encoding_offset, "AT602", "encoding"),
    _probe(probes_positions.encoding_formula, "AT220 AT222", "encoding"),
    _probe(probes_positions.encoding_tables, "AT510", "encoding"),
    _probe(probes_positions.rotary_layout, "AT211", "rotary"),
    _probe(probes_positions.rotary_relative, "AT221 AT222", "rotary"),
    _probe(probes_positions.rotary_offset, "AT602", "rotary"),
    _probe(probes_positions.rotary_far, "AT222 AT520", "rotary"),
    _probe(probes_positions.bias_distance, "AT230", "bias"),
    _probe(probes_positions.bias_past, "AT230 AT100", "bias"),
    _probe(probes_cache.whole, "AT101", "decoder"),
    _probe(probes_cache.decoding, "AT601 AT602 AT603 AT520", "decoder"),
    _probe(probes_cache.rows_apart, "AT603 AT402", "decoder"),
    _probe(probes_cache.graph, "AT604", "decoder"),
    _probe(probes_reference.same_numbers, "AT330", "core", "encoding", "rotary"),
)


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
        A module or a callable. Torch's attention and layers, those of this package,
        of ``transformers`` and of x-transformers are known; anything else is called by
        the names of its parameters, see :mod:`attention_lib.doctor.adapters`.
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
        ``"softmax"``; ``"sigmoid"``, or ``"sink"`` for rows that need not sum to 1.
    residual
        Whether x itself is in the output, as in a block.
    scale
        Factor of the scores where it is not 1 / sqrt(D).
    differentiable
        False where there is no backward on this device.
    dtype
        Also examine it in this dtype: ``torch.float16`` say. Half precision is run in
        any case.
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
    >>> from attention_lib.doctor import examine
    >>> examine(nn.MultiheadAttention(8, 2)).healthy
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
    >>> run_examination(nn.MultiheadAttention(8, 2)).findings[0].code
    'AT501'
    """
    start = time.perf_counter()
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} must be one of {', '.join(map(repr, KINDS))}")
    facts = Facts(**declared) if facts is None else facts
    facts.check()
    said = _declared(facts)
    name = describe(subject)
    run = _Run(kind, facts, deadline)
    error = ""
    with unchanged_surroundings():
        try:
            with time_limit(deadline):
                adapted = adapt(subject, facts, kind)
                bench = prepare(adapted, kind, seed)
        except UnknownSubject:
            raise
        except (SubjectError, TimeUp) as raised:
            bench = None
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


class _Run:
    """The probes of one examination, one after another."""

    def __init__(self, kind: str, facts: Facts, deadline: float) -> None:
        self.kind, self.facts, self.deadline = kind, facts, deadline
        self.found: list[Finding] = []
        self.passed: list[str] = []
        self.skipped: list[Skipped] = []
        self.raised: set[str] = set()

    def all(self, bench: Bench) -> None:
        for probe in PROBES:
            if self.kind not in probe.kinds:
                continue
            if any(f.code == "AT100" and f.severity == "fault" for f in self.found):
                code = probe.codes[0]
                reason = "nothing depends on the input"
                self.skipped.append(Skipped(code, probe.name, reason))
                continue
            self.one(bench, probe)
            bench.notes["found"] = self.found

    def one(self, bench: Bench, probe: Probe) -> None:
        before = len(self.found)
        try:
            with time_limit(self.deadline):
                for found in probe.run(bench):
                    self.found.append(found)
        except Skip as reason:
            self.skipped.append(
                Skipped(
                    probe.codes[0], probe.name, str(reason), reason.cannot_be_told
                )
            )
            return
        except (SubjectError, TimeUp) as raised:
            self.stopped(raised, probe.name)
            return
        except Exception as error:  # our own: said, and never counted as passed
            text = f"the probe failed: {type(error).__name__}: {error}"
            self.skipped.append(Skipped(probe.codes[0], probe.name, text))
            return
        if len(self.found) == before:
            self.passed.append(probe.name)

    def stopped(self, raised: SubjectError | TimeUp, probe: str) -> None:
        """The subject raised, returned nonsense, or did not return."""
        if isinstance(raised, TimeUp):
            code, message = "AT901", f"no answer within {self.deadline:g} seconds"
            text, why = f"Interrupted in {probe}.", "an endless loop"
        else:
            code, message = "AT900", f"it does not work: {raised.what}"
            text, why = f"Called with {raised.scenario}.", _reason(raised)
        known = [f.code for f in self.found]
        key = code + (raised.what if isinstance(raised, SubjectError) else "")
        if key in self.raised or any(
            c in known for c in ("AT520", "AT521", "AT113", "AT130")
        ):
            reason = f"the subject raised: {message}"
            self.skipped.append(Skipped(code, probe, reason))
            return
        self.raised.add(key)
        self.found.append(
            finding(
                code,
                probe,
                message[:200],
                text,
                why=why,
                kind="construction" if "Attribute" in message else "call",
                effect="an error",
            )
        )


def _reason(raised: SubjectError) -> str:
    if isinstance(raised.error, AttributeError):
        return "something that the call uses was never made"
    if raised.error is None:
        return "the convention is: output (B, L, E), or (output, weights)"
    return "shapes or types inside do not fit; the first line of the error tells"


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
    >>> layer = nn.MultiheadAttention(8, 2)
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
        bench = Bench(adapted, facts, seed, *x.shape[:2], E=x.shape[-1])
        bench.dtype = x.dtype
        how: dict[str, Any] = {"context": context, "mask": mask, "causal": causal}
        try:
            size = probes_reach.reach_of(bench, x.detach(), **how)
        except SubjectError as error:
            raise RuntimeError(f"{error.what} (called with {error.scenario})") from error
    return size.amax(0)


