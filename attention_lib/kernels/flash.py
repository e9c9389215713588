"""Flash attention behind the signature of scaled dot-product attention."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
from typing import Any

import torch
from torch import Tensor

from attention_lib._checks import autocasts, check_attention
from attention_lib._fused import HALVES, fused_attention
from attention_lib.efficient.chunked import Tiling, tiled_forward
from attention_lib.functional import scaled_dot_product_attention

__all__ = ["flash_attention", "flash_attention_lse", "runs_on"]

WIDEST = 256


def runs_on(device: torch.device | str) -> bool:
    """Whether the Triton kernels run on tensors of a device.

    Parameters
    ----------
    device
        A CPU counts where Triton's interpreter is on: ``TRITON_INTERPRET=1`` in the
        environment before Triton is imported.

    Examples
    --------
    >>> runs_on("meta")
    False
    """
    kind = torch.device(device).type
    if kind == "cpu":
        return _has_triton() and os.environ.get("TRITON_INTERPRET") == "1"
    return kind == "cuda" and _has_triton()


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
) -> Tensor:
    """Attention by the Triton kernels of this package, where they run.

    They take no mask or a bool one, widths up to 256, float32 and half precision, any
    lengths and grouped heads. Everything else, and every device without Triton, goes to
    :func:`~attention_lib.scaled_dot_product_attention`, with the same result.

    Parameters
    ----------
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, softcap
        As in :func:`~attention_lib.scaled_dot_product_attention`.

    Returns
    -------
    Tensor
        Shape (..., H, L, Dv).

    Raises
    ------
    ValueError, TypeError
        As :func:`~attention_lib.scaled_dot_product_attention`.

    Examples
    --------
    >>> query = torch.randn(2, 5, 16)  # (H, L, D)
    >>> output = flash_attention(query, query, query, is_causal=True)
    >>> same = scaled_dot_product_attention(query, query, query, is_causal=True)
    >>> torch.allclose(output, same, atol=1e-5)
    True

    References
    ----------
    Dao, "FlashAttention-2", 2024. Tillet, Kung and Cox, "Triton", 2019.
    """
    check_attention(query, key, value, attn_mask, dropout_p, scale, enable_gqa, softcap)
    if dropout_p or softcap is not None or not _takes(query, value, attn_mask):
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            softcap=softcap,
        )
    return _run(query, key, value, attn_mask, is_causal, scale)[0]


def flash_attention_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of each row, by which partial results merge.

    Parameters
    ----------
    query, key, value, attn_mask, is_causal, scale, enable_gqa
        As in :func:`flash_attention`.

    Returns
    -------
    tuple of Tensor
        The output, (..., H, L, Dv), and the log-sum-exp, (..., H, L), in float32
        (float64 for float64 inputs). It is minus infinity for a query that sees nothing,
        and has no gradient.

    Raises
    ------
    ValueError, TypeError
        As :func:`~attention_lib.scaled_dot_product_attention`.

    Examples
    --------
    >>> zeros = torch.zeros(1, 4, 16)  # equal scores: each of 4 keys counts e ** 0
    >>> output, log_sum = flash_attention_lse(zeros, zeros, zeros)
    >>> torch.allclose(log_sum, torch.tensor(4.0).log())
    True
    """
    check_attention(query, key, value, attn_mask, 0.0, scale, enable_gqa, None)
    if _takes(query, value, attn_mask):
        return _run(query, key, value, attn_mask, is_causal, scale)
    output = fused_attention(
        query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa
    )
    if attn_mask is not None:
        attn_mask = attn_mask.detach()[(None,) * max(2 - attn_mask.ndim, 0)]
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    tiling = Tiling(factor, is_causal, None, 0.0, 0, 512)
    with torch.no_grad():
        _, log_sum = tiled_forward(query, key, value, attn_mask, tiling)
    return output, log_sum


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _takes(query: Tensor, value: Tensor, attn_mask: Tensor | None) -> bool:
    """Whether the kernels take such tensors. Autocast is left to torch's kernels."""
    return (
        runs_on(query.device)
        and query.dtype in (torch.float32, *HALVES)
        and value.dtype == query.dtype
        and query.shape[-1] <= WIDEST
        and value.shape[-1] <= WIDEST
        and (attn_mask is None or attn_mask.dtype == torch.bool)
        and not autocasts(query)
    )


def _run(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """The operator on four axes: what stands before the heads becomes one."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    leading = query.shape[:-2]
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*leading, query.shape[-2], key.shape[-2])
        attn_mask = _four_axes(attn_mask)
    output, log_sum = flash_forward(
        *(_four_axes(x) for x in (query, key, value)), attn_mask, is_causal, scale
    )
    return output.view(*leading, *output.shape[-2:]), log_sum.view(*leading, -1)


def _four_axes(tensor: Tensor) -> Tensor:
    if tensor.ndim < 4:
        return tensor[(None,) * (4 - tensor.ndim)]
    return tensor.flatten(0, -4)


@torch.library.custom_op("attention_lib::flash_forward", mutates_args=())
def flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Output (B, H, L, Dv) and log-sum-exp (B, H, L) of (B, H, L, D) and (B, Hkv, S, D)."""
    from attention_lib.kernels import _triton
    from attention_lib.kernels._launch import Launch

    launch = Launch(query, key, value, attn_mask, is_causal, scale)
    output, log_sum = _empty(query, value)
    output = output.to(launch.written)
    if output.numel():
        launch(_triton.forward, "BLOCK_L", output, log_sum)
    return output.to(query.dtype), log_sum


@flash_forward.register_fake
def _(query, key, value, attn_mask, is_causal, scale):  # type: ignore[no-untyped-def]
    return _empty(query, value)


@torch.library.custom_op("attention_lib::flash_backward", mutates_args=())
def flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    output: Tensor,
    log_sum: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, contiguous."""
    from attention_lib.kernels import _triton
    from attention_lib.kernels._launch import Launch

    launch = Launch(query, key, value, attn_mask, is_causal, scale)
    grads = [_like(x).to(launch.written) for x in (query, key, value)]
    grad = grad.contiguous()
    mean = (grad.float() * output.float()).sum(dim=-1)  # (B, H, L)
    if query.numel():
        launch(_triton.backward_query, "BLOCK_L", grad, log_sum, mean, grads[0])
    if key.numel():
        launch(_triton.backward_key_value, "BLOCK_S", grad, log_sum, mean, *grads[1:])
    grad_query, grad_key, grad_value = (x.to(query.dtype) for x in grads)
    return grad_query, grad_key, grad_value


@flash_backward.register_fake
def _(grad, query, key, value, *_):  # type: ignore[no-untyped-def]
    return _like(query), _like(key), _like(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    grads = flash_backward(grad, *ctx.saved_tensors, ctx.is_causal, ctx.scale)
    return (*grads, None, None, None)


flash_forward.register_autograd(_differentiate, setup_context=_save)


def _empty(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    output = query.new_empty(*query.shape[:-1], value.shape[-1])
    return output, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)  # contiguous
