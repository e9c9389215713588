"""The doctor: examines anyone's attention by what it does, and names the cause.

>>> from attention_lib.doctor import examine
>>> report = examine(nn.MultiheadAttention(8, 2))
>>> report.healthy
True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attention_lib.doctor.adapters import UnknownSubject, adapt
from attention_lib.doctor.examination import (
    PROBES,
    dependency_map,
    examine,
    run_examination,
)
from attention_lib.doctor.findings import (
    Cause,
    Evidence,
    Examination,
    Finding,
    Remedy,
    Skipped,
)
from attention_lib.doctor.subject import Facts

if TYPE_CHECKING:
    from attention_lib.doctor.codes import explain
    from attention_lib.doctor.report import Report

__all__ = [
    "PROBES",
    "Cause",
    "Evidence",
    "Examination",
    "Facts",
    "Finding",
    "Remedy",
    "Report",
    "Skipped",
    "UnknownSubject",
    "adapt",
    "dependency_map",
    "examine",
    "explain",
    "run_examination",
]

_LATER = {"Report": "report", "explain": "codes"}


def __getattr__(name: str) -> Any:
    """The report and the table of codes are read when they are first asked for."""
    if name in _LATER:
        module = importlib.import_module(f"attention_lib.doctor.{_LATER[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
