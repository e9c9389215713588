"""The one style of every figure: dark ink on white, which a page may invert."""

from __future__ import annotations

from typing import Any

#: Blue, orange, green, purple: told apart by colour-blind readers, on white and inverted.
COLORS = ("#0072B2", "#D55E00", "#008A64", "#B3518E")

_INK = "#222222"
_GRID = "#d9d9d9"
_STYLE: dict[str, Any] = {
    # Near 5 inches wide, so that the text stays legible on a phone.
    "figure.figsize": (5.4, 3.2),
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "attention",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 11,
    "axes.titlesize": 12,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "hatch.color": "#a0a0a0",
    "hatch.linewidth": 0.8,
    "lines.linewidth": 2,
    "legend.frameon": False,
    "image.cmap": "Blues",
}
_LINE_STYLES = ("-", "--", "-.", ":")


def use_style() -> None:
    """Draw every figure from here on in the book's style.

    Dark ink on white, which a page may invert for dark mode; colours that colour-blind
    readers tell apart, each with its own line style. Inside Jupyter, figures become SVG
    with a PNG beside it, because Jupyter hides SVG in a notebook it does not trust. The
    same code draws the same bytes.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib is not installed.

    Examples
    --------
    >>> import matplotlib
    >>> use_style()
    >>> matplotlib.rcParams["image.cmap"]
    'Blues'
    """
    import matplotlib
    from cycler import cycler

    cycle = cycler(color=COLORS) + cycler(linestyle=_LINE_STYLES)
    style: dict[Any, Any] = {**_STYLE, "axes.prop_cycle": cycle}
    matplotlib.rcParams.update(style)
    if _in_jupyter():
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        # Neither the day nor matplotlib's version may change the file.
        undated = {"Date": None, "Creator": None}
        set_matplotlib_formats("svg", "png", metadata=undated)


def _in_jupyter() -> bool:
    """Whether a kernel runs this code: elsewhere there are no inline figures."""
    try:
        from IPython import get_ipython
    except ModuleNotFoundError:
        return False
    shell = get_ipython()
    return shell is not None and hasattr(shell, "kernel")
