"""The names that other libraries give to the weights of a layer or a block."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor, nn

from attention_lib.block import TransformerBlock
from attention_lib.layers import MultiHeadAttention

Names = Literal["torch", "bert", "gpt2", "llama"]


class Entry(NamedTuple):
    """One tensor of theirs, and those of ours that it stacks along the output width."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False  # stored as (in, out)


class Scheme(NamedTuple):
    """The names of one library."""

    attention: tuple[Entry, ...]
    block: tuple[Entry, ...]  # what a block has besides
    attention_prefix: str  # of the attention within a block
    # What a checkpoint keeps beside the weights of an attention.
    beside: frozenset[str] = frozenset()


def _linear(theirs: str, *ours: str, transposed: bool = False) -> tuple[Entry, Entry]:
    return (
        Entry(f"{theirs}.weight", tuple(f"{name}.weight" for name in ours), transposed),
        Entry(f"{theirs}.bias", tuple(f"{name}.bias" for name in ours)),
    )


_PARTS = ("q_proj", "k_proj", "v_proj")
_SCHEMES: dict[str, Scheme] = {
    "torch": Scheme(
        attention=(
            Entry("in_proj_weight", tuple(f"{part}.weight" for part in _PARTS)),
            Entry("in_proj_bias", tuple(f"{part}.bias" for part in _PARTS)),
            *_linear("out_proj", "out_proj"),
        ),
        block=(
            *_linear("norm1", "attention_norm"),
            *_linear("norm2", "feed_forward_norm"),
            *_linear("linear1", "feed_forward.up_proj"),
            *_linear("linear2", "feed_forward.down_proj"),
        ),
        attention_prefix="self_attn.",
    ),
    "bert": Scheme(
        attention=(
            *_linear("self.query", "q_proj"),
            *_linear("self.key", "k_proj"),
            *_linear("self.value", "v_proj"),
            *_linear("output.dense", "out_proj"),
        ),
        block=(
            *_linear("attention.output.LayerNorm", "attention_norm"),
            *_linear("output.LayerNorm", "feed_forward_norm"),
            *_linear("intermediate.dense", "feed_forward.up_proj"),
            *_linear("output.dense", "feed_forward.down_proj"),
        ),
        attention_prefix="attention.",
        beside=frozenset({"output.LayerNorm.weight", "output.LayerNorm.bias"}),
    ),
    "gpt2": Scheme(
        attention=(
            *_linear("c_attn", *_PARTS, transposed=True),
            *_linear("c_proj", "out_proj", transposed=True),
        ),
        block=(
            *_linear("ln_1", "attention_norm"),
            *_linear("ln_2", "feed_forward_norm"),
            *_linear("mlp.c_fc", "feed_forward.up_proj", transposed=True),
            *_linear("mlp.c_proj", "feed_forward.down_proj", transposed=True),
        ),
        attention_prefix="attn.",
        beside=frozenset({"bias", "masked_bias"}),
    ),
    "llama": Scheme(
        attention=(
            *_linear("q_proj", "q_proj"),
            *_linear("k_proj", "k_proj"),
            *_linear("v_proj", "v_proj"),
            *_linear("o_proj", "out_proj"),
            *_linear("q_norm", "query_norm"),
            *_linear("k_norm", "key_norm"),
        ),
        block=(
            *_linear("input_layernorm", "attention_norm"),
            *_linear("post_attention_layernorm", "feed_forward_norm"),
            *_linear("mlp.gate_proj", "feed_forward.gate_proj"),
            *_linear("mlp.up_proj", "feed_forward.up_proj"),
            *_linear("mlp.down_proj", "feed_forward.down_proj"),
        ),
        attention_prefix="self_attn.",
        beside=frozenset({"rotary_emb.inv_freq"}),
    ),
}


def weights_of(module: MultiHeadAttention | TransformerBlock) -> dict[str, Tensor]:
    """The module's weights, those of queries, keys and values apart: views of them."""
    own = dict(module.state_dict())
    for stacked in [name for name in own if "qkv_proj." in name]:
        within, _, kind = stacked.rpartition("qkv_proj.")
        layer = module.get_submodule(within.rstrip("."))
        parts = own.pop(stacked).split(layer.widths)
        own |= {f"{within}{p}.{kind}": t for p, t in zip(_PARTS, parts, strict=True)}
    return own


def entries_of(
    module: MultiHeadAttention | TransformerBlock, names: Names, own: dict[str, Tensor]
) -> tuple[list[Entry], set[str]]:
    """The entries that the module fills, and the names to pass over."""
    if names not in _SCHEMES:
        raise ValueError(f"names={names!r}, expected one of {', '.join(_SCHEMES)}")
    scheme = _SCHEMES[names]
    if isinstance(module, TransformerBlock):
        within = scheme.attention_prefix
        candidates = [
            Entry(within + theirs, tuple(f"attention.{name}" for name in ours), turned)
            for theirs, ours, turned in _attention_entries(module.attention, names)
        ]
        candidates += scheme.block
        beside = {within + name for name in scheme.beside}
    else:
        candidates = _attention_entries(module, names)
        beside = set(scheme.beside)

    entries = [entry for entry in candidates if own.keys() & set(entry.ours)]
    held = {name for entry in entries for name in entry.ours}
    if held - own.keys():
        lacking = ", ".join(sorted(held - own.keys()))
        raise ValueError(
            f"{names} names stack {lacking} with others; the module lacks it"
        )
    if own.keys() - held:
        nameless = ", ".join(sorted(own.keys() - held))
        raise ValueError(f"there is no {names} name for {nameless}")
    return entries, beside


def _attention_entries(layer: nn.Module, names: Names) -> list[Entry]:
    entries = list(_SCHEMES[names].attention)
    if names == "torch" and {layer.kdim, layer.vdim} != {layer.embed_dim}:
        # Inputs of other widths: their weights are not stacked, their biases still are.
        entries[:1] = [Entry(f"{part}_weight", (f"{part}.weight",)) for part in _PARTS]
    return entries


def shape_of(entry: Entry, own: dict[str, Tensor]) -> tuple[int, ...]:
    """The shape that their tensor must have."""
    height = sum(own[name].shape[0] for name in entry.ours)
    shape = (height, *own[entry.ours[0]].shape[1:])
    return shape[::-1] if entry.transposed else shape
