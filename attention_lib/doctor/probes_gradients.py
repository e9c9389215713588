"""Gradients: they arrive, are finite, and are those of the function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench, Skip, SubjectError, holes, moved

__all__ = ["backward", "direction", "used"]


def parameters(bench: Bench) -> list[tuple[str, nn.Parameter]]:
    """The parameters that train, with their names."""
    return [
        (name, p)
        for module in bench.modules
        for name, p in module.named_parameters()
        if p.requires_grad
    ]


def ways(bench: Bench) -> list[tuple[str, dict[str, Any]]]:
    """Ways of asking in which no row is empty."""
    found: list[tuple[str, dict[str, Any]]] = [("plain", {})]
    if bench.has_flag:
        found.append(("causal", {"causal": True}))
    if bench.has_mask:
        keep = holes(bench.B, bench.L) | torch.eye(bench.L, dtype=torch.bool)
        found.append(("mask", {"mask": keep}))
    return found


def backward(bench: Bench) -> Iterator[Finding]:
    """backward must run and give finite gradients, also where x needs none.

    The first layer of a model gets an input without requires_grad; its parameters must
    train all the same.
    """
    if not bench.facts.differentiable:
        raise Skip("declared as not differentiable")
    x = bench.tokens()
    train = parameters(bench)
    for name, how in ways(bench):
        for needs in (False, True) if train else (True,):
            given = x.clone().requires_grad_(needs)
            out = bench.out(given, grad=True, **how)
            who = "tokens" if needs else "parameters"
            if not out.requires_grad:
                yield finding(
                    "AT701",
                    "backward",
                    f"no gradient arrives at the {who}",
                    "The output does not require a gradient"
                    + ("." if needs else " where x needs none."),
                    why="detach(), no_grad() or re-entrant checkpointing inside",
                    kind="recomputation" if not needs else "autograd",
                    remedy=("+ checkpoint(..., use_reentrant=False)",)
                    if not needs
                    else (),
                    effect="nothing trains, without an error",
                )
                return
            leaves = [p for _, p in train] + ([given] if needs else [])
            try:
                found = torch.autograd.grad(
                    out.square().sum(), leaves, allow_unused=True
                )
            except RuntimeError as error:
                text = " ".join(str(error).split())[:160]
                inplace = "inplace" in text or "in-place" in text
                yield finding(
                    "AT702",
                    "backward",
                    "backward raises",
                    f"{text} ({name})",
                    why="a tensor that backward needs is changed in place"
                    if inplace
                    else "an operation inside has no backward",
                    kind="autograd",
                    sure="shown" if inplace else "consistent",
                    remedy=("- weights *= keep", "+ weights = weights * keep")
                    if inplace
                    else (),
                    effect="training stops at the first step",
                )
                return
            if needs and found[-1] is None:
                yield finding(
                    "AT701",
                    "backward",
                    "no gradient arrives at the tokens",
                    f"The graph does not reach x ({name}).",
                    why="detach() or no_grad() inside",
                    kind="autograd",
                    effect="the layers below never train",
                )
                return
            wrong = [g for g in found if g is not None and not g.isfinite().all()]
            if wrong and torch.isfinite(out).all():
                yield finding(
                    "AT505",
                    "backward",
                    "a gradient is not finite",
                    f"{len(wrong)} gradients are not finite where the output is "
                    f"({name}).",
                    why="where() over a branch whose derivative is infinite, or minus "
                    "infinity that meets zero",
                    kind="numeric range",
                    effect="NaN in the weights after one step",
                )
                return


def used(bench: Bench) -> Iterator[Finding]:
    """Replace each parameter: the output must move, in some way of asking.

    A key bias shifts all scores of a row alike and moves nothing but rounding. It is in
    the output's graph, though, and an unused parameter is not.
    """
    train = parameters(bench)
    if not train:
        raise Skip("it has no parameters that train")
    x = bench.tokens()
    calls: list[dict[str, Any]] = [how for _, how in ways(bench)]
    if bench.has_context and bench.works(x, context=bench.tokens(6, L=bench.S)):
        calls.append({"context": bench.tokens(6, L=bench.S)})
    before = [bench.out(x, **how) for how in calls]
    reached: set[int] = set()
    rows: dict[int, Tensor] = {}
    graph = bench.facts.differentiable
    if graph:
        for how in calls:
            out = bench.out(x, grad=True, **how)
            if not out.requires_grad:
                raise Skip("no gradient arrives: another probe reports it")
            try:
                found = torch.autograd.grad(
                    out.square().sum(), [p for _, p in train], allow_unused=True
                )
            except RuntimeError:
                graph = False
                break
            reached |= {
                i for i, g in enumerate(found) if g is not None and bool((g != 0).any())
            }
            for i, g in enumerate(found):
                if g is not None and g.dim() == 2:
                    moves = (g != 0).any(1)
                    rows[i] = rows.get(i, torch.zeros_like(moves)) | moves
            linked = {i for i, g in enumerate(found) if g is not None}
            bench.notes.setdefault("linked", set()).update(linked)
    yield from _idle_rows(bench, train, rows)
    unused, cut = [], []
    for i, (name, p) in enumerate(train):
        if graph and i in reached:
            continue
        held = p.detach().clone()
        with torch.no_grad():
            p.copy_(torch.randn(p.shape, generator=bench.generator(i)).to(p.dtype))
        try:
            change = max(
                float(moved(y, bench.out(x, **how)).max())
                for y, how in zip(before, calls, strict=True)
            )
        finally:
            with torch.no_grad():
                p.copy_(held)
        linked = bench.notes.get("linked", set())
        if (
            change == 0
            and i not in linked
            or change == 0
            and p.dim() > 1
            and float(held.abs().max()) > 0
        ):
            unused.append(name)
        elif change > 1e-6 and graph and i not in linked:
            cut.append(name)
    if unused:
        yield finding(
            "AT310",
            "used",
            f"{len(unused)} of {len(train)} parameters have no influence",
            f"Replacing {', '.join(unused[:4])} moves the output by exactly 0.",
            measured=0.0,
            why="a projection is made and never called, or computed once and kept",
            kind="dead parameter",
            sure="shown",
            remedy=("+ q, k, v = wq(x), wk(x), wv(x)",),
            effect="they never train; the model is smaller than it says",
        )
    if cut:
        yield finding(
            "AT701",
            "used",
            f"no gradient arrives at {len(cut)} of {len(train)} parameters",
            f"{', '.join(cut[:4])} change the output and get no gradient.",
            why="detach() or no_grad() inside",
            kind="autograd",
            sure="shown",
            effect="they never train, without an error",
        )


def _idle_rows(
    bench: Bench,
    train: list[tuple[str, nn.Parameter]],
    rows: dict[int, Tensor],
) -> Iterator[Finding]:
    """Features that a projection computes and nobody reads, as of a head left out.

    Rows of tables are read by place and may well be idle, so only linear layers count.
    """
    linear = {
        id(layer.weight)
        for module in bench.modules
        for layer in module.modules()
        if isinstance(layer, nn.Linear)
    }
    for i, moves in rows.items():
        name, p = train[i]
        idle = ~moves
        if id(p) not in linear or not idle.any() or not moves.any():
            continue
        # Many tokens, since a gate that is shut for a few hides what stands behind it.
        many = [bench.tokens(seed, L=16) for seed in range(30, 36)]
        held = p.detach().clone()
        try:
            before = [bench.out(x) for x in many]
            with torch.no_grad():
                fresh = torch.randn(p.shape, generator=bench.generator(i)).to(p.dtype)
                p.copy_(torch.where(idle[:, None], fresh, held))
            after = [bench.out(x) for x in many]
        except SubjectError:
            continue
        finally:
            with torch.no_grad():
                p.copy_(held)
        change = max(
            float(moved(*pair).max()) for pair in zip(before, after, strict=True)
        )
        if change > 0:
            continue
        count = int(idle.sum())
        yield finding(
            "AT310",
            "used",
            f"{count} of {len(p)} features of a projection have no influence",
            f"Replacing rows {int(idle.nonzero()[0])}.. of {name} moves the output by "
            "exactly 0.",
            measured=0.0,
            why="a head or a group of heads is computed and never read",
            kind="dead parameter",
            sure="shown",
            effect="they never train; the model is smaller than it says",
        )
        return


def direction(bench: Bench) -> Iterator[Finding]:
    """The gradient must be the slope: compare it with a small step, in float64.

    The random numbers of both are the same. A backward that recomputes with others, or
    that is written by hand and wrong, shows.
    """
    if not bench.facts.differentiable:
        raise Skip("declared as not differentiable")
    if bench.dtype != torch.float64 or bench.noise > 1e-8:
        raise Skip("it does not compute in float64, so a small step drowns in rounding")
    x = bench.tokens()
    way = bench.tokens(21) / 3
    r: Tensor | None = None
    causal = {"causal": True} if bench.has_flag else {}
    given = x.clone().requires_grad_(True)
    try:
        torch.manual_seed(bench.seed)
        before = torch.get_rng_state()
        out = bench.out(given, grad=True, **causal)
        draws = not torch.equal(before, torch.get_rng_state())
        if not out.requires_grad:
            raise Skip("no gradient arrives: another probe reports it")
        r = torch.randn(out.shape, generator=bench.generator(22), dtype=out.dtype)
        (g,) = torch.autograd.grad((out * r).sum(), given, allow_unused=True)
    except RuntimeError as error:
        raise Skip("backward raises: another probe reports it") from error
    if g is None:
        raise Skip("no gradient arrives: another probe reports it")
    step = 1e-5
    up = (bench.out(x + step * way, **causal) * r).sum()
    down = (bench.out(x - step * way, **causal) * r).sum()
    slope = float((up - down) / (2 * step))
    told = float((g * way).sum())
    size = float((g * way).abs().sum()) + 1e-12
    gap = abs(slope - told) / size
    if gap > 1e-4:
        yield finding(
            "AT703",
            "direction",
            "the gradient is not that of the function",
            f"A small step changes the output by {slope:.4g} a unit; the gradient says "
            f"{told:.4g}.",
            measured=told,
            expected=slope,
            why="recomputing in backward draws other random numbers"
            if draws
            else "part of the graph is cut (detach), or backward is written by hand",
            kind="recomputation" if draws else "autograd",
            effect="training goes another way than the loss",
        )
