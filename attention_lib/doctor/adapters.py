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
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.block import TransformerBlock
from attention_lib.doctor.copies import modules_of, private_copy
from attention_lib.doctor.subject import Facts, Subject
from attention_lib.layers import MultiHeadAttention, SelfAttention

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


def describe(subject: Any) -> str:
    """What a subject is, in a line of at most 100 characters."""
    try:
        if isinstance(subject, nn.Module):
            inside = subject.extra_repr() if type(subject).__repr__ else ""
            text = f"{type(subject).__name__}({inside})"
        elif hasattr(subject, "__qualname__"):
            text = str(subject.__qualname__)
        else:
            text = repr(subject)
    except Exception:
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
    if kind == "decoder":
        for method in ("full", "step"):
            if not callable(getattr(subject, method, None)):
                raise UnknownSubject(
                    name,
                    "a decoder has the methods full(x) -> y and step(x_t, state) -> "
                    f"(y, state), and {method!r} is missing",
                )
        thing = private_copy(subject)
        _eval(thing)
        return Subject(lambda x, *_: thing.full(x), thing, name, facts)
    if not callable(subject) and callable(getattr(subject, "attend", None)):
        subject = subject.attend
    if not callable(subject):
        raise UnknownSubject(name, "it is not callable")
    thing = subject if isinstance(subject, type) else private_copy(subject)
    _eval(thing)
    if kind != "attention":
        return Subject(thing, thing, name, facts, keywords(thing))
    for known, make in _KNOWN:
        if isinstance(thing, known):
            return make(thing, name, facts)
    package = type(thing).__module__.partition(".")[0]
    if isinstance(thing, nn.Module) and package == "x_transformers":
        return _x_transformers(thing, name, facts)
    if isinstance(thing, nn.Module) and package == "transformers":
        return _transformers(thing, name, facts)
    return _by_signature(thing, name, facts)


def _eval(thing: Any) -> None:
    for module in modules_of(thing):
        module.eval()


def _fill(facts: Facts, **known: Any) -> None:
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


# Modules that are known ---------------------------------------------------------------


def _torch_attention(m: nn.MultiheadAttention, name: str, facts: Facts) -> Subject:
    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        hide = hide_of(keep_of(x, context, mask, causal), m.num_heads)
        c = x if context is None else context
        if m.batch_first:
            out, weights = m(
                x,
                c,
                c,
                attn_mask=hide,
                need_weights=need_weights,
                average_attn_weights=False,
            )
        else:
            out, weights = m(
                x.transpose(0, 1),
                c.transpose(0, 1),
                c.transpose(0, 1),
                attn_mask=hide,
                need_weights=need_weights,
                average_attn_weights=False,
            )
            out = out.transpose(0, 1)
        return (out, weights) if need_weights else out

    _fill(
        facts,
        embed_dim=m.embed_dim,
        num_heads=m.num_heads,
        causal="flag",
        masks="any",
        context=m.kdim == m.vdim == m.embed_dim,
        weights="heads",
    )
    if m.bias_k is not None or m.add_zero_attn:
        facts.normalization = "sink"  # a key that is not a token
    takes = frozenset({"context", "mask", "causal", "weights"})
    return Subject(call, m, name, facts, takes)


def _torch_encoder(m: nn.TransformerEncoderLayer, name: str, facts: Facts) -> Subject:
    heads, batch_first = m.self_attn.num_heads, m.self_attn.batch_first

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        hide = hide_of(keep_of(x, None, mask, causal), heads)
        if batch_first:
            return m(x, src_mask=hide)
        return m(x.transpose(0, 1), src_mask=hide).transpose(0, 1)

    _fill(
        facts,
        embed_dim=m.self_attn.embed_dim,
        num_heads=heads,
        causal="flag",
        masks="any",
        residual=True,
    )
    return Subject(call, m, name, facts, frozenset({"mask", "causal"}))


def _torch_decoder(m: nn.TransformerDecoderLayer, name: str, facts: Facts) -> Subject:
    heads, batch_first = m.self_attn.num_heads, m.self_attn.batch_first
    E = m.self_attn.embed_dim

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        hide = hide_of(keep_of(x, None, mask, causal), heads)
        memory = torch.linspace(-1, 1, 3 * E, dtype=x.dtype, device=x.device).sin()
        memory = memory.view(1, 3, E).expand(x.shape[0], 3, E)
        if batch_first:
            return m(x, memory, tgt_mask=hide)
        out = m(x.transpose(0, 1), memory.transpose(0, 1), tgt_mask=hide)
        return out.transpose(0, 1)

    _fill(
        facts,
        embed_dim=E,
        num_heads=heads,
        causal="flag",
        masks="any",
        residual=True,
    )
    return Subject(call, m, name, facts, frozenset({"mask", "causal"}))


def _order(m: MultiHeadAttention) -> str | None:
    """Whether a layer of ours knows positions, and which."""
    return None if m.rotary is None and m.score_bias is None else "relative"


def _our_attention(m: MultiHeadAttention, name: str, facts: Facts) -> Subject:
    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        return m(
            x, context, attn_mask=mask, is_causal=causal, need_weights=need_weights
        )

    _fill(
        facts,
        embed_dim=m.embed_dim,
        num_heads=m.num_heads,
        causal="flag",
        masks="any",
        context=m.kdim == m.vdim == m.embed_dim and m.rotary is None,
        weights="heads",
        positions=_order(m),
        scale=m.scale,
    )
    takes = frozenset({"context", "mask", "causal", "weights"})
    return Subject(call, m, name, facts, takes, causal_rectangle=False)


def _our_self_attention(m: SelfAttention, name: str, facts: Facts) -> Subject:
    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        return m(x, attn_mask=mask, is_causal=causal, need_weights=need_weights)

    _fill(
        facts,
        embed_dim=m.embed_dim,
        num_heads=1,
        causal="flag",
        masks="any",
        weights="heads",
    )
    return Subject(call, m, name, facts, frozenset({"mask", "causal", "weights"}))


def _our_block(m: TransformerBlock, name: str, facts: Facts) -> Subject:
    inner = m.attention
    E = inner.embed_dim

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        memory = None
        if m.cross_attention is not None:
            width = m.cross_attention.kdim
            memory = torch.linspace(-1, 1, 3 * width, dtype=x.dtype, device=x.device)
            memory = memory.sin().view(1, 3, width).expand(x.shape[0], 3, width)
        return m(
            x, memory, attn_mask=mask, is_causal=causal, need_weights=need_weights
        )

    _fill(
        facts,
        embed_dim=E,
        num_heads=inner.num_heads,
        causal="flag",
        masks="any",
        weights="heads",
        residual=True,
        positions=_order(inner),
    )
    return Subject(call, m, name, facts, frozenset({"mask", "causal", "weights"}))


_KNOWN: tuple[tuple[type, Callable[..., Subject]], ...] = (
    (nn.MultiheadAttention, _torch_attention),
    (nn.TransformerEncoderLayer, _torch_encoder),
    (nn.TransformerDecoderLayer, _torch_decoder),
    (MultiHeadAttention, _our_attention),
    (SelfAttention, _our_self_attention),
    (TransformerBlock, _our_block),
)


def _x_transformers(m: nn.Module, name: str, facts: Facts) -> Subject:
    """An ``Attention`` of x-transformers: a bool mask with all four axes."""

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        out = m(x, context=context, attn_mask=keep_of(x, context, mask, causal))
        return out[0] if isinstance(out, tuple) else out

    always = bool(getattr(m, "causal", False))
    memory = getattr(m, "mem_k", None) is not None
    if memory:  # keys that are not tokens, which its masks do not count
        facts.normalization = "sink"
        _fill(facts, masks="none", causal="always" if always else "never")
    _fill(
        facts,
        num_heads=getattr(m, "heads", None),
        causal="always" if always else "flag",
        masks="any",
        context=not always,
        scale=getattr(m, "scale", None),
    )
    takes = {"mask"} if always else {"mask", "causal", "context"}
    return Subject(call, m, name, facts, frozenset(takes))


def _transformers(m: nn.Module, name: str, facts: Facts) -> Subject:
    """An attention of ``transformers``: a float mask with all four axes, always given.

    Without a mask some of its backends hide the future by themselves.
    """
    accepts = keywords(m)
    if "hidden_states" not in accepts:
        return _by_signature(m, name, facts)
    config = getattr(m, "config", None)
    heads = next(
        (
            int(v)
            for owner in (m, config)
            for key in ("num_attention_heads", "num_heads", "n_heads", "n_head")
            if isinstance(v := getattr(owner, key, None), int)
        ),
        None,
    )
    cross = "key_value_states" in accepts
    required = {
        p.name for p in parameters_of(m) or () if p.default is inspect.Parameter.empty
    }
    buckets = bool(getattr(m, "has_relative_attention_bias", False))

    def call(
        x: Tensor, context: Any, mask: Any, causal: bool, need_weights: bool
    ) -> Any:
        keep = keep_of(x, context, mask, causal)
        B, L, S = x.shape[0], x.shape[1], (x if context is None else context).shape[1]
        if keep is None:
            keep = torch.ones(B, 1, L, S, dtype=torch.bool, device=x.device)
        low = max(torch.finfo(x.dtype).min, torch.finfo(torch.float32).min)
        hide = torch.zeros(keep.shape, dtype=x.dtype, device=x.device)
        given: dict[str, Any] = {}
        if "attention_mask" in accepts:
            given["attention_mask"] = hide.masked_fill(~keep, low)
            if type(m).__name__.startswith("Mpt"):
                given["attention_mask"] = ~keep  # bool, True = hidden
        if context is not None:
            given["key_value_states"] = context
        if "position_embeddings" in accepts:
            given["position_embeddings"] = _turns(m, x, L)
        if "cache_position" in accepts:
            given["cache_position"] = torch.arange(L, device=x.device)
        if "position_ids" in accepts:
            given["position_ids"] = torch.arange(L, device=x.device).expand(B, L)
        if need_weights and "output_attentions" in accepts:
            given["output_attentions"] = True
        for key, shape in (
            ("residual", tuple(x.shape)),
            ("alibi", (B * (heads or 1), 1, S)),
            ("position_bias", (heads or 1, 1, S)),
        ):
            if key in required:
                given[key] = x.new_zeros(shape)
        out = m(hidden_states=x, **given)
        return out[0] if isinstance(out, tuple) else out

    masked = "attention_mask" in accepts
    turned = "position_embeddings" in accepts
    _fill(
        facts,
        num_heads=heads,
        causal="flag" if masked else "never",
        masks="any" if masked else "none",
        context=cross,
        positions="relative" if turned or buckets else None,
        scale=_scaling(m),
    )
    takes = {"mask", "causal"} if masked else set()
    if cross:
        takes.add("context")
    return Subject(call, m, name, facts, frozenset(takes))


def _scaling(m: nn.Module) -> float | None:
    """The scale that a published attention states; T5's is 1 and is stated nowhere."""
    for key in ("scaling", "scale", "scale_attn"):
        value = getattr(m, key, None)
        if isinstance(value, float):
            return value
    return 1.0 if type(m).__name__.startswith(("T5", "MT5", "UMT5", "Longt5")) else None


def _turns(m: nn.Module, x: Tensor, L: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, half-split: two of (1, L, d)."""
    config = getattr(m, "config", None)
    width = getattr(m, "head_dim", None) or getattr(config, "head_dim", None)
    if width is None:
        heads = getattr(config, "num_attention_heads", 1)
        width = getattr(config, "hidden_size", x.shape[-1]) // heads
    settings = getattr(config, "rope_parameters", None) or {}
    share = settings.get("partial_rotary_factor", 1.0) or 1.0
    own = getattr(m, "rotary_dim", None)  # GPT-J: neighbours, sines first
    width = int(width * share) if own is None else int(own)
    steps = torch.arange(0, width, 2, dtype=torch.float64, device=x.device)
    angles = torch.arange(L, device=x.device).double()[:, None] * torch.exp(
        -math.log(1e4) * steps / width
    )
    if own is not None:
        half = angles[None].to(x.dtype)
        return half.sin(), half.cos()
    both = torch.cat([angles, angles], -1)[None].to(x.dtype)
    return both.cos(), both.sin()


# Anything else ------------------------------------------------------------------------


def _by_signature(thing: Any, name: str, facts: Facts) -> Subject:
    """From the names of its parameters."""
    parameters = parameters_of(thing)
    if parameters is None:
        takes = frozenset()
        return Subject(lambda x, c, m, a, w: thing(x), thing, name, facts, takes)
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


WIDTHS = ("embed_dim", "d_model", "model_dim", "hidden_size", "n_embd", "dim", "embed")
HEADS = ("num_heads", "n_heads", "n_head", "nhead", "heads", "num_attention_heads", "h")


def find_sizes(thing: Any, facts: Facts) -> None:
    """Width and heads, from attributes that are named so or from the first Linear."""
    for module in modules_of(thing):
        for part in module.modules():
            for field, words in (("embed_dim", WIDTHS), ("num_heads", HEADS)):
                value = next((v for w in words if _size(v := getattr(part, w, 0))), None)
                if getattr(facts, field) is None and value is not None:
                    setattr(facts, field, value)
        for part in module.modules():
            if facts.embed_dim is None and isinstance(part, nn.Linear):
                facts.embed_dim = part.in_features


def _size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
