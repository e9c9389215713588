"""Repeatability, hidden state, the caller's tensors, parameters that are missing."""

from __future__ import annotations

import inspect
import io
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.doctor.adapters import adapt
from attention_lib.doctor.causes import finding
from attention_lib.doctor.copies import private_copy
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench, Skip, SubjectError, moved

__all__ = [
    "hidden_state",
    "new_twin",
    "registered",
    "repeatable",
    "round_trip",
    "untouched",
]


def repeatable(bench: Bench) -> Iterator[Finding]:
    """Call twice in eval: the outputs must be equal, bit by bit.

    Where they are equal once the random seed is, random numbers are drawn in eval.
    """
    x = bench.tokens()
    for name, how in bench.ways():
        torch.manual_seed(1)
        y = bench.out(x, reseed=False, **how)
        torch.manual_seed(2)
        z = bench.out(x, reseed=False, **how)
        gap = float(moved(y, z).max())
        if gap == 0:
            continue
        seeded = moved(bench.out(x, **how), bench.out(x, **how)).max() == 0
        if not seeded:
            return  # hidden state: another probe's
        zeros = (y == 0).double().mean()
        yield finding(
            "AT401",
            "repeatable",
            "two calls in eval mode give two outputs",
            f"The same call twice differs by {gap:.2g} ({name}); with the same random "
            "seed it does not.",
            measured=gap,
            expected=0.0,
            why="dropout acts in eval: dropout_p is not 0 outside training",
            kind="train/eval",
            sure="shown",
            remedy=(
                "- dropout_p=self.p",
                "+ dropout_p=self.p if self.training else 0.0",
            ),
            effect="evaluation and generation are random, and worse",
        )
        del zeros
        return


def hidden_state(bench: Bench) -> Iterator[Finding]:
    """Another input in between must not change what a call gives.

    It has another length and another batch, with and without a mask.
    """
    x = bench.tokens()
    first = bench.out(x)
    between = bench.tokens(3, bench.B + 1, bench.L + 2)
    for how in [how for name, how in bench.ways() if name != "mask"] or [{}]:
        if bench.works(between, **how):
            bench.out(between, **how)
    bench.works(bench.tokens(3))
    if bench.has_context:
        one, two = bench.tokens(6, L=bench.S), bench.tokens(7, L=bench.S)
        if bench.works(x, context=one):
            other = bench.tokens(8, L=bench.S - 1)  # of another length: kept by none
            bench.out(x, context=other)
            y = bench.out(x, context=one)
            z = bench.out(x, context=two)
            bench.out(x, context=other)
            kept = float(moved(z, bench.out(x, context=two)).max())
            kept = max(kept, float(moved(y, bench.out(x, context=one)).max()))
            if kept > 0:
                yield finding(
                    "AT402",
                    "hidden_state",
                    "another context changes a later call",
                    f"The same call after other contexts differs by {kept:.2g}. It must "
                    "not differ at all.",
                    measured=kept,
                    expected=0.0,
                    why="keys or values of a context are kept between calls",
                    kind="hidden state",
                    sure="shown",
                )
                return
    again = bench.out(x)
    gap = float(moved(first, again).max())
    if gap > 0:
        yield finding(
            "AT402",
            "hidden_state",
            "an earlier call changes a later one",
            f"The same call before and after another input differs by {gap:.2g}. It "
            "must not differ at all.",
            measured=gap,
            expected=0.0,
            why="something is kept between calls: a cached mask, table, key or counter",
            kind="hidden state",
            sure="shown",
            effect="results depend on what was run before",
        )


def untouched(bench: Bench) -> Iterator[Finding]:
    """The caller's tokens, context and mask must be as they were after a call."""
    for name, how in [*bench.ways(), *_both_rules(bench), *_cross(bench)]:
        given: dict[str, Any] = {"x": bench.tokens(), **how}
        before = {k: v.clone() for k, v in given.items() if isinstance(v, Tensor)}
        given = {k: v.clone() if k in before else v for k, v in given.items()}
        bench.raw(**given, as_is=True)
        for key, was in before.items():
            if not torch.equal(given[key], was):
                yield finding(
                    "AT403",
                    "untouched",
                    "the caller's tokens are changed"
                    if key == "x"
                    else f"the caller's {key} is changed",
                    f"{int((given[key] != was).sum())} of {was.numel()} entries of "
                    f"{key} differ after the call ({name}).",
                    why="an operation in place (+=, masked_fill_) on an argument",
                    kind="in place",
                    sure="shown",
                    remedy=("- x += ...", "+ x = x + ..."),
                    effect="whoever uses the tensor next gets another one",
                )
                return


def _both_rules(bench: Bench) -> list[tuple[str, dict[str, Any]]]:
    """A mask and the causal rule in one call: what joins them may write into the mask."""
    if not (bench.has_flag and bench.has_mask):
        return []
    mask = next(how["mask"] for name, how in bench.ways() if name == "mask")
    both = {"mask": mask, "causal": True}
    return [("mask and causal", both)] if bench.works(bench.tokens(), **both) else []


def _cross(bench: Bench) -> list[tuple[str, dict[str, Any]]]:
    if not bench.has_context:
        return []
    context = bench.tokens(6, L=bench.S)
    try:
        bench.raw(bench.tokens(), context=context)
    except SubjectError:
        return []
    return [("cross-attention", {"context": context})]


def leaves_of(out: Tensor) -> list[Tensor]:
    """The tensors at the ends of an output's graph: everything it can train."""
    found: list[Tensor] = []
    seen = set()
    nodes = [out.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append(variable)
        nodes.extend(next_node for next_node, _ in node.next_functions)
    return found


def registered(bench: Bench) -> Iterator[Finding]:
    """Whatever the output can train must be among the parameters of a module.

    The output's graph ends in the tensors it was made from. One that requires a
    gradient and is neither parameter nor input is trained by no optimizer and saved by
    no state_dict.
    """
    thing = bench.module
    if not bench.facts.differentiable or thing is None:
        raise Skip("not a module that can be differentiated")
    known = {id(p) for p in thing.parameters()}
    if not any(p.requires_grad for m in bench.modules for p in m.parameters()):
        raise Skip("it has no parameters that train")
    x = bench.tokens()
    out = bench.out(x, grad=True)
    strange = [t for t in leaves_of(out) if id(t) not in known]
    if strange:
        count = sum(t.numel() for t in strange)
        of = sum(p.numel() for p in thing.parameters())
        yield finding(
            "AT320",
            "registered",
            "parameters are not registered",
            f"{len(strange)} tensors with {count} numbers train the output and are not "
            f"in parameters(), which holds {of}.",
            measured=float(count),
            expected=0.0,
            why="modules are kept in a plain list or dict, or a tensor is no "
            "nn.Parameter",
            kind="registration",
            sure="shown",
            remedy=("- self.heads = [...]", "+ self.heads = nn.ModuleList([...])"),
            effect="they never train, are not saved and stay on the CPU",
        )
        return
    several = list(thing.named_parameters(remove_duplicate=False))
    if len(several) > len(known):
        raise Skip(
            f"all are registered, {len(several) - len(known)} under a second name: "
            "whether layers are meant to share them does not show",
            cannot_be_told=True,
        )


def _twin(thing: nn.Module, seed: int) -> nn.Module | None:
    """A module made anew, with other random numbers, from attributes of the same names.

    None where an argument of the constructor has no attribute of its name.
    """
    given = {}
    try:
        for p in list(inspect.signature(type(thing).__init__).parameters.values())[1:]:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                return None
            value = getattr(thing, p.name, inspect.Parameter.empty)
            if not isinstance(value, (int, float, str, bool, type(None))):
                return None
            given[p.name] = value
        torch.manual_seed(seed)
        made = type(thing)(**given)
        made.load_state_dict(thing.state_dict())
    except Exception:  # noqa: BLE001 - a constructor may raise anything
        return None
    first = next(iter(thing.parameters()))
    return made.to(first.dtype).eval()


def new_twin(bench: Bench) -> Iterator[Finding]:
    """Load the state into a module made anew with another seed: the same output.

    What was drawn at random and is not in state_dict differs in the twin.
    """
    thing = bench.subject.thing
    if not isinstance(thing, nn.Module) or not list(thing.parameters()):
        raise Skip("not a module with parameters")
    twin = _twin(thing, 1234)
    if twin is None:
        raise Skip("no twin can be made from its attributes", True)
    facts = replace(bench.facts)
    other = replace(bench, subject=adapt(twin, facts), facts=bench.facts)
    x = bench.tokens()
    y = bench.out(x)
    try:
        gap = float(moved(y, other.out(x)).max())
    except SubjectError as error:
        raise Skip("its twin does not work", True) from error
    if gap == 0:
        return
    copied = other.subject.thing
    held = {n: b for n, b in thing.named_buffers() if n not in thing.state_dict()}
    for name, b in copied.named_buffers():
        if name in held:
            b.copy_(held[name])
    strays = [(n, v) for m in thing.modules() for n, v in vars(m).items() if _is(v)]
    for (name, value), module in zip(
        strays,
        (m for m in copied.modules() for v in vars(m).values() if _is(v)),
        strict=False,
    ):
        setattr(module, name, value)
    if float(moved(y, other.out(x)).max()) == 0:
        yield finding(
            "AT404",
            "new_twin",
            "state_dict leaves out what the output needs",
            f"A twin made with another seed, with this state loaded, differs by "
            f"{gap:.2g}.",
            measured=gap,
            expected=0.0,
            why="something random is a plain attribute or a buffer that is not saved",
            kind="registration",
            sure="shown",
            remedy=('+ self.register_buffer("table", table)  # persistent',),
            effect="a loaded checkpoint computes something else",
        )
    else:
        raise Skip("its twin is made otherwise than it was", True)


def round_trip(bench: Bench) -> Iterator[Finding]:
    """Save the state, spoil every parameter, load the state: the output must return.

    Spoiling must also change the output: what is computed once from the parameters and
    kept is stale.
    """
    thing = bench.module
    if thing is None:
        raise Skip("not a module")
    if not list(thing.parameters()):
        raise Skip("it has no parameters")
    x = bench.tokens()
    y = bench.out(x)
    copy = private_copy(thing)
    if copy is thing:
        raise Skip("it cannot be copied")
    held = io.BytesIO()
    try:
        state = {k: v.clone() for k, v in thing.state_dict().items() if _is(v)}
        torch.save(state, held)
        held.seek(0)
        with torch.no_grad():
            for number, p in enumerate(thing.parameters()):
                drawn = torch.randn(p.shape, generator=bench.generator(number))
                p.copy_(drawn.to(p.dtype))
        thing.load_state_dict(torch.load(held))
        gap = float(moved(y, bench.out(x)).max())
    except SubjectError:
        raise
    except Exception as error:  # noqa: BLE001 - a subject may raise anything
        text = " ".join(str(error).split())[:120]
        gap = float("inf")
        why = f"load_state_dict raises {type(error).__name__}: {text}"
    else:
        why = "state_dict leaves out something that the output needs"
    finally:
        with torch.no_grad():
            for p, q in zip(thing.parameters(), copy.parameters(), strict=True):
                p.copy_(q)
    if gap > 0:
        yield finding(
            "AT404",
            "round_trip",
            "the state does not survive saving and loading",
            f"After state_dict, other parameters and load_state_dict the output "
            f"differs by {gap:.2g}.",
            measured=gap,
            expected=0.0,
            why=why,
            kind="registration",
            effect="a loaded checkpoint computes something else",
        )


def _is(value: object) -> bool:
    return isinstance(value, Tensor)
