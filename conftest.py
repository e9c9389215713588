"""What every test run shares, the notebooks' above all."""

import os
from pathlib import Path

import pytest

# Kernels and workers inherit these. Bars would end up in outputs, and a backend set
# outside would draw figures where no notebook shows them.
os.environ["TQDM_DISABLE"] = "1"
os.environ.pop("MPLBACKEND", None)
# Workers share the cores: with all threads in each, small models wait for one another.
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    threads = max(1, (os.cpu_count() or 1) // int(workers))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))


def pytest_configure(config: pytest.Config) -> None:
    # nbval reads this file from the current directory, which need not be this one.
    if getattr(config.option, "nbval_sanitize_with", None) is None:
        sanitize = Path(__file__).parent / "tests" / "book" / "nbval_sanitize.cfg"
        config.option.nbval_sanitize_with = str(sanitize)
