"""From a module's own signature to the convention of the examination.

An attention is called ``f(x, *, context=None, mask=None, causal=False,
need_weights=False)``: x (B, L, E), context (B, S, E) or None for self-attention, mask
bool with True = may attend, (L, S) or (B, L, S). It returns the output (B, L, E), or
the output and the weights (B, H, L, S).

Any other signature needs an adapter of a few lines, such as this one for a layer of
``transformers`` that takes a float mask with one axis for the heads:

>>> def adapter(x, *, mask=None):
...     B, L, _ = x.shape
...     keep = torch.ones(B, 1, L, L, dtype=torch.bool) if mask is None else (
...         mask.expand(B, L, L)[:, None])
...     hide = torch.zeros(keep.shape, dtype=x.dtype).masked_fill(~keep, -1e30)
...     return layer(x, attention_mask=hide)[0]
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.doctor.conventions import (
    describe,
    keywords,
    made_of,
    parameters_of,
)
from attention_lib.doctor.copies import private_copy
from attention_lib.doctor.known_layers import KNOWN_LAYERS
from attention_lib.doctor.known_libraries import published, x_transformers
from attention_lib.doctor.subject import Facts, Subject

__all__ = ["RECIPE", "UnknownSubject", "adapt"]

RECIPE = """\
def attend(x, *, context=None, mask=None, causal=False, need_weights=False):
    # x (B, L, E); mask bool, True = may attend, (L, S) or (B, L, S)
    keep = combine(mask, causal)          # in the form that your module takes
    out = module(x, attn_mask=keep)       # as your module is called
    return out                            # (B, L, E), or (out, weights)"""

NAMES = {
    "context": ("context", "memory", "key_value_states", "encoder_hidden_states"),
    "mask": ("mask", "attn_mask", "attention_mask", "keep", "padding_mask"),
    "causal": ("causal", "is_causal", "use_causal_mask"),
    "weights": (
        *("need_weights", "return_weights", "return_attention", "output_attentions"),
        *("return_attn", "return_attention_weights", "with_weights"),
    ),
}
QUERY = ("q", "query", "queries", "xq", "query_input")
KEY = ("k", "key", "keys", "xk", "key_input")
VALUE = ("v", "value", "values", "xv", "value_input")


class UnknownSubject(ValueError):
    """The signature says not how to call it; the message prints an adapter to write."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"{name}: {why}.\nWrite an adapter and examine that:\n\n{RECIPE}\n"
        )


def adapt(subject: Any, facts: Facts, kind: str = "attention") -> Subject:
    """A private copy of the subject behind the convention of its kind.

    Parameters
    ----------
    subject
        A module or a callable.
    facts
        What is declared. What the adapter knows is filled in.
    kind
        One of the kinds of :func:`attention_lib.doctor.examine`.

    Returns
    -------
    Subject
        Ready to be called.

    Raises
    ------
    UnknownSubject
        If the signature does not say how to call it.

    Examples
    --------
    >>> subject = adapt(nn.MultiheadAttention(8, 2), Facts())
    >>> subject.facts.num_heads, subject.facts.context
    (2, True)
    """
    name = describe(subject)
    if isinstance(subject, type) and kind in ("attention", "core", "decoder"):
        made = made_of(subject, facts)
        if made is None:
            raise UnknownSubject(name, "it is a class: make an instance and give that")
        subject = made
    if kind == "decoder":
        for method in ("full", "step"):
            if not callable(getattr(subject, method, None)):
                raise UnknownSubject(
                    name,
                    "a decoder has the methods full(x) -> y and step(x_t, state) -> "
                    f"(y, state), and {method!r} is missing",
                )
        thing = private_copy(subject)
        return Subject(lambda x, *_: thing.full(x), thing, name, facts)
    if not callable(subject) and callable(getattr(subject, "attend", None)):
        subject = subject.attend
    if not callable(subject):
        raise UnknownSubject(name, "it is not callable")
    thing = subject if isinstance(subject, type) else private_copy(subject)
    if kind != "attention":
        return Subject(thing, thing, name, facts, keywords(thing))
    for known, make in KNOWN_LAYERS:
        if isinstance(thing, known) and _called_alike(thing, known):
            return make(thing, name, facts)
    package = type(thing).__module__.partition(".")[0]
    if isinstance(thing, nn.Module) and package == "x_transformers":
        return x_transformers(thing, name, facts)
    hidden = "hidden_states" in keywords(thing)
    if isinstance(thing, nn.Module) and package == "transformers" and hidden:
        return published(thing, name, facts)
    return _by_signature(thing, name, facts)


#: What the adapters of known layers pass by name.
GIVEN = {"attn_mask", "need_weights", "average_attn_weights", "src_mask", "tgt_mask"}


def _called_alike(thing: Any, known: Any) -> bool:
    """Whether a subclass can still be called as the class that is known."""
    inherited = set(inspect.signature(known.forward).parameters)
    own = inspect.signature(type(thing).forward).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in own.values())
    return anything or GIVEN & inherited <= set(own)


# Anything else ------------------------------------------------------------------------


def _by_signature(thing: Any, name: str, facts: Facts) -> Subject:
    """From the names of its parameters."""
    parameters = parameters_of(thing)
    if parameters is None:
        nothing: frozenset[str] = frozenset()
        return Subject(lambda x, c, m, a, w: thing(x), thing, name, facts, nothing)
    kinds = inspect.Parameter
    positional = [
        p
        for p in parameters
        if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    if not positional and not any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        raise UnknownSubject(name, "it takes no tokens")
    names = {p.name for p in parameters}
    anything = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    uses = {
        role: next((n for n in words if n in names), None)
        for role, words in NAMES.items()
    }
    if anything:  # **kwargs: the convention's own names are passed on
        own = {
            "context": "context",
            "mask": "mask",
            "causal": "causal",
            "weights": "need_weights",
        }
        uses = {role: uses[role] or word for role, word in own.items()}
    used = {positional[0].name} if positional else set()
    triple = len(positional) >= 3 and (
        positional[0].name.lower() in QUERY
        and positional[1].name.lower() in KEY
        and positional[2].name.lower() in VALUE
    )
    if triple:
        used |= {p.name for p in positional[:3]}
    padding_only = False
    for p in parameters:
        needed = p.default is kinds.empty and p.kind not in (
            kinds.VAR_KEYWORD,
            kinds.VAR_POSITIONAL,
        )
        if needed and p.name == uses["mask"] and p.name in ("keep", "padding_mask"):
            padding_only = True
        elif needed and p.name not in used | {uses["mask"], uses["context"]}:
            raise UnknownSubject(name, f"what its argument {p.name!r} means is unknown")
    mask_needed = any(
        p.name == uses["mask"] and p.default is kinds.empty for p in parameters
    )
    context_needed = any(
        p.name == uses["context"] and p.default is kinds.empty for p in parameters
    )

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        given: dict[str, Any] = {}
        if mask is not None and padding_only:
            mask = mask[:, -1] if mask.dim() == 3 else mask[-1].expand(x.shape[0], -1)
        if padding_only and mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        if uses["mask"] and (mask is not None or mask_needed):
            given[uses["mask"]] = mask
        if uses["causal"] and causal:
            given[uses["causal"]] = True
        if uses["weights"] and need_weights:
            given[uses["weights"]] = True
        if triple:
            c = x if context is None else context
            return thing(x, c, c, **given)
        if uses["context"] and (context is not None or context_needed):
            given[uses["context"]] = x if context is None else context
        return thing(x, **given)

    takes = {role for role, word in uses.items() if word}
    if triple:
        takes.add("context")
    return Subject(call, thing, name, facts, frozenset(takes), padding_only)
