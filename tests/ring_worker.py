"""What each rank does in the tests of context parallelism: a module that spawn imports."""

import datetime
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from attention_lib.context_parallel import Ring, context_parallel_attention
from attention_lib.memory import peak_bytes

B, H, HKV, D, DV = 2, 4, 2, 8, 6
# name: (length, is_causal, grouped, dtype)
CASES = {
    "full": (16, False, False, torch.float64),
    "causal": (24, True, False, torch.float64),
    "grouped": (16, True, True, torch.float64),
    "half": (32, True, False, torch.bfloat16),
}


def draw(name: str) -> tuple[list[Tensor], Tensor]:
    """Query, key, value and the output's gradient of a whole sequence."""
    length, _, grouped, dtype = CASES[name]
    torch.manual_seed(length)
    heads = HKV if grouped else H
    shapes = (B, H, length, D), (B, heads, length, D), (B, heads, length, DV)
    upstream = torch.randn(B, H, length, DV, dtype=torch.float64).to(dtype)
    return [torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes], upstream


def attend(ring: Ring, name: str) -> dict[str, object]:
    """One case on one rank: the whole output and gradients, gathered, and the bytes."""
    _, is_causal, grouped, _ = CASES[name]
    inputs, upstream = draw(name)
    mine = [ring.shard(x).requires_grad_() for x in inputs]
    before = ring.bytes_sent
    output = context_parallel_attention(
        *mine, is_causal, ring=ring, enable_gqa=grouped, chunk_size=3
    )
    forward = ring.bytes_sent - before
    grads = torch.autograd.grad(output, mine, ring.shard(upstream))
    return {
        "results": [ring.gather(x) for x in (output, *grads)],
        "forward": forward,
        "backward": ring.bytes_sent - before - forward,
    }


def peak(ring: Ring, length: int) -> int:
    """The most bytes that this rank holds above its own part."""
    mine = [ring.shard(torch.randn(1, 2, length, D)).requires_grad_() for _ in "qkv"]

    def train(*parts: Tensor) -> None:
        out = context_parallel_attention(*parts, True, ring=ring, chunk_size=16)
        out.sum().backward()

    return peak_bytes(train, *mine)


def every_case(rank: int, size: int, folder: Path) -> None:
    with joined(rank, size, folder):
        ring = Ring()
        found: dict[str, object] = {name: attend(ring, name) for name in CASES}
        found["peak"] = peak(ring, 2048)
        found["positions"] = ring.positions(8 * size)
        uneven = torch.randn(1, 2, 4 + 2 * rank, D)
        try:
            context_parallel_attention(uneven, uneven, uneven, ring=ring)
        except ValueError as error:
            found["uneven"] = str(error)
        torch.save(found, folder / f"rank{rank}.pt")


def one_dies(rank: int, size: int, folder: Path) -> None:
    with joined(rank, size, folder):
        ring = Ring()
        x = torch.randn(1, 2, 8, D)
        context_parallel_attention(x, x, x, ring=ring)  # all is well
        if rank == 1:
            raise SystemExit  # without a word to the others
        try:
            for _ in range(3):
                context_parallel_attention(x, x, x, ring=ring)
        except RuntimeError as error:
            (folder / f"rank{rank}.txt").write_text(str(error))


class joined:
    """A process group over a file, left at the end."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.arguments = {
            "init_method": (folder / "store").as_uri(),
            "rank": rank,
            "world_size": size,
            "timeout": datetime.timedelta(seconds=20),
        }

    def __enter__(self) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", **self.arguments)

    def __exit__(self, *_: object) -> None:
        dist.destroy_process_group()


def launch(function, size: int, folder: Path) -> None:
    mp.spawn(function, args=(size, folder), nprocs=size)
