"""The heat map of one matrix of weights or scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy import float64
    from numpy.typing import NDArray

_CHAR = 0.64  # width of a digit, in units of the font size
_LEGIBLE = 7.0  # smallest font size, in points


def heatmap(
    weights: Tensor,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    values: bool = True,
    fmt: str | Callable[[float], str] = "{:.2f}",
    title: str | None = None,
    keep: Tensor | None = None,
    vmin: float = 0.0,
    vmax: float = 1.0,
    cmap: str = "Blues",
) -> Axes:
    """Draw one matrix of weights or scores: queries downwards, keys across.

    Row i, column j is how much query i takes from key j. A hidden cell is hatched, so that
    "zero because hidden" and "small" look different.

    Parameters
    ----------
    weights
        Shape (L, S), any dtype and device; it may require grad.
    queries, keys
        Tokens on the two axes, L and S of them. Without them the positions are written.
    ax
        Where to draw. Without it a new figure of a fitting size is made.
    values
        Write each value in its cell, where the cells are large enough to read it. NaN is
        always written.
    fmt
        Format of a value, or a function that writes it.
    title
        Title of the Axes.
    keep
        Bool, broadcasts to (L, S); False hatches the cell. Without it nothing is hatched.
    vmin, vmax
        Values at the two ends of the colour map.
    cmap
        Name of the colour map.

    Returns
    -------
    Axes
        The Axes drawn on.

    Raises
    ------
    ValueError
        If ``weights`` is not (L, S), the tokens do not fit, or ``keep`` does not broadcast.
    TypeError
        If ``keep`` is not bool.

    Examples
    --------
    >>> weights = torch.tensor([[0.4, 0.2, 0.4], [0.2, 0.4, 0.4]])
    >>> ax = heatmap(weights, queries="AB", keys="ABC")
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('key', 'query')
    """
    import matplotlib.pyplot as plt
    import numpy as np

    matrix = as_matrix("weights", weights)
    L, S = matrix.shape
    hidden = _hidden(keep, (L, S))
    for name, tokens, count in (("queries", queries, L), ("keys", keys, S)):
        if tokens is not None and len(tokens) != count:
            raise ValueError(
                f"{name} holds {len(tokens)} tokens, expected {count} "
                f"for weights of shape {(L, S)}"
            )
    if ax is None:
        cell = min(0.62, 4.2 / max(L, S))  # inches
        size = (max(S * cell, 1.2) + 0.9, max(L * cell, 1.2) + 0.9)
        ax = plt.subplots(figsize=size)[1]

    if hidden.any():  # seen where nothing is drawn over it
        ax.patch.set(hatch="////", facecolor="white")
    mesh = ax.pcolormesh(
        np.ma.array(matrix, mask=hidden | matrix.isnan()),
        vmin=vmin,
        vmax=vmax,
        cmap=cmap,
        edgecolors="white",
        linewidth=0.5 if L * S <= 400 else 0,
        rasterized=L * S > 200,  # hundreds of vector cells make a heavy file
    )
    ax.set(aspect="equal", xlabel="key", ylabel="query", title=title or "")
    ax.invert_yaxis()
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    cell = _cell_points(ax, L, S)
    _name_positions(ax, "x", keys, S, cell)
    _name_positions(ax, "y", queries, L, cell)
    shades = np.asarray(mesh.cmap(mesh.norm(matrix.numpy())))
    _write_values(ax, matrix, hidden, shades, values, fmt, cell)
    return ax


def as_matrix(name: str, tensor: Tensor) -> Tensor:
    """The tensor as float64 on the CPU, cut from the graph; refused unless it is 2-D."""
    matrix = torch.as_tensor(tensor)
    shape = tuple(matrix.shape)
    if matrix.is_complex():
        raise TypeError(f"{name} has dtype {matrix.dtype}, expected real numbers")
    if matrix.ndim > 2:
        index = ", ".join("0" * (matrix.ndim - 2))
        raise ValueError(
            f"{name} has shape {shape}, expected (L, S): choose one item and one head, "
            f"as in {name}[{index}]"
        )
    if matrix.ndim < 2 or 0 in shape:
        raise ValueError(
            f"{name} has shape {shape}, expected (L, S), neither of them 0"
        )
    return matrix.detach().to("cpu", torch.float64)


def _hidden(keep: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """The cells to hatch, bool of the given shape."""
    if keep is None:
        return torch.zeros(shape, dtype=torch.bool)
    keep = torch.as_tensor(keep)
    while keep.ndim > 2 and keep.shape[0] == 1:  # of one item, of every head
        keep = keep[0]
    if keep.dtype != torch.bool:
        raise TypeError(
            f"keep has dtype {keep.dtype}, expected torch.bool (True = may attend)"
        )
    try:
        return ~keep.cpu().expand(shape)
    except RuntimeError:
        raise ValueError(
            f"keep has shape {tuple(keep.shape)}, expected one that broadcasts to {shape}"
        ) from None


def _cell_points(ax: Axes, rows: int, columns: int) -> float:
    """About the side of one cell, in points: the layout settles only when drawn.

    Measured, constrained layout then gives the Axes a sixth more.
    """
    box = ax.get_window_extent()
    return 1.15 * 72 / ax.figure.dpi * min(box.width / columns, box.height / rows)


def _name_positions(
    ax: Axes,
    axis: Literal["x", "y"],
    tokens: Sequence[str] | None,
    count: int,
    cell: float,
) -> None:
    """Write the tokens, or some of the positions where there are too many for all."""
    if tokens is None:
        step = max(1, math.ceil(2 * _LEGIBLE * _CHAR * len(str(count)) / cell))
        places = range(0, count, step)
        names = [str(i) for i in places]
    else:
        places, names = range(count), list(tokens)
    size = min(11.0, max(_LEGIBLE, 0.8 * cell))
    wide = max(len(name) for name in names) * _CHAR * size > cell
    turn = 90 if axis == "x" and tokens is not None and wide else 0
    ticks = ax.set_xticks if axis == "x" else ax.set_yticks
    ticks([i + 0.5 for i in places], names, fontsize=size, rotation=turn)


def _write_values(
    ax: Axes,
    matrix: Tensor,
    hidden: Tensor,
    shades: NDArray[float64],
    values: bool,
    fmt: str | Callable[[float], str],
    cell: float,
) -> None:
    """Write each value where all fit, and every NaN: a hole must not look hidden."""
    write = fmt.format if isinstance(fmt, str) else fmt
    missing = matrix.isnan()
    texts = {
        (i, j): "nan" if missing[i, j] else write(matrix[i, j].item())
        for i, j in torch.argwhere(~hidden).tolist()
    }
    longest = max(map(len, texts.values()), default=1)
    size = min(10.5, cell / (_CHAR * (longest + 0.8)))
    for (i, j), text in texts.items():
        if missing[i, j]:
            color, plate = "#b00000", {"facecolor": "white", "linewidth": 0}
        elif values and size >= _LEGIBLE:
            color, plate = _ink_on(shades[i, j]), None
        else:
            continue
        ax.text(
            j + 0.5,
            i + 0.5,
            text.replace("-", "\N{MINUS SIGN}"),
            ha="center",
            va="center",
            fontsize=max(size, _LEGIBLE),
            color=color,
            bbox=plate,
        )


def _ink_on(color: NDArray[float64]) -> str:
    """Black or white, whichever can be read on a colour (by its relative luminance).

    The limit is where both serve alike when the page may also be inverted for dark mode.
    """
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "white" if luminance < 0.26 else "black"
