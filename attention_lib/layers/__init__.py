"""Attention layers: projections around attention.

:class:`SelfAttention` is one head, to read; :class:`MultiHeadAttention` is the one to
use. Layers take tokens of shape (B, L, E).
"""

from attention_lib.layers.multi_head import MultiHeadAttention
from attention_lib.layers.self_attention import SelfAttention

__all__ = ["MultiHeadAttention", "SelfAttention"]
