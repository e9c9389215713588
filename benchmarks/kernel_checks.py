"""Is the Triton flash attention right? Each case beside the definition in float64.

The error of a case is the largest difference, in units of the largest true value. It may
be twice the error of the definition computed in the case's own dtype, and a rounding
more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_lib.kernels import flash_attention, flash_attention_lse

B, Hkv = 2, 2
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ROUNDING = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 1e-5}
LOG_SUM = 1e-4  # summed in float32, whatever the dtype
NAMES = ("output", "grad query", "grad key", "grad value", "log-sum-exp")


@dataclass(frozen=True)
class Check:
    """One call: lengths of queries and keys, width, query heads for each key head."""

    dtype: torch.dtype
    L: int
    S: int
    D: int
    group: int
    causal: bool
    mask: bool

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        causal, mask = " causal" * self.causal, " mask" * self.mask
        shared = f" {self.group} to 1" if self.group > 1 else ""
        return f"{dtype} ({self.L}, {self.S}, {self.D}){shared}{causal}{mask}"


# L, S, D, group, causal, mask: what is used most comes first.
SHAPES = (
    (256, 256, 64, 1, True, False),
    (391, 391, 128, 4, True, False),
    (257, 391, 64, 1, False, True),
    (256, 256, 128, 1, False, False),
    (130, 131, 128, 2, True, True),
    (391, 257, 64, 3, True, True),
    (130, 131, 16, 2, False, True),
    (1, 391, 128, 4, False, False),
    (130, 131, 256, 1, True, False),
    (130, 131, 80, 1, True, True),
    (130, 131, 32, 1, True, False),
)
TINY = (
    (20, 20, 16, 1, True, False),
    (17, 35, 24, 2, False, True),
    (35, 17, 32, 3, True, True),
    (1, 19, 64, 1, False, False),
)


def checks(tiny: bool) -> list[Check]:
    """All cases, the most important first."""
    return [
        Check(dtype, *shape)
        for row, shape in enumerate(TINY if tiny else SHAPES)
        for dtype in DTYPES
        # Compiling takes longest in float32: every other shape is enough.
        if dtype != torch.float32 or row % 2 == 0
    ]


def definition(
    query: Tensor, key: Tensor, value: Tensor, keep: Tensor
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp, by the formula, in the dtype of what is given."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(group, dim=1) for x in (key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1) * keep  # 0 where a query sees nothing
    log_sum = scores.logsumexp(dim=-1).masked_fill(~keep.any(dim=-1), -math.inf)
    return weights @ value, log_sum


def errors(check: Check, device: torch.device) -> dict[str, tuple[float, float]]:
    """Error and bound of the output, of each gradient and of the log-sum-exp."""
    torch.manual_seed(0)
    H, L, S, D = check.group * Hkv, check.L, check.S, check.D
    shapes = ((B, H, L, D), (B, Hkv, S, D), (B, Hkv, S, D), (B, H, L, D))
    *given, probe = (torch.randn(s, device=device).to(check.dtype) for s in shapes)
    keep = torch.ones(B, H, L, S, dtype=torch.bool, device=device)
    mask = None
    if check.mask:
        mask = torch.rand(keep.shape, device=device) > 0.3
        mask[:, :, L // 2] = False  # a query that sees nothing
        keep = keep & mask
    if check.causal:
        keep = keep.tril()

    def run(how: str, dtype: torch.dtype) -> list[Tensor]:
        inputs = [x.to(dtype).requires_grad_() for x in given]
        if how == "ours":
            output = flash_attention(
                *inputs, mask, is_causal=check.causal, enable_gqa=True
            )
            _, log_sum = flash_attention_lse(
                *inputs, mask, is_causal=check.causal, enable_gqa=True
            )
        else:
            output, log_sum = definition(*inputs, keep)
        gradients = torch.autograd.grad(output, inputs, probe.to(dtype))
        return [x.detach().double() for x in (output, *gradients, log_sum)]

    exact = run("definition", torch.float64)
    plain = map(_distance, run("definition", check.dtype), exact)
    bounds = [2 * error + ROUNDING[check.dtype] for error in plain]
    bounds[-1] = LOG_SUM
    found = map(_distance, run("ours", check.dtype), exact)
    return dict(zip(NAMES, zip(found, bounds, strict=True), strict=True))


def _distance(got: Tensor, exact: Tensor) -> float:
    """The largest difference by the largest true value; infinities must be the same."""
    finite = exact.isfinite()
    if (
        not torch.equal(got[~finite], exact[~finite])
        or not got[finite].isfinite().all()
    ):
        return math.inf
    difference = (got - exact)[finite].abs().max()
    return (difference / exact[finite].abs().max()).item()
