"""The dependency map of a finding as cells: what each entry says, and its legend."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from attention_lib.doctor.findings import Evidence

MOST = 6  # rows and columns: more cannot be read at a glance


@dataclass(frozen=True)
class Cell:
    """One entry of the map.

    ``mark`` is ``"forbidden"`` where the entry moves and must not, ``"still"`` where it
    may move and does not.
    """

    text: str
    mark: Literal["", "forbidden", "still"] = ""


LEGEND = {
    "forbidden": "[ ] = forbidden",
    "still": " 0  = does not move, and may",
}


def cells(evidence: Evidence) -> list[list[Cell]]:
    """The map of the evidence, at most 6 x 6; no rows where there is none."""
    forbidden = evidence.forbidden
    return [
        [
            _cell(value, None if forbidden is None else _at(forbidden, i, j))
            for j, value in enumerate(row[:MOST])
        ]
        for i, row in enumerate((evidence.map or ())[:MOST])
    ]


def legend(rows: list[list[Cell]]) -> list[str]:
    """What the marks of these cells mean, in lines."""
    marks = {cell.mark for row in rows for cell in row}
    return [text for mark, text in LEGEND.items() if mark in marks]


def _at(forbidden: tuple[tuple[bool, ...], ...], i: int, j: int) -> bool:
    return i < len(forbidden) and j < len(forbidden[i]) and bool(forbidden[i][j])


def _cell(value: float, forbidden: bool | None) -> Cell:
    if value == 0:
        return Cell("0", "still") if forbidden is False else Cell(".")
    text = number(value)
    return Cell(f"[{text}]", "forbidden") if forbidden else Cell(text)


def number(value: float) -> str:
    """A number in four or five characters; a small one never looks like 0.

    >>> [number(v) for v in (0.61, 12.34, 123.4, 4.2e-3, 1.6e8, float("nan"))]
    ['0.61', '12.3', '123', '4e-3', '2e8', 'nan']
    """
    value = float(value)
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if 0.00995 <= size < 999.5:
        decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
        return f"{value:.{decimals}f}"
    if size == 0:
        return "0"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"
