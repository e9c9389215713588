"""Exact attention over a sequence that is spread over several devices.

Every rank holds a part of the sequence. Keys and values travel around a ring of the
ranks, and each rank merges what it sees of them by their log-sum-exp. It runs on
``torch.distributed``: gloo on CPUs, nccl on GPUs, and one process without either.
"""

from attention_lib.context_parallel.attention import context_parallel_attention
from attention_lib.context_parallel.ring import Ring

__all__ = ["Ring", "context_parallel_attention"]
