"""Wrong calls of encodings, rotary embeddings and biases."""

from functools import partial

import torch
from wrong_row import Row, call, zeros

from attention_lib import (
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


def of(make, *args, **kwargs):
    """Prepare a call of the module that ``make`` builds."""
    return lambda: partial(make(), *args, **kwargs)


sinusoidal = partial(SinusoidalEncoding, 8)
learned = partial(LearnedEncoding, 8, 16)
rotary = partial(RotaryEmbedding, 8)
tokens, heads = zeros(2, 5, 8), zeros(2, 3, 5, 8)

ROWS = [
    Row(
        "SinusoidalEncoding: no width",
        call(SinusoidalEncoding, 0),
        ValueError,
        "embed_dim=0 must be at least 1",
    ),
    Row(
        "SinusoidalEncoding: a float width",
        call(SinusoidalEncoding, 8.0),
        TypeError,
        "embed_dim must be an integer, got float",
    ),
    Row(
        "SinusoidalEncoding: a base of 0",
        call(SinusoidalEncoding, 8, base=0.0),
        ValueError,
        "base=0.0 must be above 0",
    ),
    Row(
        "SinusoidalEncoding: another width",
        of(sinusoidal, zeros(2, 5, 7)),
        ValueError,
        "x has shape (2, 5, 7), expected (B, L, 8)",
    ),
    Row(
        "SinusoidalEncoding: no batch axis",
        of(sinusoidal, zeros(5, 8)),
        ValueError,
        "x has shape (5, 8), expected (B, L, 8)",
    ),
    Row(
        "SinusoidalEncoding: token numbers",
        of(sinusoidal, zeros(2, 5, 8, dtype=torch.int64)),
        TypeError,
        "x has dtype torch.int64, expected a float dtype",
    ),
    Row(
        "SinusoidalEncoding: a negative offset",
        of(sinusoidal, tokens, offset=-1),
        ValueError,
        "offset=-1 must be at least 0",
    ),
    Row(
        "SinusoidalEncoding: an offset and positions",
        of(sinusoidal, tokens, offset=2, positions=zeros(5, dtype=torch.int64)),
        ValueError,
        "offset=2 and positions: give one of them",
    ),
    Row(
        "SinusoidalEncoding: positions of another length",
        of(sinusoidal, tokens, positions=zeros(4, dtype=torch.int64)),
        ValueError,
        "positions has shape (4,), expected (5,) or (2, 5)",
    ),
    Row(
        "SinusoidalEncoding: positions of another batch",
        of(sinusoidal, tokens, positions=zeros(3, 5, dtype=torch.int64)),
        ValueError,
        "positions has shape (3, 5), expected (5,) or (2, 5)",
    ),
    Row(
        "SinusoidalEncoding: float positions",
        of(sinusoidal, tokens, positions=zeros(5)),
        TypeError,
        "positions has dtype torch.float32, expected integers",
    ),
    Row(
        "SinusoidalEncoding: a mask for positions",
        of(sinusoidal, tokens, positions=zeros(2, 5, dtype=torch.bool)),
        TypeError,
        "positions has dtype torch.bool, expected integers",
    ),
    Row(
        "SinusoidalEncoding: positions elsewhere",
        of(sinusoidal, tokens, positions=zeros(5, dtype=torch.int64, device="meta")),
        ValueError,
        "positions is on meta, expected cpu",
    ),
    Row(
        "LearnedEncoding: no width",
        call(LearnedEncoding, 0, 16),
        ValueError,
        "embed_dim=0 must be at least 1",
    ),
    Row(
        "LearnedEncoding: no rows",
        call(LearnedEncoding, 8, 0),
        ValueError,
        "max_len=0 must be at least 1",
    ),
    Row(
        "LearnedEncoding: a negative deviation",
        call(LearnedEncoding, 8, 16, std=-0.1),
        ValueError,
        "std=-0.1 must be at least 0",
    ),
    Row(
        "LearnedEncoding: past the table",
        of(learned, zeros(2, 17, 8)),
        ValueError,
        "offset=0 and 17 tokens end at position 16, past max_len=16",
    ),
    Row(
        "LearnedEncoding: an offset past the table",
        of(learned, tokens, offset=12),
        ValueError,
        "offset=12 and 5 tokens end at position 16, past max_len=16",
    ),
    Row(
        "LearnedEncoding: a negative offset",
        of(learned, tokens, offset=-1),
        ValueError,
        "offset=-1 must be at least 0",
    ),
    Row(
        "LearnedEncoding: another width",
        of(learned, zeros(2, 5, 7)),
        ValueError,
        "x has shape (2, 5, 7), expected (B, L, 8)",
    ),
    Row(
        "token_positions: numbers for a mask",
        call(token_positions, zeros(2, 5, dtype=torch.int64)),
        TypeError,
        "keep has dtype torch.int64, expected torch.bool",
    ),
    Row(
        "token_positions: the mask of the scores",
        call(token_positions, zeros(2, 1, 1, 5, dtype=torch.bool)),
        ValueError,
        "keep has shape (2, 1, 1, 5), expected (B, S)",
    ),
    Row(
        "RotaryEmbedding: no width",
        call(RotaryEmbedding, 0),
        ValueError,
        "head_dim=0 must be at least 1",
    ),
    Row(
        "RotaryEmbedding: nothing to turn",
        call(RotaryEmbedding, 8, rotary_dim=0),
        ValueError,
        "rotary_dim=0 must be at least 1",
    ),
    Row(
        "RotaryEmbedding: half a pair",
        call(RotaryEmbedding, 1),
        ValueError,
        "rotary_dim=1 must be even",
    ),
    Row(
        "RotaryEmbedding: an odd width",
        call(RotaryEmbedding, 7),
        ValueError,
        "rotary_dim=7 must be even",
    ),
    Row(
        "RotaryEmbedding: wider than the head",
        call(RotaryEmbedding, 8, rotary_dim=10),
        ValueError,
        "rotary_dim=10 must be at most head_dim=8",
    ),
    Row(
        "RotaryEmbedding: too few frequencies",
        call(RotaryEmbedding, 8, frequencies=[1.0, 0.5]),
        ValueError,
        "frequencies has 2 values, expected rotary_dim / 2 = 4",
    ),
    Row(
        "RotaryEmbedding: another width",
        of(rotary, zeros(2, 3, 5, 4)),
        ValueError,
        "x has shape (2, 3, 5, 4), expected (B, H, L, 8)",
    ),
    Row(
        "RotaryEmbedding: no head axis",
        of(rotary, tokens),
        ValueError,
        "x has shape (2, 5, 8), expected (B, H, L, 8)",
    ),
    Row(
        "RotaryEmbedding: a float offset",
        of(rotary, heads, offset=1.0),
        TypeError,
        "offset must be an integer, got float",
    ),
    Row(
        "RotaryEmbedding: positions per head",
        of(rotary, heads, positions=zeros(3, 5, dtype=torch.int64)),
        ValueError,
        "positions has shape (3, 5), expected (5,) or (2, 5)",
    ),
    Row(
        "apply_rotary: sine and cosine that differ",
        call(apply_rotary, heads, zeros(5, 4), zeros(5, 2)),
        ValueError,
        "sin has shape (5, 2), expected (5, 4) as cos",
    ),
    Row(
        "apply_rotary: more pairs than components",
        call(apply_rotary, heads, zeros(5, 8), zeros(5, 8)),
        ValueError,
        "cos has width 8, expected at most 4, half of the width of x",
    ),
    Row(
        "apply_rotary: angles of another length",
        call(apply_rotary, heads, zeros(4, 2), zeros(4, 2)),
        ValueError,
        "cos has shape (4, 2), expected one that broadcasts to (2, 3, 5, 2)",
    ),
    Row(
        "alibi_slopes: no heads",
        call(alibi_slopes, 0),
        ValueError,
        "num_heads=0 must be at least 1",
    ),
    Row(
        "alibi_bias: no heads",
        call(alibi_bias, 0, 5),
        ValueError,
        "num_heads=0 must be at least 1",
    ),
    Row(
        "alibi_bias: a negative length",
        call(alibi_bias, 4, -5),
        ValueError,
        "L=-5 must be at least 0",
    ),
    Row(
        "AlibiBias: a negative offset",
        of(partial(AlibiBias, 4), 5, offset=-2),
        ValueError,
        "offset=-2 must be at least 0",
    ),
    Row(
        "RelativePositionBias: no heads",
        call(RelativePositionBias, 0),
        ValueError,
        "num_heads=0 must be at least 1",
    ),
    Row(
        "RelativePositionBias: one bucket",
        call(RelativePositionBias, 4, num_buckets=1, bidirectional=False),
        ValueError,
        "num_buckets=1 must be at least 2",
    ),
    Row(
        "RelativePositionBias: odd buckets in two directions",
        call(RelativePositionBias, 4, num_buckets=7),
        ValueError,
        "num_buckets=7 must be even",
    ),
    Row(
        "RelativePositionBias: too few buckets",
        call(RelativePositionBias, 4, num_buckets=2),
        ValueError,
        "num_buckets=2 must be at least 4",
    ),
    Row(
        "RelativePositionBias: no distance left to share",
        call(RelativePositionBias, 4, num_buckets=32, max_distance=8),
        ValueError,
        "max_distance=8 must be at least 9",
    ),
    Row(
        "RelativePositionBias: a negative number of keys",
        of(partial(RelativePositionBias, 4), 5, -1),
        ValueError,
        "S=-1 must be at least 0",
    ),
]
