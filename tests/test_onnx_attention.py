"""ONNX's own node tests of its operator Attention: opsets 23, 24 and 25.

The generators ship with onnx, inputs and expected outputs included. The adapter below
only renames arguments: everything is computed by the package's public functions. Each
case exists a second time in onnx as the graph that its operator expands to, with the same
inputs and outputs; those are not counted.
"""

import math
from collections import Counter

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_lib import attention_steps, masks, scaled_dot_product_attention

onnx = pytest.importorskip("onnx", reason="onnx holds the conformance cases")
node = pytest.importorskip("onnx.backend.test.case.node")


def _cases() -> dict[str, object]:
    state = np.random.get_state()
    np.random.seed(0)
    import onnx.backend.test.case.node.attention  # noqa: F401  registers its cases

    np.random.set_state(state)
    return {
        case.name: case
        for case in node._NodeTestCases
        if case.model.graph.node[0].op_type == "Attention"
    }


CASES = _cases()
# What ONNX's implementations are held to, by dtype.
TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
}
FIELDS = ("scores", "capped", "masked", "weights")  # qk_matmul_output_mode 0 to 3


def attention(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,  # ours is float32 at least
) -> dict[str, Tensor]:
    """ONNX's operator in the words of the package."""
    folded = Q.ndim == 3
    if folded:  # (B, L, H * D)
        Q = Q.unflatten(-1, (q_num_heads, -1)).transpose(1, 2)
        K, V = (x.unflatten(-1, (kv_num_heads, -1)).transpose(1, 2) for x in (K, V))
    if past_key is not None:
        K, V = torch.cat((past_key, K), dim=2), torch.cat((past_value, V), dim=2)
    L, S = Q.shape[2], K.shape[2]

    offset: int | Tensor = 0 if past_key is None else past_key.shape[2]
    keep = None
    if nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen - L
        keep = masks.padding(nonpad_kv_seqlen, S)
    place = {"offset": offset, "device": Q.device}
    if is_causal:
        keep = masks.combine(keep, masks.causal(L, S, **place))
    if left_window_size >= 0:
        window = masks.sliding_window(
            L, S, window=left_window_size + 1, after=None, **place
        )
        keep = masks.combine(keep, window)
    if right_window_size >= 0:
        place["offset"] = offset + right_window_size
        keep = masks.combine(keep, masks.causal(L, S, **place))
    if attn_mask is not None:
        hidden = False if attn_mask.dtype == torch.bool else -math.inf
        mask = F.pad(attn_mask, (0, S - attn_mask.shape[-1]), value=hidden)
        if attn_mask.dtype == torch.bool:
            keep = masks.combine(keep, mask)
        else:
            keep = mask if keep is None else mask.masked_fill(~keep, -math.inf)

    options = {"scale": scale, "enable_gqa": True, "softcap": softcap or None}
    steps = attention_steps(Q, K, V, keep, **options)
    fast = scaled_dot_product_attention(Q, K, V, keep, **options)

    def fold(output: Tensor) -> Tensor:
        return output.transpose(1, 2).flatten(2) if folded else output

    return {
        "Y": fold(fast),
        "Y of the steps": fold(steps.output),
        "present_key": K,
        "present_value": V,
        "qk_matmul_output": getattr(steps, FIELDS[qk_matmul_output_mode]),
    }


def to_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    if array.dtype.name == "bfloat16":  # torch reads no bfloat16 of numpy's
        return torch.from_numpy(array.astype(np.float32)).bfloat16().to(device)
    return torch.from_numpy(array.copy()).to(device)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, device: torch.device) -> None:
    case = CASES[name]
    operator = case.model.graph.node[0]
    inputs, outputs = case.data_sets[0]
    given = [slot for slot in operator.input if slot]
    arguments = {
        slot: to_tensor(array, device)
        for slot, array in zip(given, inputs, strict=True)
    }
    attributes = {
        attribute.name: onnx.helper.get_attribute_value(attribute)
        for attribute in operator.attribute
    }
    results = attention(**arguments, **attributes)

    wanted = [slot for slot in operator.output if slot]
    expected = dict(zip(wanted, outputs, strict=True))
    expected["Y of the steps"] = expected["Y"]
    for slot, array in expected.items():
        want = to_tensor(array, device)
        torch.testing.assert_close(
            results[slot],
            want,
            **TOLERANCE[want.dtype],
            msg=lambda text, slot=slot: f"{slot}: {text}",
        )


def test_all_cases_are_there() -> None:
    opsets = Counter(case.model.opset_import[0].version for case in CASES.values())
    assert opsets == {23: 69, 24: 13, 25: 11}
