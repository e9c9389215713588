"""Builds a few pages with Sphinx, in a process of its own: Sphinx keeps global state."""

import os
import subprocess
import sys
from pathlib import Path

from notebooks import ROOT


def build_pages(source: Path, site: Path) -> str:
    """Build ``source`` strictly into ``site`` and return its complaints."""
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going"]
    done = subprocess.run(
        [*command, source, site],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "book" / "_ext")},
    )
    return done.stderr or ("" if done.returncode == 0 else "failed without a word")
