"""The attention of thirteen models of ``transformers``, rebuilt from our parts.

A whole model runs, with padding and with its own cache, and the attention of each layer
is watched: ours is given the same tokens and must give the same output. Masks,
positions and caches are the models' own on one side and ours on the other.
"""

import inspect
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attention_lib import (
    FeedForward,
    KeyValueCache,
    MultiHeadAttention,
    RotaryEmbedding,
    TransformerBlock,
    masks,
    token_positions,
)
from attention_lib.interop import load_weights

hf = pytest.importorskip("transformers", reason="transformers holds the models")
import transformers_zoo as zoo
from transformers_zoo import HKV, LAYERS, WORDS, D, E, H, watched

B, L, S = 2, 6, 7
# Padding on the left in the first row.
KEEP = torch.tensor([[False] * 2 + [True] * 4, [True] * 6])


def close(got, want):
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def run(attention, model, layer, calls_of_model):
    """What the layer's attention was given and made while the model ran."""
    with watched(attention.theirs(model, layer), attention.out) as calls:
        for arguments in calls_of_model:
            model(**arguments)
    return calls


def arguments_of(model, tokens, keep, start=0, cache=None):
    """A call of the model with the tokens after ``start``, in the model's words."""
    given = {
        "input_ids": tokens[:, start:],
        "attention_mask": keep.long(),
    }
    if cache is not None:
        given |= {"cache": cache, "use_cache": True}
    if "position_ids" in inspect.signature(model.forward).parameters:
        given["position_ids"] = token_positions(keep)[:, start:]
    return given


def arguments_of_ours(attention, ours, layer, keep, start=0):
    """The same call of our layer: the mask, and positions if it turns by them."""
    mask, window = keep[:, None, None], attention.window(layer)
    if window is not None:
        length = keep.shape[1] - start
        near = masks.sliding_window(length, window=window, offset=start)
        mask = masks.combine(mask, near)
    positions = token_positions(keep)[:, start:] if ours.rotary else None
    return {"attn_mask": mask, "is_causal": True, "positions": positions}


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("name", zoo.DECODERS)
@torch.no_grad()
def test_decoder(name, layer):
    attention = zoo.DECODERS[name]
    model = attention.model()
    ours = attention.ours(model, layer)
    tokens = torch.randint(3, WORDS, (B, L))
    given = arguments_of(model, tokens, KEEP)
    (call,) = run(attention, model, layer, [given])
    got = ours(call.x, **arguments_of_ours(attention, ours, layer, KEEP))
    close(got[KEEP], call.output[KEEP])


@pytest.mark.parametrize("name", zoo.DECODERS)
@torch.no_grad()
def test_decoder_with_a_cache(name):
    attention, layer = zoo.DECODERS[name], LAYERS - 1
    model = attention.model()
    ours = attention.ours(model, layer)
    tokens = torch.randint(3, WORDS, (B, L))
    ends = [3, 4, 6]  # three tokens, then one, then two
    starts = [0, *ends[:-1]]
    theirs = hf.DynamicCache(config=model.config)
    steps = (
        arguments_of(model, tokens[:, :end], KEEP[:, :end], start, theirs)
        for start, end in zip(starts, ends, strict=True)
    )
    calls = run(attention, model, layer, steps)
    cache = KeyValueCache.for_layer(ours, B, L)
    for call, start, end in zip(calls, starts, ends, strict=True):
        seen = KEEP[:, :end]
        given = arguments_of_ours(attention, ours, layer, seen, start)
        real = seen[:, start:]
        close(ours(call.x, cache=cache, **given)[real], call.output[real])
    assert cache.length == L


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("name", zoo.ENCODERS)
@torch.no_grad()
def test_encoder(name, layer):
    attention = zoo.ENCODERS[name]
    model = attention.model()
    tokens = torch.randint(3, WORDS, (B, L))
    keep = masks.padding([4, L], L)
    given = {"input_ids": tokens, "attention_mask": keep[:, 0, 0].long()}
    if name == "T5":
        given["decoder_input_ids"] = tokens
    (call,) = run(attention, model, layer, [given])
    real = keep[:, 0, 0]
    got = attention.ours(model, layer)(call.x, attn_mask=keep)
    close(got[real], call.output[real])


@torch.no_grad()
def test_vit():
    model = zoo.VIT.model()
    given = {"pixel_values": torch.randn(B, 1, 8, 8)}
    (call,) = run(zoo.VIT, model, 1, [given])
    assert call.x.shape == (B, 5, E)
    close(zoo.VIT.ours(model, 1)(call.x), call.output)


@torch.no_grad()
def test_whisper_encoder():
    attention = zoo.WHISPER["encoder"]
    model = attention.model()
    given = {
        "input_features": torch.randn(B, 4, 2 * S),
        "decoder_input_ids": torch.randint(3, WORDS, (B, L)),
    }
    (call,) = run(attention, model, 1, [given])
    assert call.x.shape == (B, S, E)
    close(attention.ours(model, 1)(call.x), call.output)


def sequence_to_sequence(name):
    """A model, what its encoder read, and which of that is real."""
    if name == "Whisper":
        keep = torch.ones(B, S, dtype=torch.bool)
        return zoo.WHISPER, {"input_features": torch.randn(B, 4, 2 * S)}, keep
    keep = masks.padding([4, S], S)[:, 0, 0]
    tokens = torch.randint(3, WORDS, (B, S))
    return zoo.T5, {"input_ids": tokens, "attention_mask": keep.long()}, keep


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("name", ["T5", "Whisper"])
@torch.no_grad()
def test_cross_attention(name, layer):
    attentions, given, keep = sequence_to_sequence(name)
    attention = attentions["cross"]
    model = attention.model()
    given["decoder_input_ids"] = torch.randint(3, WORDS, (B, L))
    (call,) = run(attention, model, layer, [given])
    assert call.context.shape == (B, S, E)
    ours = attention.ours(model, layer)
    close(ours(call.x, call.context, attn_mask=keep[:, None, None]), call.output)


@pytest.mark.parametrize("name", ["T5", "Whisper"])
@torch.no_grad()
def test_decoder_of_a_sequence_with_a_cache(name):
    attentions, given, _ = sequence_to_sequence(name)
    attention, layer = attentions["decoder"], LAYERS - 1
    model = attention.model()
    ours = attention.ours(model, layer)
    tokens = torch.randint(3, WORDS, (B, L))
    whole = run(attention, model, layer, [given | {"decoder_input_ids": tokens}])
    close(ours(whole[0].x, is_causal=True), whole[0].output)

    ends = [3, 4, 6]
    theirs = hf.EncoderDecoderCache(
        hf.DynamicCache(config=model.config), hf.DynamicCache(config=model.config)
    )
    steps = (
        given
        | {
            "decoder_input_ids": tokens[:, start:end],
            "cache": theirs,
            "use_cache": True,
        }
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    )
    cache = KeyValueCache.for_layer(ours, B, L)
    for call in run(attention, model, layer, steps):
        close(ours(call.x, is_causal=True, cache=cache), call.output)
    assert cache.length == L


def blocks():
    """A layer of theirs and a block of ours, with its names."""
    plain = {"embed_dim": E, "num_heads": H}
    llama = TransformerBlock(
        E,
        attention=MultiHeadAttention(
            **plain, num_kv_heads=HKV, head_dim=D, bias=False, rotary=RotaryEmbedding(D)
        ),
        feed_forward=FeedForward(E, 20, activation=F.silu, gated=True, bias=False),
        norm=partial(nn.RMSNorm, eps=1e-6),
    )
    bert_norm = partial(nn.LayerNorm, eps=1e-12)
    tanh = partial(F.gelu, approximate="tanh")
    return {
        "Llama": ("layers.1", llama, "llama"),
        "GPT-2": ("h.1", TransformerBlock(**plain, activation=tanh), "gpt2"),
        "BERT": (
            "encoder.layer.1",
            TransformerBlock(**plain, hidden_dim=20, norm_first=False, norm=bert_norm),
            "bert",
        ),
    }


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "Llama"])
@torch.no_grad()
def test_a_whole_block(name):
    """Norms and feed-forward network included, from the names of a whole model."""
    path, ours, names = blocks()[name]
    model = (zoo.DECODERS | zoo.ENCODERS)[name].model()
    load_weights(ours, model.state_dict(), names=names, prefix=f"{path}.")
    tokens = torch.randint(3, WORDS, (B, L))
    with watched(model.get_submodule(path), "") as calls:
        model(**arguments_of(model, tokens, KEEP))
    (call,) = calls
    got = ours.eval()(
        call.x,
        attn_mask=KEEP[:, None, None],
        is_causal=name != "BERT",
        positions=token_positions(KEEP) if name == "Llama" else None,
    )
    close(got[KEEP], call.output[KEEP])
