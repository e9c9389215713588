"""Checks for the exercises of chapter 14, in production."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attention_lib.checks._report import (
    NotYet,
    check,
    demand_bool,
    demand_number,
)
from attention_lib.layers import MultiHeadAttention
from attention_lib.positions import RotaryEmbedding

__all__ = ["first_alarm", "refuses", "rescue", "still_the_same", "to_line"]

Line = dict[str, Any]
Canary = tuple[Tensor, Tensor]

SETTINGS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "head_dim": lambda: {"head_dim": 8},
    "bias": lambda: {"bias": False},
    "query_norm": lambda: {"query_norm": nn.RMSNorm(6)},
    "kdim": lambda: {"kdim": 24},
    "dropout": lambda: {"dropout": 0.5},
    "rotary": lambda: {"rotary": RotaryEmbedding(6)},
    "num_heads": lambda: {"num_heads": 6},
}

WHY = {
    "head_dim": "The projections get wider: H·D is 32, not 24.",
    "bias": "The checkpoint brings biases that the layer has no place for.",
    "query_norm": "The norm has a gain of its own, which the checkpoint lacks.",
    "kdim": "Given, it makes the layer keep three matrices under other names.",
    "dropout": "A probability is a number in the code, no parameter.",
    "rotary": "Its angles are computed from the position, not stored.",
    "num_heads": "The same matrices, cut into other pieces: no shape changes.",
}


@check("14.1")
def refuses(answer: Callable[[str], Any]) -> str:
    """Check ``refuses(setting)`` against what ``load_state_dict`` does.

    Examples
    --------
    >>> refuses(lambda setting: setting == "head_dim")
    Exercise 14.1: not yet. "bias": refused. The checkpoint brings biases that the layer \
has no place for.
    """
    checkpoint = MultiHeadAttention(24, 4).state_dict()
    for name, make in SETTINGS.items():
        said = demand_bool(answer(name))
        options = {"num_heads": 4, **make()}
        try:
            MultiHeadAttention(24, **options).load_state_dict(checkpoint)
            refused = False
        except RuntimeError:
            refused = True
        if said != refused:
            verdict = "refused" if refused else "loads without a word"
            raise NotYet(f'"{name}": {verdict}. {WHY[name]}')
    return "Seven settings, each tried: four are refused, three load in silence."


def _refuse(word: str) -> Any:
    raise NotYet(f"{word} is not JSON: other languages refuse the line.")


@check("14.2")
def to_line(answer: Callable[[Mapping[str, Any]], Any]) -> str:
    """Check ``to_line(values)`` with a strict reader.

    Examples
    --------
    >>> to_line(json.dumps)
    Exercise 14.2: not yet. NaN is not JSON: other languages refuse the line.
    """
    inf = math.inf
    for values, wanted in (
        ({"step": 3, "loss": 1.5}, {"step": 3, "loss": 1.5}),
        ({"loss": math.nan}, {"loss": "NaN"}),
        ({"up": inf, "down": -inf}, {"up": "Infinity", "down": "-Infinity"}),
        ({"loss": torch.tensor(0.5)}, {"loss": 0.5}),
        ({"loss": torch.tensor(math.nan)}, {"loss": "NaN"}),
        ({"text": "two\nlines"}, {"text": "two\nlines"}),
        ({"heads": [0.25, math.nan]}, {"heads": [0.25, "NaN"]}),
        ({"layer": {"heads": [-inf]}}, {"layer": {"heads": ["-Infinity"]}}),
        ({"done": True, "none": None}, {"done": True, "none": None}),
    ):
        line = answer(values)
        if line is None:
            raise NotYet("The function returns nothing yet.")
        if not isinstance(line, str):
            raise NotYet(f"Return a text, not {type(line).__name__}.")
        if "\n" in line:
            raise NotYet("The text has a line break in it: one object, one line.")
        try:
            found = json.loads(line, parse_constant=_refuse)
        except json.JSONDecodeError:
            raise NotYet(f"{line!r} is not JSON.") from None
        if repr(found) != repr(wanted):
            raise NotYet(f"{values} came back as {found}, expected {wanted}.")
    return "Nine lines, read back by a strict reader, NaN and infinities among them."


def _log(levels: Mapping[tuple[str, int], list[float]]) -> list[Line]:
    """A log from the saturations of each head, ten steps apart."""
    length = len(next(iter(levels.values())))
    return [
        {"step": 10 * i, "layer": layer, "head": head, "saturation": values[i]}
        for i in range(length)
        for (layer, head), values in levels.items()
    ]


def _calm() -> dict[tuple[str, int], list[float]]:
    """Healthy saturations of two layers: high in the first, low in the second."""
    draws = torch.rand(2, 2, 12).tolist()
    return {
        (layer, head): [level * (0.8 + 0.2 * x) for x in draws[i][head]]
        for i, (layer, level) in enumerate((("blocks.0", 0.4), ("blocks.1", 0.08)))
        for head in (0, 1)
    }


@check("14.3")
def first_alarm(answer: Callable[[list[list[Line]], list[Line]], Any]) -> str:
    """Check ``first_alarm(healthy, run)`` on logs with and without planted faults.

    Examples
    --------
    >>> first_alarm(lambda healthy, run: 0)
    Exercise 14.3: not yet. A healthy run: your alarm comes at step 0, it should not come.
    """
    healthy = [_log(_calm()) for _ in range(3)]

    def planted(
        head: tuple[str, int], changes: Mapping[int, float], factor: float = 1.0
    ) -> list[Line]:
        levels = _calm()
        for i, value in changes.items():
            levels[head][i] = value
        return _log({key: [factor * x for x in row] for key, row in levels.items()})

    late = {i: 0.97 for i in range(7, 12)}
    rows: list[tuple[str, list[Line], int | None, str]] = [
        ("A healthy run", _log(_calm()), None, ""),
        (
            "A blip of one step",
            planted(("blocks.0", 1), {5: 0.95}),
            None,
            "Wait for a second abnormal step.",
        ),
        (
            "Two blips, not in succession",
            planted(("blocks.1", 0), {3: 0.9, 6: 0.9}),
            None,
            "A normal step between them starts the count again.",
        ),
        (
            "Blips of two heads at neighbouring steps",
            _joined(_calm(), {("blocks.0", 0): 4, ("blocks.0", 1): 5}),
            None,
            "Count for each head by itself.",
        ),
        ("A collapse of one head from step 70", planted(("blocks.0", 1), late), 80, ""),
        (
            "A head of the second layer that rises to 0.3, the usual level of the first,",
            planted(("blocks.1", 1), {i: 0.3 for i in range(4, 12)}),
            50,
            "What is normal differs from layer to layer.",
        ),
        (
            "A rise of a fifth in all heads",
            planted(("blocks.0", 0), {}, 1.2),
            None,
            "Abnormal is more than 1.5 times the largest.",
        ),
        (
            "A NaN at step 60",
            planted(("blocks.1", 0), {6: math.nan}),
            60,
            "NaN is not larger than anything: ask for it.",
        ),
    ]
    for words, run, wanted, hint in rows:
        said = answer(healthy, run)
        if said is None and wanted is not None:
            if answer(healthy, rows[4][1]) is None:
                raise NotYet("The function returns nothing yet.")
            raise NotYet(f"{words}: you give no alarm, expected step {wanted}. {hint}")
        if said is None:
            continue
        step = demand_number(said, "a step or None")
        if wanted is None:
            raise NotYet(
                f"{words}: your alarm comes at step {step:g}, it should not come. {hint}".rstrip()
            )
        if step != wanted:
            raise NotYet(
                f"{words}: your alarm comes at step {step:g}, expected {wanted}. {hint}".rstrip()
            )
    return "Three faults found at their step, five calm runs left alone."


def _joined(
    levels: dict[tuple[str, int], list[float]], blips: Mapping[tuple[str, int], int]
) -> list[Line]:
    for head, i in blips.items():
        levels[head][i] = 0.95
    return _log(levels)


class _Layer(nn.Module):
    """A trained layer as it is served: sound, or with one fault."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        heads = 2 if fault == "heads" else 4
        self.attend = MultiHeadAttention(
            16,
            heads,
            dropout=0.5,
            scale=1 / 16 if fault == "scale" else None,
            dtype=torch.float64,
        )
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        y = self.attend(x, is_causal=self.fault != "mask")
        if self.fault == "rounding":
            return y + 5e-6 * torch.randn_like(y)
        if self.fault == "one sequence":
            last = torch.zeros(len(y), 1, 1, dtype=y.dtype)
            last[-1] = 0.01
            return y + last
        if self.fault == "NaN":
            return torch.where(x[..., :1] == x[-1, -1, 0], math.nan, y)
        return y[None] if self.fault == "shape" else y


@check("14.4")
def still_the_same(answer: Callable[[Canary, nn.Module], Any]) -> str:
    """Check ``still_the_same(canary, model)`` on sound and on faulty models.

    Examples
    --------
    >>> still_the_same(lambda canary, model: True)
    Exercise 14.4: not yet. A model with another scale passes.
    """
    trained = _Layer().eval()
    with torch.no_grad():
        for weight, bias in trained.attend.parts():
            weight *= 3
            if bias is not None:
                bias.normal_()
        inputs = torch.randn(64, 7, 16, dtype=torch.float64)
        expected = trained(inputs)
    for words, fault, hint in (
        ("the trained model itself", "", ""),
        ("rounding of 5e-6", "rounding", "Ask for close, not for equal."),
        ("another scale", "scale", ""),
        ("another number of heads", "heads", ""),
        ("no causal mask", "mask", ""),
        ("a fault in one sequence", "one sequence", "Take the largest gap, no mean."),
        (
            "one NaN",
            "NaN",
            "No comparison with NaN is true: ask which way you compare.",
        ),
        (
            "an axis too many",
            "shape",
            "Compare the shapes first: the axis broadcasts.",
        ),
        ("dropout on, in train mode,", "train", "Do not call eval() on it."),
    ):
        model = _Layer(fault)
        model.load_state_dict(trained.state_dict())
        model.train(fault == "train")
        said = demand_bool(answer((inputs.clone(), expected.clone()), model))
        same = fault in ("", "rounding")
        if said != same:
            verdict = "passes" if said else "does not pass"
            raise NotYet(f"A model with {words} {verdict}. {hint}".rstrip())
    return "Seven wrong models found, two right ones let through."


MOST = 75


@check("14.5")
def rescue(
    answer: Callable[[nn.Module], Any],
    relearn: Callable[[Callable[[nn.Module], nn.Module]], int],
) -> str:
    """Check ``rescue(model)``: ``relearn`` counts the steps until the new rule is learned.

    Examples
    --------
    >>> rescue(lambda model: model, lambda rescue: 103)  # doctest: +ELLIPSIS
    Exercise 14.5: not yet. It takes 103 steps; at most 75 pass. ...
    """

    def tried(model: nn.Module) -> nn.Module:
        before = [value.detach().clone() for value in model.parameters()]
        found = answer(model)
        if found is None:
            raise NotYet("The function returns nothing yet. Return the model.")
        if found is not model:
            raise NotYet("Change the model in place and return it, not another one.")
        if not all(bool(value.isfinite().all()) for value in model.parameters()):
            raise NotYet("A parameter is NaN or infinite after your change.")
        changed = zip(before, model.parameters(), strict=True)
        if all(torch.equal(old, new) for old, new in changed):
            raise NotYet("No parameter has changed.")
        return model

    steps = relearn(tried)
    if steps > MOST:
        raise NotYet(
            f"It takes {steps} steps; at most {MOST} pass. The rows are one-hot: what "
            "makes scores smaller and keeps their order?"
        )
    return f"The new rule is learned within {MOST} steps in every seed."
