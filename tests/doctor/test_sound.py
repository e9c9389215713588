"""No correct attention is accused: ours, torch's, those of libraries."""

import pytest
import torch
import torch.nn.functional as F
import transformers_zoo as zoo
from torch import nn

from attention_lib import (
    AlibiBias,
    LearnedEncoding,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryEmbedding,
    SelfAttention,
    SinusoidalEncoding,
    TransformerBlock,
    attention_steps,
    scaled_dot_product_attention,
)
from attention_lib.doctor.examination import run_examination


def accuse(subject, kind="attention", **declared):
    examination = run_examination(subject, kind, **declared)
    failed = [s for s in examination.not_checked if "probe failed" in s.reason]
    assert not failed
    faults = [f for f in examination.findings if f.severity == "fault"]
    assert not faults, [(f.code, f.probe, f.evidence.text) for f in faults]
    return examination


OURS = {
    "plain": lambda: MultiHeadAttention(24, 3),
    "grouped": lambda: MultiHeadAttention(24, 6, num_kv_heads=2),
    "own head width": lambda: MultiHeadAttention(24, 3, head_dim=5),
    "rotary": lambda: MultiHeadAttention(24, 3, rotary=RotaryEmbedding(8)),
    "linear bias": lambda: MultiHeadAttention(24, 3, score_bias=AlibiBias(3)),
    "buckets": lambda: MultiHeadAttention(24, 3, score_bias=RelativePositionBias(3)),
    "softcap": lambda: MultiHeadAttention(24, 3, softcap=5.0, scale=0.2),
    "normed": lambda: MultiHeadAttention(
        24, 3, query_norm=nn.RMSNorm(8), key_norm=nn.RMSNorm(8)
    ),
    "dropout": lambda: MultiHeadAttention(24, 3, dropout=0.3),
    "no key bias": lambda: MultiHeadAttention(24, 3, key_bias=False),
    "one head": lambda: SelfAttention(10, 4, 5),
    "block": lambda: TransformerBlock(24, 3, dropout=0.1),
    "block, post-norm": lambda: TransformerBlock(24, 3, norm_first=False),
}
TORCH = {
    "sequence first": lambda: nn.MultiheadAttention(24, 3, dropout=0.1),
    "batch first": lambda: nn.MultiheadAttention(24, 3, batch_first=True, bias=False),
    "bias as a key": lambda: nn.MultiheadAttention(24, 3, add_bias_kv=True),
    "zero as a key": lambda: nn.MultiheadAttention(24, 3, add_zero_attn=True),
    "encoder layer": lambda: nn.TransformerEncoderLayer(24, 3, 32),
    "encoder layer, pre-norm": lambda: nn.TransformerEncoderLayer(
        24, 3, 32, batch_first=True, norm_first=True
    ),
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(24, 3, 32, batch_first=True),
        1,
        enable_nested_tensor=False,
    ),
    "decoder layer": lambda: nn.TransformerDecoderLayer(24, 3, 32),
}


@pytest.mark.parametrize("name", OURS)
def test_our_layers(name):
    accuse(OURS[name]())


@pytest.mark.parametrize("name", TORCH)
def test_layers_of_torch(name):
    accuse(TORCH[name]())


@pytest.mark.parametrize("name", ["plain", "grouped", "one head"])
def test_the_refit_clears_the_scale(name):
    assert "reproduced" in accuse(OURS[name]()).passed


ZOO = {**zoo.DECODERS, **zoo.ENCODERS, "ViT": zoo.VIT}
ZOO |= {f"T5 {name}": entry for name, entry in zoo.T5.items()}
ZOO |= {f"Whisper {name}": entry for name, entry in zoo.WHISPER.items()}


@pytest.mark.parametrize("name", ZOO)
def test_attentions_of_transformers(name):
    accuse(ZOO[name].theirs(ZOO[name].model(), 0))


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"flash": True}, {"qk_norm": True}, {"num_mem_kv": 2}],
    ids=str,
)
def test_attentions_of_x_transformers(options):
    library = pytest.importorskip("x_transformers.x_transformers")
    accuse(library.Attention(dim=24, heads=3, dim_head=8, **options))


@pytest.mark.parametrize(
    "function",
    [
        F.scaled_dot_product_attention,
        scaled_dot_product_attention,
        lambda q, k, v: attention_steps(q, k, v).output,
    ],
    ids=["torch", "ours", "ours, in steps"],
)
def test_cores(function):
    accuse(function, "core")


@pytest.mark.parametrize(
    "encoding",
    [
        SinusoidalEncoding(8),
        SinusoidalEncoding(7),
        SinusoidalEncoding,
        LearnedEncoding(8, 32),
    ],
    ids=["even", "odd", "class", "learned"],
)
def test_encodings(encoding):
    accuse(encoding, "encoding")


@pytest.mark.parametrize(
    "rotary",
    [
        RotaryEmbedding(8),
        RotaryEmbedding(8, interleaved=True),
        RotaryEmbedding(8, rotary_dim=4),
        RotaryEmbedding(8).bfloat16(),
    ],
    ids=["halves", "neighbours", "partial", "cast"],
)
def test_rotations(rotary):
    accuse(rotary, "rotary")


@pytest.mark.parametrize(
    "bias",
    [
        AlibiBias(3),
        AlibiBias(8),
        RelativePositionBias(3),
        RelativePositionBias(3, bidirectional=False),
    ],
    ids=["alibi, 3 heads", "alibi, 8 heads", "buckets", "buckets of the past"],
)
def test_biases(bias):
    accuse(bias, "bias")


def test_a_reference_that_agrees():
    layer = MultiHeadAttention(24, 3)
    other = MultiHeadAttention(24, 3)
    other.load_state_dict(layer.state_dict())
    assert "like_reference" in accuse(layer, reference=other).passed
    torch.nn.init.normal_(other.out_proj.weight)
    examination = run_examination(layer, reference=other)
    assert examination.findings[0].code == "AT330"
