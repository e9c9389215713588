"""Wrong calls of both faces of attention."""

import math

import torch
from wrong_row import Row, call, zeros

from attention_lib import attention_steps, scaled_dot_product_attention

RIGHT = {
    "query": zeros(2, 6, 5, 8),
    "key": zeros(2, 6, 7, 8),
    "value": zeros(2, 6, 7, 4),
}
# What replaces an argument, the error, and what it says.
WRONG = [
    (
        "query is a list",
        {"query": [[1.0]]},
        TypeError,
        "query must be a Tensor, got list",
    ),
    ("key is None", {"key": None}, TypeError, "key must be a Tensor, got NoneType"),
    (
        "integers for a query",
        {"query": zeros(2, 6, 5, 8, dtype=torch.int64)},
        TypeError,
        "query has dtype torch.int64, expected a float dtype",
    ),
    (
        "complex values",
        {"value": zeros(2, 6, 7, 4, dtype=torch.complex64)},
        TypeError,
        "value has dtype torch.complex64, expected a float dtype",
    ),
    (
        "key in another precision",
        {"key": zeros(2, 6, 7, 8, dtype=torch.float64)},
        TypeError,
        "key has dtype torch.float64, expected torch.float32 as query",
    ),
    (
        "value on another device",
        {"value": zeros(2, 6, 7, 4, device="meta")},
        ValueError,
        "value has device meta, expected cpu as query",
    ),
    (
        "a query without lengths",
        {"query": zeros(8)},
        ValueError,
        "query has shape (8,), expected (..., L, D)",
    ),
    (
        "grouped heads without heads",
        {"value": zeros(7, 4), "enable_gqa": True},
        ValueError,
        "value has shape (7, 4), expected (..., H, L, D)",
    ),
    (
        "a query of width 0",
        {"query": zeros(2, 6, 5, 0), "key": zeros(2, 6, 7, 0)},
        ValueError,
        "query has shape (2, 6, 5, 0), expected a width >= 1",
    ),
    (
        "a narrower key",
        {"key": zeros(2, 6, 7, 3)},
        ValueError,
        "key has width 3, expected 8 as query",
    ),
    (
        "fewer values than keys",
        {"value": zeros(2, 6, 5, 4)},
        ValueError,
        "value has length 5, expected 7 as key",
    ),
    (
        "values of other heads",
        {"value": zeros(2, 3, 7, 4)},
        ValueError,
        "value has leading axes (2, 3), expected (2, 6) as key",
    ),
    (
        "grouped values of other heads",
        {"value": zeros(2, 3, 7, 4), "enable_gqa": True},
        ValueError,
        "value has leading axes (2, 3), expected (2, 6) as key",
    ),
    (
        "another batch",
        {"key": zeros(1, 6, 7, 8), "value": zeros(1, 6, 7, 4)},
        ValueError,
        "key has leading axes (1, 6), expected (2, 6) as query",
    ),
    (
        "another batch with grouped heads",
        {"key": zeros(1, 3, 7, 8), "value": zeros(1, 3, 7, 4), "enable_gqa": True},
        ValueError,
        "key has batch axes (1,), expected (2,) as query",
    ),
    (
        "fewer key heads without grouping",
        {"key": zeros(2, 3, 7, 8), "value": zeros(2, 3, 7, 4)},
        ValueError,
        (
            "key has leading axes (2, 3), expected (2, 6) as query "
            "(enable_gqa=True shares key heads)"
        ),
    ),
    (
        "heads that do not divide",
        {"key": zeros(2, 4, 7, 8), "value": zeros(2, 4, 7, 4), "enable_gqa": True},
        ValueError,
        "query has 6 heads, expected a multiple of the 4 of key",
    ),
    (
        "more key heads than query heads",
        {"key": zeros(2, 12, 7, 8), "value": zeros(2, 12, 7, 4), "enable_gqa": True},
        ValueError,
        "query has 6 heads, expected a multiple of the 12 of key",
    ),
    (
        "no key heads",
        {"key": zeros(2, 0, 7, 8), "value": zeros(2, 0, 7, 4), "enable_gqa": True},
        ValueError,
        "query has 6 heads, expected a multiple of the 0 of key",
    ),
    (
        "a mask that is no tensor",
        {"attn_mask": [[True]]},
        TypeError,
        "attn_mask must be a Tensor, got list",
    ),
    (
        "an integer mask",
        {"attn_mask": zeros(5, 7, dtype=torch.int64)},
        TypeError,
        (
            "attn_mask has dtype torch.int64, "
            "expected torch.bool (True = may attend) or torch.float32"
        ),
    ),
    (
        "a mask in a third precision",
        {"attn_mask": zeros(5, 7, dtype=torch.float16)},
        TypeError,
        "attn_mask has dtype torch.float16, expected torch.bool",
    ),
    (
        "a mask on another device",
        {"attn_mask": zeros(5, 7, dtype=torch.bool, device="meta")},
        ValueError,
        "attn_mask has device meta, expected cpu as query",
    ),
    (
        "a padding mask without its axes",
        {"attn_mask": zeros(2, 7, dtype=torch.bool)},
        ValueError,
        "attn_mask has shape (2, 7), expected one that broadcasts to (2, 6, 5, 7)",
    ),
    (
        "a mask the other way round",
        {"attn_mask": zeros(7, 5)},
        ValueError,
        "attn_mask has shape (7, 5), expected one that broadcasts to (2, 6, 5, 7)",
    ),
    (
        "a mask of each sequence without a head axis",
        {"attn_mask": zeros(2, 5, 7)},
        ValueError,
        "attn_mask has shape (2, 5, 7), expected one that broadcasts to (2, 6, 5, 7)",
    ),
    (
        "a mask of too many axes",
        {"attn_mask": zeros(1, 2, 6, 5, 7)},
        ValueError,
        "attn_mask has shape (1, 2, 6, 5, 7), expected one that broadcasts to",
    ),
    (
        "dropout of everything",
        {"dropout_p": 1},
        ValueError,
        "dropout_p=1 must be at least 0 and below 1",
    ),
    (
        "negative dropout",
        {"dropout_p": -0.1},
        ValueError,
        "dropout_p=-0.1 must be at least 0 and below 1",
    ),
    (
        "dropout that is no number",
        {"dropout_p": math.nan},
        ValueError,
        "dropout_p=nan must be at least 0 and below 1",
    ),
    (
        "a mask in dropout's place",
        {"dropout_p": zeros(5, 7)},
        TypeError,
        "dropout_p must be a number, got Tensor",
    ),
    (
        "is_causal in dropout's place",
        {"dropout_p": True},
        TypeError,
        "dropout_p must be a number, got bool",
    ),
    ("infinite scale", {"scale": math.inf}, ValueError, "scale=inf must be finite"),
    (
        "infinite negative scale",
        {"scale": -math.inf},
        ValueError,
        "scale=-inf must be finite",
    ),
    (
        "scale that is no number",
        {"scale": math.nan},
        ValueError,
        "scale=nan must be finite",
    ),
    (
        "a tensor as scale",
        {"scale": zeros()},
        TypeError,
        "scale must be a number, got Tensor",
    ),
    (
        "a softcap of 0",
        {"softcap": 0.0},
        ValueError,
        "softcap=0.0 must be above 0 and finite, or None",
    ),
    (
        "an infinite softcap",
        {"softcap": math.inf},
        ValueError,
        "softcap=inf must be above 0 and finite, or None",
    ),
    (
        "a softcap in words",
        {"softcap": "30"},
        TypeError,
        "softcap must be a number, got str",
    ),
]

ROWS = [
    Row(f"{face.__name__}: {name}", call(face, **(RIGHT | changes)), error, message)
    for face in (attention_steps, scaled_dot_product_attention)
    for name, changes, error, message in WRONG
]
