"""Examinations made by hand, for tests of what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attention_lib.doctor.findings import (
    Cause,
    Evidence,
    Examination,
    Finding,
    Remedy,
    Skipped,
)

DECODING = Finding(
    code="AT601",
    probe="cached_decoding",
    severity="fault",
    message="decoding differs from the full pass",
    evidence=Evidence("y[3] differs by 0.21 from the full pass.", 0.21, 0.0),
)

FUTURE = Finding(
    code="AT101",
    probe="causality",
    severity="fault",
    message="output can see the future: causal mask is off by one",
    evidence=Evidence(
        "y[0] moves by 0.61 when only x[1] changes. It must move by exactly 0.",
        measured=0.61,
        expected=0.0,
        map=(
            (0.50, 0.61, 0.0, 0.0),
            (0.31, 0.47, 0.21, 0.0),
            (0.22, 0.35, 0.24, 0.22),
            (0.21, 0.30, 0.17, 0.36),
        ),
        forbidden=tuple(tuple(j > i for j in range(4)) for i in range(4)),
        smallest="length 2, heads 1, head width 2, batch 1 (any seed)",
    ),
    causes=(
        Cause(
            "the triangle starts one column late",
            "reproduced",
            "Of 960 textbook variants run with your weights only this one gives your "
            "output (1.5e-08; next 2.5e-02)",
            "causality",
        ),
    ),
    remedy=Remedy(
        "fix",
        (
            "- keep = ~torch.ones(L, S).bool().triu(S - L + 2)",
            "+ keep = ~torch.ones(L, S).bool().triu(S - L + 1)",
        ),
    ),
    effect="training loss too good, generation poor",
    intended='pattern="band:1"',
    follows=(DECODING,),
)

EMPTY_ROW = Finding(
    code="AT501",
    probe="empty_rows",
    severity="note",
    message="a query that may see nothing gives NaN",
    evidence=Evidence("y[0] is NaN.", float("nan"), 0.0),
)

HALF = Skipped("AT502", "half precision", "ask with dtype=torch.float16")
ROTARY = Skipped("AT211", "rotary_layout", "only a reference settles it", True)
PASSED = ("control", "reach", "padding", "rows", "scale")
PASSED += ("batch", "repeatability", "strides", "gradients")


def examination(**changes: Any) -> Examination:
    """A sound subject, examined; ``changes`` replaces fields."""
    sound = Examination(
        subject="CausalSelfAttention(embed_dim=32, num_heads=4)",
        kind="attention",
        device="cpu",
        dtype="float32",
        seed=0,
        passed=PASSED,
        seconds=0.4,
        declared={"embed_dim": 32, "num_heads": 4, "causal": "always"},
    )
    return replace(sound, **changes)


def faulty(**changes: Any) -> Examination:
    """The example of a causal mask that is off by one."""
    return examination(**{"findings": (FUTURE,), "not_checked": (HALF,), **changes})
