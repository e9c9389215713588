"""Configurations from TOML: what is taken, and what is refused in which words."""

import builtins
import dataclasses
import json
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from attention_lib.configuration import from_dict, from_toml


@dataclass(frozen=True)
class Model:
    embed_dim: int
    num_heads: int = 4
    scale: float | None = None
    norm: Literal["pre", "post"] = "pre"
    rotary: bool = False


@dataclass(frozen=True)
class Config:
    model: Model
    seeds: tuple[int, ...] = (0,)
    betas: tuple[float, float] = (0.9, 0.999)
    names: list[str] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    limit: int | str = 3
    extra: Model | None = None
    free: Any = None


FULL = """
seeds = [3, 5]
betas = [0.8, 1]
names = ["a", "b"]
limit = "none"
free = [1, "two"]

[model]
embed_dim = 32
scale = 1
norm = "post"
rotary = true

[rates]
attention = 0.1
rest = 1

[extra]
embed_dim = 8
"""


def test_every_kind_of_field():
    config = from_toml(Config, FULL)
    assert config == Config(
        model=Model(32, scale=1.0, norm="post", rotary=True),
        seeds=(3, 5),
        betas=(0.8, 1.0),
        names=["a", "b"],
        rates={"attention": 0.1, "rest": 1.0},
        limit="none",
        extra=Model(8),
        free=[1, "two"],
    )
    assert type(config.model.scale) is type(config.betas[1]) is float
    assert type(config.rates["rest"]) is float and type(config.seeds) is tuple


def test_defaults_stay_where_nothing_is_given():
    assert from_toml(Config, "model.embed_dim = 8") == Config(Model(8))


def test_the_way_through_json_and_back():
    config = from_toml(Config, FULL)
    assert (
        from_dict(Config, json.loads(json.dumps(dataclasses.asdict(config)))) == config
    )


def test_a_path_is_a_file_and_its_name_is_in_the_message(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("embed_dim = 8\n")
    assert from_toml(Model, path) == Model(8)
    path.write_text("embed_dim = 8\nnum_head = 2\n")
    with pytest.raises(ValueError, match=r"^run.toml: unknown key num_head, nearest"):
        from_toml(Model, path)
    with pytest.raises(FileNotFoundError):
        from_toml(Model, tmp_path / "missing.toml")


MODEL = "model.embed_dim = 8\n"


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("model.embed_dim = 8\nseed = [1]", ValueError, "key seed, nearest: seeds"),
        (
            "[model]\nembed_dim = 8\nnum-heads = 2",
            ValueError,
            "key model.num-heads, nearest: model.num_heads; Model has embed_dim, num_h",
        ),
        (MODEL + "xyz = 1", ValueError, "unknown key xyz; Config has model, seeds"),
        (MODEL + "a = 1\nb = 2", ValueError, "key a, unknown key b|key a, .*key b"),
        ("seeds = [1]", ValueError, "missing: model of Config"),
        ("[model]\nnum_heads = 2", ValueError, "missing: model.embed_dim of Model"),
        ("model = 3", TypeError, "model must be a table, got the int 3"),
        (
            "model.embed_dim = 8.0",
            TypeError,
            "embed_dim must be an int, got the float 8",
        ),
        ("model.embed_dim = true", TypeError, "must be an int, got the bool True"),
        ('model.embed_dim = "8"', TypeError, "must be an int, got the str '8'"),
        (
            "[model]\nembed_dim = 8\nscale = true",
            TypeError,
            "model.scale must be a float, got the bool True",
        ),
        (
            "[model]\nembed_dim = 8\nrotary = 1",
            TypeError,
            "model.rotary must be a bool, got the int 1",
        ),
        (
            '[model]\nembed_dim = 8\nnorm = "Pre"',
            ValueError,
            "model.norm must be one of 'pre', 'post', got 'Pre'",
        ),
        (MODEL + "seeds = 3", TypeError, "seeds must be a list, got the int 3"),
        (MODEL + "seeds = [1, 2.5]", TypeError, r"seeds\[1\] must be an int"),
        (MODEL + "betas = [0.9]", ValueError, "betas must have 2 items, got 1"),
        (MODEL + "rates = [1]", TypeError, "rates must be a table, got the list"),
        (MODEL + 'rates.a = "x"', TypeError, "rates.a must be a float, got the str"),
        (MODEL + "limit = 0.5", TypeError, "limit must be an int or a str, got the fl"),
        ("embed_dim = = 8", ValueError, "^not TOML: "),
        ("run.toml", ValueError, r"for a file pass Path\('run.toml'\)"),
    ],
)
def test_what_is_refused(text, error, match):
    with pytest.raises(error, match=match):
        from_toml(Config, text)


def test_a_union_keeps_an_exact_type():
    @dataclass
    class Numbers:
        one: float | int

    assert type(from_toml(Numbers, "one = 1").one) is int
    assert type(from_toml(Numbers, "one = 1.0").one) is float


def test_a_choice_of_numbers_takes_no_bool():
    @dataclass
    class Pick:
        n: Literal[1, 2]

    assert from_toml(Pick, "n = 1").n == 1
    with pytest.raises(ValueError, match="one of 1, 2, got True"):
        from_toml(Pick, "n = true")


def test_wrong_calls():
    with pytest.raises(TypeError, match="cls must be a dataclass, got <class 'int'>"):
        from_toml(int, "a = 1")
    with pytest.raises(TypeError, match="cls must be a dataclass, got Model"):
        from_dict(Model(8), {})
    with pytest.raises(
        TypeError, match="source must be a Path or TOML as a str, got dict"
    ):
        from_toml(Model, {"embed_dim": 8})
    with pytest.raises(TypeError, match="the configuration must be a table, got None"):
        from_dict(Model, None)

    @dataclass
    class Odd:
        n: complex

    with pytest.raises(TypeError, match="n is declared as a complex, which TOML"):
        from_toml(Odd, "n = 1")


def test_without_a_parser_the_message_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name in ("tomllib", "tomli"):
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    for name in ("tomllib", "tomli"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match="pip install tomli"):
        from_toml(Model, "embed_dim = 8")
