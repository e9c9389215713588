"""Where a module keeps the projections of its queries, keys, values and outputs.

They are recognised by name, or by being three or four Linears of one module. Whether
they were recognised rightly shows when a textbook attention that uses them gives the
module's own output.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_lib.doctor.copies import modules_of
from attention_lib.layers import MultiHeadAttention

__all__ = ["Parts", "find_parts"]

Map = Callable[[Tensor], Tensor]
FILLER = {
    *("w", "proj", "projection", "linear", "lin", "fc", "to", "layer", "weight"),
    *("weights", "dense", "net", "map", "in", "mat", "matrix", "attn", "c", "self"),
    *("att", "attention", "head", "heads", "all", "multi"),
}
ROLES = {
    "q": {"q", "query", "queries", "qs", "wq", "qw"},
    "k": {"k", "key", "keys", "ks", "wk", "kw"},
    "v": {"v", "value", "values", "vs", "wv", "vw", "val"},
    "o": {"o", "out", "output", "wo", "ow", "proj", "final", "unify", "unifyheads"},
    "qkv": {"qkv", "kqv", "wqkv", "attn", "in", "query_key_value", "qkvs"},
    "kv": {"kv", "wkv", "key_value"},
}


@dataclass(frozen=True)
class Parts:
    """Projections as functions of tokens: (B, L, E) to (B, L, width).

    ``own_features`` where tokens are split into heads before they are projected.
    """

    q: Map
    k: Map
    v: Map
    o: Map
    how: str
    own_features: bool = False


def _parts(
    maps: Iterable[Map | None], out: Map, how: str, own: bool = False
) -> Iterator[Parts]:
    """Parts of three maps, where there are three."""
    three = [made for made in maps if made is not None]
    if len(three) == 3:
        yield Parts(three[0], three[1], three[2], out, how, own)


def _same(x: Tensor) -> Tensor:
    return x


def role(name: str) -> str:
    """``"q"``, ``"k"``, ``"v"``, ``"o"``, ``"qkv"``, ``"kv"`` or nothing.

    Examples
    --------
    >>> [role(n) for n in ("q_proj", "W_K", "toValues", "out", "c_attn", "norm")]
    ['q', 'k', 'v', 'o', 'qkv', '']
    """
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    words = [w for w in re.split(r"[_.\d]+", name) if w]
    joined = "_".join(words)
    if joined in ROLES["qkv"] or set(words) >= {"query", "key", "value"}:
        return "qkv"
    rest = [w for w in words if w not in FILLER]
    if len(rest) == 1:
        for found in ("q", "k", "v", "o", "qkv", "kv"):
            if rest[0] in ROLES[found]:
                return found
    if not rest and words:
        if words[-1] in ("attn", "in") or joined == "in_proj":
            return "qkv"
        if "proj" in words or "fc" in words or "dense" in words:
            return "o"
    return ""


def as_map(thing: Any) -> Map | None:
    """A Linear, a Conv1D of transformers or a matrix as a function of tokens."""
    if isinstance(thing, nn.Linear):
        return lambda x: F.linear(x, thing.weight, thing.bias)
    if type(thing).__name__ == "Conv1D" and hasattr(thing, "weight"):
        return lambda x: x @ thing.weight + thing.bias
    return None


def _matrices(p: Tensor) -> list[Map]:
    """A bare parameter: x W, x W^T, or one matrix for each head."""
    if p.dim() == 2:
        return [lambda x: x @ p, lambda x: x @ p.T]
    if p.dim() == 3:
        return [
            lambda x: torch.einsum("ble,hed->blhd", x, p).flatten(-2),
            lambda x: torch.einsum("ble,ehd->blhd", x, p).flatten(-2),
            lambda x: torch.einsum("ble,hde->blhd", x, p).flatten(-2),
        ]
    return []


def _outputs(p: Tensor) -> list[Map]:
    if p.dim() == 2:
        return [lambda x: x @ p, lambda x: x @ p.T]
    if p.dim() == 3:
        return [
            lambda x: x @ p.flatten(0, 1),
            lambda x: x @ p.flatten(1, 2).T if p.shape[1] != p.shape[0] else x @ p[0],
        ]
    return []


def find_parts(thing: Any, E: int, H: int) -> list[Parts]:
    """Candidates, most likely first; none where nothing is recognised.

    Parameters
    ----------
    thing
        What was examined.
    E, H
        Width of the tokens and number of heads.

    Returns
    -------
    list of Parts
        At most 24.
    """
    found: list[Parts] = []
    for top in modules_of(thing):
        for part in top.modules():
            found += _of_module(part, E, H)
            if len(found) >= 24:
                return found[:24]
    return found


def _of_module(m: nn.Module, E: int, H: int) -> list[Parts]:
    if isinstance(m, nn.MultiheadAttention):
        return _torch(m)
    if isinstance(m, MultiHeadAttention):
        ours: list[Map] = [_linear(w, b) for w, b in m.parts()]
        return list(_parts(ours, m.out_proj, "its projections"))
    named: dict[str, Any] = {}
    for name, child in m.named_children():
        if as_map(child) is not None and role(name):
            named.setdefault(role(name), child)
    found = list(_named(named, E, H))
    if not found:
        found = list(_bare(m))
    if not found:
        found = list(_listed(m, named, E))
    if not found:
        found = list(_unnamed(m, E))
    return found


def _linear(w: Tensor, b: Tensor | None) -> Map:
    return lambda x: F.linear(x, w, b)


def _torch(m: nn.MultiheadAttention) -> list[Parts]:
    if m.in_proj_weight is None or m.bias_k is not None or m.add_zero_attn:
        return []
    ws = m.in_proj_weight.chunk(3)
    none = (None,) * 3
    bs = none if m.in_proj_bias is None else m.in_proj_bias.chunk(3)
    maps = [_linear(w, b) for w, b in zip(ws, bs, strict=True)]
    return list(_parts(maps, m.out_proj, "in_proj_weight"))


def _own(child: Any, E: int, H: int) -> Map | None:
    """A Linear of the tokens, or of each head's slice of them."""
    made = as_map(child)
    if made is None or not isinstance(child, nn.Linear) or child.in_features == E:
        return made
    if H > 1 and child.in_features * H == E:
        return lambda x: made(x.unflatten(-1, (H, -1))).flatten(-2)
    return None


def _named(named: dict[str, Any], E: int, H: int) -> Iterator[Parts]:
    out = as_map(named["o"]) if "o" in named else _same
    assert out is not None
    if {"q", "k", "v"} <= set(named):
        q = named["q"]
        slices = isinstance(q, nn.Linear) and q.in_features != E
        maps = (_own(named[r], E, H) for r in "qkv")
        yield from _parts(maps, out, "q, k, v by name", slices)
    if "qkv" in named:
        made = as_map(named["qkv"])
        assert made is not None
        width = int(made(_probe_of(named["qkv"])).shape[-1])
        yield from _fused(made, out, E, H, width)
    if {"q", "kv"} <= set(named):
        single, kv = as_map(named["q"]), as_map(named["kv"])
        if single and kv:
            for a, b in ((0, 1), (1, 0)):
                yield Parts(single, _chunk(kv, 2, a), _chunk(kv, 2, b), out, "q and kv")


def _probe_of(child: Any) -> Tensor:
    """A token that a Linear or a Conv1D takes."""
    weight = child.weight
    width = child.in_features if isinstance(child, nn.Linear) else weight.shape[0]
    return weight.new_zeros(1, 1, int(width))


def _chunk(made: Map, n: int, i: int) -> Map:
    return lambda x: made(x).chunk(n, -1)[i]


def _stacked(made: Map, H: int, i: int) -> Map:
    return lambda x: made(x).unflatten(-1, (H, 3, -1))[..., i, :].flatten(-2)


def _inner(made: Map, i: int) -> Map:
    return lambda x: made(x).unflatten(-1, (-1, 3))[..., i]


def _part(made: Map, sizes: list[int], i: int) -> Map:
    return lambda x: made(x).split(sizes, -1)[i]


def _fused(made: Map, out: Map, E: int, H: int, width: int) -> Iterator[Parts]:
    """All three in one: in thirds, by head, or with fewer keys than queries."""
    if width != 3 * E and E < width and (width - E) % 2 == 0 and width < 3 * E:
        sizes = [E, (width - E) // 2, (width - E) // 2]
        yield from _parts(
            (_part(made, sizes, n) for n in range(3)), out, "one projection"
        )
    for a, b, c in itertools.permutations(range(3)):
        three = (_chunk(made, 3, n) for n in (a, b, c))
        yield from _parts(three, out, "one projection in thirds")
        if H > 1 and width % (3 * H) == 0:
            three = (_stacked(made, H, n) for n in (a, b, c))
            yield from _parts(three, out, "one projection by head")
    if width % 3 == 0:
        inner = (_inner(made, n) for n in range(3))
        yield from _parts(inner, out, "one projection, interleaved")


def _bare(m: nn.Module) -> Iterator[Parts]:
    """Parameters that are matrices themselves."""
    named: dict[str, Tensor] = {}
    for name, p in m.named_parameters(recurse=False):
        if p.dim() > 1 and role(name):
            named.setdefault(role(name), p)
    outs: list[Map] = [_same]
    if "o" in named:
        outs = _outputs(named["o"])
    else:
        for name, child in m.named_children():
            made = as_map(child)
            if made is not None and role(name) == "o":
                outs = [made]
    if {"q", "k", "v"} <= set(named):
        for q, k, v in zip(*(_matrices(named[r]) for r in "qkv"), strict=False):
            for o in outs:
                yield Parts(q, k, v, o, "matrices by name")
    elif "qkv" in named and named["qkv"].dim() == 2:
        for made in _matrices(named["qkv"]):
            for o in outs:
                three = (_chunk(made, 3, n) for n in range(3))
                yield from _parts(three, o, "one matrix")


def _joined(maps: list[Map]) -> Map:
    return lambda x: torch.cat([made(x) for made in maps], -1)


def _listed(m: nn.Module, named: dict[str, Any], E: int) -> Iterator[Parts]:
    """A list of heads, each with its own projections."""
    out = as_map(named["o"]) if "o" in named else None
    if out is None:
        linears = [c for c in m.children() if as_map(c) is not None]
        out = as_map(linears[0]) if len(linears) == 1 else _same
    assert out is not None
    lists = [c for c in m.children() if isinstance(c, (nn.ModuleList, nn.ModuleDict))]
    for held in lists:
        heads = [list(_of_head(c, E)) for c in held.children()]
        if heads and all(heads):
            first = [h[0] for h in heads]
            yield Parts(
                _joined([p.q for p in first]),
                _joined([p.k for p in first]),
                _joined([p.v for p in first]),
                out,
                "heads in a list",
            )
    if len(lists) == 3:  # a list of queries, one of keys, one of values
        rows = [[f for c in held.children() if (f := as_map(c))] for held in lists]
        if all(len(r) == len(held) for r, held in zip(rows, lists, strict=True)):
            yield from _parts(map(_joined, rows), out, "lists of q, k and v")


def _of_head(c: nn.Module, E: int) -> Iterator[Parts]:
    named = {role(name): child for name, child in c.named_children() if as_map(child)}
    if {"q", "k", "v"} <= set(named) and "o" not in named:
        yield from _named(named, E, 1)
    elif isinstance(c, (nn.ModuleList, nn.Sequential)) and len(c) == 3:
        yield from _parts(map(as_map, c.children()), _same, "three by order")


def _unnamed(m: nn.Module, E: int) -> Iterator[Parts]:
    """Three or four Linears of one module, in every order of the first three."""
    linears = [c for c in m.children() if isinstance(c, nn.Linear)]
    if len(linears) not in (3, 4) or any(c.in_features != E for c in linears[:3]):
        return
    out = as_map(linears[3]) if len(linears) == 4 else _same
    assert out is not None
    maps = [as_map(c) for c in linears[:3]]
    for three in itertools.permutations(maps):
        yield from _parts(three, out, "Linears by order")
