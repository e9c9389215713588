"""Where a token stands: codes added to it, turns of its heads, biases of its scores.

Attention alone ignores order. Three kinds of module tell it: encodings are added to the
tokens (:mod:`~attention_lib.positions.encodings`), rotary embeddings turn queries and
keys (:mod:`~attention_lib.positions.rotary`), biases are added to the scores
(:mod:`~attention_lib.positions.biases`).

``offset`` is always the position of the first token, ``positions`` gives every token
its own. Nothing here is stored in a ``state_dict`` unless it is learned, and sines,
cosines and slopes are computed in float32 at least, whatever the dtype of the tokens.
"""

from attention_lib.positions.biases import (
    AlibiBias,
    RelativePositionBias,
    alibi_bias,
    alibi_slopes,
)
from attention_lib.positions.encodings import (
    LearnedEncoding,
    SinusoidalEncoding,
    token_positions,
)
from attention_lib.positions.rotary import RotaryEmbedding, apply_rotary

__all__ = [
    "AlibiBias",
    "LearnedEncoding",
    "RelativePositionBias",
    "RotaryEmbedding",
    "SinusoidalEncoding",
    "alibi_bias",
    "alibi_slopes",
    "apply_rotary",
    "token_positions",
]
