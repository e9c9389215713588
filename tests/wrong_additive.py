"""Wrong calls of additive attention."""

import torch
from wrong_row import Row, call, zeros

from attention_lib import additive_attention

RIGHT = {
    "query": zeros(2, 5, 3),
    "key": zeros(2, 7, 4),
    "value": zeros(2, 7, 9),
    "query_weight": zeros(6, 3),
    "key_weight": zeros(6, 4),
    "score_weight": zeros(6),
}


def additive(**changes: object):
    return call(additive_attention, **(RIGHT | changes))


ROWS = [
    Row(
        "additive: weights the other way round",
        additive(query_weight=zeros(3, 6)),
        ValueError,
        "query_weight has shape (3, 6), expected (6, 3)",
    ),
    Row(
        "additive: a key weight for the query",
        additive(key_weight=zeros(6, 3)),
        ValueError,
        "key_weight has shape (6, 3), expected (6, 4)",
    ),
    Row(
        "additive: a matrix of score weights",
        additive(score_weight=zeros(1, 6)),
        ValueError,
        "score_weight has shape (1, 6), expected (A,)",
    ),
    Row(
        "additive: a short bias",
        additive(bias=zeros(5)),
        ValueError,
        "bias has shape (5,), expected (6,)",
    ),
    Row(
        "additive: a bias in another precision",
        additive(bias=zeros(6, dtype=torch.float64)),
        TypeError,
        "bias has dtype torch.float64, expected torch.float32 as query",
    ),
    Row(
        "additive: a value with one axis",
        additive(value=zeros(9)),
        ValueError,
        "value has shape (9,), expected (..., L, D)",
    ),
    Row(
        "additive: integer keys",
        additive(key=zeros(2, 7, 4, dtype=torch.int64)),
        TypeError,
        "key has dtype torch.int64, expected a float dtype",
    ),
    Row(
        "additive: fewer values than keys",
        additive(value=zeros(2, 5, 9)),
        ValueError,
        "value has length 5, expected 7 as key",
    ),
    Row(
        "additive: another batch",
        additive(query=zeros(1, 5, 3)),
        ValueError,
        "key has leading axes (2,), expected (1,) as query",
    ),
    Row(
        "additive: a query without lengths",
        additive(query=zeros(3)),
        ValueError,
        "query has shape (3,), expected (..., L, D)",
    ),
    Row(
        "additive: a mask of other lengths",
        additive(attn_mask=zeros(7, 5)),
        ValueError,
        "attn_mask has shape (7, 5), expected one that broadcasts to (2, 5, 7)",
    ),
    Row(
        "additive: dropout of everything",
        additive(dropout_p=1.0),
        ValueError,
        "dropout_p=1.0 must be at least 0 and below 1",
    ),
]
