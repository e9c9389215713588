"""Checks for the exercises of chapter 5, many heads."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_lib.checks._report import (
    NotYet,
    check,
    demand_tensor,
    draws,
    explain,
)
from attention_lib.functional import attention_steps
from attention_lib.layers import MultiHeadAttention
from attention_lib.masks import causal

__all__ = ["forgotten", "merge", "parameters", "share", "two_heads", "without"]

Layer = Callable[[Tensor], Tensor]


@check("5.1")
def merge(answer: Callable[[Tensor], Tensor]) -> str:
    """Check ``merge(heads)``: (B, H, L, D) to (B, L, H·D).

    Examples
    --------
    >>> merge(lambda heads: heads.transpose(1, 2).flatten(2)).passed
    True
    """
    heads = torch.randn(2, 3, 5, 4)  # B, H, L, D
    found = demand_tensor(answer(heads.clone()), (2, 5, 12), "The merged tensor")
    explain(
        found,
        heads.transpose(1, 2).flatten(2),
        {
            "The shape is right, but the rows mix positions: the heads are still "
            "in front when the axes are joined. Transpose first.": (
                heads.reshape(2, 5, 12)
            ),
            "Each row holds its own position, but the heads are interleaved entry by "
            "entry: keep the D entries of a head together.": (
                heads.permute(0, 2, 3, 1).flatten(2)
            ),
            "The heads stand in the opposite order: head 0 comes first.": (
                heads.flip(1).transpose(1, 2).flatten(2)
            ),
            "These are copies of the mean over the heads: lay them side by side.": (
                heads.mean(1).repeat(1, 1, 3)
            ),
        },
    )
    return "Three heads of width 4, side by side at each of five positions."


@check("5.2")
def parameters(answer: Callable[[int, int, int, int, bool], int]) -> str:
    """Check ``parameters(E, H, Hkv, D, bias)`` against layers of the package.

    Examples
    --------
    >>> parameters(lambda E, H, Hkv, D, bias: 4 * E * E)  # doctest: +ELLIPSIS
    Exercise 5.2: not yet. ... H·D need not be E: ...
    """
    for E, H, Hkv, D, bias in (
        (10, 6, 2, 5, False),
        (10, 6, 2, 5, True),
        (12, 3, 3, 4, False),
        (9, 4, 1, 5, True),
    ):
        layer = MultiHeadAttention(
            E, H, num_kv_heads=Hkv, head_dim=D, bias=bias, device="meta"
        )
        wanted = sum(p.numel() for p in layer.parameters())
        found = answer(E, H, Hkv, D, bias)
        if found is None:
            raise NotYet("The function returns nothing yet.")
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise NotYet(f"Return a number, not {type(found).__name__}.")
        if found == wanted:
            continue
        q, kv, out = E * H * D, E * Hkv * D, H * D * E
        biases = H * D + 2 * Hkv * D + E
        causes = {
            "The output projection is missing.": q + 2 * kv,
            "H·D need not be E: count the columns of each matrix.": 4 * E * E,
            "Keys and values have Hkv heads, not H.": 3 * q + out + bias * biases,
            "Keys and values are two matrices.": q + kv + out,
            "The biases are missing.": wanted - biases,
            "A bias has as many entries as its matrix has columns. The output's has "
            "E.": wanted - E,
            "The output projection reads H heads, whatever Hkv is.": (
                q + 2 * kv + Hkv * D * E + bias * biases
            ),
        }
        hint = next((words for words, count in causes.items() if count == found), "")
        raise NotYet(
            f"For E={E}, H={H}, Hkv={Hkv}, D={D}, bias={bias} you count {found}; the "
            f"layer has {wanted}. {hint}".rstrip()
        )
    return "Four layers counted, with shared heads, free widths and biases."


@check("5.3")
def share(answer: Callable[[Tensor, int], Tensor]) -> str:
    """Check ``share(kv, H)``: (B, Hkv, S, D) to (B, H, S, D), in the order of groups.

    Examples
    --------
    >>> share(lambda kv, H: kv.repeat(1, H // kv.shape[1], 1, 1))  # doctest: +ELLIPSIS
    Exercise 5.3: not yet. The heads come in turn, 0, 1, 0, 1...
    """
    kv = torch.randn(3, 2, 5, 4)  # B, Hkv, S, D
    found = demand_tensor(answer(kv.clone(), 6), (3, 6, 5, 4), "The shared heads")
    explain(
        found,
        kv.repeat_interleave(3, dim=1),
        {
            "The heads come in turn, 0, 1, 0, 1: each must serve neighbouring query "
            "heads, 0, 0, 0, 1, 1, 1.": kv.repeat(1, 3, 1, 1),
            "Every query head gets the first head: share all of them.": (
                kv[:, :1].expand(-1, 6, -1, -1)
            ),
            "Every query head gets the mean of the heads: each serves one group.": (
                kv.mean(1, keepdim=True).expand(-1, 6, -1, -1)
            ),
        },
    )
    one, all_heads = torch.randn(2, 1, 3, 4), torch.randn(2, 6, 3, 4)
    for kv, words in ((one, "a single head"), (all_heads, "as many heads as queries")):
        found = answer(kv.clone(), 6)
        wanted = kv.expand(-1, 6, -1, -1)
        if not isinstance(found, Tensor) or not torch.equal(found, wanted):
            raise NotYet(f"Two heads are shared rightly, {words} not.")
    return "One, two and six heads serve six queries, in the order of the groups."


@check("5.4")
def without(answer: Callable[[MultiHeadAttention, Tensor, int], Tensor]) -> str:
    """Check ``without(layer, x, h)``: a layer's output without one of its heads.

    Examples
    --------
    >>> without(lambda layer, x, h: layer(x))
    Exercise 5.4: not yet. This is the whole output: head 1 still contributes.
    """
    layer, x = MultiHeadAttention(10, 3, head_dim=4), torch.randn(2, 5, 10)
    with torch.no_grad():
        layer.out_proj.bias.normal_()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    with torch.no_grad():
        q, k, v = layer.project(x)
        heads = attention_steps(q, k, v).output  # (B, H, L, D)
        merged = heads.transpose(1, 2).flatten(2)  # (B, L, H·D)
        weight, bias = layer.out_proj.weight, layer.out_proj.bias

    def cut(columns: slice) -> Tensor:
        kept = merged.clone()
        kept[..., columns] = 0
        return F.linear(kept, weight, bias).detach()

    for h in (1, 0, 2):
        found = demand_tensor(answer(layer, x.clone(), h), (2, 5, 10), "The output")
        after = layer.state_dict()
        if any(not torch.equal(value, after[name]) for name, value in before.items()):
            raise NotYet("The layer is changed afterwards: work on a copy.")
        wanted, own = cut(slice(4 * h, 4 * h + 4)), slice(4 * h, 4 * h + 4)
        mean = heads.clone()
        mean[:, h] = heads.mean(1)
        explain(
            found,
            wanted,
            {
                f"This is the whole output: head {h} still contributes.": (
                    layer(x).detach()
                ),
                "This is what the head contributes: return the rest.": (
                    F.linear(merged[..., own], weight[:, own]).detach()
                ),
                "This is the head's contribution and the bias: return the rest.": (
                    F.linear(merged[..., own], weight[:, own], bias).detach()
                ),
                "The output's bias went with the head: it belongs to none.": (
                    wanted - bias.detach()
                ),
                "Every third column is taken away: a head owns D columns in a row.": (
                    cut(slice(h, None, 3))
                ),
                "One column is taken away: a head owns D of them.": (
                    cut(slice(h, h + 1))
                ),
                "The head returns the mean of all heads instead of nothing.": (
                    F.linear(mean.transpose(1, 2).flatten(2), weight, bias).detach()
                ),
            },
        )
    return "Each of three heads taken away, and the layer is as it was."


@check("5.5")
def forgotten(answer: Callable[[Layer], str]) -> str:
    """Check a function that finds the transpose that a layer of 3 heads forgot.

    Examples
    --------
    >>> forgotten(lambda layer: "none")
    Exercise 5.5: not yet. A layer that forgot the transpose in its split is called 'none'.
    """
    words = {
        "none": "A sound layer",
        "split": "A layer that forgot the transpose in its split",
        "merge": "A layer that forgot the transpose in its merge",
        "both": "A layer that forgot the transpose in split and merge",
    }
    for seed in draws(3):
        for name, subject in words.items():
            torch.manual_seed(seed)
            found = answer(_forgetful(name))
            if found is None:
                raise NotYet("The function returns nothing yet.")
            if found not in words:
                raise NotYet(f"Return one of {list(words)}, not {found!r}.")
            if found != name:
                raise NotYet(f"{subject} is called {found!r}.")
    return "Four layers, each told from the others by who sees whom, on three draws."


def _forgetful(fault: str, H: int = 3, D: int = 4) -> Layer:
    """Causal attention, (B, L, H·D) to the same, with transposes forgotten."""
    W_q, W_k, W_v, W_o = torch.randn(4, H * D, H * D) / math.sqrt(H * D)

    def split(t: Tensor) -> Tensor:
        if fault in ("split", "both"):
            return t.reshape(len(t), H, -1, D)
        return t.unflatten(-1, (H, D)).transpose(1, 2)

    def layer(x: Tensor) -> Tensor:
        q, k, v = (split(x @ W) for W in (W_q, W_k, W_v))  # (B, H, L, D)
        heads = attention_steps(q, k, v, causal(x.shape[1])).output
        if fault not in ("merge", "both"):
            heads = heads.transpose(1, 2)
        return heads.reshape(x.shape) @ W_o

    return layer


@check("5.6")
def two_heads(answer: Callable[[], tuple[Tensor, Tensor, Tensor, Tensor]]) -> str:
    """Check the matrices of two narrow heads that play the two-card game.

    Examples
    --------
    >>> zeros = torch.zeros(2, 32, 8)
    >>> two_heads(lambda: (zeros, zeros, zeros, torch.zeros(16, 32)))
    Exercise 5.6: not yet. All scores of head 0 are equal: it looks at no card.
    """
    W_q, W_k, W_v, W_o = _four_matrices(answer())
    D = W_q.shape[-1]
    name = torch.rand(64, 16).argsort(1)  # (B, L)
    note = torch.randint(16, (64, 16))
    cards = torch.cat([F.one_hot(name, 16), F.one_hot(note, 16)], -1).double()
    cards = cards[:, None]  # (B, 1, L, E): the same cards for both heads
    steps = attention_steps(cards @ W_q, cards @ W_k, cards @ W_v)
    place = name.argsort(1)  # where each name lies
    for h, ahead in enumerate((1, 5)):
        weights = steps.weights[:, h]  # (B, L, S)
        if bool(((weights - 1 / 16).abs() < 1e-6).all()):
            raise NotYet(f"All scores of head {h} are equal: it looks at no card.")
        top = weights.argmax(-1)
        for words, other in (
            (f"{ahead} back instead of {ahead} ahead", -ahead),
            (f"{6 - ahead} ahead, which is what the other head is for", 6 - ahead),
            ("nowhere but at its own card", 0),
        ):
            if bool((top == place.gather(1, (name + other) % 16)).all()):
                raise NotYet(f"Head {h} looks {words}.")
        where = place.gather(1, (name + ahead) % 16)
        right = (top == where).double().mean().item()
        if right < 1:
            raise NotYet(
                f"Head {h} finds the card {ahead} ahead in {right:.0%} of the cases. "
                "Ask with the name alone, and be found by the name alone."
            )
        share = weights.gather(-1, where[..., None]).min().item()
        if share < 0.9:
            raise NotYet(
                f"Head {h} finds its card, with a weight of {share:.2f}; 0.90 is asked "
                "for. Larger scores sharpen the softmax."
            )
    merged = steps.output.transpose(1, 2).flatten(2)  # (B, L, 2 D)
    said = (merged @ W_o).unflatten(-1, (2, 16)).argmax(-1)  # (B, L, 2)
    for h, ahead in enumerate((1, 5)):
        wanted = note.gather(1, place.gather(1, (name + ahead) % 16))
        if bool((said[..., h] == (name + ahead) % 16).all()):
            raise NotYet(f"Answer {h} is the name of the card, not its note.")
        right = (said[..., h] == wanted).double().mean().item()
        if right < 1:
            raise NotYet(
                f"Both heads find their cards, but answer {h} names the right note in "
                f"{right:.0%} of the cases: W_v must read the last 16 entries, and W_o "
                "tell 16 notes apart in D numbers."
            )
    if D > 8:
        raise NotYet(f"All answers are right at width {D}. Now do it with 8 or less.")
    return f"Two heads of width {D}, two right answers a card, and nothing was trained."


def _four_matrices(found: object) -> list[Tensor]:
    """W_q, W_k, W_v and W_o in float64, once they fit each other."""
    if found is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(found, tuple | list) or len(found) != 4:
        raise NotYet("Return four tensors: W_q, W_k, W_v and W_o.")
    D = found[0].shape[-1] if isinstance(found[0], Tensor) and found[0].dim() else 0
    shapes = {f"W_{name}": (2, 32, D) for name in "qkv"} | {"W_o": (2 * D, 32)}
    return [
        demand_tensor(matrix, shape, name).double()
        for matrix, (name, shape) in zip(found, shapes.items(), strict=True)
    ]
