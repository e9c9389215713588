"""Builds a few pages with Sphinx, in a process of its own: Sphinx keeps global state."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml
from notebooks import ROOT

IGNORE = shutil.ignore_patterns("__pycache__", ".*")


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


def copy_settings(root: Path, name: str, chapter: str) -> Path:
    """Write a book of one chapter into ``root``, with the settings of the whole one."""
    for file in ("pyproject.toml", "_config.yml"):
        shutil.copy(ROOT / file, root)
    for folder in ("tools", "book/_ext", "book/_extra", "book/_static"):
        shutil.copytree(ROOT / folder, root / folder, ignore=IGNORE)
    shutil.copy(ROOT / "book/references.bib", root / "book")
    toc = {
        "format": "jb-book",
        "root": "book/index",
        "chapters": [{"file": f"book/{name}"}],
    }
    (root / "_toc.yml").write_text(yaml.safe_dump(toc), encoding="utf-8")
    (root / "book/index.md").write_text("# Book\n", encoding="utf-8")
    (root / f"book/{name}.ipynb").write_text(chapter, encoding="utf-8")
    return root
