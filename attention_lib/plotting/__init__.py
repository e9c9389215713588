"""Figures of attention in one style: heat maps, the steps of one attention, spreads.

Every function takes and returns Axes or a Figure; none shows, saves or closes anything. A
notebook shows the open figures by itself, so a cell ends with ``_ = plotting.heatmap(...)``.
Matplotlib is imported when a function is called, not before.
"""

from attention_lib.plotting._flow import flow
from attention_lib.plotting._heads import heads
from attention_lib.plotting._heatmap import heatmap
from attention_lib.plotting._spread import spread
from attention_lib.plotting._steps import steps
from attention_lib.plotting._style import COLORS, use_style

__all__ = ["COLORS", "flow", "heads", "heatmap", "spread", "steps", "use_style"]
