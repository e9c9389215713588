"""Attention that never holds all L x S weights, or sees only a window of them.

Every function takes the arguments of
:func:`~attention_lib.scaled_dot_product_attention` and returns the same output. They are
written to be read; where torch's fused kernel does the work, it is faster.
"""

from attention_lib.efficient.checkpointing import checkpointed_attention
from attention_lib.efficient.chunked import chunked_attention
from attention_lib.efficient.local import local_attention

__all__ = ["checkpointed_attention", "chunked_attention", "local_attention"]
