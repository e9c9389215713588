"""What the kinds of position share: frequencies, checked positions, rebuilt tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib._checks import check_integer, check_integers


def geometric_frequencies(width: int, base: float) -> list[float]:
    """Radians per token, base^(-2i/width): one for each pair of components."""
    if not base > 0:
        raise ValueError(f"base={base} must be above 0")
    return [base ** (-i / width) for i in range(0, width, 2)]


def resolve_positions(
    x: Tensor, offset: int, positions: Tensor | None, *, batch: int
) -> Tensor:
    """Positions of the tokens of x (..., L, width): (L,), or (B, L) when given so."""
    length = x.shape[-2]
    if positions is None:
        check_integer("offset", offset, least=0)
        return torch.arange(offset, offset + length, device=x.device)
    if offset != 0:
        raise ValueError(f"offset={offset} and positions: give one of them")
    check_positions(positions, batch, length, x.device)
    return positions


def check_positions(
    positions: Tensor, batch: int, length: int, device: torch.device
) -> None:
    """Integers (L,), (1, L) or (B, L) on the device of the tokens."""
    check_integers("positions", positions)
    if positions.device != device:
        raise ValueError(f"positions is on {positions.device}, expected {device}")
    shape = tuple(positions.shape)
    if shape not in ((length,), (1, length), (batch, length)):
        raise ValueError(
            f"positions has shape {shape}, expected ({length},) or ({batch}, {length})"
        )


class RebuiltTable(nn.Module):
    """A module with one table, ``table``, that is rebuilt and never converted.

    ``.half()`` would round the table and ``.to_empty()`` would leave it unset, since it
    is not in the state_dict. Both go through ``_apply``: there it is made anew from the
    numbers in ``values``, in float32 on the device to which the module moves.
    """

    table: Tensor

    def __init__(self, values: list[float], device: torch.device | str | None = None):
        super().__init__()
        self.values = values
        table = torch.tensor(values, dtype=torch.float32, device=device)
        self.register_buffer("table", table, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.table = torch.tensor(
            self.values, dtype=torch.float32, device=self.table.device
        )
        return self
