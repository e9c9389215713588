"""What a run was made of: versions, machine, seed, code and configuration.

A record is made of what JSON holds, so it can lie beside the checkpoint that it explains.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

__all__ = ["differences", "record"]

# What changes numbers when its version does.
PACKAGES = ("attention-lib", "torch", "numpy", "triton")


def record(
    config: object = None,
    *,
    seed: int | None = None,
    device: torch.device | str | None = None,
    folder: Path | str | None = None,
) -> dict[str, Any]:
    """Versions, machine, switches, seed, commit and configuration of this run.

    Make it before the first random number is drawn, and write it with ``json.dump``.

    Parameters
    ----------
    config
        A dataclass or a mapping of what JSON holds.
    seed
        The seed of the run, :func:`torch.initial_seed` by default: the last one that
        ``torch.manual_seed`` was given, or the one that torch drew by itself.
    device
        Where the run computes: its name is recorded. The CPU by default.
    folder
        A folder of the repository that holds the code, the current one by default.

    Returns
    -------
    dict[str, Any]
        ``time``, ``seed``, ``versions``, ``machine``, ``switches``, ``git`` and
        ``config``. ``git`` is None outside a repository; ``dirty`` in it says that tracked
        files differ from the commit. Environment variables and arguments are left out:
        they may hold secrets.

    Raises
    ------
    TypeError
        If ``config`` is neither, or holds what JSON does not.
    ValueError
        If ``config`` holds NaN or an infinity, which JSON does not have.

    Examples
    --------
    >>> _ = torch.manual_seed(7)
    >>> made = record({"lr": 0.003})
    >>> made["seed"], made["config"]
    (7, {'lr': 0.003})
    >>> sorted(made)
    ['config', 'git', 'machine', 'seed', 'switches', 'time', 'versions']
    """
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seed": torch.initial_seed() if seed is None else seed,
        "versions": _versions(),
        "machine": _machine(torch.device("cpu" if device is None else device)),
        "switches": _switches(),
        "git": _git(Path.cwd() if folder is None else Path(folder)),
        "config": _plain(config),
    }


def differences(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Where two records differ: why the same code gave another result.

    Parameters
    ----------
    before, after
        Records, or any mappings within mappings.

    Returns
    -------
    dict[str, tuple[Any, Any]]
        Both values by dotted name, None for what one of them lacks. The ``time`` at the
        top does not count.

    Examples
    --------
    >>> old = {"seed": 0, "config": {"lr": 0.003}, "time": "Monday"}
    >>> new = {"seed": 0, "config": {"lr": 0.03}, "time": "Tuesday"}
    >>> differences(old, new)
    {'config.lr': (0.003, 0.03)}
    """
    old, new = _flat(before), _flat(after)
    names = [name for name in dict.fromkeys([*old, *new]) if name != "time"]
    return {
        name: (old.get(name), new.get(name))
        for name in names
        if old.get(name) != new.get(name)
    }


def _flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{path}{key}.")
        else:
            found[f"{path}{key}"] = value
    return found


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found | {"cuda": torch.version.cuda}


def _machine(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "device": device.type,
        "device_name": name,
        "cpu_instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def _switches() -> dict[str, Any]:
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
    }


def _git(folder: Path) -> dict[str, Any] | None:
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changed = _ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changed is None else bool(changed)}


def _ask_git(folder: Path, *words: str) -> str | None:
    """What git says, or None where there is no git, no repository or no answer."""
    try:
        said = subprocess.run(
            ["git", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() if said.returncode == 0 else None


def _plain(config: object) -> Any:
    """The configuration as JSON gives it back."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    elif config is not None and not isinstance(config, Mapping):
        kind = type(config).__name__
        raise TypeError(f"config must be a dataclass or a mapping, got {kind}")
    try:
        return json.loads(json.dumps(config, allow_nan=False))
    except TypeError as error:
        raise TypeError(f"config holds what JSON does not: {error}") from None
    except ValueError:
        raise ValueError("config holds NaN or an infinity; JSON has neither") from None
