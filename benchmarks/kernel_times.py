"""Times of the Triton flash attention beside the kernels behind torch's function.

The same inputs go to each of them, and they take turns. Whoever refuses a call, runs out
of memory or differs from ours is left out, with the reason.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from timing import Result, compare, take_turns
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_lib import masks
from attention_lib.kernels import flash_attention

OURS = "ours"
BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
PASSES = ("forward", "forward + backward")
DIFFERS = "differs from ours"


@dataclass(frozen=True)
class Case:
    """Inputs of one row: batch, heads, key heads, length and width."""

    B: int
    H: int
    Hkv: int
    L: int
    D: int
    dtype: torch.dtype = torch.bfloat16
    causal: bool = True
    padding: bool = False

    def __str__(self) -> str:
        sizes = (self.B, self.H, self.Hkv, self.L, self.D)
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{sizes} {dtype}{' causal' * self.causal}{' padding' * self.padding}"

    def operations(self, backward: bool) -> float:
        """As the formula says."""
        pairs = self.L * (self.L + 1) / 2 if self.causal else self.L**2
        return 4 * self.B * self.H * self.D * pairs * (3.5 if backward else 1)


# 16,384 tokens of width 2,048, but for the last ones; what matters most comes first.
CASES = (
    Case(4, 16, 16, 4096, 128),
    Case(4, 32, 32, 4096, 64),
    Case(4, 16, 16, 4096, 128, causal=False),
    Case(4, 32, 32, 4096, 64, causal=False),
    Case(16, 16, 16, 1024, 128),
    Case(1, 16, 16, 16384, 128),
    Case(4, 16, 4, 4096, 128),
    Case(4, 16, 16, 4096, 128, torch.float16),
    Case(4, 32, 32, 4096, 64, causal=False, padding=True),
    Case(4, 8, 8, 4096, 256),
    Case(2, 16, 16, 2048, 64, torch.float32),
)
TINY = (
    Case(2, 4, 4, 40, 16),
    Case(2, 4, 2, 24, 32, torch.float16),
    Case(1, 2, 2, 24, 16, torch.float32, causal=False, padding=True),
)


def cases(tiny: bool) -> tuple[Case, ...]:
    """All rows, the most important first."""
    return TINY if tiny else CASES


class Clock:
    """Seconds of the GPU by its own events, once all that was asked before is done."""

    def __init__(self) -> None:
        self.start = self._event()

    def __call__(self) -> float:
        return self.start.elapsed_time(self._event()) / 1e3

    @staticmethod
    def _event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        return event


def attention(name: str, case: Case, mask: Tensor | None) -> Callable[..., Tensor]:
    """One way to compute the case, of query, key and value."""
    options: dict[str, Any] = {
        "attn_mask": mask,
        "is_causal": case.causal,
        "enable_gqa": case.Hkv != case.H,
    }
    if name == OURS:
        return lambda *inputs: flash_attention(*inputs, **options)

    def torchs(*inputs: Tensor) -> Tensor:
        with sdpa_kernel(BACKENDS[name]):
            return F.scaled_dot_product_attention(*inputs, **options)

    return torchs


def first_line(error: Exception | Warning) -> str:
    """What happened, in one line."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].partition(" (Triggered internally")[0]


def is_reason(said: str) -> bool:
    """Torch also speaks of the kernels that were not asked for."""
    return "runtime disabled" not in said and not said.endswith("not used because:")


def attempt(call: Callable[[], list[Tensor]]) -> tuple[list[Tensor], str]:
    """What a call gives, or nothing and why it refuses."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")  # torch warns why a kernel does not take a call
        try:
            given = call()
            if given[0].is_cuda:
                torch.cuda.synchronize()
            return given, ""
        except Exception as error:  # noqa: BLE001 - Triton's own are of many kinds
            reason = first_line(error)
            if reason.startswith("No "):  # no kernel left: the warnings say why
                said = [first_line(each.message) for each in heard]
                reason = "; ".join(filter(is_reason, said)) or reason
            return [], reason


def passes(
    attend: Callable[..., Tensor], inputs: list[Tensor], probe: Tensor
) -> dict[str, Callable[[], list[Tensor]]]:
    """What is timed: the output, and the output with every gradient."""
    learning = [x.detach().requires_grad_() for x in inputs]

    def forward() -> list[Tensor]:
        with torch.no_grad():
            return [attend(*inputs)]

    def both() -> list[Tensor]:
        output = attend(*learning)
        return [output.detach(), *torch.autograd.grad(output, learning, probe)]

    return dict(zip(PASSES, (forward, both), strict=True))


def measure(
    case: Case, rounds: int, least: float, device: torch.device
) -> tuple[dict[str, dict[str, Result]], dict[str, str]]:
    """Times of each pass by way, and the reasons of those that have none."""
    torch.manual_seed(0)
    heads = (case.H, case.Hkv, case.Hkv, case.H)
    *inputs, probe = (
        torch.randn(case.B, h, case.L, case.D, device=device).to(case.dtype)
        for h in heads
    )
    mask = None
    if case.padding:  # a quarter of the keys of the first sequence
        lengths = [case.L * 3 // 4] + [case.L] * (case.B - 1)
        mask = masks.padding(lengths, case.L, device=device)

    ways, refused = {}, {}
    want: list[Tensor] = []
    for name in (OURS, *BACKENDS):
        made = passes(attention(name, case, mask), inputs, probe)
        got, reason = attempt(made[PASSES[1]])
        if got and name == OURS:
            want = got
        elif got and want:
            reason = difference(got, want)
        if reason:
            refused[name] = reason
        else:
            ways[name] = made
        del got  # the next one may need the memory
    times = {}
    for which in PASSES if OURS in ways else ():
        turns = {name: made[which] for name, made in ways.items()}
        clock = Clock() if device.type == "cuda" else time.process_time
        measured = take_turns(turns, rounds, least=least, clock=clock)
        times[which] = compare(measured)
    return times, refused


def difference(got: list[Tensor], want: list[Tensor]) -> str:
    """How outputs or gradients differ by more than rounding; empty where they do not."""
    # Some kernels multiply float32 in fewer bits; a wrong mask shows far above this.
    bound = max(16 * torch.finfo(want[0].dtype).eps, 5e-3)
    for mine, theirs in zip(want, got, strict=True):
        distance = (mine.double() - theirs.double()).abs().max() / mine.abs().max()
        if not distance <= bound:
            return f"{DIFFERS} by {distance:.2g} of the largest value"
    return ""
