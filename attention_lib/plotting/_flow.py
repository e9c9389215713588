"""Drawings of data flow: boxes that hold a name and a shape, and arrows between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 1.25, 0.62  # of a box, in inches
_ACROSS, _DOWN = 1.95, 1.15  # from one box to the next, in inches


def flow(
    boxes: Mapping[str, tuple[float, float] | tuple[float, float, str]],
    arrows: Sequence[tuple[str, str] | tuple[str, str, str]] = (),
    *,
    ax: Axes | None = None,
    highlight: Sequence[str] = (),
) -> Axes:
    """Draw how tensors flow: named boxes with their shapes, joined by arrows.

    Boxes stand on a grid, column 0 at the left and row 0 on top; halves place a box between
    two columns or rows. Three columns stay legible on a phone.

    Parameters
    ----------
    boxes
        Name to (column, row) or (column, row, shape). The name is written in the box, the
        shape below it. Two boxes of one name are told apart by trailing spaces.
    arrows
        (from, to) or (from, to, words): the words stand beside the arrow's middle.
    ax
        Where to draw. Without it a new figure of a fitting size is made.
    highlight
        Names of boxes to set off in colour.

    Returns
    -------
    Axes
        The Axes drawn on.

    Raises
    ------
    ValueError
        If there is no box, or an arrow or ``highlight`` names a box that is not there.

    Examples
    --------
    >>> ax = flow(
    ...     {"x": (0, 0, "(B, L, E)"), "query": (1, 0, "(B, L, D)")},
    ...     [("x", "query", "W_q")],
    ... )
    >>> sorted(text.get_text() for text in ax.texts if text.get_text())
    ['(B, L, D)', '(B, L, E)', 'W_q', 'query', 'x']
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    if not boxes:
        raise ValueError("boxes is empty, expected at least one box")
    named = {name for arrow in arrows for name in arrow[:2]} | set(highlight)
    if unknown := sorted(named - set(boxes)):
        raise ValueError(f"no box is named {unknown}, expected one of {list(boxes)}")

    places = {name: (x * _ACROSS, -y * _DOWN) for name, (x, y, *_) in boxes.items()}
    left = min(x for x, _ in places.values()) - _WIDTH / 2 - 0.1
    right = max(x for x, _ in places.values()) + _WIDTH / 2 + 0.1
    bottom = min(y for _, y in places.values()) - _HEIGHT / 2 - 0.1
    top = max(y for _, y in places.values()) + _HEIGHT / 2 + 0.1
    if ax is None:
        ax = plt.subplots(figsize=(right - left, top - bottom))[1]
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    ax.axis("off")

    patches = {}
    for name, (x, y) in places.items():
        patches[name] = FancyBboxPatch(
            (x - _WIDTH / 2, y - _HEIGHT / 2),
            _WIDTH,
            _HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.1",
            facecolor="#dbe9f6" if name in highlight else "#f7f7f7",
            edgecolor="#0072B2" if name in highlight else "#222222",
            linewidth=1.2,
        )
        ax.add_patch(patches[name])
        shape = "".join(boxes[name][2:])
        ax.text(x, y + (0.12 if shape else 0), name.strip(), ha="center", va="center")
        ax.text(
            x, y - 0.15, shape, ha="center", va="center", fontsize=10, color="#555555"
        )
    for start, end, *words in arrows:
        ax.add_patch(
            FancyArrowPatch(
                places[start],
                places[end],
                arrowstyle="-|>",
                mutation_scale=12,
                linewidth=1.2,
                color="#222222",
                patchA=patches[start],
                patchB=patches[end],
                shrinkA=2,
                shrinkB=2,
            )
        )
        for word in words:
            _write_beside(ax, places[start], places[end], word)
    return ax


def _write_beside(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], word: str
) -> None:
    """Above a level arrow, at the right of an upright one, across a slanting one."""
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    if start[1] == end[1]:
        ax.text(x, y + 0.04, word, ha="center", va="bottom", fontsize=10)
    elif start[0] == end[0]:
        ax.text(x + 0.08, y, word, ha="left", va="center", fontsize=10)
    else:
        plate = {"facecolor": "white", "linewidth": 0, "pad": 1.5}
        ax.text(x, y, word, ha="center", va="center", fontsize=10, bbox=plate)
