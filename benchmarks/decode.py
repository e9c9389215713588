"""One token at a time: KeyValueCache beside other ways to keep what was computed.

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

from attention_lib import KeyValueCache, MultiHeadAttention

OURS, BY_HAND = "KeyValueCache", "slice by hand"
CONTEXTS = (1024, 4096)
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
    context: int, tokens: int, rounds: int, embed_dim: int = E, num_heads: int = H
) -> dict[str, Result]:
    """Time for one token of each way, after the ways have agreed."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(embed_dim, num_heads).eval()
    before, new = torch.randn(1, context + tokens, embed_dim).split(
        (context, tokens), 1
    )
    want = layer(torch.cat((before, new), dim=1), is_causal=True)[:, context:]
    ways = {name: make(layer, context + tokens) for name, make in WAYS.items()}

    def start(name: str) -> None:
        ways[name].start()
        ways[name].step(before)

    # Recomputation takes as long for one token as the others for hundreds.
    counts = dict.fromkeys(ways, tokens) | {"recomputation": 1}
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
    return compare(per_token, to=BY_HAND)


def main(arguments: list[str] | None = None) -> None:
    given = report.options(__doc__.partition("\n")[0]).parse_args(arguments)
    torch.set_num_threads(given.threads)
    rounds = given.rounds or (2 if given.quick else 15)
    contexts, tokens = ((16, 64), 4) if given.quick else (CONTEXTS, TOKENS)

    results = {
        context: measure(context, tokens, rounds)
        for context in tqdm(contexts, unit="context")
    }
    columns = ["context", f"ms {OURS}", *WAYS]
    rows = [
        [str(context), f"{1e3 * named[OURS].seconds:.3f}"]
        + [f"{named[way].ratio:.2f}" for way in WAYS]
        for context, named in results.items()
    ]
    print("\n" + report.table(columns, rows))
    print(f"The bar: {OURS} at most {BAR} times {BY_HAND}.")
    report.write(
        given.json,
        "decode",
        summary={context: named[OURS].ratio for context, named in results.items()},
        cases=[
            {
                "context": context,
                "ways": {name: result._asdict() for name, result in named.items()},
            }
            for context, named in results.items()
        ],
    )


if __name__ == "__main__":
    main()
