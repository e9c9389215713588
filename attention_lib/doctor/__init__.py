"""The doctor: examines anyone's attention by what it does, and names the cause.

>>> from torch import nn
>>> from attention_lib.doctor import examine
>>> report = examine(nn.MultiheadAttention(8, 2))
>>> report.healthy
True
"""

from attention_lib.doctor.adapters import UnknownSubject
from attention_lib.doctor.codes import explain
from attention_lib.doctor.examination import PROBES, dependency_map, examine
from attention_lib.doctor.findings import (
    Cause,
    Evidence,
    Examination,
    Finding,
    Remedy,
    Skipped,
)
from attention_lib.doctor.report import FaultyAttention, Report

__all__ = [
    "PROBES",
    "Cause",
    "Evidence",
    "Examination",
    "FaultyAttention",
    "Finding",
    "Remedy",
    "Report",
    "Skipped",
    "UnknownSubject",
    "dependency_map",
    "examine",
    "explain",
]
