"""One attention drawn in full: scores, weights, output, and what stands between."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from attention_lib.functional import AttentionSteps
from attention_lib.plotting._heatmap import as_matrix, heatmap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class _Panel(NamedTuple):
    """One matrix, and the sign that leads to it from the panel before."""

    title: str
    matrix: Tensor
    sign: str = ""
    rows: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    labels: tuple[str, str] = ("query", "key")
    cmap: str = "Greys"
    keep: Tensor | None = None
    limits: tuple[float, float] | None = None


def steps(
    steps: AttentionSteps,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    *,
    value: Tensor | None = None,
    columns: int = 2,
    fmt: str | Callable[[float], str] = "{:.2f}",
    score_fmt: str | Callable[[float], str] = "{:.2f}",
) -> Figure:
    """Draw one attention, from its scores through its weights to its output.

    The panels are read like text. Between them stands what turns one into the next. The
    capped and the masked scores appear only where they differ from what they come from,
    the value only where it is given.

    Parameters
    ----------
    steps
        What :func:`attention_lib.attention_steps` returns, of one item and one head: each
        part of shape (L, S), the output (L, Dv).
    queries, keys
        Tokens, L and S of them.
    value
        Shape (S, Dv), the values that the weights average.
    columns
        Panels in a row; 2 stays legible on a phone.
    fmt, score_fmt
        Format of a weight, value or output, and of a score; or functions that write them.

    Returns
    -------
    Figure
        The panels are its Axes with a title.

    Raises
    ------
    ValueError
        If the parts are not of one item and one head, or the tokens or the value do not
        fit.

    Examples
    --------
    >>> from attention_lib import attention_steps, plotting
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> figure = plotting.steps(attention_steps(x, x, x), "ABC", "ABC", value=x)
    >>> [ax.get_title() for ax in figure.axes if ax.get_title()]
    ['scores', 'weights', 'value', 'output']
    """
    import matplotlib.pyplot as plt

    if columns < 1:
        raise ValueError(f"columns={columns} must be at least 1")
    panels = _panels(steps, queries, keys, value)
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    width, sign = 2.0, 0.62  # inches
    figure = plt.figure(figsize=(columns * (width + sign), rows * (width + 0.45)))
    # A label below one panel must not read as the title of the next.
    figure.set_layout_engine("constrained", h_pad=0.12)
    grid = figure.add_gridspec(rows, 2 * columns, width_ratios=[sign, width] * columns)
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        if panel.sign:
            _draw_sign(figure.add_subplot(grid[row, 2 * column]), panel.sign)
        ax = figure.add_subplot(grid[row, 2 * column + 1])
        _draw_panel(ax, panel, score_fmt if panel.cmap == "Greys" else fmt)
    return figure


def _panels(
    steps: AttentionSteps,
    queries: Sequence[str] | None,
    keys: Sequence[str] | None,
    value: Tensor | None,
) -> list[_Panel]:
    """The panels to draw, in reading order."""
    parts = AttentionSteps(
        *(as_matrix(f"steps.{name}", part) for name, part in steps._asdict().items())
    )
    hidden = torch.isneginf(parts.masked)
    same: dict[str, Any] = {"rows": queries, "columns": keys}
    panels = [_Panel("scores", parts.scores, **same)]
    if not _same(parts.capped, parts.scores):
        panels.append(_Panel("capped", parts.capped, "cap", **same))
    if not _same(parts.masked, parts.capped):
        shifted = not _same(parts.masked[~hidden], parts.capped[~hidden])
        sign = "add\nmask" if shifted else "hide"
        panels.append(_Panel("masked", parts.masked, sign, keep=~hidden, **same))
    panels.append(
        _Panel(
            "weights",
            parts.weights,
            "softmax\nby row",
            cmap="Blues",
            keep=~hidden,
            limits=(0.0, 1.0),
            **same,
        )
    )
    sign, limits = "@ value", None
    if value is not None:
        sign = "="
        values = as_matrix("value", value)
        expected = (parts.weights.shape[1], parts.output.shape[1])
        if values.shape != expected:
            raise ValueError(
                f"value has shape {tuple(values.shape)}, expected {expected} for these steps"
            )
        # One scale for both: the output is a mixture of the values.
        limits = _limits(torch.cat([values, parts.output.to(values)]))
        panels.append(
            _Panel(
                "value",
                values,
                "@",
                rows=keys,
                labels=("key", "feature"),
                cmap="Greens",
                limits=limits,
            )
        )
    panels.append(
        _Panel(
            "output",
            parts.output,
            sign,
            rows=queries,
            labels=("query", "feature"),
            cmap="Greens",
            limits=limits,
        )
    )
    return panels


def _same(first: Tensor, second: Tensor) -> bool:
    """Equal number for number; NaN is like NaN."""
    return torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)


def _draw_panel(ax: Axes, panel: _Panel, fmt: str | Callable[[float], str]) -> None:
    low, high = panel.limits or _limits(panel.matrix)
    heatmap(
        panel.matrix,
        panel.rows,
        panel.columns,
        ax=ax,
        fmt=fmt,
        title=panel.title,
        keep=panel.keep,
        vmin=low,
        vmax=high,
        cmap=panel.cmap,
    )
    ax.set_ylabel(panel.labels[0])
    ax.set_xlabel(panel.labels[1])


def _limits(matrix: Tensor) -> tuple[float, float]:
    """From the lowest to the highest number; the colours stay pale, for dark text."""
    finite = matrix[matrix.isfinite()]
    if finite.numel() == 0:
        return 0.0, 1.0
    low, high = finite.min().item(), finite.max().item()
    return low, low + 2 * max(high - low, 1e-6)


def _draw_sign(ax: Axes, sign: str) -> None:
    """An arrow with words, or a bare sign such as = in the middle."""
    ax.axis("off")
    ax.set(xlim=(0, 1), ylim=(0, 1))
    if sign in ("@", "="):
        ax.text(0.5, 0.5, sign, ha="center", va="center", fontsize=18)
        return
    above, _, below = sign.partition("\n")
    arrow = {"arrowstyle": "-|>", "linewidth": 1.5, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=(1, 0.5), xytext=(0, 0.5), arrowprops=arrow)
    ax.text(0.5, 0.54, above, ha="center", va="bottom", fontsize=10)
    ax.text(0.5, 0.46, below, ha="center", va="top", fontsize=10)
