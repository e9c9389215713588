"""The kernels. Imported only where Triton is installed.

One program works on one block of rows of one head: it walks along the other axis block by
block, and nothing as large as L x S is ever written. Scores are kept in units of ln 2, so
that the hardware's fast power of two serves as exponential.

Letters: L queries, S keys, D width of queries and keys, DV width of values, GROUP query
heads for each head of keys. A block's width is the next power of two; loads beyond the
true sizes give 0.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

__all__ = ["OutOfResources", "backward_key_value", "backward_query", "forward"]


@triton.jit
def load(
    base, rows, columns, row_stride, height, width: tl.constexpr, upcast: tl.constexpr
):
    """A tile of a matrix whose columns lie side by side; 0 beyond its edges."""
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    tile = tl.load(base + rows[:, None] * row_stride + columns[None, :], inside, 0.0)
    return tile.to(tl.float32) if upcast else tile


@triton.jit
def visible(
    mask,
    rows,
    columns,
    mask_row,
    mask_column,
    L,
    S,
    causal: tl.constexpr,
    masked: tl.constexpr,
):
    """Which queries of the rows see which keys of the columns."""
    seen = (rows[:, None] < L) & (columns[None, :] < S)
    if causal:
        seen = seen & (columns[None, :] <= rows[:, None])
    if masked:
        places = rows[:, None].to(tl.int64) * mask_row + columns[None, :] * mask_column
        seen = seen & (tl.load(mask + places, seen, 0) != 0)
    return seen


@triton.jit
def place(blocks):
    """The block and the head of this program: one axis takes any number of both."""
    program = tl.program_id(0)
    head = (program // blocks).to(tl.int64)  # over batch and heads; offsets get large
    return program % blocks, head


@triton.jit
def forward(
    query, key, value, mask, output, log_sum,
    query_head, query_row, key_head, key_row, value_head, value_row,
    mask_batch, mask_head, mask_row, mask_column,
    H, L, S, scale,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_S: tl.constexpr,
    causal: tl.constexpr, masked: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    """The output and the log-sum-exp of one block of queries."""
    block, head = place(tl.cdiv(L, BLOCK_L))
    first = block * BLOCK_L
    key += (head // GROUP) * key_head
    value += (head // GROUP) * value_head
    mask += (head // H) * mask_batch + (head % H) * mask_head
    rows = first + tl.arange(0, BLOCK_L)
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    q = load(query + head * query_head, rows, d, query_row, L, D, upcast)

    top = tl.full([BLOCK_L], float("-inf"), tl.float32)  # the largest score so far
    total = tl.zeros([BLOCK_L], tl.float32)  # of 2 ** (score - top)
    mixed = tl.zeros([BLOCK_L, BLOCK_DV], tl.float32)
    last = tl.minimum(S, first + BLOCK_L) if causal else S
    for start in range(0, last, BLOCK_S):
        columns = start + tl.arange(0, BLOCK_S)
        k = load(key, columns, d, key_row, S, D, upcast)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = visible(mask, rows, columns, mask_row, mask_column, L, S, causal, masked)
        scores = tl.where(seen, scores, float("-inf"))
        above = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(above == float("-inf"), 0.0, above)  # a row with no key yet
        powers = tl.exp2(scores - finite[:, None])
        shrink = tl.exp2(top - finite)
        total = total * shrink + tl.sum(powers, 1)
        v = load(value, columns, dv, value_row, S, DV, upcast)
        mixed = mixed * shrink[:, None]
        mixed += tl.dot(powers.to(v.dtype), v, input_precision="ieee")
        top = above

    empty = total == 0.0
    mixed = mixed / tl.where(empty, 1.0, total)[:, None]
    level = tl.where(empty, float("-inf"), top + tl.log2(tl.where(empty, 1.0, total)))
    inside = (rows[:, None] < L) & (dv[None, :] < DV)
    places = output + head * L * DV + rows[:, None] * DV + dv[None, :]
    tl.store(places, mixed.to(output.dtype.element_ty), inside)
    tl.store(log_sum + head * L + rows, level * 0.6931471805599453, rows < L)


@triton.jit
def weights_again(
    q, k, rows, columns, log_sum, mask, mask_row, mask_column, L, S, scale,
    causal: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    """The weights of one tile, from its scores and the log-sum-exp of each row."""
    level = tl.load(log_sum + rows, rows < L, 0.0) * 1.4426950408889634
    level = tl.where(level == float("-inf"), 0.0, level)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = visible(mask, rows, columns, mask_row, mask_column, L, S, causal, masked)
    return tl.exp2(tl.where(seen, scores - level[:, None], float("-inf")))


@triton.jit
def backward_query(
    query, key, value, mask, grad, log_sum, mean, grad_query,
    query_head, query_row, key_head, key_row, value_head, value_row,
    mask_batch, mask_head, mask_row, mask_column,
    H, L, S, scale,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_S: tl.constexpr,
    causal: tl.constexpr, masked: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    """The gradient of one block of queries: it walks along the keys."""
    block, head = place(tl.cdiv(L, BLOCK_L))
    first = block * BLOCK_L
    key += (head // GROUP) * key_head
    value += (head // GROUP) * value_head
    mask += (head // H) * mask_batch + (head % H) * mask_head
    log_sum += head * L
    rows = first + tl.arange(0, BLOCK_L)
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    q = load(query + head * query_head, rows, d, query_row, L, D, upcast)
    g = load(grad + head * L * DV, rows, dv, DV, L, DV, upcast)
    average = tl.load(mean + head * L + rows, rows < L, 0.0)

    grad_q = tl.zeros([BLOCK_L, BLOCK_D], tl.float32)
    last = tl.minimum(S, first + BLOCK_L) if causal else S
    for start in range(0, last, BLOCK_S):
        columns = start + tl.arange(0, BLOCK_S)
        k = load(key, columns, d, key_row, S, D, upcast)
        v = load(value, columns, dv, value_row, S, DV, upcast)
        w = weights_again(
            q, k, rows, columns, log_sum, mask, mask_row, mask_column, L, S, scale,
            causal, masked,
        )  # fmt: skip
        grad_w = tl.dot(g, tl.trans(v), input_precision="ieee")
        grad_s = w * (grad_w - average[:, None])
        grad_q += tl.dot(grad_s.to(k.dtype), k, input_precision="ieee")

    inside = (rows[:, None] < L) & (d[None, :] < D)
    places = grad_query + head * L * D + rows[:, None] * D + d[None, :]
    grad_q = grad_q * scale * 0.6931471805599453
    tl.store(places, grad_q.to(grad_query.dtype.element_ty), inside)


@triton.jit
def backward_key_value(
    query, key, value, mask, grad, log_sum, mean, grad_key, grad_value,
    query_head, query_row, key_head, key_row, value_head, value_row,
    mask_batch, mask_head, mask_row, mask_column,
    H, L, S, scale,
    GROUP: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_L: tl.constexpr, BLOCK_S: tl.constexpr,
    causal: tl.constexpr, masked: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    """The gradients of one block of keys and values: it walks along the queries.

    It does so for each query head that shares them, so that no two programs add to the
    same place and the result is the same every time.
    """
    block, key_value_head = place(tl.cdiv(S, BLOCK_S))
    start = block * BLOCK_S
    columns = start + tl.arange(0, BLOCK_S)
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    k = load(key + key_value_head * key_head, columns, d, key_row, S, D, upcast)
    v = load(value + key_value_head * value_head, columns, dv, value_row, S, DV, upcast)
    grad_k = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    grad_v = tl.zeros([BLOCK_S, BLOCK_DV], tl.float32)
    begin = (start // BLOCK_L) * BLOCK_L if causal else 0
    for member in range(GROUP):
        head = key_value_head * GROUP + member
        part = mask + (head // H) * mask_batch + (head % H) * mask_head
        for first in range(begin, L, BLOCK_L):
            rows = first + tl.arange(0, BLOCK_L)
            q = load(query + head * query_head, rows, d, query_row, L, D, upcast)
            g = load(grad + head * L * DV, rows, dv, DV, L, DV, upcast)
            average = tl.load(mean + head * L + rows, rows < L, 0.0)
            w = weights_again(
                q, k, rows, columns, log_sum + head * L, part, mask_row, mask_column,
                L, S, scale, causal, masked,
            )  # fmt: skip
            grad_v += tl.dot(tl.trans(w.to(g.dtype)), g, input_precision="ieee")
            grad_w = tl.dot(g, tl.trans(v), input_precision="ieee")
            grad_s = w * (grad_w - average[:, None])
            grad_k += tl.dot(tl.trans(grad_s.to(q.dtype)), q, input_precision="ieee")

    rows_k = key_value_head * S + columns[:, None]
    inside = (columns[:, None] < S) & (d[None, :] < D)
    grad_k = grad_k * scale * 0.6931471805599453
    tl.store(
        grad_key + rows_k * D + d[None, :], grad_k.to(grad_key.dtype.element_ty), inside
    )
    inside = (columns[:, None] < S) & (dv[None, :] < DV)
    tl.store(
        grad_value + rows_k * DV + dv[None, :],
        grad_v.to(grad_value.dtype.element_ty),
        inside,
    )
