"""One token at a time: the caches beside other ways to keep what was computed.

Each way first has to give the outputs of one causal pass. Then they take turns: from the
same context each decodes the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import report
import torch
import torch.nn.functional as F
from timing import Result, compare, take_turns
from torch import Tensor, nn
from tqdm import tqdm

from attention_lib import KeyValueCache, MultiHeadAttention, RollingCache, masks

OURS, BY_HAND = "KeyValueCache", "slice by hand"
ROLLING, MASKED = "RollingCache", "KeyValueCache and mask"
CONTEXTS = (1024, 4096)
WINDOW = 256
TOKENS = 32
BAR = 1.1
E, H = 512, 8


class Ours:
    """The layer and its cache."""

    def __init__(self, layer: MultiHeadAttention, room: int) -> None:
        self.layer = layer
        self.cache = KeyValueCache.for_layer(layer, batch_size=1, max_len=room)

    def start(self) -> None:
        self.cache.reset()

    def step(self, x: Tensor) -> Tensor:
        return self.layer(x, is_causal=True, cache=self.cache)


class ByHand(nn.Module):
    """The same layer written around torch's function; keys and values by slices.

    Their memory is of shape (B, H, S, D).
    """

    def __init__(self, layer: MultiHeadAttention, room: int) -> None:
        super().__init__()
        E, self.num_heads = layer.embed_dim, layer.num_heads
        weights, biases = zip(*layer.parts(), strict=True)
        self.qkv = nn.Linear(E, 3 * E)
        self.qkv.weight.data, self.qkv.bias.data = torch.cat(weights), torch.cat(biases)
        self.out = layer.out_proj
        self.keys = torch.empty(1, self.num_heads, room, E // self.num_heads)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def start(self) -> None:
        self.length = 0

    def step(self, x: Tensor) -> Tensor:
        return self(x)

    def forward(self, x: Tensor) -> Tensor:
        B, L, _ = x.shape
        q, k, v = (
            part.view(B, L, self.num_heads, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        k, v = self.extend(k, v)
        # One query sees every key; the tokens of the context come together.
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=L > 1)
        return self.out(heads.transpose(1, 2).flatten(2))

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        start, end = self.length, self.length + k.shape[2]
        self.keys[:, :, start:end] = k
        self.values[:, :, start:end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class Concatenated(ByHand):
    """All keys and values copied into new tensors, one token longer."""

    def start(self) -> None:
        self.keys, self.values = self.keys[:, :, :0], self.values[:, :, :0]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.keys = torch.cat((self.keys, k), dim=2)
        self.values = torch.cat((self.values, v), dim=2)
        return self.keys, self.values


class Recomputed:
    """Nothing kept: all tokens pass through the layer again."""

    def __init__(self, layer: MultiHeadAttention, room: int) -> None:
        self.layer = layer
        self.start()

    def start(self) -> None:
        self.tokens = torch.empty(1, 0, self.layer.embed_dim)

    def step(self, x: Tensor) -> Tensor:
        self.tokens = torch.cat((self.tokens, x), dim=1)
        return self.layer(self.tokens, is_causal=True)[:, -x.shape[1] :]


class Masked(Ours):
    """A cache of all tokens, and the mask of the window."""

    def __init__(self, layer: MultiHeadAttention, room: int, window: int) -> None:
        super().__init__(layer, room)
        self.window = window

    def step(self, x: Tensor) -> Tensor:
        L, offset = x.shape[1], self.cache.offset
        keep = masks.sliding_window(L, window=self.window, offset=offset)
        return self.layer(x, attn_mask=keep, cache=self.cache)


class Rolling(Ours):
    """A cache of the window's tokens."""

    def __init__(self, layer: MultiHeadAttention, room: int, window: int) -> None:
        self.layer = layer
        self.cache = RollingCache.for_layer(layer, batch_size=1, window=window)


WITHIN = {ROLLING: Rolling, MASKED: Masked}
WAYS = {
    OURS: Ours,
    BY_HAND: ByHand,
    "torch.cat": Concatenated,
    "recomputation": Recomputed,
}


def run(way: Ours | ByHand | Recomputed, tokens: Tensor) -> Tensor:
    """The outputs of the tokens, one after the other."""
    steps = [way.step(tokens[:, t : t + 1]) for t in range(tokens.shape[1])]
    return torch.cat(steps, dim=1)


@torch.inference_mode()
def measure(
    context: int,
    tokens: int,
    rounds: int,
    embed_dim: int = E,
    num_heads: int = H,
    window: int | None = None,
) -> dict[str, Result]:
    """Time for one token of each way, after the ways have agreed."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(embed_dim, num_heads).eval()
    before, new = torch.randn(1, context + tokens, embed_dim).split(
        (context, tokens), 1
    )
    room, keep = context + tokens, None
    ways = {name: make(layer, room) for name, make in WAYS.items()}
    if window is not None:
        keep = masks.sliding_window(room, window=window)
        ways = {name: make(layer, room, window) for name, make in WITHIN.items()}
    whole = torch.cat((before, new), dim=1)
    want = layer(whole, attn_mask=keep, is_causal=True)[:, context:]

    def start(name: str) -> None:
        ways[name].start()
        ways[name].step(before)

    # Recomputation takes as long for one token as the others for hundreds.
    counts = {name: 1 if name == "recomputation" else tokens for name in ways}
    for name, way in ways.items():
        start(name)
        torch.testing.assert_close(
            run(way, new[:, : counts[name]]),
            want[:, : counts[name]],
            rtol=1e-4,
            atol=1e-5,
            msg=lambda text, name=name: f"{name} differs from one pass: {text}",
        )

    def decode(name: str) -> Callable[[], Tensor]:
        return lambda: run(ways[name], new[:, : counts[name]])

    calls = {name: decode(name) for name in ways}
    times = take_turns(calls, rounds, least=0, before=start)
    per_token = {name: [t / counts[name] for t in times[name]] for name in ways}
    return compare(per_token, to=BY_HAND if window is None else MASKED)


def main(arguments: list[str] | None = None) -> None:
    given = report.options(__doc__.partition("\n")[0]).parse_args(arguments)
    torch.set_num_threads(given.threads)
    rounds = given.rounds or (2 if given.quick else 15)
    contexts, tokens = ((16, 64), 4) if given.quick else (CONTEXTS, TOKENS)

    window = contexts[0] // 4 if given.quick else WINDOW
    results, within = {}, {}
    for context in tqdm(contexts, unit="context"):
        results[context] = measure(context, tokens, rounds)
        within[context] = measure(context, tokens, rounds, window=window)
    show("context", OURS, WAYS, results)
    print(f"The bar: {OURS} at most {BAR} times {BY_HAND}.")
    show(f"context, window {window}", ROLLING, WITHIN, within)
    report.write(
        given.json,
        "decode",
        summary={context: named[OURS].ratio for context, named in results.items()},
        cases=[
            {
                "context": context,
                "window": width,
                "ways": {name: result._asdict() for name, result in named.items()},
            }
            for width, measured in ((None, results), (window, within))
            for context, named in measured.items()
        ],
    )


def show(
    first: str,
    ours: str,
    ways: dict[str, type],
    results: dict[int, dict[str, Result]],
) -> None:
    """One table: milliseconds of ours, then every ratio."""
    columns = [first, f"ms {ours}", *ways]
    rows = [
        [str(context), f"{1e3 * named[ours].seconds:.3f}"]
        + [f"{named[way].ratio:.2f}" for way in ways]
        for context, named in results.items()
    ]
    print("\n" + report.table(columns, rows))


if __name__ == "__main__":
    main()
