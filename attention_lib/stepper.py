"""A step-through figure: a few still frames that the reader moves through."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Stepper"]

_WORDS = {
    "back": "Previous step",
    "next": "Next step",
    "step": "Step",
    "steps": "Steps",
    "play": "Play",
    "pause": "Pause",
}
# What a data address in an attribute may hold as it is; the rest is percent-encoded.
_SAFE = " '=:/,;()+-.*!@$?~[]"


class Stepper:
    """Figures shown one at a time, with buttons, a slider and keys.

    The last expression of a notebook cell. It needs no network and no kernel. Without
    JavaScript and on paper all steps are shown at once. A reader who asks for reduced
    motion gets no Play button. Where HTML is not shown, the captions are printed.

    Parameters
    ----------
    figures
        One matplotlib Figure per step, all of one size. They are closed.
    captions
        What changes in each step; a screen reader says it too.
    alts
        What each picture shows, for those who do not see it. Without it the caption.
    words
        Labels of the controls, for another language: any of ``back``, ``next``, ``step``, ``steps``,
        ``play``, ``pause``.

    Attributes
    ----------
    frames
        The figures as SVG, the same on every run.

    Raises
    ------
    ValueError
        If there is no figure, the counts or sizes differ, a caption is empty, or ``words``
        has an unknown key.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> figures = [plt.figure(figsize=(2, 1)) for _ in range(2)]
    >>> Stepper(figures, ["All scores are equal.", "One score stands out."])
    Stepper with 2 steps:
      1. All scores are equal.
      2. One score stands out.
    """

    def __init__(
        self,
        figures: Sequence[Figure],
        captions: Sequence[str],
        alts: Sequence[str] | None = None,
        words: Mapping[str, str] | None = None,
    ) -> None:
        import matplotlib.pyplot as plt

        if alts is None:
            alts = captions
        if not figures or len({len(figures), len(captions), len(alts)}) > 1:
            raise ValueError(
                f"figures, captions and alts hold {len(figures)}, {len(captions)} and "
                f"{len(alts)}, expected the same number, at least 1"
            )
        if not all(text.strip() for text in (*captions, *alts)):
            raise ValueError(
                "captions and alts must not be empty: they say what is shown"
            )
        if unknown := sorted(set(words or {}) - set(_WORDS)):
            raise ValueError(
                f"words has unknown keys {unknown}, expected {list(_WORDS)}"
            )
        sizes = {
            tuple(figure.get_size_inches().round(3).tolist()) for figure in figures
        }
        if len(sizes) > 1:
            raise ValueError(
                f"figures have sizes {sorted(sizes)} inches, expected one size for all"
            )
        self.frames = [_svg(figure) for figure in figures]
        self.captions, self.alts = list(captions), list(alts)
        self.words = {**_WORDS, **(words or {})}
        for figure in figures:
            plt.close(figure)  # or the notebook shows each a second time

    def __repr__(self) -> str:
        lines = [f"Stepper with {len(self.frames)} steps:"]
        return "\n".join(
            lines + [f"  {i}. {c}" for i, c in enumerate(self.captions, 1)]
        )

    def _repr_html_(self) -> str:
        words = "".join(f' data-{k}="{html.escape(v)}"' for k, v in self.words.items())
        label = html.escape(self.words["steps"])
        parts = [f'<div class="stepper" role="group" aria-label="{label}"{words}>']
        for i, frame in enumerate(self.frames):
            # Single quotes inside, so that the address needs none of its own encoded.
            src = "data:image/svg+xml," + quote(frame.replace('"', "'"), safe=_SAFE)
            parts.append(
                f'<figure><img src="{src}" alt="{html.escape(self.alts[i])}">'
                f"<figcaption>{i + 1}. {html.escape(self.captions[i])}</figcaption></figure>"
            )
        # Each output stands alone, wherever it is copied; the script skips what is ready.
        assets = files("attention_lib") / "assets"
        style = (assets / "stepper.css").read_text(encoding="utf-8")
        script = (assets / "stepper.js").read_text(encoding="utf-8")
        return (
            "".join(parts)
            + f"</div>\n<style>\n{style}</style>\n<script>\n{script}</script>"
        )


def _svg(figure: Figure) -> str:
    """The figure as one line of SVG without dates, comments or needless digits."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "stepper", "svg.fonttype": "path"}):
        figure.savefig(out, format="svg")
    text = out.getvalue()
    text = re.sub(
        r"(?s)<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :]
    )
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # only what is defined is referred to
    # A hundredth of a point is enough.
    text = re.sub(r' d="[^"]*"', lambda d: re.sub(r"(\.\d\d)\d+", r"\1", d[0]), text)
    return re.sub(r"\s+", " ", text).replace("> <", "><").strip()
