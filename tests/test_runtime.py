"""setup, and what importing the package costs."""

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

import attention_lib
from attention_lib import setup


def draws():
    return random.random(), np.random.rand(), torch.rand(()).item()


def test_the_same_seed_gives_the_same_numbers_everywhere():
    setup(seed=3, style=False)
    first = draws()
    setup(seed=3, style=False)
    assert draws() == first
    setup(seed=4, style=False)
    assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_device():
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert setup(style=False) == torch.device(expected)
    assert setup(device="cpu", style=False) == torch.device("cpu")
    assert setup(device=torch.device("meta"), style=False) == torch.device("meta")


def test_a_cuda_device_is_taken_when_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert setup(style=False) == torch.device("cuda")


def test_style_is_set_unless_declined():
    import matplotlib

    with matplotlib.rc_context({"image.cmap": "viridis"}):
        setup(style=False)
        assert matplotlib.rcParams["image.cmap"] == "viridis"
        setup()
        assert matplotlib.rcParams["image.cmap"] == "Blues"


@pytest.mark.parametrize(
    ("seed", "error", "match"),
    [
        (-1, ValueError, "seed=-1 must be from 0"),
        (2**32, ValueError, "seed=4294967296 must be from 0"),
        (0.5, TypeError, "seed must be an int, got float"),
        (True, TypeError, "seed must be an int, got bool"),
        (None, TypeError, "seed must be an int, got NoneType"),
    ],
)
def test_setup_refuses(seed, error, match):
    with pytest.raises(error, match=match):
        setup(seed)


def run(code):
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_importing_the_package_imports_torch_only():
    loaded = run(
        "import torch, sys; before = set(sys.modules); import attention_lib;"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    outside = {name for name in loaded if name not in sys.stdlib_module_names}
    assert outside == {"attention_lib"}


def test_the_package_works_without_what_only_figures_need():
    blocked = ("numpy", "matplotlib", "matplotlib_inline", "tqdm", "IPython")
    said = run(
        "import sys, warnings; warnings.simplefilter('ignore');"
        f"sys.modules.update(dict.fromkeys({blocked!r}));"
        "import importlib.util as u; find = u.find_spec;"
        f"u.find_spec = lambda name: None if name in {blocked!r} else find(name);"
        "import torch, attention_lib as a; device = a.setup(seed=1);"
        "model = torch.nn.Embedding(4, 4);"
        "sample = lambda: a.tasks.lookback(2, 5, 0, symbols=4);"
        "print(len(a.training.fit(model, sample, steps=3)), device.type)"
    )
    assert said[0] == "3"


def test_every_public_name_is_there():
    assert len(set(attention_lib.__all__)) == len(attention_lib.__all__)
    for name in attention_lib.__all__:
        assert hasattr(attention_lib, name), name
