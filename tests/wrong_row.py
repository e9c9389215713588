"""A wrong call, as a row of a table."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor


class Row(NamedTuple):
    """One call that is refused.

    ``prepare`` makes tensors and modules and returns the call itself; ``message`` is part
    of what the error says.
    """

    name: str
    prepare: Callable[[], Callable[[], object]]
    error: type[Exception]
    message: str


def call(function: Callable[..., object], *args: object, **kwargs: object):
    """Prepare ``function`` with arguments that are there already."""
    return lambda: partial(function, *args, **kwargs)


def zeros(
    *shape: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)
