"""Root causes by name: code, class, words, remedy and what one will see.

Probes and the refit speak of a cause by its key here, so that a cause reads the same
however it was established.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CAUSES", "Known"]


class Known(NamedTuple):
    """A root cause that hand-written attention has."""

    code: str
    kind: str
    text: str
    remedy: tuple[str, ...] = ()
    effect: str = ""


LEAK = "training loss too good, generation poor"
PADDED = "results depend on what the padding holds, and on the batch"

CAUSES: dict[str, Known] = {
    # Causality
    "no causal": Known(
        "AT101",
        "causality",
        "there is no causal mask, or it is not used",
        ("+ keep = torch.ones(L, S, dtype=torch.bool).tril(S - L)",),
        LEAK,
    ),
    "late triangle": Known(
        "AT101",
        "causality",
        "the causal mask is off by one: the triangle starts one column late",
        (
            "- keep = torch.ones(L, S, dtype=torch.bool).tril(S - L + 1)",
            "+ keep = torch.ones(L, S, dtype=torch.bool).tril(S - L)",
        ),
        LEAK,
    ),
    "strict triangle": Known(
        "AT102",
        "causality",
        "the causal mask hides the token itself: the triangle starts one column early",
        (
            "- keep = torch.ones(L, S, dtype=torch.bool).tril(S - L - 1)",
            "+ keep = torch.ones(L, S, dtype=torch.bool).tril(S - L)",
        ),
        "the first token sees nothing",
    ),
    "own token hidden": Known(
        "AT102",
        "mask value",
        "a token does not see itself: the mask hides the diagonal",
        ("- keep = ~torch.eye(L, dtype=torch.bool)",),
        "a token knows itself only through the others",
    ),
    "softmax twice": Known(
        "AT201",
        "normalisation",
        "the softmax is taken twice: weights are almost even",
        ("- weights = scores.softmax(-1).softmax(-1)", "+ scores.softmax(-1)"),
        "attention cannot become sharp",
    ),
    "rotary on queries alone": Known(
        "AT211",
        "rotary layout",
        "queries are turned by their positions and keys are not",
        ("+ q, k = rotary(q), rotary(k)",),
        "scores depend on the absolute place of a query",
    ),
    "outside": Known(
        "AT101",
        "axis order",
        "tokens are mixed outside the attention: a norm, a mean, a shift or a "
        "convolution runs over them",
        ("- F.layer_norm(x, x.shape[1:])", "+ F.layer_norm(x, x.shape[-1:])"),
        LEAK,
    ),
    "plus fill": Known(
        "AT112",
        "mask value",
        "hidden scores are filled with a large positive number: only they count",
        ("- scores.masked_fill(~keep, 1e9)", "+ scores.masked_fill(~keep, -torch.inf)"),
        "only the padding is attended to",
    ),
    "other triangle": Known(
        "AT101",
        "causality",
        "the causal mask is the wrong triangle: it shows the future, hides the past",
        ("- keep = ones.triu()", "+ keep = ones.tril()"),
        LEAK,
    ),
    "causal lost": Known(
        "AT101",
        "causality",
        "the causal rule is dropped when a mask is passed",
        ("- keep = triangle if mask is None else mask", "+ keep = triangle & mask"),
        "training on padded batches sees the future",
    ),
    "top left": Known(
        "AT601",
        "causality",
        "the causal mask counts from the first key where there are fewer queries",
        (
            "- keep = torch.ones(L, S, dtype=torch.bool).tril()",
            "+ keep = torch.ones(L, S, dtype=torch.bool).tril(S - L)",
        ),
        "decoding with a cache sees the first keys alone",
    ),
    "window late": Known(
        "AT101",
        "window",
        "the window is off by one: it is one token too wide",
        ("- keep = past & (i - j <= window)", "+ keep = past & (i - j < window)"),
        "",
    ),
    "window early": Known(
        "AT102",
        "window",
        "the window is off by one: it is one token too narrow",
        ("- keep = past & (i - j < window - 1)", "+ keep = past & (i - j < window)"),
        "",
    ),
    # Masks
    "ignored": Known(
        "AT110",
        "mask semantics",
        "the mask is taken and not used",
        ("+ scores = scores.masked_fill(~mask, -torch.inf)",),
        PADDED,
    ),
    "mask lost": Known(
        "AT110",
        "mask semantics",
        "the mask is dropped when the causal rule is on",
        ("- keep = triangle if causal else mask", "+ keep = triangle & mask"),
        PADDED,
    ),
    "inverted": Known(
        "AT111",
        "mask semantics",
        "the mask is read the other way round: True hides",
        (
            "- scores = scores.masked_fill(mask, -torch.inf)",
            "+ scores = scores.masked_fill(~mask, -torch.inf)",
        ),
        "only the padding is attended to",
    ),
    "query axis": Known(
        "AT112",
        "mask axis",
        "the mask hides queries in place of keys: its last two axes are swapped",
        ("- mask = mask.transpose(-1, -2)", "+ mask[:, None, None, :]  # of keys"),
        PADDED,
    ),
    "tiny fill": Known(
        "AT112",
        "mask value",
        "hidden scores are filled with a small number, which hides nothing",
        (
            "- scores = scores.masked_fill(~keep, -1e-9)",
            "+ scores = scores.masked_fill(~keep, -torch.inf)",
        ),
        PADDED,
    ),
    "plus inf": Known(
        "AT112",
        "mask value",
        "hidden scores become plus infinity or NaN: the sign, or 0 times infinity",
        (
            "- scores = scores + (1 - mask) * -torch.inf",
            "+ scores = scores.masked_fill(~keep, -torch.inf)",
        ),
        "NaN as soon as anything is hidden",
    ),
    "added bool": Known(
        "AT112",
        "mask value",
        "the bool mask is added to the scores, where it counts as 0 and 1",
        ("- scores = scores + mask", "+ scores.masked_fill(~mask, -torch.inf)"),
        PADDED,
    ),
    "multiplied": Known(
        "AT112",
        "mask value",
        "scores are multiplied by the mask: a hidden score becomes 0, not minus "
        "infinity",
        ("- scores = scores * mask", "+ scores.masked_fill(~mask, -torch.inf)"),
        PADDED,
    ),
    "after softmax": Known(
        "AT201",
        "mask position",
        "the mask is applied after the softmax, and rows are not normalised again",
        (
            "- weights = scores.softmax(-1) * keep",
            "+ weights = scores.masked_fill(~keep, -torch.inf).softmax(-1)",
        ),
        "outputs shrink with the number of hidden keys, which still count below",
    ),
    "broadcast": Known(
        "AT113",
        "mask broadcasting",
        "a mask (B, L, S) meets scores (B, H, L, S): item b's mask lands on head b",
        (
            "- scores.masked_fill(~mask, ...)",
            "+ scores.masked_fill(~mask[:, None], ...)",
        ),
        "an error, or silently wrong where the batch is as large as the heads",
    ),
    # Softmax and scale
    "over queries": Known(
        "AT201",
        "softmax axis",
        "the softmax runs over the queries, not over the keys",
        ("- weights = scores.softmax(-2)", "+ weights = scores.softmax(-1)"),
        "the future is seen through the denominator",
    ),
    "over heads": Known(
        "AT201",
        "softmax axis",
        "the softmax runs over the heads, not over the keys",
        ("- weights = scores.softmax(1)", "+ weights = scores.softmax(-1)"),
        "outputs grow with the length",
    ),
    "over batch": Known(
        "AT201",
        "softmax axis",
        "the softmax runs over the batch, not over the keys",
        ("- weights = scores.softmax(0)", "+ weights = scores.softmax(-1)"),
        "results depend on the other items of a batch",
    ),
    "over all": Known(
        "AT201",
        "softmax axis",
        "the softmax runs over queries and keys together",
        ("- weights = scores.flatten(-2).softmax(-1)", "+ scores.softmax(-1)"),
        "",
    ),
    "not normalised": Known(
        "AT201",
        "normalisation",
        "rows of weights do not sum to 1",
        ("+ weights = scores.softmax(-1)",),
        "outputs grow or shrink with the number of keys",
    ),
    "scale by width": Known(
        "AT203",
        "scale",
        "scores are divided by the root of the model's width",
        ("- scores / math.sqrt(embed_dim)", "+ scores / math.sqrt(head_dim)"),
        "weights too even, the more so the more heads there are",
    ),
    "no scale": Known(
        "AT203",
        "scale",
        "scores are not scaled",
        ("- scores = q @ k.mT", "+ scores = q @ k.mT / math.sqrt(head_dim)"),
        "the softmax saturates as the head width grows: little gradient",
    ),
    "other scale": Known(
        "AT203",
        "scale",
        "scores are scaled by something else than one over the root of the head width",
        ("+ scores = q @ k.mT / math.sqrt(head_dim)",),
        "weights too even or too sharp",
    ),
    # Heads
    "view": Known(
        "AT311",
        "head layout",
        "heads are split by a view alone: tokens are cut up and mixed",
        (
            "- q = q.view(B, H, L, D)",
            "+ q = q.view(B, L, H, D).transpose(1, 2)",
        ),
        "trains, badly; a causal mask leaks",
    ),
    "merge": Known(
        "AT311",
        "head layout",
        "heads are merged without the transpose: outputs land on other tokens",
        (
            "- out = out.reshape(B, L, H * D)",
            "+ out = out.transpose(1, 2).reshape(B, L, H * D)",
        ),
        "trains, badly; a causal mask leaks",
    ),
    "view and merge": Known(
        "AT311",
        "head layout",
        "heads are split and merged by views alone: tokens are cut up and mixed",
        (
            "- q = q.view(B, H, L, D)",
            "+ q = q.view(B, L, H, D).transpose(1, 2)",
            "- out = out.reshape(B, L, H * D)",
            "+ out = out.transpose(1, 2).reshape(B, L, H * D)",
        ),
        "trains, badly; a causal mask leaks",
    ),
    "heads as tokens": Known(
        "AT311",
        "head layout",
        "heads attend to heads: the axis before the last is not the tokens'",
        ("- q = q.view(B, L, H, D)", "+ q = q.view(B, L, H, D).transpose(1, 2)"),
        "no token ever sees another",
    ),
    "own features": Known(
        "AT313",
        "head layout",
        "tokens are split into heads before the projections, so a head sees only its "
        "share of the features",
        (
            "- nn.Linear(head_dim, head_dim) on the split tokens",
            "+ nn.Linear(embed_dim, embed_dim), then split",
        ),
        "heads cannot look for anything outside their slice",
    ),
    "keys as values": Known(
        "AT310",
        "dead parameter",
        "the weights multiply the keys, not the values",
        ("- out = weights @ k", "+ out = weights @ v"),
        "",
    ),
    # Sides
    "swapped sides": Known(
        "AT130",
        "cross-attention",
        "queries come from the context and keys from x",
        ("- q, k, v = wq(context), wk(x), wv(x)", "+ wq(x), wk(context), wv(context)"),
        "one output row per context token",
    ),
    "context ignored": Known(
        "AT130",
        "cross-attention",
        "the context is taken and not used",
        ("+ k, v = wk(context), wv(context)",),
        "cross-attention conditions on nothing",
    ),
    "batch axis": Known(
        "AT301",
        "axis order",
        "the first axis is taken for the tokens: items attend to one another",
        (
            "- nn.MultiheadAttention(E, H)",
            "+ nn.MultiheadAttention(E, H, batch_first=True)",
        ),
        "tokens of one item never see each other; results depend on the batch",
    ),
}
