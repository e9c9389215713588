"""Linear layers whose weights are stored in eight bits.

Symmetric quantization: a number is an integer from −127 to 127 times a scale. Letters:
``in`` and ``out`` are the widths of a linear map.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Int8Linear", "dequantize", "quantize", "quantize_linears"]

_LARGEST = 127  # −128 is left out, so that the range is symmetric


def quantize(x: Tensor, dim: int | None = -1) -> tuple[Tensor, Tensor]:
    r"""Eight-bit integers and scales with :math:`x \approx \text{integer} \cdot
    \text{scale}`.

    The scale is the largest absolute value over 127, so the error of an element is at most
    half its scale. A slice of zeros gets the scale 1.

    Parameters
    ----------
    x
        Any shape, of a float dtype.
    dim
        The axis that shares a scale: −1 gives one to each row, which for a weight
        (out, in) is one to each output channel. ``None`` gives one to the whole tensor.

    Returns
    -------
    tuple of Tensor
        Integers, int8 of the shape of ``x``, and scales, float32, that broadcast against
        them: size 1 along ``dim``, or along every axis.

    Raises
    ------
    TypeError
        If ``x`` is no float tensor.
    ValueError
        If it is empty.

    Examples
    --------
    >>> integers, scales = quantize(torch.tensor([[1.27, -0.5], [254.0, 3.0]]))
    >>> integers
    tensor([[127, -50],
            [127,   2]], dtype=torch.int8)
    >>> scales.shape
    torch.Size([2, 1])

    References
    ----------
    Dettmers et al., "LLM.int8()", 2022, section 2.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a Tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"x has dtype {x.dtype}, expected a float dtype")
    if x.numel() == 0:
        raise ValueError(f"x has shape {tuple(x.shape)}, expected no size to be 0")
    axes = tuple(range(x.ndim)) if dim is None else (dim,)
    x = x.detach().float()
    largest = x.abs().amax(dim=axes, keepdim=True)
    scales = torch.where(largest > 0, largest / _LARGEST, 1.0)
    return (x / scales).round().to(torch.int8), scales


def dequantize(integers: Tensor, scales: Tensor) -> Tensor:
    """The numbers that integers and scales stand for, float32.

    Parameters
    ----------
    integers, scales
        As :func:`quantize` returns them.

    Returns
    -------
    Tensor
        Shape of ``integers``, dtype of ``scales``.

    Examples
    --------
    >>> x = torch.tensor([[0.5, -1.0], [0.0, 0.0]])
    >>> (dequantize(*quantize(x)) - x).abs().max() <= 0.5 / 127
    tensor(True)
    """
    return integers * scales


class Int8Linear(nn.Module):
    r"""A linear map with its weight in eight bits, for inference.

    Weight-only, the integers are turned into floats for every call:
    :math:`y = (x\,W_8^\top) \cdot s + b` in the dtype of x. With ``dynamic`` the input is
    quantized too, one scale a token, and the product is one of integers, exact in int32:
    only the two roundings are left.

    Parameters
    ----------
    linear
        The layer to take weight (out, in) and bias from; it stays as it is.
    dynamic
        Whether to quantise the input as well.
    per_channel
        One scale for each output channel; otherwise one for the whole weight.

    Attributes
    ----------
    weight
        int8, (out, in).
    scale
        float32, (out, 1), or (1, 1) without ``per_channel``.
    bias
        Of the linear layer, or None.

    Raises
    ------
    TypeError
        If ``linear`` is no ``nn.Linear``, or an input is no float tensor.
    ValueError
        If an input's width is another.

    Notes
    -----
    All three are buffers: nothing is trained. Casting the module to another float dtype
    casts ``scale`` and ``bias`` and leaves the integers. The integer product runs in
    ``torch._int_mm`` where torch has it for the sizes at hand, and otherwise in float64,
    which gives the same integers.

    Examples
    --------
    >>> linear = nn.Linear(64, 32)
    >>> small = Int8Linear(linear)
    >>> x = torch.randn(5, 64)
    >>> error = (small(x) - linear(x)).norm() / linear(x).norm()
    >>> bool(error < 0.02), small.weight.nbytes * 4 == linear.weight.nbytes
    (True, True)

    References
    ----------
    Dettmers et al., "LLM.int8()", 2022, section 2.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(
        self, linear: nn.Linear, *, dynamic: bool = False, per_channel: bool = True
    ) -> None:
        super().__init__()
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be nn.Linear, got {type(linear).__name__}")
        self.dynamic = dynamic
        self.per_channel = per_channel
        integers, scale = quantize(linear.weight, -1 if per_channel else None)
        bias = None if linear.bias is None else linear.bias.detach().clone()
        self.register_buffer("weight", integers)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out), in the dtype of ``x``."""
        width = self.weight.shape[1]
        if not x.is_floating_point():
            raise TypeError(f"x has dtype {x.dtype}, expected a float dtype")
        if x.shape[-1] != width:
            raise ValueError(f"x has shape {tuple(x.shape)}, expected (..., {width})")
        if self.dynamic and x.numel():
            rows, row_scale = quantize(x.reshape(-1, width))
            product = int_product(rows, self.weight) * row_scale  # float32
            product = product.view(*x.shape[:-1], -1)
        else:
            product = F.linear(x, self.weight.to(x.dtype))
        y = product * self.scale.flatten()
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        out, width = self.weight.shape
        scales = "per channel" if self.per_channel else "per tensor"
        return (
            f"{width}, {out}, {scales}, {'dynamic' if self.dynamic else 'weight-only'}"
        )


def int_product(a: Tensor, b: Tensor) -> Tensor:
    """int8 (M, K) and (N, K) to their product (M, N), exact, int32."""
    M, K = a.shape
    fits = M > 16 and K % 8 == 0 and b.shape[0] % 8 == 0  # what CUDA asks for
    if a.device.type == "cpu" or (a.is_cuda and fits):
        return torch._int_mm(a, b.mT)
    return (a.double() @ b.double().mT).to(torch.int32)


def quantize_linears(
    model: nn.Module, *, dynamic: bool = False, per_channel: bool = True
) -> nn.Module:
    """Put an :class:`Int8Linear` in the place of every ``nn.Linear`` of a model.

    Parameters
    ----------
    model
        Changed in place; ``copy.deepcopy`` it first to keep it.
    dynamic, per_channel
        As in :class:`Int8Linear`.

    Returns
    -------
    nn.Module
        The model itself, or its replacement if it is an ``nn.Linear``.

    Raises
    ------
    TypeError
        If ``model`` is no module.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> quantize_linears(model)
    Sequential(
      (0): Int8Linear(8, 16, per channel, weight-only)
      (1): ReLU()
      (2): Int8Linear(16, 4, per channel, weight-only)
    )
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a Module, got {type(model).__name__}")
    if isinstance(model, nn.Linear):
        return Int8Linear(model, dynamic=dynamic, per_channel=per_channel)
    for name, child in model.named_children():
        new = quantize_linears(child, dynamic=dynamic, per_channel=per_channel)
        if new is not child:
            setattr(model, name, new)
    return model
