"""The record of a run: complete, plain JSON, and comparable."""

import json
import math
import os
import subprocess
from dataclasses import dataclass

import pytest
import torch

from attention_lib.run_record import differences, record


@dataclass
class Config:
    lr: float = 0.003
    seeds: tuple[int, ...] = (0, 1)


def test_a_record_survives_json_and_names_what_decides():
    made = record(Config(), seed=5)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made["seed"] == 5 and made["config"] == {"lr": 0.003, "seeds": [0, 1]}
    assert made["versions"]["torch"] == torch.__version__.split("+")[0] or (
        made["versions"]["torch"] == torch.__version__
    )
    assert made["machine"]["threads"] == torch.get_num_threads()


def test_the_seed_is_the_last_one_given():
    torch.manual_seed(123)
    assert record()["seed"] == 123
    assert record()["config"] is None


def test_a_switch_shows():
    before = record()
    torch.set_float32_matmul_precision("medium")
    try:
        changed = differences(before, record())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert changed == {"switches.float32_matmul_precision": ("highest", "medium")}


def test_differences_by_dotted_name():
    old = {"time": 1, "a": {"b": 1, "c": {}}, "only": 2, "same": [1]}
    new = {"time": 2, "a": {"b": 2, "c": {}}, "new": None, "more": 3, "same": [1]}
    assert differences(old, new) == {
        "a.b": (1, 2),
        "only": (2, None),
        "more": (None, 3),
    }
    assert differences(old, old) == {}


def git(folder, *words):
    name = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    # Neither the user's settings nor a repository above may decide.
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *name, *words], cwd=folder, check=True, env=env)


def test_git_commit_and_dirty(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record(folder=tmp_path)["git"] is None
    git(tmp_path, "init", "-q")
    assert record(folder=tmp_path)["git"] is None  # no commit yet
    (tmp_path / "code.py").write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    clean = record(folder=tmp_path)["git"]
    assert len(clean["commit"]) == 40 and clean["dirty"] is False
    (tmp_path / "notes.txt").write_text("not tracked\n")
    assert record(folder=tmp_path)["git"] == clean
    (tmp_path / "code.py").write_text("2\n")
    assert record(folder=tmp_path)["git"] == {**clean, "dirty": True}


def test_without_git(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert record()["git"] is None


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        (3, TypeError, "config must be a dataclass or a mapping, got int"),
        (Config, TypeError, "config must be a dataclass or a mapping, got type"),
        ({"at": torch.float32}, TypeError, "config holds what JSON does not"),
        ({"lr": math.nan}, ValueError, "config holds NaN or an infinity"),
    ],
)
def test_what_is_refused(config, error, match):
    with pytest.raises(error, match=match):
        record(config)
