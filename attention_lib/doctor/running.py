"""Runs probes one after another, whatever the subject does."""

from __future__ import annotations

from attention_lib.doctor.catalogue import PROBES, Probe
from attention_lib.doctor.causes import finding
from attention_lib.doctor.findings import Finding, Skipped
from attention_lib.doctor.probing import (
    Bench,
    Skip,
    SubjectError,
    TimeUp,
    time_limit,
)
from attention_lib.doctor.subject import Facts

__all__ = ["Running"]


class Running:
    """The probes of one examination, one after another."""

    def __init__(self, kind: str, facts: Facts, deadline: float) -> None:
        self.kind, self.facts, self.deadline = kind, facts, deadline
        self.found: list[Finding] = []
        self.passed: list[str] = []
        self.skipped: list[Skipped] = []
        self.raised: set[str] = set()
        self.late = 0

    def all(self, bench: Bench) -> None:
        for probe in PROBES:
            if self.kind not in probe.kinds:
                continue
            if self.late >= 3:
                reason = "it gave no answer in time, three times"
                self.skipped.append(Skipped(probe.codes[0], probe.name, reason))
                continue
            if "AT330" in probe.codes and bench.facts.reference is None:
                if bench.facts.positions == "relative" and self.kind == "attention":
                    reason = (
                        "against foreign weights only a reference tells which pairs "
                        "are turned, and the order of shared heads"
                    )
                    self.skipped.append(Skipped("AT211", probe.name, reason, True))
                continue
            if any(f.code == "AT100" and f.severity == "fault" for f in self.found):
                code = probe.codes[0]
                reason = "nothing depends on the input"
                self.skipped.append(Skipped(code, probe.name, reason))
                continue
            self.one(bench, probe)
            bench.notes["found"] = self.found

    def one(self, bench: Bench, probe: Probe) -> None:
        before = len(self.found)
        try:
            with time_limit(self.deadline):
                for found in probe.run(bench):
                    self.found.append(found)
        except Skip as reason:
            self.skipped.append(
                Skipped(probe.codes[0], probe.name, str(reason), reason.cannot_be_told)
            )
            return
        except (SubjectError, TimeUp) as raised:
            self.stopped(raised, probe.name)
            return
        except Exception as error:  # noqa: BLE001 - a subject may raise anything
            text = f"the probe failed: {type(error).__name__}: {error}"
            self.skipped.append(Skipped(probe.codes[0], probe.name, text))
            return
        if len(self.found) == before:
            self.passed.append(probe.name)

    def stopped(self, raised: SubjectError | TimeUp, probe: str) -> None:
        """The subject raised, returned nonsense, or did not return."""
        if isinstance(raised, TimeUp):
            self.late += 1
            code, message = "AT901", f"no answer within {self.deadline:g} seconds"
            text, why = f"Interrupted in {probe}.", "an endless loop"
        else:
            code, message = "AT900", f"it does not work: {raised.what}"
            text, why = f"Called with {raised.scenario}.", _reason(raised)
        known = [f.code for f in self.found]
        key = code + (raised.what if isinstance(raised, SubjectError) else "")
        if key in self.raised or any(
            c in known for c in ("AT520", "AT521", "AT113", "AT130")
        ):
            reason = "the call raises, as is reported"
            self.skipped.append(Skipped(code, probe, reason))
            return
        self.raised.add(key)
        self.found.append(
            finding(
                code,
                probe,
                message[:200],
                text,
                why=why,
                kind="construction" if "Attribute" in message else "call",
                effect="an error",
            )
        )


def _reason(raised: SubjectError) -> str:
    if isinstance(raised.error, AttributeError):
        return "something that the call uses was never made"
    if raised.error is None:
        return "the convention is: output (B, L, E), or (output, weights)"
    return "shapes or types inside do not fit; the first line of the error tells"
