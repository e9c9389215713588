"""Right and wrong answers to the exercises of chapter 14."""

import json
import math

import torch

from attention_lib.checks import chapter14 as check


def plain(value):
    if isinstance(value, torch.Tensor):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def to_line(values):
    return json.dumps(plain(values), allow_nan=False)


def nulls(values):
    return to_line(values).replace('"NaN"', "null")


def alarms(healthy, run, *, per_head=True, factor=1.5, times=2, nan=True, streak=True):
    """The alarm; each option spoils one part of it."""

    def limit_of(line):
        return (line["layer"], line["head"]) if per_head else None

    normal, seen = {}, {}
    for log in healthy:
        for line in log:
            at = limit_of(line)
            normal[at] = max(normal.get(at, 0.0), line["saturation"])
    for line in run:
        head, value = (line["layer"], line["head"]), line["saturation"]
        if nan and math.isnan(value):
            return line["step"]
        if value > factor * normal[limit_of(line)]:
            seen[head] = seen.get(head, 0) + 1
        elif streak:
            seen[head] = 0
        if seen.get(head, 0) >= times:
            return line["step"]
    return None


def any_head(healthy, run):
    """An alarm after two abnormal steps, whichever heads they belong to."""
    normal, bad = {}, set()
    for log in healthy:
        for line in log:
            head = line["layer"], line["head"]
            normal[head] = max(normal.get(head, 0.0), line["saturation"])
    for line in run:
        if not line["saturation"] <= 1.5 * normal[line["layer"], line["head"]]:
            bad.add(line["step"])
            if line["step"] - 10 in bad:
                return line["step"]
    return None


def same(
    canary, model, *, far=1e-4, mean=False, wake=False, shape=True, wrong_way=False
):
    inputs, expected = canary
    if wake:
        model.eval()
    with torch.no_grad():
        output = model(inputs)
    if shape and output.shape != expected.shape:
        return False
    gap = (output - expected).abs()
    gap = gap.mean() if mean else gap.max()
    return not bool(gap > far) if wrong_way else bool(gap <= far)


SOLUTIONS = [
    (check.refuses, lambda s: s in {"head_dim", "bias", "query_norm", "kdim"}),
    (check.to_line, to_line),
    (check.first_alarm, alarms),
    (check.still_the_same, same),
]

WRONG = [
    # exercise 1
    (check.refuses, lambda setting: True, "dropout"),
    (check.refuses, lambda setting: False, "The projections get wider"),
    (
        check.refuses,
        lambda setting: setting in {"head_dim", "bias", "query_norm"},
        "under other names",
    ),
    (
        check.refuses,
        lambda s: s in {"head_dim", "bias", "query_norm", "kdim", "num_heads"},
        "cut into other pieces",
    ),
    # exercise 2
    (check.to_line, json.dumps, "NaN is not JSON"),
    (check.to_line, lambda values: str(values), "is not JSON"),
    (check.to_line, lambda v: json.dumps(plain(v), indent=2), "line break"),
    (check.to_line, nulls, "came back as"),
    # exercise 3
    (check.first_alarm, lambda h, r: alarms(h, r, times=1), "second abnormal step"),
    (check.first_alarm, lambda h, r: alarms(h, r, streak=False), "starts the count"),
    (
        check.first_alarm,
        lambda h, r: alarms(h, r, per_head=False),
        "from layer to layer",
    ),
    (check.first_alarm, any_head, "each head by itself"),
    (check.first_alarm, lambda h, r: alarms(h, r, nan=False), "ask for it"),
    (check.first_alarm, lambda h, r: alarms(h, r, factor=1.0), "more than 1.5 times"),
    # exercise 4
    (check.still_the_same, lambda c, m: same(c, m, far=0.0), "close, not for equal"),
    (check.still_the_same, lambda c, m: same(c, m, mean=True, far=1e-3), "no mean"),
    (check.still_the_same, lambda c, m: same(c, m, wake=True), "Do not call eval"),
    (check.still_the_same, lambda c, m: same(c, m, wrong_way=True), "with NaN"),
    (check.still_the_same, lambda c, m: same(c, m, shape=False), "axis broadcasts"),
]
