"""Examines every planted fault and every sound design, and stores what came out.

``python tests/doctor/record_detection.py`` writes ``book/detection.json``, from which the
book's page of what the doctor finds is made. A test compares the file with fresh results.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from faults import FAULTS, Fault
from further_faults import FURTHER
from further_makers import MAKERS
from in_words import WRONG
from makers import Maker
from misses import MISSES
from other_styles import OTHER_STYLES
from tqdm import tqdm

from attention_lib.doctor._summary import everything, spoken
from attention_lib.doctor.catalogue import PROBES
from attention_lib.doctor.examination import run_examination
from attention_lib.doctor.findings import Examination

STORED = Path(__file__).resolve().parents[2] / "book" / "detection.json"
COMMAND = "make detection"
PLANTED = {fault.id: fault for fault in (*FAULTS, *OTHER_STYLES, *FURTHER, *MISSES)}
SOUND = {maker.name: maker for maker in MAKERS}
#: What torch itself says differs from version to version.
ERROR = re.compile(r": \w+Error\b.*", re.DOTALL)
NUMBER = re.compile(r"none of \d+ textbook")

Row = dict[str, Any]


@functools.cache
def bad(name: str) -> Examination:
    """A planted fault, examined."""
    return _examined(PLANTED[name], PLANTED[name].bad())


@functools.cache
def good(name: str) -> Examination:
    """Its correct twin, examined."""
    return _examined(PLANTED[name], PLANTED[name].good())


@functools.cache
def beside_twin(name: str) -> Examination:
    """A planted fault with its twin declared as the reference, examined."""
    fault = PLANTED[name]
    return _examined(fault, fault.bad(), reference=fault.good())


@functools.cache
def sound(name: str) -> Examination:
    """A sound design, examined."""
    maker = SOUND[name]
    return run_examination(maker.make(), maker.kind, **maker.declared)


def _examined(fault: Fault, subject: Any, **more: Any) -> Examination:
    return run_examination(subject, fault.kind, **fault.examined(), **more)


def faults_in(examination: Examination) -> list[str]:
    """Codes of the faults that are no consequence of others."""
    return [f.code for f in examination.findings if f.severity == "fault"]


def fault_row(fault: Fault) -> Row:
    """What came out for one planted fault."""
    examination = bad(fault.id)
    found = [f for f in examination.findings if f.code == fault.code]
    named = [cause.kind for f in found[:1] for cause in f.causes[:1]]
    row = {
        "name": fault.id.replace("-", " "),
        "wrong": WRONG[fault.id],
        "kind": fault.kind,
        "code": fault.code,
        "cause": fault.cause,
        "found": found[0].severity if found else "",
        "named": named[0] if named else "",
        "twin": faults_in(good(fault.id)),
        "probes": outcomes(examination),
    }
    if fault in MISSES:
        beside = {f.code for f in everything(beside_twin(fault.id).findings)}
        row["reference"] = fault.code in beside
    return row


def sound_row(maker: Maker) -> Row:
    """What came out for one sound design."""
    examination = sound(maker.name)
    return {
        "name": maker.name,
        "kind": maker.kind,
        "declared": [f"{name}={spoken(v)}" for name, v in maker.declared.items()],
        "faults": faults_in(examination),
        "probes": outcomes(examination),
    }


def outcomes(examination: Examination) -> Row:
    """What each probe said, in the order in which they run.

    ``"ok"``; the codes that it found, as faults or as notes; or why it did not look.
    """
    said: dict[str, Any] = dict.fromkeys(examination.passed, "ok")
    for skipped in examination.not_checked:
        word = "cannot be told" if skipped.cannot_be_told else "not checked"
        reason = NUMBER.sub("none of the textbook", ERROR.sub("", skipped.reason))
        said[skipped.probe] = {word: reason}
    found: dict[str, dict[str, list[str]]] = {}
    allowed = tuple(finding for finding, _ in examination.allowed)
    for f in everything((*examination.findings, *allowed)):
        for probe in (f.probe, *f.also):
            codes = found.setdefault(probe, {}).setdefault(f.severity, [])
            if f.code not in codes:
                codes.append(f.code)
    said |= {
        probe: {word: sorted(codes) for word, codes in sorted(by_word.items())}
        for probe, by_word in found.items()
    }
    order = ["prepare", *(probe.name for probe in PROBES)]
    return {name: said[name] for name in sorted(said, key=order.index)}


def fresh() -> dict[str, list[Row]]:
    """Every row, with a bar while it is computed."""
    caught = [fault for fault in PLANTED.values() if fault not in MISSES]
    parts = {"faults": caught, "misses": MISSES, "sound": list(SOUND.values())}
    with tqdm(total=sum(map(len, parts.values())), unit=" designs") as bar:
        rows: dict[str, list[Row]] = {}
        for part, entries in parts.items():
            rows[part] = []
            for entry in entries:
                row = fault_row(entry) if isinstance(entry, Fault) else sound_row(entry)
                rows[part].append(row)
                bar.update()
    return rows


def text_of(rows: dict[str, list[Row]]) -> str:
    """The rows as JSON, one a line, so that a change shows as a line."""
    parts = [
        f'"{part}": [\n'
        + ",\n".join(json.dumps(row, ensure_ascii=False) for row in entries)
        + "\n]"
        for part, entries in rows.items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def stored() -> dict[str, list[Row]]:
    """The rows as the book has them."""
    return json.loads(STORED.read_text("utf-8"))


if __name__ == "__main__":
    STORED.write_text(text_of(fresh()), encoding="utf-8")
    print(f"Written: {STORED}")
