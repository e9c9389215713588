"""Sizes, inputs, masks and comparison that the tests of attention share."""

import math

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_lib import attention_steps, masks, scaled_dot_product_attention


def explicit(*args, **kwargs) -> Tensor:
    """The reading version's output, so that both faces are tested alike."""
    return attention_steps(*args, **kwargs).output


FACES = pytest.mark.parametrize("face", [explicit, scaled_dot_product_attention])
# No two alike, so that a swapped axis cannot hide.
B, H, HKV, L, S, D, DV = 2, 6, 3, 5, 7, 8, 4
HALVES = [torch.float16, torch.bfloat16]


def draw(
    *leading: int,
    lengths: tuple[int, int] = (L, S),
    widths: tuple[int, int] = (D, DV),
    kv_heads: int | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value that record gradients."""
    kv_leading = leading if kv_heads is None else (*leading[:-1], kv_heads)
    shapes = (
        (*leading, lengths[0], widths[0]),
        (*kv_leading, lengths[1], widths[0]),
        (*kv_leading, lengths[1], widths[1]),
    )
    drawn = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    query, key, value = (x.to(device, dtype).requires_grad_() for x in drawn)
    return query, key, value


def close(got: Tensor, want: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(got.cpu(), want.cpu(), rtol=tolerance, atol=tolerance)


MASKS = {
    "none": lambda L, S: None,
    "bool (L, S)": lambda L, S: torch.rand(L, S) > 0.3,
    "bool (B, H, L, S)": lambda L, S: torch.rand(B, H, L, S) > 0.3,
    "bool (H, 1, S)": lambda L, S: torch.rand(H, 1, S) > 0.3,
    "bool (S,)": lambda L, S: torch.rand(S) > 0.3,
    "bool ()": lambda L, S: torch.tensor(True),
    "padding": lambda L, S: masks.padding([S, 2], S),
    "some queries see nothing": lambda L, S: torch.arange(L)[:, None] % 2 == 0,
    "nobody sees anything": lambda L, S: torch.zeros(B, 1, 1, S, dtype=torch.bool),
    "float (L, S)": lambda L, S: torch.randn(L, S).double(),
    "float (B, H, L, S)": lambda L, S: torch.randn(B, H, L, S).double(),
    "float32": lambda L, S: torch.randn(H, L, 1),
    "float with holes": lambda L, S: (
        torch.randn(B, 1, L, S).double().masked_fill(torch.rand(L, S) > 0.6, -math.inf)
    ),
    "float, empty rows": lambda L, S: (
        torch.randn(H, L, S).double().masked_fill(torch.rand(H, L, 1) > 0.5, -math.inf)
    ),
    "learned (H, L, S)": lambda L, S: (
        torch.randn(H, L, S).double().masked_fill(torch.rand(L, 1) > 0.5, -math.inf)
    ).requires_grad_(),
}


class Kernels(TorchDispatchMode):
    """Records the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))
