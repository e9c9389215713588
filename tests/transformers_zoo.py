"""Tiny models of ``transformers``, and their attention rebuilt from our parts.

An entry of the zoo says where a model keeps an attention and makes ours with the same
weights, which are random. Nothing is downloaded: the configurations are written here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import transformers as hf
from torch import Tensor, nn

from attention_lib import (
    AlibiBias,
    MultiHeadAttention,
    RelativePositionBias,
    RotaryEmbedding,
)
from attention_lib.interop import load_weights

LAYERS, H, HKV, D, E = 2, 6, 3, 8, 24  # H * D is not E where a model allows it
WORDS, WINDOW = 32, 3


class Attention(NamedTuple):
    """One attention in each layer of a model."""

    model: Callable[[], nn.Module]
    path: str  # of the module, with {} for the layer
    out: str  # of its output projection, below the path
    make: Callable[..., MultiHeadAttention]
    window: Callable[[int], int | None] = lambda layer: None

    def ours(self, model: nn.Module, layer: int) -> MultiHeadAttention:
        """Our layer with their weights."""
        return self.make(self.theirs(model, layer), model).eval()

    def theirs(self, model: nn.Module, layer: int) -> nn.Module:
        return model.get_submodule(self.path.format(layer))


class Call(NamedTuple):
    """What an attention was given and what its output projection made."""

    x: Tensor
    context: Tensor | None
    output: Tensor


@contextmanager
def watched(module: nn.Module, out: str) -> Iterator[list[Call]]:
    """The calls of an attention, as they happen."""
    calls: list[Call] = []
    given: list[tuple[Tensor, Tensor | None]] = []

    def before(module, args, kwargs):
        x = args[0] if args else kwargs["hidden_states"]
        given.append((x, kwargs.get("key_value_states")))

    def after(module, args, output):
        output = output[0] if isinstance(output, tuple) else output
        calls.append(Call(*given.pop(), output))

    handles = (
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.get_submodule(out).register_forward_hook(after),
    )
    yield calls
    for handle in handles:
        handle.remove()


def build(kind: type, **sizes: object) -> Callable[[], nn.Module]:
    """A maker of the model, in eval, every parameter drawn at random."""

    def make() -> nn.Module:
        model = hf.AutoModel.from_config(kind(**sizes), attn_implementation="eager")
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.3)
        return model.eval()

    return make


# Ours, from their module and its model ------------------------------------------------


def fill(
    layer: MultiHeadAttention, state: dict[str, Tensor], names: str = "llama"
) -> MultiHeadAttention:
    """Their weights in our layer; other names of the projections become Llama's."""
    if names == "llama":
        projections = dict(
            zip("qkvo", ("q_proj", "k_proj", "v_proj", "o_proj"), strict=True)
        )
        projections |= {"out_proj": "o_proj", "dense": "o_proj"}
        pairs = ((key.rpartition("."), tensor) for key, tensor in state.items())
        state = {
            f"{projections.get(module, module)}.{kind}": tensor
            for (module, _, kind), tensor in pairs
        }
    load_weights(layer, state, names=names)
    return layer


def plain(theirs, model, *, names="llama", **options):
    """As many key/value heads as heads, H * D = E."""
    return fill(MultiHeadAttention(E, H, **options), theirs.state_dict(), names)


def grouped(theirs, model, **options):
    """The family of Llama."""
    ours = MultiHeadAttention(
        E,
        H,
        num_kv_heads=HKV,
        head_dim=D,
        bias=False,
        rotary=RotaryEmbedding(D),
        **options,
    )
    return fill(ours, theirs.state_dict())


def qwen3(theirs, model):
    norms = (nn.RMSNorm(D, eps=model.config.rms_norm_eps) for _ in range(2))
    query_norm, key_norm = norms
    return grouped(theirs, model, query_norm=query_norm, key_norm=key_norm)


def gemma2(theirs, model):
    scale, softcap = model.config.query_pre_attn_scalar**-0.5, 2.0
    return grouped(theirs, model, scale=scale, softcap=softcap)


def per_head(state):
    """Queries, keys and values that are stacked head by head, taken apart."""
    state = dict(state)
    for kind in ("weight", "bias"):
        stacked = state.pop(f"query_key_value.{kind}").unflatten(0, (H, 3, -1))
        for part, tensor in zip("qkv", stacked.unbind(1), strict=True):
            state[f"{part}.{kind}"] = tensor.flatten(0, 1)
    return state


def gpt_neox(theirs, model):
    rotary = RotaryEmbedding(D, rotary_dim=D // 4)
    ours = MultiHeadAttention(H * D, H, rotary=rotary)
    return fill(ours, per_head(theirs.state_dict()))


def gptj(theirs, model):
    rotary = RotaryEmbedding(D, rotary_dim=4, interleaved=True)
    ours = MultiHeadAttention(H * D, H, bias=False, out_bias=False, rotary=rotary)
    return fill(ours, theirs.state_dict())


def bloom(theirs, model):
    ours = MultiHeadAttention(E, H, score_bias=AlibiBias(H))
    return fill(ours, per_head(theirs.state_dict()))


def mpt(theirs, model):
    ours = MultiHeadAttention(E, H, bias=False, score_bias=AlibiBias(H))
    state = dict(theirs.state_dict())
    state["in_proj_weight"] = state.pop("Wqkv.weight")
    return fill(ours, state, "torch")


def t5(theirs, model, *, stack=None):
    """The buckets are those of the stack's first layer, which all its layers share."""
    state = dict(theirs.state_dict())
    state.pop("relative_attention_bias.weight", None)
    ours = MultiHeadAttention(E, H, head_dim=5, bias=False, scale=1.0)
    fill(ours, state)
    if stack is not None:
        first = model.get_submodule(f"{stack}.block.0.layer.0.SelfAttention")
        ours.score_bias = RelativePositionBias(
            H, num_buckets=8, max_distance=12, bidirectional=stack == "encoder"
        )
        ours.score_bias.load_state_dict(first.relative_attention_bias.state_dict())
    return ours


# The zoo ------------------------------------------------------------------------------

SIZES = {
    "vocab_size": WORDS,
    "hidden_size": E,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": H,
}
GROUPED = SIZES | {
    "num_key_value_heads": HKV,
    "head_dim": D,
    "intermediate_size": 20,
    "pad_token_id": 0,
}
GPT = {"vocab_size": WORDS, "n_layer": LAYERS, "n_head": H}
T5_MODEL = build(
    hf.T5Config,
    vocab_size=WORDS,
    d_model=E,
    num_heads=H,
    num_layers=LAYERS,
    d_kv=5,
    d_ff=20,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=12,
)
WHISPER_MODEL = build(
    hf.WhisperConfig,
    vocab_size=WORDS,
    d_model=E,
    encoder_layers=LAYERS,
    decoder_layers=LAYERS,
    encoder_attention_heads=H,
    decoder_attention_heads=H,
    encoder_ffn_dim=20,
    decoder_ffn_dim=20,
    num_mel_bins=4,
    max_source_positions=7,
    max_target_positions=16,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)

DECODERS = {
    "GPT-2": Attention(
        build(hf.GPT2Config, **GPT, n_embd=E, bos_token_id=1, eos_token_id=2),
        "h.{}.attn",
        "c_proj",
        partial(plain, names="gpt2"),
    ),
    "Llama": Attention(
        build(hf.LlamaConfig, **GROUPED), "layers.{}.self_attn", "o_proj", grouped
    ),
    "Mistral": Attention(
        build(hf.MistralConfig, **GROUPED, sliding_window=WINDOW),
        "layers.{}.self_attn",
        "o_proj",
        grouped,
        window=lambda layer: WINDOW,
    ),
    "Qwen3": Attention(
        build(hf.Qwen3Config, **GROUPED), "layers.{}.self_attn", "o_proj", qwen3
    ),
    "Gemma-2": Attention(
        build(
            hf.Gemma2Config,
            **GROUPED,
            query_pre_attn_scalar=5,
            attn_logit_softcapping=2.0,
            sliding_window=WINDOW,
            layer_types=["sliding_attention", "full_attention"],
        ),
        "layers.{}.self_attn",
        "o_proj",
        gemma2,
        window=lambda layer: WINDOW if layer == 0 else None,
    ),
    "GPT-NeoX": Attention(
        build(
            hf.GPTNeoXConfig,
            **(SIZES | {"hidden_size": H * D, "intermediate_size": 20}),
        ),
        "layers.{}.attention",
        "dense",
        gpt_neox,
    ),
    "GPT-J": Attention(
        build(
            hf.GPTJConfig,
            **GPT,
            n_embd=H * D,
            n_inner=20,
            rotary_dim=4,
            bos_token_id=1,
            eos_token_id=2,
        ),
        "h.{}.attn",
        "out_proj",
        gptj,
    ),
    "Bloom": Attention(
        build(hf.BloomConfig, **GPT, hidden_size=E),
        "h.{}.self_attention",
        "dense",
        bloom,
    ),
    "MPT": Attention(
        build(hf.MptConfig, vocab_size=WORDS, d_model=E, n_heads=H, n_layers=LAYERS),
        "blocks.{}.attn",
        "out_proj",
        mpt,
    ),
}
ENCODERS = {
    "BERT": Attention(
        build(hf.BertConfig, **SIZES, intermediate_size=20),
        "encoder.layer.{}.attention",
        "output.dense",
        partial(plain, names="bert"),
    ),
    "T5": Attention(
        T5_MODEL,
        "encoder.block.{}.layer.0.SelfAttention",
        "o",
        partial(t5, stack="encoder"),
    ),
}
VIT = Attention(
    build(
        hf.ViTConfig,
        hidden_size=E,
        num_hidden_layers=LAYERS,
        num_attention_heads=H,
        intermediate_size=20,
        image_size=8,
        patch_size=4,
        num_channels=1,
    ),
    "layers.{}.attention",
    "o_proj",
    plain,
)

T5 = {
    "decoder": Attention(
        T5_MODEL,
        "decoder.block.{}.layer.0.SelfAttention",
        "o",
        partial(t5, stack="decoder"),
    ),
    "cross": Attention(T5_MODEL, "decoder.block.{}.layer.1.EncDecAttention", "o", t5),
}
WHISPER = {
    name: Attention(
        WHISPER_MODEL,
        path,
        "out_proj",
        partial(plain, key_bias=False),
    )
    for name, path in (
        ("encoder", "encoder.layers.{}.self_attn"),
        ("decoder", "decoder.layers.{}.self_attn"),
        ("cross", "decoder.layers.{}.encoder_attn"),
    )
}
