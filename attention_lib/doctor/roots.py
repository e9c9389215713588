"""One root cause for what belongs together; what follows from it is folded under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attention_lib.doctor.findings import Finding

__all__ = ["fold"]

MASKED = ("AT110", "AT111", "AT112", "AT113")
LOOSE = (*MASKED, "AT101", "AT102", "AT201", "AT202", "AT204", "AT601")

#: The deepest first: what a fault of this code explains when both are found.
EXPLAINS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("AT100", ("*",)),
    ("AT520", ("AT900", "AT521")),
    ("AT521", ("AT900",)),
    (
        "AT401",
        (*LOOSE, "AT311", "AT313", "AT315", "AT504", "AT521", "AT402", "AT301")
        + ("AT404", "AT210"),
    ),
    (
        "AT402",
        (*LOOSE, "AT301", "AT510", "AT404", "AT504", "AT315", "AT210", "AT130")
        + ("AT603",),
    ),
    ("AT301", (*LOOSE, "AT311", "AT521", "AT210", "AT501", "AT313", "AT314")),
    (
        "AT311",
        (*LOOSE, "AT120", "AT301", "AT130", "AT313", "AT210", "AT501", "AT314")
        + ("AT900",),
    ),
    (
        "AT201",
        (*LOOSE, "AT301", "AT501", "AT505", "AT210", "AT314", "AT130", "AT702")
        + ("AT502", "AT503", "AT504"),
    ),
    ("AT113", (*LOOSE, "AT314", "AT501", "AT505", "AT900", "AT210", "AT502", "AT504")),
    ("AT111", (*LOOSE, "AT501", "AT505", "AT210", "AT314", "AT502", "AT504")),
    ("AT130", (*LOOSE, "AT900")),
    ("AT112", (*LOOSE, "AT501", "AT505", "AT210", "AT314", "AT502", "AT504")),
    ("AT110", (*LOOSE, "AT315", "AT501", "AT505", "AT210", "AT314")),
    ("AT101", ("AT202", "AT601", "AT102", *MASKED, "AT314", "AT204", "AT501")),
    ("AT102", ("AT202", "AT601", "AT204", "AT314", "AT201", "AT210", "AT501")),
    ("AT310", ("AT313", "AT404", "AT203")),
    ("AT320", ("AT404", "AT510", "AT502", "AT900")),
    ("AT313", ("AT203",)),
    ("AT203", ("AT502",)),
    ("AT501", ("AT505", "AT504")),
    ("AT703", ("AT701",)),
    ("AT220", ("AT602",)),
    ("AT211", ("AT221", "AT222")),
    ("AT603", ("AT601",)),
    ("AT602", ("AT601",)),
)


#: Found by itself, each of these explains whatever comes after.
FIRST = ("AT100", "AT520", "AT521", "AT401", "AT402")
#: Of these, the one whose cause is surest is the root of the others.
BROAD = ("AT301", "AT311", "AT201", "AT130", "AT102", *MASKED)
WEAK = ("AT110", "AT130")
SURE = {"reproduced": 0, "shown": 1, "consistent": 2}


def _surest(f: Finding) -> int:
    return min((SURE[c.sure] for c in f.causes), default=3)


def _broad(f: Finding) -> bool:
    """Whether it may be the root of most others: also what mixes tokens at large."""
    return f.code in BROAD or any(c.kind == "axis order" for c in f.causes[:1])


def _weight(f: Finding) -> int:
    """Among the broad ones, how far from sure; the weak ones as if guessed."""
    if not _broad(f):
        return 0
    return 2 if f.code in WEAK else _surest(f)


def fold(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Root causes, each with its consequences in ``follows``.

    Parameters
    ----------
    findings
        In the order in which probes found them.

    Returns
    -------
    tuple of Finding
        Faults before notes, the deepest first. A fault never folds under a note.
    """
    left = _merge_same(findings)
    roots: list[Finding] = []
    depth = {code: n for n, (code, _) in enumerate(EXPLAINS)}
    known = dict(EXPLAINS)
    while True:
        possible = [f for f in left if f.code in known]
        if not possible:
            break
        root = min(
            possible,
            key=lambda f: (
                f.severity == "note",
                0 if f.code in FIRST else 1 if _broad(f) else 2,
                _weight(f),
                depth[f.code],
            ),
        )
        left.remove(root)
        explains = known[root.code]
        if _broad(root) and root.code not in WEAK:
            explains = (*explains, *BROAD)
        under = [
            f
            for f in left
            if (f.code in explains or "*" in explains)
            and (root.severity == "fault" or f.severity == "note")
        ]
        left = [f for f in left if f not in under]
        roots.append(replace(root, follows=tuple(under)))
    everything = [*roots, *left]
    order = {f: n for n, f in enumerate(map(id, everything))}
    return tuple(sorted(everything, key=lambda f: (f.severity == "note", order[id(f)])))


def _merge_same(findings: Sequence[Finding]) -> list[Finding]:
    """One finding per code: the one whose cause is surest, the others under it."""
    by_code: dict[tuple[str, str], list[Finding]] = {}
    for f in findings:
        by_code.setdefault((f.code, f.severity), []).append(f)
    merged: list[Finding] = []
    for same in by_code.values():
        surest = min(same, key=_surest)
        # What a probe saw is better evidence than that a refit agrees.
        best = next((f for f in same if f.probe != "reproduced"), surest)
        best = replace(best, remedy=surest.remedy, effect=surest.effect or best.effect)
        rest = [f for f in same if f.probe != best.probe or f.causes != best.causes]
        evidence = best.evidence
        for f in rest:
            if evidence.map is None and f.evidence.map is not None:
                evidence = replace(
                    evidence, map=f.evidence.map, forbidden=f.evidence.forbidden
                )
            if not evidence.smallest and f.evidence.smallest:
                evidence = replace(evidence, smallest=f.evidence.smallest)
        # Weaker explanations beside a stronger one, and guesses of other probes, are noise.
        causes = [c for c in surest.causes if SURE[c.sure] == _surest(surest)]
        also = tuple(dict.fromkeys(f.probe for f in same if f.probe != best.probe))
        merged.append(replace(best, causes=tuple(causes), evidence=evidence, also=also))
    return merged
