"""Compiles the Triton kernels for GPUs that need not be here; exits 1 where one fails.

The interpreter takes more than the compiler does. Run in a process of its own, without
the interpreter.
"""

import sys

import torch
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attention_lib.kernels import _triton
from attention_lib.kernels._launch import tiles_for

KERNELS = (_triton.forward, _triton.backward_query, _triton.backward_key_value)
NAMES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}
SUMS = {"log_sum": "*fp32", "mean": "*fp32", "scale": "fp32", "mask": "*u8"}
SAME = (
    "query",
    "key",
    "value",
    "output",
    "grad",
    "grad_query",
    "grad_key",
    "grad_value",
)
# Width, dtype, capability and KiB of shared memory of one program.
GPUS = (
    (256, torch.bfloat16, 80, 163),
    (64, torch.float32, 86, 99),
)


def shared(kernel, tile, width, dtype, capability):
    """Bytes of shared memory that a kernel asks for."""
    rows, columns, stages = tile
    known = {
        "GROUP": 2,
        "D": width,
        "DV": width,
        "BLOCK_D": width,
        "BLOCK_DV": width,
        "BLOCK_L": rows,
        "BLOCK_S": columns,
        "causal": True,
        "masked": True,
        "upcast": False,
    }
    kinds = dict.fromkeys(kernel.arg_names, "i32") | SUMS
    kinds |= dict.fromkeys(SAME, NAMES[dtype]) | dict.fromkeys(known, "constexpr")
    signature = {name: kinds[name] for name in kernel.arg_names}
    divisible = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if name not in known and name not in ("scale", "mask_column")
    }
    source = ASTSource(kernel, signature, known, divisible)
    target = GPUTarget("cuda", capability, 32)
    made = compile(source, target=target, options={"num_stages": stages})
    return made.metadata.shared


for width, dtype, capability, room in GPUS:
    for kernel in KERNELS:
        asked = []
        for tile in tiles_for(width * dtype.itemsize):
            asked.append(shared(kernel, tile, width, dtype, capability))
            if asked[-1] <= 1024 * room:
                break
        else:
            sys.exit(
                f"{kernel.__name__}, width {width}, {dtype}: no tile fits, {asked}"
            )
        print(capability, width, dtype, kernel.__name__, tile, asked[-1])
