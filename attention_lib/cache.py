"""Keys and values of the tokens seen so far, for decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attention_lib._checks import check_integer

if TYPE_CHECKING:
    from typing_extensions import Self

    from attention_lib.layers import MultiHeadAttention

__all__ = ["KeyValueCache"]


class KeyValueCache:
    """Preallocated memory for the keys and values of one layer.

    The memory is laid out as (B, Hkv, max_len, D), so that what is filled so far is a
    view on which attention runs without a copy. It never grows.

    Parameters
    ----------
    batch_size
        B.
    num_kv_heads
        Hkv.
    max_len
        Number of tokens there is room for.
    head_dim
        D.
    device, dtype
        Of the memory. They must be those of the keys: under autocast that is the
        autocast dtype.

    Raises
    ------
    ValueError
        If a size is below 1 (the batch may be 0).

    Examples
    --------
    >>> cache = KeyValueCache(batch_size=2, num_kv_heads=4, max_len=16, head_dim=8)
    >>> new = torch.randn(2, 4, 3, 8)
    >>> keys, values = cache.update(new, new)
    >>> keys.shape, cache.length
    (torch.Size([2, 4, 3, 8]), 3)
    >>> cache.update(torch.randn(2, 4, 14, 8), torch.randn(2, 4, 14, 8))
    Traceback (most recent call last):
    ...
    ValueError: key has 14 tokens, the cache has room for 13: it holds 3 of max_len=16
    """

    window: int | None = None  # every token sees all that is held

    def __init__(
        self,
        batch_size: int,
        num_kv_heads: int,
        max_len: int,
        head_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = {
            "batch_size": batch_size,
            "num_kv_heads": num_kv_heads,
            "max_len": max_len,
            "head_dim": head_dim,
        }
        for name, size in sizes.items():
            check_integer(name, size, least=0 if name == "batch_size" else 1)
        shape = tuple(sizes.values())
        self.keys = torch.empty(shape, device=device, dtype=dtype)
        self.values = torch.empty(shape, device=device, dtype=dtype)
        self.max_len = max_len
        self.reset()

    @classmethod
    def for_layer(
        cls,
        layer: MultiHeadAttention,
        batch_size: int,
        max_len: int,
        *,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """A cache of the layer's heads, on its device and in its dtype.

        Parameters
        ----------
        layer
            The layer that will use the cache.
        batch_size
            B.
        max_len
            Number of tokens there is room for.
        dtype
            Another dtype, that of autocast say.

        Examples
        --------
        >>> from attention_lib import MultiHeadAttention
        >>> layer = MultiHeadAttention(32, 4, num_kv_heads=2)
        >>> KeyValueCache.for_layer(layer, batch_size=3, max_len=16).keys.shape
        torch.Size([3, 2, 16, 8])
        """
        weight = layer.out_proj.weight
        return cls(
            batch_size,
            layer.num_kv_heads,
            max_len,
            layer.head_dim,
            device=weight.device,
            dtype=dtype or weight.dtype,
        )

    @property
    def length(self) -> int:
        """Number of tokens held."""
        return self._length

    @property
    def offset(self) -> int:
        """Position of the next token, which is the number of all tokens so far."""
        return self._length

    def reset(self) -> None:
        """Forget every token; the memory stays."""
        self._length = 0  # of the text so far

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values and return all that is held.

        No gradient flows through the cache: what is stored is detached.

        Parameters
        ----------
        key, value
            Of the new tokens, (B, Hkv, L, D).

        Returns
        -------
        tuple of Tensor
            Keys and values of all tokens so far, (B, Hkv, length, D). They are views:
            the next update leaves them as they are, a reset and another update do not.

        Raises
        ------
        ValueError
            If there is no room, or a shape or device differs.
        TypeError
            If a dtype differs.
        """
        key, value = self._checked(key, value)
        start, new = self._length, key.shape[2]
        self.check_room(new, "key")
        self._length = end = start + new
        self.keys.narrow(2, start, new).copy_(key)
        self.values.narrow(2, start, new).copy_(value)
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def _checked(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values that fit the memory, without their graph."""
        self._check("key", key, self.keys)
        self._check("value", value, self.values)
        if value.shape != key.shape:
            raise ValueError(
                f"value has {value.shape[2]} tokens, expected {key.shape[2]} as key"
            )
        if key.requires_grad or value.requires_grad:
            return key.detach(), value.detach()
        return key, value

    @staticmethod
    def _check(name: str, tensor: Tensor, held: Tensor) -> None:
        batch, heads, _, width = held.shape
        if tensor.ndim != 4 or tensor.shape != (batch, heads, tensor.shape[2], width):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, "
                f"expected ({batch}, {heads}, L, {width}) as the cache"
            )
        if tensor.dtype != held.dtype:
            raise TypeError(
                f"{name} has dtype {tensor.dtype}, expected {held.dtype} as the cache"
            )
        if tensor.device != held.device:
            raise ValueError(
                f"{name} is on {tensor.device}, expected {held.device} as the cache"
            )

    def check_room(self, tokens: int, name: str = "query") -> None:
        """Refuse more tokens than there is room for.

        Parameters
        ----------
        tokens
            Number of tokens about to be appended.
        name
            The argument that brings them, for the message.

        Raises
        ------
        ValueError
            If they do not fit.
        """
        room = self.max_len - self._length
        if tokens > room:
            raise ValueError(
                f"{name} has {tokens} tokens, the cache has room for {room}: "
                f"it holds {self._length} of max_len={self.max_len}"
            )

    def __repr__(self) -> str:
        batch, heads, _, width = self.keys.shape
        return (
            f"KeyValueCache(batch_size={batch}, num_kv_heads={heads}, "
            f"max_len={self.max_len}, head_dim={width}, length={self._length})"
        )
