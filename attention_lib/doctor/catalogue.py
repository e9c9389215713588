"""The probes in the order in which they run, with the codes they may give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attention_lib.doctor import (
    probes_bias,
    probes_cache,
    probes_core,
    probes_cross,
    probes_encoding,
    probes_gradients,
    probes_layout,
    probes_masks,
    probes_numerics,
    probes_order,
    probes_padding,
    probes_reach,
    probes_reference,
    probes_rotary,
    probes_state,
    probes_weights,
    refit,
)
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import (
    Bench,
)

__all__ = ["PROBES", "Probe", "Run"]


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
    _probe(probes_order.order, "AT204"),
    _probe(probes_reach.reach, "AT101 AT102 AT120 AT311"),
    _probe(probes_cross.train_reach, "AT101"),
    _probe(probes_cross.cross, "AT130 AT102"),
    _probe(probes_masks.mask_per_item, "AT113"),
    _probe(probes_masks.mask_reach, "AT110 AT111 AT112 AT113"),
    _probe(probes_masks.scattered_causal, "AT101 AT110 AT112"),
    _probe(probes_padding.padding, "AT110 AT202 AT210"),
    _probe(probes_padding.empty_row, "AT501 AT505"),
    _probe(probes_weights.rows, "AT201 AT521"),
    _probe(probes_weights.reported, "AT314 AT201"),
    _probe(probes_weights.same_output, "AT315"),
    _probe(probes_order.features, "AT313"),
    _probe(probes_order.length, "AT202 AT102"),
    _probe(probes_cache.late_queries, "AT601"),
    _probe(probes_state.untouched, "AT403", "attention", "decoder"),
    _probe(probes_state.registered, "AT320"),
    _probe(probes_state.round_trip, "AT404"),
    _probe(probes_state.new_twin, "AT404"),
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
    _probe(probes_core.core_weights, "AT201 AT101 AT102 AT601", "core"),
    _probe(probes_core.core_scores, "AT203", "core"),
    _probe(probes_core.core_numerics, "AT503 AT502", "core"),
    _probe(probes_core.core_gradients, "AT702 AT505 AT703", "core"),
    _probe(probes_encoding.encoding_sizes, "AT520 AT220", "encoding"),
    _probe(probes_encoding.encoding_added, "AT220 AT100", "encoding"),
    _probe(probes_encoding.encoding_offset, "AT602", "encoding"),
    _probe(probes_encoding.encoding_formula, "AT220 AT222", "encoding"),
    _probe(probes_encoding.encoding_tables, "AT510", "encoding"),
    _probe(probes_rotary.rotary_layout, "AT211", "rotary"),
    _probe(probes_rotary.rotary_relative, "AT221 AT222", "rotary"),
    _probe(probes_rotary.rotary_offset, "AT602", "rotary"),
    _probe(probes_rotary.rotary_far, "AT222 AT520", "rotary"),
    _probe(probes_bias.bias_distance, "AT230", "bias"),
    _probe(probes_bias.bias_past, "AT230 AT100", "bias"),
    _probe(probes_cache.whole, "AT101", "decoder"),
    _probe(probes_cache.decoding, "AT601 AT602 AT603 AT520", "decoder"),
    _probe(probes_cache.rows_apart, "AT603 AT402", "decoder"),
    _probe(probes_cache.graph, "AT604", "decoder"),
    _probe(probes_reference.same_numbers, "AT330", "core", "encoding", "rotary"),
)
