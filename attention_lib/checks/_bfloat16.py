"""Numbers of a machine that knows bfloat16 and no wider format."""

from __future__ import annotations

import struct


class BFloat16:
    """A number that can be added, subtracted and compared; each result is rounded.

    Python's 0 may stand on either side, so that `sum` works.

    Examples
    --------
    >>> BFloat16(256) + BFloat16(1)
    256.0
    >>> sum([BFloat16(1), BFloat16(0.25)])
    1.25
    """

    __slots__ = ("_value",)

    def __init__(self, value: float) -> None:
        # The upper half of a float32, rounded to the nearest, ties to even.
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
        (self._value,) = struct.unpack("<f", struct.pack("<I", bits))

    def __add__(self, other: BFloat16 | int) -> BFloat16:
        return BFloat16(self._value + _of(other))

    __radd__ = __add__

    def __sub__(self, other: BFloat16 | int) -> BFloat16:
        return BFloat16(self._value - _of(other))

    def __rsub__(self, other: int) -> BFloat16:
        return BFloat16(_of(other) - self._value)

    def __lt__(self, other: BFloat16 | int) -> bool:
        return self._value < _of(other)

    def __gt__(self, other: BFloat16 | int) -> bool:
        return self._value > _of(other)

    def __repr__(self) -> str:
        return str(self._value)


def exact(number: BFloat16) -> float:
    """The number as a float of Python's, for the check alone."""
    return number._value


def _of(other: BFloat16 | int) -> float:
    if isinstance(other, BFloat16):
        return other._value
    if isinstance(other, int) and other == 0:
        return 0.0
    raise TypeError(f"the machine adds its own numbers, not {type(other).__name__}")
