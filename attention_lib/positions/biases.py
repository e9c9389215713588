"""Biases added to the scores, functions of the distance between query and key."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attention_lib._checks import check_integer
from attention_lib.positions._common import RebuiltTable

__all__ = ["AlibiBias", "RelativePositionBias", "alibi_bias", "alibi_slopes"]


def alibi_slopes(num_heads: int, *, device: torch.device | str | None = None) -> Tensor:
    r"""Slopes of the linear distance penalty, one per head.

    Head :math:`h` adds :math:`-m_h |i - j|` to the score of query i and key j. For a
    power of two the slopes are :math:`2^{-8h/H}`, h from 1. Otherwise they are those of
    the power below, then every other one of the power above.

    Parameters
    ----------
    num_heads
        H, at least 1. Need not be a power of two.
    device
        Of the slopes.

    Returns
    -------
    Tensor
        Shape (H,), float32.

    Raises
    ------
    ValueError
        If ``num_heads`` is below 1.

    Examples
    --------
    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    >>> alibi_slopes(6)[4:].tolist()
    [0.5, 0.125]

    References
    ----------
    Press, Smith and Lewis, "Train Short, Test Long", 2022, section 3.
    """
    return torch.tensor(_slopes(num_heads), dtype=torch.float32, device=device)


def alibi_bias(
    num_heads: int,
    L: int,
    S: int | None = None,
    *,
    offset: int = 0,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""Linear distance penalty, :math:`-m_h |i - j|`, to add to the scores.

    Parameters
    ----------
    num_heads
        H, at least 1.
    L, S
        Numbers of queries and keys; S is L + ``offset`` by default.
    offset
        Position of the first query; the first key is at 0.
    device
        Of the bias.

    Returns
    -------
    Tensor
        Shape (H, L, S), float32.

    Raises
    ------
    ValueError
        If a number is negative or ``num_heads`` is below 1.

    Examples
    --------
    >>> alibi_bias(8, 3)[0]
    tensor([[-0.0000, -0.5000, -1.0000],
            [-0.5000, -0.0000, -0.5000],
            [-1.0000, -0.5000, -0.0000]])

    References
    ----------
    Press, Smith and Lewis, "Train Short, Test Long", 2022, section 3.
    """
    check_integer("num_heads", num_heads, least=1)
    distance = _distance(L, S, offset, device)
    return -alibi_slopes(num_heads, device=device)[:, None, None] * distance.abs()


class AlibiBias(RebuiltTable):
    """:func:`alibi_bias` as a module, for ``MultiHeadAttention(score_bias=...)``.

    Parameters
    ----------
    num_heads
        H, at least 1.
    device
        Where the slopes lie, and so the bias.

    Examples
    --------
    >>> torch.equal(AlibiBias(8)(1, offset=4), alibi_bias(8, 1, 5, offset=4))
    True
    """

    def __init__(
        self, num_heads: int, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__(_slopes(num_heads), device)
        self.num_heads = num_heads

    def forward(self, L: int, S: int | None = None, *, offset: int = 0) -> Tensor:
        """The bias of L queries and S keys, (H, L, S), float32."""
        distance = _distance(L, S, offset, self.table.device)
        return -self.table[:, None, None] * distance.abs()

    def extra_repr(self) -> str:
        return f"{self.num_heads}"


class RelativePositionBias(nn.Module):
    """A learned bias for each head and each bucket of distances.

    Short distances have a bucket each; longer ones share buckets that widen
    logarithmically up to ``max_distance``; past it all fall into the last.

    Parameters
    ----------
    num_heads
        H, at least 1.
    num_buckets
        Rows of the table: even when ``bidirectional``, half of them for each direction.
    max_distance
        Distance at which the last bucket begins.
    bidirectional
        Whether keys after the query have buckets of their own. False for causal layers:
        there, all buckets serve the past.
    device, dtype
        Of the table.

    Raises
    ------
    ValueError
        If ``num_buckets`` is too small or odd, or ``max_distance`` leaves no distance
        to share buckets.

    Examples
    --------
    >>> bias = RelativePositionBias(4, num_buckets=8, max_distance=16)
    >>> bias(3, 5).shape
    torch.Size([4, 3, 5])
    >>> bias.buckets(1, 8)
    tensor([[0, 5, 6, 6, 6, 6, 7, 7]])
    >>> bias.buckets(1, offset=7)
    tensor([[3, 3, 2, 2, 2, 2, 1, 0]])

    References
    ----------
    Raffel et al., "Exploring the Limits of Transfer Learning with a Unified
    Text-to-Text Transformer", 2020, section 2.1.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_integer("num_heads", num_heads, least=1)
        check_integer("num_buckets", num_buckets, least=4 if bidirectional else 2)
        if bidirectional and num_buckets % 2:
            raise ValueError(
                f"num_buckets={num_buckets} must be even: half for each direction"
            )
        self.num_heads = num_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        # Of the buckets of one direction, half hold a single distance.
        self.per_direction = num_buckets // 2 if bidirectional else num_buckets
        self.exact = self.per_direction // 2
        check_integer("max_distance", max_distance, least=self.exact + 1)
        self.weight = nn.Parameter(
            torch.empty(num_buckets, num_heads, device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        nn.init.normal_(self.weight, std=0.02)

    def buckets(self, L: int, S: int | None = None, *, offset: int = 0) -> Tensor:
        """Bucket of each query and key, (L, S), int64.

        Parameters
        ----------
        L, S
            Numbers of queries and keys; S is L + ``offset`` by default.
        offset
            Position of the first query; the first key is at 0.
        """
        past = _distance(L, S, offset, self.weight.device)
        if self.bidirectional:
            first = (past < 0) * self.per_direction
            past = past.abs()
        else:
            past = past.clamp(min=0)
            first = torch.zeros_like(past)
        spread = (past.float() / self.exact).log() / math.log(
            self.max_distance / self.exact
        )
        wide = self.exact + (spread * (self.per_direction - self.exact)).long()
        wide = wide.clamp(max=self.per_direction - 1)
        return first + torch.where(past < self.exact, past, wide)

    def forward(self, L: int, S: int | None = None, *, offset: int = 0) -> Tensor:
        """The bias of L queries and S keys, (H, L, S), in the table's dtype."""
        return self.weight[self.buckets(L, S, offset=offset)].permute(2, 0, 1)

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, "
            f"max_distance={self.max_distance}, bidirectional={self.bidirectional}"
        )


def _slopes(num_heads: int) -> list[float]:
    check_integer("num_heads", num_heads, least=1)
    below = 2 ** (num_heads.bit_length() - 1)
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    above = [2 ** (-4 * h / below) for h in range(1, 2 * below, 2)]
    return slopes + above[: num_heads - below]


def _distance(
    L: int, S: int | None, offset: int, device: torch.device | str | None
) -> Tensor:
    """How far the key lies before the query, (L, S): negative when it lies after."""
    check_integer("L", L, least=0)
    check_integer("offset", offset, least=0)
    S = L + offset if S is None else S
    check_integer("S", S, least=0)
    queries = torch.arange(offset, offset + L, device=device)
    return queries[:, None] - torch.arange(S, device=device)
