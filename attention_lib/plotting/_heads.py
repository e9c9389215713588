"""The weights of several heads, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from attention_lib.plotting._heatmap import heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heads(
    weights: Tensor,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    keep: Tensor | None = None,
    columns: int = 4,
    titles: Sequence[str] | None = None,
    vmax: float = 1.0,
) -> Figure:
    """Draw the weights of several heads side by side, one small heat map each.

    Parameters
    ----------
    weights
        Shape (H, L, S), any dtype and device.
    queries, keys
        Tokens on the two axes, L and S of them; written once, at the left and below.
    keep
        Bool, broadcasts to (L, S), the same for every head; False hatches the cell.
    columns
        Heat maps in a row.
    titles
        H titles; without them the heads are counted from 0.
    vmax
        Value at the dark end of the colour map, the same for every head.

    Returns
    -------
    Figure
        One Axes per head, in their order.

    Raises
    ------
    ValueError
        If ``weights`` is not (H, L, S), or a count does not fit.

    Examples
    --------
    >>> import torch
    >>> figure = heads(torch.full((3, 2, 5), 0.2))
    >>> [ax.get_title() for ax in figure.axes]
    ['head 0', 'head 1', 'head 2']
    """
    import matplotlib.pyplot as plt

    if weights.ndim != 3 or 0 in weights.shape:
        raise ValueError(
            f"weights has shape {tuple(weights.shape)}, expected (H, L, S) of one item"
        )
    H, L, S = weights.shape
    if columns < 1:
        raise ValueError(f"columns={columns} must be at least 1")
    if titles is not None and len(titles) != H:
        raise ValueError(
            f"titles holds {len(titles)} titles, expected {H}, one per head"
        )
    columns = min(columns, H)
    rows = math.ceil(H / columns)
    side = 5.0 / columns  # inches
    figure = plt.figure(figsize=(5.4, rows * (side * L / S + 0.4) + 0.4))
    for head in range(H):
        ax = figure.add_subplot(rows, columns, head + 1)
        title = f"head {head}" if titles is None else titles[head]
        heatmap(
            weights[head],
            queries,
            keys,
            ax=ax,
            values=False,
            title=title,
            keep=keep,
            vmax=vmax,
        )
        if head % columns:  # a head stands to the left
            ax.set(ylabel="", yticks=[])
        if head + columns < H:  # a head stands below
            ax.set(xlabel="", xticks=[])
    return figure
