"""Curves over several seeds: every run, their median and their range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def spread(
    x: Sequence[float] | Tensor,
    runs: Sequence[Sequence[float]] | Tensor,
    *,
    ax: Axes | None = None,
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """Draw one measurement over several seeds: each run thin, the median bold.

    The band reaches from the lowest to the highest run. A run that misses a point holds NaN
    there; the median and the band are those of the runs that have it.

    Parameters
    ----------
    x
        P points on the horizontal axis.
    runs
        Shape (N, P), one row per seed. Rows of floats or a tensor.
    ax
        Where to draw; without it a new figure is made. Call once per measurement on the
        same Axes to compare several.
    label
        Name in the legend, which the caller draws.
    color
        A matplotlib colour; without it the next of the style's, with its line style.

    Returns
    -------
    Axes
        The Axes drawn on.

    Raises
    ------
    ValueError
        If ``runs`` is not (N, P) with P the length of ``x``.

    Examples
    --------
    >>> ax = spread([1, 2, 4], [[0.1, 0.2, 0.3], [0.2, 0.3, 0.7], [0.1, 0.4, 0.5]])
    >>> ax.lines[0].get_ydata().tolist()  # the median
    [0.1, 0.3, 0.5]
    """
    import matplotlib.pyplot as plt

    points = torch.as_tensor(x, dtype=torch.float64).detach().cpu()
    table = torch.as_tensor(runs, dtype=torch.float64).detach().cpu()
    if points.ndim != 1 or table.ndim != 2 or table.shape[1:] != points.shape:
        raise ValueError(
            f"runs has shape {tuple(table.shape)}, expected (seeds, {points.numel()}), "
            "one row per seed and one column per point of x"
        )
    if 0 in table.shape:
        raise ValueError(
            f"runs has shape {tuple(table.shape)}, expected at least one run"
        )
    if ax is None:
        ax = plt.subplots()[1]

    absent = table.isnan()
    low = table.masked_fill(absent, torch.inf).amin(dim=0)
    high = table.masked_fill(absent, -torch.inf).amax(dim=0)
    median = table.nanquantile(0.5, dim=0)
    (line,) = ax.plot(points, median, color=color, marker="o", label=label, zorder=3)
    shade = line.get_color()
    ax.fill_between(points, low, high, color=shade, alpha=0.15, linewidth=0)
    for run in table:
        ax.plot(points, run, color=shade, linewidth=0.8, linestyle="-", alpha=0.6)
    return ax
