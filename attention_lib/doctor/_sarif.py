"""A report as SARIF 2.1.0, the form in which code hosts take findings."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from attention_lib.doctor import _summary, _text
from attention_lib.doctor._wrap import clean
from attention_lib.doctor.codes import explain, title
from attention_lib.doctor.findings import Examination, Finding

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def report_sarif(
    examination: Examination, *, file: str | None = None, line: int | None = None
) -> str:
    """The examination as the text of a SARIF log with one run."""
    found = list(_summary.everything(examination.findings))
    excused = [
        (finding, reason)
        for root, reason in examination.allowed
        for finding in _summary.everything((root,))
    ]
    codes = sorted({finding.code for finding in (*found, *(f for f, _ in excused))})
    place = _location(examination, file, line)
    results = [_result(finding, codes, place) for finding in found]
    for finding, reason in excused:
        suppression = {"kind": "external", "justification": clean(reason)}
        result = _result(finding, codes, place)
        results.append({**result, "suppressions": [suppression]})
    run = {
        "tool": {"driver": {**_driver(), "rules": [_rule(code) for code in codes]}},
        "invocations": [_invocation(examination)],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=True, allow_nan=False)


def _driver() -> dict[str, str]:
    from attention_lib import __version__

    return {"name": "attention-doctor", "semanticVersion": __version__}


def _rule(code: str) -> dict[str, Any]:
    name = title(code)
    rule: dict[str, Any] = {"id": clean(code)}
    if name:
        text = explain(code)
        rule["shortDescription"] = {"text": name}
        rule["help"] = {"text": text}
    return rule


def _result(
    finding: Finding, codes: list[str], place: dict[str, Any]
) -> dict[str, Any]:
    level = "error" if finding.severity == "fault" else "note"
    key = f"{finding.code}\n{finding.probe}\n{place}".encode("utf-8", "replace")
    return {
        "ruleId": clean(finding.code),
        "ruleIndex": codes.index(finding.code),
        "level": level,
        "message": {"text": _safe(_text.finding_text(finding))},
        "locations": [place],
        "partialFingerprints": {"attentionDoctor/v1": hashlib.sha256(key).hexdigest()},
    }


def _location(
    examination: Examination, file: str | None, line: int | None
) -> dict[str, Any]:
    """Where the subject is: by its name, and by its file where that is known."""
    name = _summary.subject(examination)
    place: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": name}]}
    if file is not None:
        uri = quote(PurePath(file).as_posix())
        physical: dict[str, Any] = {"artifactLocation": {"uri": uri}}
        if line is not None:
            physical["region"] = {"startLine": max(1, int(line))}
        place["physicalLocation"] = physical
    return place


def _invocation(examination: Examination) -> dict[str, Any]:
    """How the run went; what was not checked is said here, not as a result."""
    notices = []
    if examination.error:
        notices.append(_notice("error", examination.error))
    for word, lines in _summary.not_checked(examination).items():
        notices += [_notice("note", f"{word}: {line}") for line in lines]
    return {
        "executionSuccessful": _summary.exit_code(examination) != 2,
        "toolExecutionNotifications": notices,
    }


def _notice(level: str, text: str) -> dict[str, Any]:
    return {"level": level, "message": {"text": _safe(text)}}


def _safe(text: str) -> str:
    """The text without lone surrogates, which JSON readers refuse."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
