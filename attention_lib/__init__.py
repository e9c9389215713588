"""Attention, measured: explicit and fast implementations of one idea that agree."""

from attention_lib import (
    diagnostics,
    efficient,
    interop,
    masks,
    memory,
    plotting,
    quantization,
    run_log,
    run_record,
    tasks,
    text,
    training,
)
from attention_lib.block import FeedForward, TransformerBlock
from attention_lib.cache import KeyValueCache
from attention_lib.functional import (
    AttentionSteps,
    additive_attention,
    attention_steps,
    scaled_dot_product_attention,
)
from attention_lib.layers import MultiHeadAttention, SelfAttention
from attention_lib.positions import (
    AlibiBias,
    LearnedEncoding,
    RelativePositionBias,
    RotaryEmbedding,
    SinusoidalEncoding,
    alibi_bias,
    alibi_slopes,
    apply_rotary,
    token_positions,
)
from attention_lib.rolling_cache import RollingCache
from attention_lib.runtime import setup
from attention_lib.stepper import Stepper

__all__ = [
    "AlibiBias",
    "AttentionSteps",
    "FeedForward",
    "KeyValueCache",
    "LearnedEncoding",
    "MultiHeadAttention",
    "RelativePositionBias",
    "RollingCache",
    "RotaryEmbedding",
    "SelfAttention",
    "SinusoidalEncoding",
    "Stepper",
    "TransformerBlock",
    "additive_attention",
    "alibi_bias",
    "alibi_slopes",
    "apply_rotary",
    "attention_steps",
    "diagnostics",
    "efficient",
    "interop",
    "masks",
    "memory",
    "plotting",
    "quantization",
    "run_log",
    "run_record",
    "scaled_dot_product_attention",
    "setup",
    "tasks",
    "text",
    "token_positions",
    "training",
]

__version__ = "0.1.0"
