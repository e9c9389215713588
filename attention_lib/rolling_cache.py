"""Keys and values of the last tokens, for decoding within a sliding window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attention_lib._checks import check_integer
from attention_lib.cache import KeyValueCache

if TYPE_CHECKING:
    from attention_lib.layers import MultiHeadAttention

__all__ = ["RollingCache"]


class RollingCache(KeyValueCache):
    """Memory for the keys and values that a sliding window can still reach.

    It takes a text of any length in the memory of the window. A layer that is given this
    cache sees what :func:`~attention_lib.masks.sliding_window` allows, however the
    tokens are cut into chunks, and needs no mask for it.

    A token sees itself and ``window - 1`` earlier ones, so no more are held. They stay
    in order: new ones are written behind them, and at the end of the memory, which is a
    quarter longer than the window, all that can still be seen moves to its front.

    Parameters
    ----------
    batch_size
        B.
    num_kv_heads
        Hkv.
    window
        How many tokens a token sees, itself included, as in
        :func:`~attention_lib.masks.sliding_window`.
    head_dim
        D.
    device, dtype
        As in :class:`~attention_lib.KeyValueCache`.

    Raises
    ------
    ValueError
        If a size is below 1 (the batch may be 0).

    Notes
    -----
    A chunk of L tokens meets up to ``window - 1 + L`` keys, under a mask of that size. A
    long prompt takes less time and memory in pieces of about the window's length.

    Examples
    --------
    >>> from attention_lib import MultiHeadAttention, masks
    >>> layer = MultiHeadAttention(32, num_heads=4)
    >>> x = torch.randn(2, 50, 32)
    >>> whole = layer(x, attn_mask=masks.sliding_window(50, window=8))
    >>> cache = RollingCache.for_layer(layer, batch_size=2, window=8)
    >>> parts = [layer(chunk, cache=cache) for chunk in x.split(3, dim=1)]
    >>> torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-5)
    True
    >>> cache.offset, cache.length
    (50, 7)

    References
    ----------
    Beltagy, Peters and Cohan, "Longformer", 2020, section 3.1. Jiang et al., "Mistral
    7B", 2023, section 2.
    """

    window: int

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        window: int,
        head_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_integer("window", window, least=1)
        room = window + window // 4  # more room: rarer moves, no fewer bytes read
        super().__init__(
            batch_size, num_kv_heads, room, head_dim, device=device, dtype=dtype
        )
        self.window = window

    @classmethod
    def for_layer(
        cls,
        layer: MultiHeadAttention,
        batch_size: int,
        window: int,
        *,
        dtype: torch.dtype | None = None,
    ) -> RollingCache:
        """A cache of the layer's heads, on its device and in its dtype.

        Parameters
        ----------
        layer
            The layer that will use the cache.
        batch_size
            B.
        window
            How many tokens a token sees, itself included.
        dtype
            Another dtype, that of autocast say.

        Examples
        --------
        >>> from attention_lib import MultiHeadAttention
        >>> layer = MultiHeadAttention(32, 4, num_kv_heads=2)
        >>> RollingCache.for_layer(layer, batch_size=3, window=16)
        RollingCache(batch_size=3, num_kv_heads=2, window=16, head_dim=8, offset=0)
        """
        return super().for_layer(layer, batch_size, window, dtype=dtype)

    @property
    def length(self) -> int:
        """Number of earlier tokens that the next one sees, at most ``window - 1``."""
        return min(self._length, self.window - 1)

    def reset(self) -> None:
        """Forget every token; the memory stays."""
        super().reset()
        self._end = 0  # of what is written, in the memory

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values and return those that the new tokens can see.

        No gradient flows through the cache: what is stored is detached.

        Parameters
        ----------
        key, value
            Of the new tokens, (B, Hkv, L, D), L of any size.

        Returns
        -------
        tuple of Tensor
            Keys and values in the order of the text, (B, Hkv, length + L, D) with the
            length before the call. Most are views, which a later update overwrites.

        Raises
        ------
        ValueError
            If a shape or device differs.
        TypeError
            If a dtype differs.
        """
        key, value = self._checked(key, value)
        held, new, start = self.length, key.shape[2], self._end
        self._length += new
        if start + new <= self.keys.shape[2]:
            self._end = start + new
            self.keys.narrow(2, start, new).copy_(key)
            self.values.narrow(2, start, new).copy_(value)
            first, seen = start - held, held + new
            return self.keys.narrow(2, first, seen), self.values.narrow(2, first, seen)
        keys = torch.cat((self.keys.narrow(2, start - held, held), key), dim=2)
        values = torch.cat((self.values.narrow(2, start - held, held), value), dim=2)
        self._end = kept = self.length
        first = held + new - kept
        self.keys.narrow(2, 0, kept).copy_(keys.narrow(2, first, kept))
        self.values.narrow(2, 0, kept).copy_(values.narrow(2, first, kept))
        return keys, values

    def check_room(self, tokens: int, name: str = "query") -> None:
        """There is room for any number of tokens."""

    def __repr__(self) -> str:
        batch, heads, _, width = self.keys.shape
        return (
            f"RollingCache(batch_size={batch}, num_kv_heads={heads}, "
            f"window={self.window}, head_dim={width}, offset={self.offset})"
        )
