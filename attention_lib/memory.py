"""Bytes, counted and not measured: the same number on every device.

On the meta device the count needs no memory at all. Torch's fused attention does not run
there: it counts as the explicit one.

What an operator allocates inside itself and frees before it returns is not seen: a fused
kernel's scratch memory, say. On a GPU, ``torch.cuda.max_memory_allocated`` sees it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["peak_bytes", "saved_bytes"]


def saved_bytes(function: Callable[..., object], *args: Any, **kwargs: Any) -> int:
    """Bytes that a forward pass keeps for its backward pass, beside its arguments.

    A block of memory that several tensors share counts once. The arguments' own memory
    and that of parameters is there anyway and does not count; the output's does where
    the backward pass needs it.

    Parameters
    ----------
    function
        Called once with the arguments.
    *args, **kwargs
        Of the call. Those whose gradient is wanted must require it.

    Returns
    -------
    int
        Bytes.

    Examples
    --------
    >>> x = torch.randn(1000, requires_grad=True)
    >>> saved_bytes(torch.exp, x)  # its result is its derivative: 1000 float32
    4000
    >>> saved_bytes(torch.sin, x)  # x itself is enough
    0
    """
    given = {_storage(tensor) for tensor in _tensors((args, kwargs))}
    saved: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not (tensor.is_leaf and tensor.requires_grad):  # a parameter
            saved.setdefault(_storage(tensor), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = function(*args, **kwargs)  # held: it keeps the graph alive
    bytes_ = sum(
        tensor.untyped_storage().nbytes()
        for storage, tensor in saved.items()
        if storage not in given
    )
    del output
    return bytes_


def peak_bytes(function: Callable[..., object], *args: Any, **kwargs: Any) -> int:
    """The most bytes that tensors made during a call hold at one time.

    Parameters
    ----------
    function
        Called once with the arguments; a backward pass within it counts too.
    *args, **kwargs
        Of the call. What they hold does not count.

    Returns
    -------
    int
        Bytes, above what was there before the call.

    Examples
    --------
    >>> x = torch.randn(1000)
    >>> peak_bytes(lambda: x.exp().log().sum())  # never more than two rows, and a number
    8000
    """
    with _Live(_tensors((args, kwargs))) as live:
        function(*args, **kwargs)
    return live.peak


class _Live(TorchDispatchMode):
    """Follows the storages that operators make until they are freed."""

    def __init__(self, known: Iterator[Tensor]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.seen = {_storage(tensor) for tensor in known}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):  # from before the call
            self.seen.add(_storage(tensor))
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            key = _storage(tensor)
            if key not in self.seen:
                self.seen.add(key)
                storage = tensor.untyped_storage()
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._freed, key, storage.nbytes())
        return result

    def _freed(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.live -= size


def _tensors(tree: object) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _storage(tensor: Tensor) -> int:
    """What tells one block of memory from another."""
    return int(tensor.untyped_storage()._cdata)
