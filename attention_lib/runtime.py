"""What a notebook does first: seeds, device, figure style."""

from __future__ import annotations

import random
from importlib.util import find_spec

import torch

__all__ = ["setup"]


def setup(
    seed: int = 0, *, device: torch.device | str | None = None, style: bool = True
) -> torch.device:
    """Seed every generator, choose the device and set the figure style.

    Seeds Python's ``random``, torch on every device, and numpy where it is installed.

    Parameters
    ----------
    seed
        From 0 to 2**32 - 1, the range that numpy takes.
    device
        Where to compute. Without it CUDA if there is such a device, else the CPU.
    style
        Apply :func:`attention_lib.plotting.use_style` where matplotlib is installed.

    Returns
    -------
    torch.device
        The device, to pass as ``device=`` from here on.

    Raises
    ------
    TypeError
        If ``seed`` is not an int.
    ValueError
        If ``seed`` is out of range.

    Examples
    --------
    >>> device = setup(seed=0, device="cpu")
    >>> device
    device(type='cpu')
    >>> first = torch.rand(3)
    >>> _ = setup(seed=0)
    >>> torch.equal(torch.rand(3), first)
    True
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {type(seed).__name__}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed} must be from 0 to 2**32 - 1")
    random.seed(seed)
    torch.manual_seed(seed)
    if find_spec("numpy") is not None:
        import numpy

        numpy.random.seed(seed)
    if style and find_spec("matplotlib") is not None:
        from attention_lib.plotting import use_style

        use_style()
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
