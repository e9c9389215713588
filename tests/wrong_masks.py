"""Wrong calls of the mask builders."""

import torch
from wrong_row import Row, call, zeros

from attention_lib import masks

ROWS = [
    Row(
        "causal: a float length",
        call(masks.causal, 3.0),
        TypeError,
        "L must be an integer, got float",
    ),
    Row(
        "causal: a bool length",
        call(masks.causal, True),
        TypeError,
        "L must be an integer, got bool",
    ),
    Row(
        "causal: a negative length",
        call(masks.causal, -1),
        ValueError,
        "L=-1 must be at least 0",
    ),
    Row(
        "causal: a negative number of keys",
        call(masks.causal, 3, -2),
        ValueError,
        "S=-2 must be at least 0",
    ),
    Row(
        "causal: an offset that leaves fewer than no keys",
        call(masks.causal, 3, offset=-4),
        ValueError,
        "S=-1 must be at least 0",
    ),
    Row(
        "causal: a float offset",
        call(masks.causal, 3, offset=1.5),
        TypeError,
        "offset must be an integer, got float",
    ),
    Row(
        "causal: offsets of floats",
        call(masks.causal, 3, 4, offset=zeros(2)),
        TypeError,
        "offset has dtype torch.float32, expected integers",
    ),
    Row(
        "causal: offsets in a matrix",
        call(masks.causal, 3, 4, offset=zeros(2, 1, dtype=torch.int64)),
        ValueError,
        "offset has shape (2, 1), expected (B,)",
    ),
    Row(
        "causal: offsets without a number of keys",
        call(masks.causal, 3, offset=zeros(2, dtype=torch.int64)),
        ValueError,
        "S is None, expected a number where offset is a tensor",
    ),
    Row(
        "sliding_window: an empty window",
        call(masks.sliding_window, 3, window=0),
        ValueError,
        "window=0 must be at least 1",
    ),
    Row(
        "sliding_window: a negative other side",
        call(masks.sliding_window, 3, window=1, after=-1),
        ValueError,
        "after=-1 must be at least 0",
    ),
    Row(
        "sliding_window: no window",
        call(masks.sliding_window, 3, window=None),
        TypeError,
        "window must be an integer, got NoneType",
    ),
    Row(
        "padding: a mask for lengths",
        call(masks.padding, zeros(2, 7, dtype=torch.bool), 7),
        TypeError,
        "lengths has dtype torch.bool, expected integers",
    ),
    Row(
        "padding: lengths in a matrix",
        call(masks.padding, zeros(2, 7, dtype=torch.int64), 7),
        ValueError,
        "lengths has shape (2, 7), expected (B,)",
    ),
    Row(
        "padding: longer than the keys",
        call(masks.padding, [3, 8], 7),
        ValueError,
        "lengths holds 8, expected 0 to S=7",
    ),
    Row(
        "padding: a negative number of keys",
        call(masks.padding, [], -1),
        ValueError,
        "S=-1 must be at least 0",
    ),
    Row(
        "padding: a negative length",
        call(masks.padding, [-1, 2], 7),
        ValueError,
        "lengths holds -1, expected 0 to S=7",
    ),
    Row(
        "padding: half a key",
        call(masks.padding, [0.5, 2], 7),
        TypeError,
        "lengths must be an integer, got float",
    ),
    Row(
        "padding: a float number of keys",
        call(masks.padding, [1, 2], 7.0),
        TypeError,
        "S must be an integer, got float",
    ),
    Row(
        "document: ids of floats",
        call(masks.document, zeros(2, 5)),
        TypeError,
        "query_ids has dtype torch.float32, expected integers",
    ),
    Row(
        "document: a list of ids",
        call(masks.document, zeros(5, dtype=torch.int64), [0, 1]),
        TypeError,
        "key_ids must be a Tensor, got list",
    ),
    Row(
        "document: ids with heads",
        call(masks.document, zeros(2, 6, 5, dtype=torch.int64)),
        ValueError,
        "query_ids has shape (2, 6, 5), expected (B, L) or (L,)",
    ),
    Row(
        "document: another batch of keys",
        call(masks.document, *(zeros(n, 5, dtype=torch.int64) for n in (2, 3))),
        ValueError,
        "key_ids has batch axes (3,), expected (2,) as query_ids",
    ),
    Row(
        "document: keys on another device",
        call(
            masks.document,
            *(zeros(5, dtype=torch.int64, device=d) for d in ("cpu", "meta")),
        ),
        ValueError,
        "key_ids has device meta, expected cpu as query_ids",
    ),
    Row(
        "combine: a float mask",
        call(masks.combine, None, zeros(5, 7)),
        TypeError,
        "masks[1] has dtype torch.float32, expected torch.bool",
    ),
    Row(
        "combine: masks in a list",
        call(masks.combine, [zeros(5, 7, dtype=torch.bool)]),
        TypeError,
        "masks[0] must be a Tensor, got list",
    ),
    Row(
        "combine: masks that do not broadcast",
        call(
            masks.combine,
            zeros(5, 7, dtype=torch.bool),
            None,
            zeros(7, 5, dtype=torch.bool),
        ),
        ValueError,
        "masks[2] has shape (7, 5), expected one that broadcasts with (5, 7)",
    ),
    Row(
        "combine: masks on two devices",
        call(
            masks.combine,
            *(zeros(7, dtype=torch.bool, device=d) for d in ("cpu", "meta")),
        ),
        ValueError,
        "masks[1] has device meta, expected cpu as those before",
    ),
]
