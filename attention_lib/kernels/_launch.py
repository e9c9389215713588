"""How a kernel is started: tiles, strides and grid. Imported only where Triton is."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attention_lib.kernels._triton import OutOfResources

# Rows, columns and stages of a tile. The first that fits the GPU's shared memory is
# taken: that differs between GPUs by a factor of three, and what a kernel needs of it is
# known once it is compiled.
TILES = (
    (128, 64, 3),
    (128, 64, 1),
    (64, 32, 3),
    (64, 32, 1),
    (32, 32, 1),
    (32, 16, 1),
    (16, 16, 1),
)


def tiles_for(row: int) -> tuple[tuple[int, int, int], ...]:
    """The tiles worth a try where a row of keys or values takes so many bytes."""
    return TILES if row <= 128 else TILES[2:] if row <= 512 else TILES[4:]


class Launch:
    """What every kernel of one call is told."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        is_causal: bool,
        scale: float,
    ) -> None:
        B, H, L, D = query.shape
        Hkv, S, DV = key.shape[1], key.shape[2], value.shape[-1]
        # A head of any batch is one step away, and columns lie side by side.
        self.tensors = [x.contiguous() for x in (query, key, value)]
        mask = self.tensors[0] if attn_mask is None else attn_mask.view(torch.uint8)
        self.mask = mask
        strides: list[int] = []
        for x in self.tensors:  # torch leaves the stride of an axis of length 1 open
            strides += [x.shape[2] * x.shape[3], x.shape[3]]
        strides += [0] * 4 if attn_mask is None else list(attn_mask.stride())
        log2 = scale / math.log(2)
        self.numbers = (*strides, H, L, S, log2)
        interpreted = query.device.type == "cpu"
        # The interpreter cuts numbers off where a GPU rounds them to bfloat16.
        self.written = torch.float32 if interpreted else query.dtype
        tiles = tiles_for(max(D, DV) * query.element_size())
        if interpreted:
            tiles = TILES[-1:]
        names = ("BLOCK_L", "BLOCK_S", "num_stages")
        self.tiles = [dict(zip(names, tile, strict=True)) for tile in tiles]
        self.options = {
            "GROUP": H // max(Hkv, 1),
            "D": D,
            "DV": DV,
            "BLOCK_D": max(16, 1 << (D - 1).bit_length()),
            "BLOCK_DV": max(16, 1 << (DV - 1).bit_length()),
            "causal": is_causal,
            "masked": attn_mask is not None,
            "upcast": interpreted,  # its product of bfloat16 is wrong
        }
        self.work = {"BLOCK_L": (L, B * H), "BLOCK_S": (S, B * Hkv)}

    def __call__(self, kernel: Any, axis: str, *others: Tensor) -> None:
        """Run a kernel: a program for each block of the axis and each of its heads."""
        length, heads = self.work[axis]
        arguments = (*self.tensors, self.mask, *others, *self.numbers)
        for tile in self.tiles:
            grid = (-(-length // tile[axis]) * heads,)
            try:
                with torch.cuda.device_of(self.tensors[0]):
                    kernel[grid](*arguments, **self.options, **tile)
                return
            except OutOfResources:
                if tile is self.tiles[-1]:
                    raise
