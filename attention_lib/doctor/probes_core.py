"""Attention as a function of queries, keys and values.

The output is linear in the values, so a value of 1 at one key and 0 at the others reads
off that key's weight: the weights of any core can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probes_positions import called
from attention_lib.doctor.probing import Bench, Skip, SubjectError, moved

__all__ = [
    "core_control",
    "core_gradients",
    "core_items",
    "core_numerics",
    "core_repeatable",
    "core_scores",
    "core_weights",
]


def inputs(
    bench: Bench, seed: int = 1, L: int | None = None, S: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (B, H, L, D), keys and values (B, H, S, D); B, H, L, S, D all differ."""
    B, H, d = 2, bench.H, bench.E
    L = bench.L if L is None else L
    S = bench.notes.get("S", bench.L) if S is None else S
    g = bench.generator(seed)
    made = [
        torch.randn(B, H, n, d, generator=g, dtype=torch.float64) for n in (L, S, S)
    ]
    return made[0].to(bench.dtype), made[1].to(bench.dtype), made[2].to(bench.dtype)


def core(bench: Bench, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The output, checked: (B, H, L, D)."""
    out = called(bench, q, k, v)
    if out.shape != (*q.shape[:3], v.shape[-1]):
        raise SubjectError(
            f"returned shape {tuple(out.shape)}, not {(*q.shape[:3], v.shape[-1])}",
            f"q {tuple(q.shape)}, k {tuple(k.shape)}",
        )
    return out


def core_control(bench: Bench) -> Iterator[Finding]:
    """Other values and other queries must move the output."""
    bench.notes["core"] = True
    q, k, v = inputs(bench, S=bench.L)
    y = core(bench, q, k, v)
    a, b, c = inputs(bench, 2, S=bench.L)
    for name, z in (
        ("values", core(bench, q, k, c)),
        ("queries", core(bench, a, k, v)),
        ("keys", core(bench, q, b, v)),
    ):
        if moved(y, z).max() == 0:
            yield finding(
                "AT100",
                "core_control",
                f"the {name} have no influence",
                f"Replacing all {name} moves the output by exactly 0.",
                measured=0.0,
                kind="vacuous",
                why="an argument is not used",
            )
            return
    try:
        core(bench, *inputs(bench, S=bench.S))
        bench.notes["S"] = bench.S
    except SubjectError as error:
        bench.notes["S"] = bench.L
        if not error.clear and bench.facts.causal in (None, "never"):
            yield finding(
                "AT900",
                "core_control",
                "fewer queries than keys are refused",
                f"{bench.L} queries and {bench.S} keys: {error.what}",
                severity="note",
                kind="call",
                why="one length is used for both",
            )


def core_repeatable(bench: Bench) -> Iterator[Finding]:
    """Twice the same, and the arguments stay as they were."""
    given = inputs(bench)
    kept = [t.clone() for t in given]
    thing = bench.subject.thing
    with torch.no_grad():
        torch.manual_seed(1)
        y = thing(*given)
        torch.manual_seed(2)
        z = thing(*given)
    for name, t, was in zip(("queries", "keys", "values"), given, kept, strict=True):
        if not torch.equal(t, was):
            yield finding(
                "AT403",
                "core_repeatable",
                f"the caller's {name} are changed",
                f"{int((t != was).sum())} numbers differ after the call.",
                kind="in place",
                why="an operation in place on an argument",
                sure="shown",
                remedy=("- q *= scale", "+ q = q * scale"),
            )
            return
    gap = float(moved(y, z).max())
    if gap > 0:
        yield finding(
            "AT401",
            "core_repeatable",
            "two calls give two outputs",
            f"They differ by {gap:.2g}.",
            measured=gap,
            expected=0.0,
            kind="train/eval",
            why="dropout is always on",
        )


def core_items(bench: Bench) -> Iterator[Finding]:
    """Item 0 must not move the other items, and head 0 not the other heads."""
    given = inputs(bench)
    other = inputs(bench, 2)
    y = core(bench, *given)
    for axis, code, name, kind in (
        (0, "AT301", "items", "axis order"),
        (1, "AT311", "heads", "head layout"),
    ):
        if y.shape[axis] < 2:
            continue
        mixed = []
        for t, fresh in zip(given, other, strict=True):
            t = t.clone()
            t.select(axis, 0).copy_(fresh.select(axis, 0))
            mixed.append(t)
        leak = float(moved(y, core(bench, *mixed)).narrow(axis, 1, 1).max())
        if leak > 0:
            yield finding(
                code,
                "core_items",
                f"{name} see one another",
                f"Other {name} move by {leak:.2g} when only the first changes.",
                measured=leak,
                expected=0.0,
                kind=kind,
                why=f"a softmax, a view or a sum runs across the {name}",
            )
            return


def weights_of(bench: Bench, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The weight of each key, read off by values of 1: (B, H, L, S)."""
    columns = []
    for j in range(k.shape[2]):
        one = torch.zeros_like(v)
        one[:, :, j] = 1
        columns.append(core(bench, q, k, one)[..., 0])
    return torch.stack(columns, -1)


def core_weights(bench: Bench) -> Iterator[Finding]:
    """Rows of weights are not negative, sum to 1, and hide what is declared."""
    q, k, v = inputs(bench)
    w = weights_of(bench, q, k, v)
    bench.notes["weights"] = w
    L, S = w.shape[-2:]
    rebuilt = w @ v
    gap = bench.close(rebuilt, core(bench, q, k, v))
    if gap > 1e-6:
        raise Skip("the output is not linear in the values: no weights to read", True)
    declared = bench.facts.pattern is not None or bench.facts.causal == "always"
    square = w
    if declared and L != S:  # makers align fewer queries with either end of the keys
        square = weights_of(bench, *inputs(bench, S=L))
    may = bench.expected(*square.shape[-2:])
    leak = (square.abs() > 0).any(0).any(0) & ~may
    if leak.any():
        i, j = (int(n) for n in leak.nonzero()[0])
        ahead = leak.nonzero()
        first = bool((ahead[:, 1] - ahead[:, 0] == 1).all())
        full = bool((square != 0).all())
        yield finding(
            "AT101",
            "core_weights",
            "queries see keys that they must not",
            f"Query {i} gives key {j} the weight {float(square[:, :, i, j].max()):.2g}.",
            measured=float(square[:, :, i, j].max()),
            expected=0.0,
            key="late triangle" if first else "no causal" if full else "",
            kind="causality",
            why="the mask is another one",
            sure="shown" if first else "consistent",
        )
    yield from _corner(bench, w, may)
    missing = may & (square == 0).all(0).all(0)
    if missing.any():
        i, j = (int(n) for n in missing.nonzero()[0])
        past = torch.ones(L, S, dtype=torch.bool)
        causal = any(torch.equal(missing, ~past.tril(n)) for n in (0, S - L))
        yield finding(
            "AT102",
            "core_weights",
            "queries do not see keys that they may",
            f"Query {i} gives key {j} the weight 0.",
            measured=0.0,
            kind="causality" if causal else "mask value",
            why="it is causal although nothing asks for it"
            if causal
            else "a mask hides keys",
            intended='causal="always"' if causal else "",
        )
        return
    if bench.facts.normalization != "softmax":
        raise Skip("rows need not sum to 1")
    off = float((w.sum(-1) - 1).abs().max())
    if off > 1e-4 or bool((w < -1e-9).any()):
        key = "not normalised"
        for axis, name in ((2, "queries"), (1, "heads"), (0, "batch")):
            if bool(((w.sum(axis) - 1).abs() < 1e-6).all()):
                key = f"over {name}"
                break
        else:
            if bool(((w.sum((-1, -2)) - 1).abs() < 1e-6).all()):
                key = "over all"
        yield finding(
            "AT201",
            "core_weights",
            "outputs are no weighted mean of the values",
            f"Rows of weights sum to {float(w.sum(-1).min()):.3g} up to "
            f"{float(w.sum(-1).max()):.3g}.",
            measured=float(w.sum(-1).max()),
            expected=1.0,
            key=key,
            sure="shown" if key != "not normalised" else "consistent",
            how="along that axis they sum to 1" if key != "not normalised" else "",
        )


def _corner(bench: Bench, w: Tensor, may: Tensor) -> Iterator[Finding]:
    """Fewer queries than keys: with a cache, they are the last. Makers differ."""
    L, S = w.shape[-2:]
    if L == S or not torch.equal(may, torch.ones_like(may).tril()):
        return
    if torch.equal((w != 0).any(0).any(0), torch.ones(L, S).tril().bool()):
        yield finding(
            "AT601",
            "core_weights",
            "fewer queries than keys are taken for the first",
            f"Of {L} queries and {S} keys, the first query sees the first key alone.",
            severity="note",
            key="top left",
            sure="shown",
            how="the weights say so",
        )


def core_scores(bench: Bench) -> Iterator[Finding]:
    """The logarithm of the weights is the scaled product of queries and keys."""
    w = bench.notes.get("weights")
    if w is None:
        raise Skip("no weights could be read", True)
    if bench.facts.normalization != "softmax":
        raise Skip("the weights are no softmax")
    q, k, _ = inputs(bench)
    seen = w > 0
    if bool((w.sum(-1) - 1).abs().max() > 1e-4):
        raise Skip("rows do not sum to 1: another probe reports it")
    products = (q @ k.transpose(-1, -2)).double()
    logs = torch.where(seen, w, 1.0).double().log()
    count = seen.sum(-1, keepdim=True)

    def centred(t: Tensor) -> Tensor:
        t = torch.where(seen, t, 0.0)
        return torch.where(seen, t - t.sum(-1, keepdim=True) / count, 0.0)

    a, b = centred(products), centred(logs)
    scale = float((a * b).sum() / (a * a).sum())
    rest = float((b - scale * a).abs().max() / b.abs().max().clamp(min=1e-30))
    if rest > 1e-3:
        raise Skip("the scores are no scaled product of queries and keys", True)
    d = bench.E
    want = bench.facts.scale if bench.facts.scale is not None else d**-0.5
    if abs(scale / want - 1) > 1e-3:
        wide = (d * bench.H) ** -0.5
        key = "other scale"
        if abs(scale - 1) < 1e-3:
            key = "no scale"
        elif abs(scale / wide - 1) < 1e-3:
            key = "scale by width"
        yield finding(
            "AT203",
            "core_scores",
            "scores are scaled otherwise than by one over the root of the head width",
            f"Scores are multiplied by {scale:.4g}; it should be {want:.4g}.",
            measured=scale,
            expected=want,
            key=key,
            sure="shown",
            how="the weights are exactly a softmax of the products times that number",
            intended=f"scale={scale:.6g}",
        )


def core_numerics(bench: Bench) -> Iterator[Finding]:
    """Scores of some thousands in float32 give finite outputs."""
    q, k, v = (t.float() for t in inputs(bench))
    out = core(bench, 100 * q, 100 * k, v)
    if not torch.isfinite(out).all():
        yield finding(
            "AT503",
            "core_numerics",
            "large scores give NaN or infinity",
            f"{int((~torch.isfinite(out)).sum())} of {out.numel()} outputs are not "
            "finite for queries and keys of size 100.",
            why="exp of the scores without subtracting the row's maximum",
            kind="numeric range",
            remedy=("- scores.exp() / scores.exp().sum(-1)", "+ scores.softmax(-1)"),
            effect="NaN after some steps of training",
        )


def core_gradients(bench: Bench) -> Iterator[Finding]:
    """backward runs, and its gradients are the slopes of the function."""
    if not bench.facts.differentiable:
        raise Skip("declared as not differentiable")
    given = [t.requires_grad_(True) for t in inputs(bench)]
    thing = bench.subject.thing
    torch.manual_seed(bench.seed)
    with torch.enable_grad():
        out = thing(*(t.clone() for t in given))
        if not out.requires_grad:
            yield finding(
                "AT701",
                "core_gradients",
                "no gradient arrives",
                "The output requires no gradient.",
                kind="autograd",
                why="detach() or no_grad() inside",
            )
            return
        r = torch.randn(out.shape, generator=bench.generator(3), dtype=torch.float64)
        r = r.to(out.dtype)
        try:
            grads = torch.autograd.grad((out * r).sum(), given, allow_unused=True)
        except RuntimeError as error:
            text = " ".join(str(error).split())[:160]
            yield finding(
                "AT702",
                "core_gradients",
                "backward raises",
                text,
                kind="autograd",
                why="a tensor that backward needs is changed in place"
                if "inplace" in text
                else "an operation inside has no backward",
            )
            return
    step = 1e-5
    for i, name in enumerate(("queries", "keys", "values")):
        g = grads[i]
        way = torch.randn(given[i].shape, generator=bench.generator(9 + i)).double()
        up, down = ([t.detach() for t in given] for _ in range(2))
        up[i], down[i] = up[i] + step * way, down[i] - step * way
        slope = float(((core(bench, *up) - core(bench, *down)) * r).sum() / (2 * step))
        told = 0.0 if g is None else float((g * way).sum())
        size = abs(slope) + (0.0 if g is None else float((g * way).abs().sum()))
        if abs(slope - told) > 1e-4 * size + 1e-9:
            yield finding(
                "AT703",
                "core_gradients",
                f"the gradient of the {name} is not that of the function",
                f"A small step changes the output by {slope:.4g} a unit; the gradient "
                f"says {told:.4g}.",
                measured=told,
                expected=slope,
                kind="autograd",
                why="backward is written by hand, or part of the graph is cut",
            )
            return
