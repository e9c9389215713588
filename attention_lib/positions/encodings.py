"""Positions added to the tokens: computed sines or a learned table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attention_lib._checks import check_integer
from attention_lib.positions._common import (
    RebuiltTable,
    geometric_frequencies,
    resolve_positions,
)

__all__ = ["LearnedEncoding", "SinusoidalEncoding", "token_positions"]


class SinusoidalEncoding(RebuiltTable):
    r"""Add sines and cosines of the position to each token.

    Components 2i and 2i+1 of the code of position p are :math:`\sin(p\,\omega_i)` and
    :math:`\cos(p\,\omega_i)` with :math:`\omega_i = \text{base}^{-2i/E}`. The codes are
    computed for the positions at hand, so no length is too long.

    Parameters
    ----------
    embed_dim
        E, at least 1. An odd width ends with a sine.
    base
        Ratio of the longest wavelength to the shortest, roughly.
    device
        Where the frequencies lie.

    Raises
    ------
    ValueError
        If ``embed_dim`` is below 1 or ``base`` is not above 0.

    Examples
    --------
    >>> encode = SinusoidalEncoding(4)
    >>> encode(torch.zeros(1, 2, 4))[0].round(decimals=2).tolist()[1]
    [0.8399999737739563, 0.5400000214576721, 0.009999999776482582, 1.0]
    >>> later = encode(torch.zeros(1, 1, 4), offset=1)
    >>> torch.equal(later, encode(torch.zeros(1, 2, 4))[:, 1:])
    True

    References
    ----------
    Vaswani et al., "Attention Is All You Need", 2017, section 3.5.
    """

    def __init__(
        self,
        embed_dim: int,
        *,
        base: float = 10000.0,
        device: torch.device | str | None = None,
    ) -> None:
        check_integer("embed_dim", embed_dim, least=1)
        super().__init__(geometric_frequencies(embed_dim, base), device)
        self.embed_dim = embed_dim
        self.base = base

    def forward(
        self, x: Tensor, offset: int = 0, positions: Tensor | None = None
    ) -> Tensor:
        """Add the codes.

        Parameters
        ----------
        x
            Tokens, (B, L, E).
        offset
            Position of the first token.
        positions
            Position of every token instead, integers (L,) or (B, L).

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
        _check_tokens(x, self.embed_dim)
        places = resolve_positions(x, offset, positions, batch=x.shape[0])
        exact = torch.promote_types(x.dtype, torch.float32)
        angles = places.to(exact)[..., None] * self.table.to(
            exact
        )  # (.., L, ceil(E/2))
        codes = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
        return x + codes[..., : self.embed_dim].to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, base={self.base}"


class LearnedEncoding(nn.Module):
    """Add a learned vector for each position.

    Parameters
    ----------
    embed_dim
        E, at least 1.
    max_len
        Number of positions in the table, at least 1. There is no code past them.
    std
        Standard deviation at the start. Token embeddings start near 0.02 as well: a
        table of unit variance would drown them.
    device, dtype
        Of the table.

    Raises
    ------
    ValueError
        If ``embed_dim`` or ``max_len`` is below 1, or ``std`` is negative.

    Examples
    --------
    >>> encode = LearnedEncoding(8, max_len=16)
    >>> encode(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    >>> encode(torch.zeros(3, 5, 8), offset=12)
    Traceback (most recent call last):
    ...
    ValueError: offset=12 and 5 tokens end at position 16, past max_len=16
    """

    def __init__(
        self,
        embed_dim: int,
        max_len: int,
        *,
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_integer("embed_dim", embed_dim, least=1)
        check_integer("max_len", max_len, least=1)
        if std < 0:
            raise ValueError(f"std={std} must be at least 0")
        self.embed_dim = embed_dim
        self.max_len = max_len
        self.std = std
        self.weight = nn.Parameter(
            torch.empty(max_len, embed_dim, device=device, dtype=dtype)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        nn.init.normal_(self.weight, std=self.std)

    def forward(
        self, x: Tensor, offset: int = 0, positions: Tensor | None = None
    ) -> Tensor:
        """Add the rows of the table.

        Parameters
        ----------
        x
            Tokens, (B, L, E).
        offset
            Position of the first token.
        positions
            Position of every token instead, integers (L,) or (B, L).

        Returns
        -------
        Tensor
            Shape of ``x``.

        Raises
        ------
        ValueError
            If a position lies outside the table, or a shape is wrong.
        """
        _check_tokens(x, self.embed_dim)
        if positions is None:
            check_integer("offset", offset, least=0)
            length = x.shape[1]
            if offset + length > self.max_len:
                raise ValueError(
                    f"offset={offset} and {length} tokens end at position "
                    f"{offset + length - 1}, past max_len={self.max_len}"
                )
            return x + self.weight[offset : offset + length]
        places = resolve_positions(x, offset, positions, batch=x.shape[0])
        _check_inside(places, self.max_len)
        return x + self.weight[places]

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, max_len={self.max_len}"


def token_positions(keep: Tensor) -> Tensor:
    """Position of each token among the real ones of its row.

    With padding on the left, the first real token is at position 0 and the padding
    shares that position: no token attends to it.

    Parameters
    ----------
    keep
        Bool, (B, S): True where there is a token, False where there is padding.

    Returns
    -------
    Tensor
        int64, (B, S).

    Raises
    ------
    TypeError
        If ``keep`` is not bool.
    ValueError
        If it has another shape.

    Examples
    --------
    >>> token_positions(torch.tensor([[False, False, True, True, True]]))
    tensor([[0, 0, 0, 1, 2]])
    """
    if keep.dtype != torch.bool:
        raise TypeError(f"keep has dtype {keep.dtype}, expected torch.bool")
    if keep.ndim != 2:
        raise ValueError(f"keep has shape {tuple(keep.shape)}, expected (B, S)")
    return (keep.cumsum(-1) - 1).clamp(min=0)


def _check_tokens(x: Tensor, embed_dim: int) -> None:
    if x.ndim != 3 or x.shape[-1] != embed_dim:
        raise ValueError(f"x has shape {tuple(x.shape)}, expected (B, L, {embed_dim})")
    if not x.is_floating_point():
        raise TypeError(f"x has dtype {x.dtype}, expected a float dtype")


def _check_inside(places: Tensor, max_len: int) -> None:
    # Reading elements would stop an accelerator and break a graph: there the indexing
    # itself refuses.
    if (
        places.device.type != "cpu"
        or torch.compiler.is_compiling()
        or not places.numel()
    ):
        return
    low, high = int(places.min()), int(places.max())
    if low < 0 or high >= max_len:
        raise ValueError(
            f"positions lie between {low} and {high}, expected 0 to {max_len - 1}"
        )
