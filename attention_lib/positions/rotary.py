"""Rotary positions: pairs of components turn by an angle that grows with position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attention_lib._checks import check_integer, expands
from attention_lib.positions._common import (
    RebuiltTable,
    geometric_frequencies,
    resolve_positions,
)

__all__ = ["RotaryEmbedding", "apply_rotary"]


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False
) -> Tensor:
    r"""Turn pairs of components of queries or keys.

    A pair :math:`(a, b)` becomes :math:`(a\cos\theta - b\sin\theta,\; b\cos\theta +
    a\sin\theta)`. The first R components are turned, where R is twice the width of
    ``cos``; the others pass unchanged.

    Parameters
    ----------
    x
        Queries or keys, (..., L, D).
    cos, sin
        Cosine and sine of each pair's angle, broadcasting to (..., L, R/2).
    interleaved
        Which components form a pair: neighbours (2i, 2i+1) if true, else the halves
        (i, i + R/2). Weights made for one pairing are wrong for the other.

    Returns
    -------
    Tensor
        Shape and dtype of ``x``; computed in the wider of the dtypes.

    Raises
    ------
    ValueError
        If the shapes do not fit.

    Examples
    --------
    A quarter turn:

    >>> x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> cos, sin = torch.zeros(1, 2), torch.ones(1, 2)
    >>> apply_rotary(x, cos, sin)
    tensor([[-3., -4.,  1.,  2.]])
    >>> apply_rotary(x, cos, sin, interleaved=True)
    tensor([[-2.,  1., -4.,  3.]])

    References
    ----------
    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021,
    section 3.4.
    """
    pairs = cos.shape[-1]
    if sin.shape != cos.shape:
        raise ValueError(
            f"sin has shape {tuple(sin.shape)}, expected {tuple(cos.shape)} as cos"
        )
    if 2 * pairs > x.shape[-1]:
        raise ValueError(
            f"cos has width {pairs}, expected at most {x.shape[-1] // 2}, "
            "half of the width of x"
        )
    if not expands(cos.shape, (*x.shape[:-1], pairs)):
        raise ValueError(
            f"cos has shape {tuple(cos.shape)}, "
            f"expected one that broadcasts to {(*x.shape[:-1], pairs)}"
        )
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.split(pairs, dim=-1)
    parts = (first * cos - second * sin, second * cos + first * sin)
    if interleaved:
        turned = torch.stack(parts, dim=-1).flatten(-2)
    else:
        turned = torch.cat(parts, dim=-1)
    turned = turned.to(x.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


class RotaryEmbedding(RebuiltTable):
    r"""Turn each query and key by angles that grow with its position.

    Pair i of a token at position p turns by :math:`p\,\omega_i`. The dot product of a
    query and a key then depends on their distance alone.

    Parameters
    ----------
    head_dim
        D, the width of a head.
    rotary_dim
        R, how many components turn, even and at most D. All by default.
    base
        The frequencies are :math:`\omega_i = \text{base}^{-2i/R}` radians per token.
    frequencies
        R/2 own frequencies instead, in radians per token.
    interleaved
        Pairs are neighbours (2i, 2i+1) if true, else halves (i, i + R/2).
    device
        Where the frequencies lie.

    Raises
    ------
    ValueError
        If ``rotary_dim`` is odd, or above ``head_dim``, or ``frequencies`` has another
        length than R/2.

    Examples
    --------
    >>> rotary = RotaryEmbedding(8)
    >>> query, key = torch.ones(1, 1, 1, 8), torch.ones(1, 1, 1, 8)
    >>> here = (rotary(query, offset=5) * rotary(key, offset=3)).sum()
    >>> there = (rotary(query, offset=105) * rotary(key, offset=103)).sum()
    >>> torch.allclose(here, there, atol=1e-4)
    True

    References
    ----------
    Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        rotary_dim: int | None = None,
        base: float = 10000.0,
        frequencies: Sequence[float] | Tensor | None = None,
        interleaved: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        check_integer("head_dim", head_dim, least=1)
        rotary_dim = head_dim if rotary_dim is None else rotary_dim
        check_integer("rotary_dim", rotary_dim, least=1)
        if rotary_dim % 2:
            raise ValueError(f"rotary_dim={rotary_dim} must be even: pairs are turned")
        if rotary_dim > head_dim:
            raise ValueError(
                f"rotary_dim={rotary_dim} must be at most head_dim={head_dim}"
            )
        if frequencies is None:
            values = geometric_frequencies(rotary_dim, base)
        else:
            values = [float(frequency) for frequency in frequencies]
        if len(values) != rotary_dim // 2:
            raise ValueError(
                f"frequencies has {len(values)} values, expected rotary_dim / 2 = "
                f"{rotary_dim // 2}"
            )
        super().__init__(values, device)
        self.head_dim = head_dim
        self.rotary_dim = rotary_dim
        self.interleaved = interleaved

    def forward(
        self, x: Tensor, offset: int = 0, positions: Tensor | None = None
    ) -> Tensor:
        """Turn queries or keys.

        Parameters
        ----------
        x
            Queries or keys, (B, H, L, D).
        offset
            Position of the first token.
        positions
            Position of every token instead, integers (L,) or (B, L): with padding on
            the left, :func:`token_positions`.

        Returns
        -------
        Tensor
            Shape and dtype of ``x``.

        Raises
        ------
        ValueError
            If ``x`` or ``positions`` has another shape, or both ``offset`` and
            ``positions`` are given.
        """
        if x.ndim != 4 or x.shape[-1] != self.head_dim:
            raise ValueError(
                f"x has shape {tuple(x.shape)}, expected (B, H, L, {self.head_dim})"
            )
        places = resolve_positions(x, offset, positions, batch=x.shape[0])
        exact = torch.promote_types(x.dtype, torch.float32)
        angles = places.to(exact)[..., None] * self.table.to(exact)  # (.., L, R/2)
        if angles.ndim == 3:
            angles = angles[:, None]  # (B, 1, L, R/2): the same for every head
        return apply_rotary(x, angles.cos(), angles.sin(), interleaved=self.interleaved)

    def extra_repr(self) -> str:
        return (
            f"{self.head_dim}, rotary_dim={self.rotary_dim}, "
            f"interleaved={self.interleaved}"
        )
