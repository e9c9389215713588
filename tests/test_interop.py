"""Weights under other names, in and out, and what is said when they do not fit."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention_lib import (
    AlibiBias,
    FeedForward,
    MultiHeadAttention,
    RotaryEmbedding,
    TransformerBlock,
)
from attention_lib.interop import dump_weights, from_torch, load_weights, to_torch

pytestmark = pytest.mark.usefixtures("on_device")

E, H, HKV, D, WIDE = 12, 6, 3, 4, 20
SCHEMES = ["torch", "bert", "gpt2", "llama"]


def layer(**options):
    made = MultiHeadAttention(E, H, **({"num_kv_heads": HKV, "head_dim": D} | options))
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def block(names):
    if names == "llama":
        attention = MultiHeadAttention(E, H, num_kv_heads=HKV, head_dim=D, bias=False)
        feed_forward = FeedForward(E, WIDE, activation=F.silu, gated=True, bias=False)
        made = TransformerBlock(
            E, attention=attention, feed_forward=feed_forward, norm=nn.RMSNorm
        )
    else:
        made = TransformerBlock(E, H, hidden_dim=WIDE, norm_first=names == "gpt2")
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


# The names and shapes in the libraries' own checkpoints.
LAYER_KEYS = {
    "torch": {
        "in_proj_weight": (48, 12),
        "in_proj_bias": (48,),
        "out_proj.weight": (12, 24),
        "out_proj.bias": (12,),
    },
    "bert": {
        "self.query.weight": (24, 12),
        "self.query.bias": (24,),
        "self.key.weight": (12, 12),
        "self.key.bias": (12,),
        "self.value.weight": (12, 12),
        "self.value.bias": (12,),
        "output.dense.weight": (12, 24),
        "output.dense.bias": (12,),
    },
    "gpt2": {
        "c_attn.weight": (12, 48),
        "c_attn.bias": (48,),
        "c_proj.weight": (24, 12),
        "c_proj.bias": (12,),
    },
    "llama": {
        "q_proj.weight": (24, 12),
        "q_proj.bias": (24,),
        "k_proj.weight": (12, 12),
        "k_proj.bias": (12,),
        "v_proj.weight": (12, 12),
        "v_proj.bias": (12,),
        "o_proj.weight": (12, 24),
        "o_proj.bias": (12,),
    },
}


@pytest.mark.parametrize("names", SCHEMES)
def test_the_names_are_theirs(names):
    dumped = dump_weights(layer(), names=names)
    assert {k: tuple(t.shape) for k, t in dumped.items()} == LAYER_KEYS[names]
    assert all(t.is_contiguous() for t in dumped.values())


@pytest.mark.parametrize("names", SCHEMES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("apart", [False, True], ids=["", "apart"])
def test_a_layer_goes_out_and_comes_back(names, bias, apart):
    options = {"bias": bias} | ({"kdim": E} if apart else {})
    ours, twin = layer(**options), layer(**options)
    dumped = dump_weights(ours, names=names, prefix="h.3.")
    assert all(key.startswith("h.3.") for key in dumped)
    load_weights(twin, dumped | {"h.30.x": torch.ones(1)}, names=names, prefix="h.3.")
    for key, tensor in ours.state_dict().items():
        assert torch.equal(twin.state_dict()[key], tensor), key


@pytest.mark.parametrize("names", SCHEMES)
def test_a_block_goes_out_and_comes_back(names):
    ours, twin = block(names), block(names)
    load_weights(twin, dump_weights(ours, names=names), names=names)
    for key, tensor in ours.state_dict().items():
        assert torch.equal(twin.state_dict()[key], tensor), key


def test_what_is_dumped_is_a_copy():
    ours = layer()
    dumped = dump_weights(ours, names="llama")
    for tensor in dumped.values():
        tensor.zero_()
        assert not tensor.requires_grad
    assert all(p.abs().sum() > 0 for p in ours.parameters())


def test_other_dtypes_are_converted():
    ours = layer()
    half = {k: t.half() for k, t in dump_weights(ours, names="bert").items()}
    twin = layer()
    load_weights(twin, half, names="bert")
    assert twin.qkv_proj.weight.dtype == torch.float32
    assert torch.equal(twin.qkv_proj.weight, ours.qkv_proj.weight.half().float())


def test_parameters_stay_parameters():
    ours = layer()
    before = dict(ours.named_parameters())
    load_weights(ours, dump_weights(layer(), names="gpt2"), names="gpt2")
    after = dict(ours.named_parameters())
    assert all(after[name] is before[name] for name in before)
    assert all(p.requires_grad and p.is_leaf for p in ours.parameters())


def test_missing_and_unexpected_keys_are_listed_and_nothing_is_loaded():
    ours = layer()
    before = {k: t.clone() for k, t in ours.state_dict().items()}
    given = dump_weights(layer(), names="llama", prefix="a.")
    given["a.q_prog.weight"] = given.pop("a.q_proj.weight")
    del given["a.o_proj.bias"]
    message = "missing: o_proj.bias, q_proj.weight; unexpected: q_prog.weight"
    with pytest.raises(ValueError, match=message):
        load_weights(ours, given, names="llama", prefix="a.")
    for key, tensor in ours.state_dict().items():
        assert torch.equal(tensor, before[key])


def test_a_wrong_shape_is_named_and_nothing_is_loaded():
    ours = layer()
    before = {k: t.clone() for k, t in ours.state_dict().items()}
    given = dump_weights(layer(), names="gpt2")
    given["c_proj.weight"] = given["c_proj.weight"].T
    message = re.escape("c_proj.weight has shape (12, 24), expected (24, 12)")
    with pytest.raises(ValueError, match=message):
        load_weights(ours, given, names="gpt2")
    for key, tensor in ours.state_dict().items():
        assert torch.equal(tensor, before[key])


def test_buffers_and_neighbours_of_old_checkpoints_are_passed_over():
    for names, extra in (
        ("gpt2", ["bias", "masked_bias"]),
        ("llama", ["rotary_emb.inv_freq"]),
        ("bert", ["output.LayerNorm.weight", "output.LayerNorm.bias"]),
    ):
        given = dump_weights(layer(), names=names)
        load_weights(layer(), given | {k: torch.ones(1) for k in extra}, names=names)
    given = dump_weights(block("gpt2"), names="gpt2")
    buffers = {"attn.bias": torch.ones(1), "attn.masked_bias": torch.ones(1)}
    load_weights(block("gpt2"), given | buffers, names="gpt2")
    with pytest.raises(ValueError, match="unexpected: bias"):
        load_weights(block("gpt2"), given | {"bias": torch.ones(1)}, names="gpt2")


def test_weights_without_a_name_are_refused():
    normed = layer(query_norm=nn.RMSNorm(D), key_norm=nn.RMSNorm(D))
    assert "q_norm.weight" in dump_weights(normed, names="llama")
    with pytest.raises(
        ValueError, match="no bert name for key_norm.weight, query_norm.weight"
    ):
        dump_weights(normed, names="bert")
    with pytest.raises(ValueError, match="torch names stack k_proj.bias with others"):
        load_weights(layer(key_bias=False), {}, names="torch")
    decoder = TransformerBlock(E, H, cross_attention=MultiHeadAttention(E, H))
    with pytest.raises(
        ValueError, match="no gpt2 name for cross_attention.k_proj.bias"
    ):
        dump_weights(decoder, names="gpt2")


def test_an_unknown_scheme_is_refused():
    with pytest.raises(
        ValueError, match="names='gpt3', expected one of torch, bert, gpt2, llama"
    ):
        dump_weights(layer(), names="gpt3")


# nn.MultiheadAttention ----------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("widths", [{}, {"kdim": 10}, {"kdim": 10, "vdim": 9}], ids=str)
def test_from_torch_and_back(widths, bias, batch_first, training):
    theirs = nn.MultiheadAttention(
        E,
        H,
        dropout=0.25,
        bias=bias,
        batch_first=batch_first,
        dtype=torch.float64,
        **widths,
    ).train(training)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    ours = from_torch(theirs)
    assert (ours.dropout, ours.training) == (0.25, training)
    assert (ours.qkv_proj is None) == bool(widths)  # one product where one will do
    back = to_torch(ours)
    assert (back.dropout, back.training, back.batch_first) == (0.25, training, True)
    assert (back.kdim, back.vdim) == (theirs.kdim, theirs.vdim)
    assert back.state_dict().keys() == theirs.state_dict().keys()
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor), key


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_from_torch_refuses_keys_without_tokens(options):
    with pytest.raises(ValueError, match="add_bias_kv and add_zero_attn"):
        from_torch(nn.MultiheadAttention(E, H, **options))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_kv_heads": 2}, "num_kv_heads"),
        ({"head_dim": 5}, "head_dim"),
        ({"key_bias": False}, "key_bias"),
        ({"out_bias": False}, "out_bias"),
        ({"rotary": RotaryEmbedding(2)}, "rotary"),
        ({"score_bias": AlibiBias(H)}, "score_bias"),
        ({"query_norm": nn.RMSNorm(2)}, "query_norm"),
        ({"key_norm": nn.RMSNorm(2)}, "key_norm"),
        ({"scale": 1.0}, "scale"),
        ({"softcap": 5.0}, "softcap"),
        ({"softcap": 5.0, "num_kv_heads": 1}, "num_kv_heads, softcap"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_to_torch_refuses_what_theirs_lacks(options, named):
    with pytest.raises(ValueError, match=f"nn.MultiheadAttention has no {named}$"):
        to_torch(MultiHeadAttention(E, H, **options))
