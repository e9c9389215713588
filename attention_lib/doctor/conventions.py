"""How modules are called: names of arguments, sizes, forms of masks."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.doctor.copies import modules_of
from attention_lib.doctor.subject import Facts

__all__ = [
    "HEADS",
    "WIDTHS",
    "describe",
    "find_sizes",
    "hide_of",
    "keep_of",
    "keywords",
    "parameters_of",
]


def describe(subject: Any) -> str:
    """What a subject is, in a line of at most 100 characters."""
    try:
        if isinstance(subject, nn.Module):
            inside = subject.extra_repr()
            text = f"{type(subject).__name__}({inside})"
        elif hasattr(subject, "__qualname__"):
            text = str(subject.__qualname__)
        else:
            text = repr(subject)
    except Exception:  # noqa: BLE001 - a subject may raise anything
        text = type(subject).__name__
    text = " ".join(text.split())
    return text if len(text) <= 100 else text[:97] + "..."


def keep_of(
    x: Tensor, context: Tensor | None, mask: Tensor | None, causal: bool
) -> Tensor | None:
    """The mask and the causal rule as one bool tensor (B, 1, L, S), or None."""
    keep = None
    S = (x if context is None else context).shape[1]
    if mask is not None:
        keep = mask[:, None] if mask.dim() == 3 else mask
    if causal:
        L = x.shape[1]
        rule = torch.ones(L, S, dtype=torch.bool, device=x.device).tril(S - L)
        keep = rule if keep is None else keep & rule
    return None if keep is None else keep.expand(x.shape[0], 1, x.shape[1], S)


def hide_of(keep: Tensor | None, heads: int) -> Tensor | None:
    """Torch's own form: (B * H, L, S), True = hidden."""
    if keep is None:
        return None
    return ~keep.expand(-1, heads, -1, -1).reshape(-1, *keep.shape[2:])


def fill_in(facts: Facts, **known: Any) -> None:
    """What the adapter knows, where nothing was declared."""
    for name, value in known.items():
        if getattr(facts, name) is None or name == "residual":
            setattr(facts, name, value)


def parameters_of(call: Any) -> list[inspect.Parameter] | None:
    try:
        function = call.forward if isinstance(call, nn.Module) else call
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def keywords(call: Any) -> frozenset[str]:
    return frozenset(p.name for p in parameters_of(call) or ())


WIDTHS = ("embed_dim", "d_model", "model_dim", "hidden_size", "n_embd", "dim", "embed")


HEADS = ("num_heads", "n_heads", "n_head", "nhead", "heads", "num_attention_heads", "h")


def made_of(subject: type, facts: Facts) -> Any:
    """A class called with the declared width and number of heads, by their names.

    Returns None where its constructor needs anything else.
    """
    given: dict[str, Any] = {}
    for p in parameters_of(subject) or []:
        if p.name in WIDTHS and facts.embed_dim is not None:
            given[p.name] = facts.embed_dim
        elif p.name in HEADS and facts.num_heads is not None:
            given[p.name] = facts.num_heads
        elif p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            return None
    return subject(**given)


def find_sizes(thing: Any, facts: Facts) -> None:
    """Width and heads, from attributes that are named so or from the first Linear."""
    for module in modules_of(thing):
        for part in module.modules():
            for field, words in (("embed_dim", WIDTHS), ("num_heads", HEADS)):
                value = next(
                    (v for w in words if _size(v := getattr(part, w, 0))), None
                )
                if getattr(facts, field) is None and value is not None:
                    setattr(facts, field, value)
        for part in module.modules():
            if facts.embed_dim is None and isinstance(part, nn.Linear):
                facts.embed_dim = part.in_features


def _size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
