"""Masks: bool tensors in which True means that this query may attend to this key.

Each builder returns a mask that broadcasts against scores of shape (B, H, L, S), and
:func:`combine` joins any of them into what all allow. Letters: B batch, H heads, L
queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attention_lib import _checks

__all__ = ["causal", "combine", "document", "padding", "sliding_window"]


def causal(
    L: int,
    S: int | None = None,
    *,
    offset: int | Tensor = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""Each query sees the keys up to its own position: key j if :math:`j \le i +
    offset`.

    Parameters
    ----------
    L
        Number of queries.
    S
        Number of keys. ``None`` means ``L + offset``: the last query sees every key.
    offset
        How many keys precede the first query: 0 without a cache, the cache's length
        with one. Below 0, the first queries see nothing. A tensor of integers, shape
        (B,), gives every sequence its own.
    device
        Where to build the mask. ``None`` means where ``offset`` is, or torch's default.

    Returns
    -------
    Tensor
        Bool, shape (L, S); (B, 1, L, S) with a tensor as ``offset``.

    Raises
    ------
    ValueError
        If a length is below 0, ``offset`` is not of shape (B,), or ``S`` is ``None``
        where ``offset`` is a tensor.
    TypeError
        If an argument is not of integers.

    Examples
    --------
    >>> causal(3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)

    Two new queries behind a cache of two keys:

    >>> causal(2, offset=2).int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, section 3.2.3.
    """
    query, key = _positions(L, S, offset, device)
    return key <= query


def sliding_window(
    L: int,
    S: int | None = None,
    *,
    window: int,
    after: int | None = 0,
    offset: int | Tensor = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""Each query sees the last ``window`` keys, its own position included.

    Query i is at position :math:`p = i + offset` and sees key j if
    :math:`p - window < j \le p + after`. The window is causal; ``after`` opens it to
    the other side.

    Parameters
    ----------
    L, S, offset, device
        As in :func:`causal`.
    window
        How many keys up to and including the query's own position, at least 1.
    after
        How many keys behind the query's own position, at least 0. ``window=w, after=w -
        1`` is a symmetric window. ``None`` means all of them.

    Returns
    -------
    Tensor
        Bool, shape (L, S); (B, 1, L, S) with a tensor as ``offset``.

    Raises
    ------
    ValueError
        If ``window`` is below 1 or ``after`` below 0, and as :func:`causal`.
    TypeError
        If an argument is not of integers.

    Examples
    --------
    >>> sliding_window(4, window=2).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)

    References
    ----------
    Beltagy, Peters and Cohan, "Longformer", 2020, section 3.1. Jiang et al., "Mistral
    7B", 2023, section 2.
    """
    _checks.check_integer("window", window, least=1)
    if after is not None:
        _checks.check_integer("after", after, least=0)
    query, key = _positions(L, S, offset, device)
    keep = key > query - window
    return keep if after is None else keep & (key <= query + after)


def padding(
    lengths: Tensor | Sequence[int],
    S: int,
    *,
    device: torch.device | str | None = None,
) -> Tensor:
    """No query sees the keys behind the end of its sequence.

    Parameters
    ----------
    lengths
        How many of the S keys of each sequence are real, shape (B,), from 0 to S. The
        real ones come first. The range is checked in a list; a tensor's elements are
        not read, which would make the program wait for its device.
    S
        Number of keys.
    device
        Where to build the mask. ``None`` means where ``lengths`` is.

    Returns
    -------
    Tensor
        Bool, shape (B, 1, 1, S).

    Raises
    ------
    ValueError
        If ``lengths`` is not of shape (B,), a length in a list is outside 0 to S, or S
        is below 0.
    TypeError
        If an argument is not of integers.

    Examples
    --------
    >>> padding([1, 3], 4)[:, 0, 0].int()
    tensor([[1, 0, 0, 0],
            [1, 1, 1, 0]], dtype=torch.int32)
    """
    _checks.check_integer("S", S, least=0)
    if not isinstance(lengths, Tensor):
        for length in lengths:
            _checks.check_integer("lengths", length)
            if not 0 <= length <= S:
                raise ValueError(f"lengths holds {length}, expected 0 to S={S}")
        lengths = torch.tensor(lengths, dtype=torch.int64, device=device)
    _check_batch("lengths", lengths)
    lengths = lengths.to(device)
    return torch.arange(S, device=lengths.device) < lengths[:, None, None, None]


def document(query_ids: Tensor, key_ids: Tensor | None = None) -> Tensor:
    """Each query sees the keys of its own document: sequences packed into one stay
    apart.

    Parameters
    ----------
    query_ids
        The document of each query, integers of shape (B, L), or (L,) for all sequences.
    key_ids
        The document of each key, shape (B, S) or (S,). ``None`` means ``query_ids``.

    Returns
    -------
    Tensor
        Bool, shape (B, 1, L, S), or (L, S) for ids without a batch.

    Raises
    ------
    ValueError
        If ids have other shapes, or are on two devices.
    TypeError
        If ids are not integers.

    Examples
    --------
    Two documents in one sequence, each causal:

    >>> ids = torch.tensor([0, 0, 1, 1])
    >>> combine(document(ids), causal(4)).int()
    tensor([[1, 0, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    if key_ids is None:
        key_ids = query_ids
    for name, ids in (("query_ids", query_ids), ("key_ids", key_ids)):
        _checks.check_integers(name, ids)
        if ids.ndim not in (1, 2):
            raise ValueError(
                f"{name} has shape {tuple(ids.shape)}, expected (B, L) or (L,)"
            )
    batch = query_ids.shape[:-1]
    _checks.check_equal("batch axes", key_ids.shape[:-1], "key_ids", batch, "query_ids")
    device = query_ids.device
    _checks.check_equal("device", key_ids.device, "key_ids", device, "query_ids")
    keep = query_ids[..., :, None] == key_ids[..., None, :]  # (L, S) or (B, L, S)
    return keep if keep.ndim == 2 else keep[:, None]


def combine(*masks: Tensor | None) -> Tensor | None:
    """What every mask allows; ``None`` allows everything.

    Parameters
    ----------
    *masks
        Bool tensors whose shapes broadcast, or ``None``.

    Returns
    -------
    Tensor or None
        Bool, of the broadcast shape. ``None`` where no mask is given.

    Raises
    ------
    ValueError
        If shapes do not broadcast, or masks are on several devices.
    TypeError
        If a mask is not a bool tensor.

    Examples
    --------
    >>> combine(causal(3), padding([1, 2], 3), None).shape
    torch.Size([2, 1, 3, 3])
    >>> combine(None) is None
    True
    """
    joined: Tensor | None = None
    for index, mask in enumerate(masks):
        if mask is None:
            continue
        name = f"masks[{index}]"
        if not isinstance(mask, Tensor):
            raise TypeError(f"{name} must be a Tensor, got {type(mask).__name__}")
        if mask.dtype != torch.bool:
            raise TypeError(f"{name} has dtype {mask.dtype}, expected torch.bool")
        if joined is None:
            joined = mask
            continue
        _checks.check_equal("device", mask.device, name, joined.device, "those before")
        if not _checks.broadcast(mask.shape, joined.shape):
            raise ValueError(
                f"{name} has shape {tuple(mask.shape)}, "
                f"expected one that broadcasts with {tuple(joined.shape)}"
            )
        joined = joined & mask
    return joined


def _positions(
    L: int, S: int | None, offset: int | Tensor, device: torch.device | str | None
) -> tuple[Tensor, Tensor]:
    """Positions of the queries, (L, 1) or (B, 1, L, 1), and of the keys, (S,)."""
    _checks.check_integer("L", L, least=0)
    if isinstance(offset, Tensor):
        _check_batch("offset", offset)
        if S is None:
            raise ValueError("S is None, expected a number where offset is a tensor")
        offset = offset.to(device)[:, None, None, None]
        device = offset.device
    else:
        _checks.check_integer("offset", offset)
        if S is None:
            S = L + offset
    _checks.check_integer("S", S, least=0)
    query = torch.arange(L, device=device).unsqueeze(-1) + offset
    return query, torch.arange(S, device=device)


def _check_batch(name: str, numbers: Tensor) -> None:
    _checks.check_integers(name, numbers)
    if numbers.ndim != 1:
        raise ValueError(f"{name} has shape {tuple(numbers.shape)}, expected (B,)")
