"""The hunt for the first NaN: a watch over every module's output."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn


@contextlib.contextmanager
def find_nonfinite(model: nn.Module) -> Iterator[None]:
    """Stop at the first module whose output holds NaN or an infinity, and name it.

    Watches the forward pass inside the ``with`` block and looks at every output, which
    makes a GPU wait: for a hunt, not for a whole training. Inner modules are looked at
    before those that hold them. For the backward pass see
    ``torch.autograd.detect_anomaly``.

    Parameters
    ----------
    model
        The module to watch, with all it holds.

    Raises
    ------
    FloatingPointError
        Inside the block: the name of the module, what its output holds, and whether its
        inputs and parameters were finite.

    Examples
    --------
    >>> import torch
    >>> model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> _ = nn.init.constant_(model[0].bias, torch.nan)
    >>> try:
    ...     with find_nonfinite(model):
    ...         _ = model(torch.ones(4, 3))
    ... except FloatingPointError as error:
    ...     print(error)
    module 0 (Linear) returns 8 NaN and 0 infinities of 8 numbers; inputs finite, \
parameters not finite: bias
    """
    handles = [
        module.register_forward_hook(_watch(name or "itself"), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _watch(name: str) -> Any:
    """The hook of one module."""

    def look(
        module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        outputs = _floats(output)
        nan = sum(int(tensor.isnan().sum()) for tensor in outputs)
        inf = sum(int(tensor.isinf().sum()) for tensor in outputs)
        if nan + inf == 0:
            return
        count = sum(tensor.numel() for tensor in outputs)
        clean = all(bool(t.isfinite().all()) for t in _floats([args, kwargs]))
        bad = [n for n, p in module.named_parameters() if not p.isfinite().all()]
        raise FloatingPointError(
            f"module {name} ({type(module).__name__}) returns {nan} NaN and {inf} "
            f"infinities of {count} numbers; inputs {'' if clean else 'not '}finite, "
            f"parameters {'not finite: ' + ', '.join(bad) if bad else 'finite'}"
        )

    return look


def _floats(tree: Any) -> list[Tensor]:
    """The floating-point tensors in nested tuples, lists and dicts."""
    if isinstance(tree, Tensor):
        return [tree] if tree.is_floating_point() else []
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if isinstance(tree, (tuple, list)):
        return [tensor for branch in tree for tensor in _floats(branch)]
    return []
