"""ONNX's own node tests of its operator RotaryEmbedding, opset 23.

The generators ship with onnx, inputs and expected outputs included. The adapter only
brings the caches into the shape of angles: the turning is the package's.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_lib import apply_rotary

onnx = pytest.importorskip("onnx", reason="onnx holds the conformance cases")
node = pytest.importorskip("onnx.backend.test.case.node")


def _cases() -> dict[str, object]:
    state = np.random.get_state()
    np.random.seed(0)
    import onnx.backend.test.case.node.rotaryembedding  # noqa: F401  registers

    np.random.set_state(state)
    return {
        case.name: case
        for case in node._NodeTestCases
        if case.model.graph.node[0].op_type == "RotaryEmbedding"
    }


CASES = _cases()


def rotary_embedding(
    X: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,  # the caches' width says it as well
) -> Tensor:
    """ONNX's operator in the words of the package."""
    if position_ids is not None:
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    angles = cos_cache.unsqueeze(1), sin_cache.unsqueeze(1)  # (B, 1, L, R/2)
    if X.ndim == 4:
        return apply_rotary(X, *angles, interleaved=bool(interleaved))
    heads = X.unflatten(-1, (num_heads, -1)).transpose(1, 2)
    turned = apply_rotary(heads, *angles, interleaved=bool(interleaved))
    return turned.transpose(1, 2).flatten(2)


def test_all_cases_are_here():
    assert len(CASES) == 8


@pytest.mark.parametrize("name", CASES)
def test_case(name, device):
    case = CASES[name]
    call = case.model.graph.node[0]
    options = {a.name: onnx.helper.get_attribute_value(a) for a in call.attribute}
    inputs, outputs = case.data_sets[0]
    tensors = [torch.from_numpy(array).to(device) for array in inputs]
    found = rotary_embedding(*tensors, **options)
    expected = torch.from_numpy(outputs[0]).to(device)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
