"""The device on which the tests run: ``pytest --device cuda`` takes a GPU."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():  # before anything imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A script for a process of its own, without the interpreter.
collect_ignore = ["compile_kernels.py"]

# The same examples in every run, however busy the machine.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the tests of the package put their tensors (default: cpu)",
    )


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where a test puts its tensors."""
    wanted = request.config.getoption("--device")
    if wanted == "cuda" and not torch.cuda.is_available():
        pytest.skip("--device cuda: no CUDA device here")
    return torch.device(wanted)


@pytest.fixture
def on_device(device: torch.device) -> Iterator[None]:
    """Everything that a test makes is made on the device."""
    with device:
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same numbers, alone or in any order."""
    torch.manual_seed(0)
