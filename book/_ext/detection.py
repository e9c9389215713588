"""The directive ``detection``: which planted faults the doctor finds, and by what.

Its argument chooses a part of the page. Everything is read from ``detection.json``, which
``make detection`` writes; nothing is examined when the page is built.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

from attention_lib.doctor.catalogue import PROBES
from attention_lib.doctor.codes import families

Row = dict[str, Any]
Cell = str | list[nodes.Node]

CODE = re.compile(r"(\bAT[1-9]\d\d\b)")
KINDS = {
    "attention": "Attention modules",
    "core": "Attention as a function of q, k and v",
    "encoding": "Position encodings",
    "rotary": "Rotations",
    "bias": "Biases of the scores",
    "decoder": "Decoding with a state",
}
LEFT_OUT = ("cannot be told", "not checked")


class Detection(SphinxDirective):
    """Write one part of the page from the stored results."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the part's nodes."""
        parts = {
            "figures": self._figures,
            "faults": self._faults,
            "misses": self._misses,
            "sound": self._sound,
            "probes": self._probes,
            "matrix": self._matrix,
        }
        part = self.arguments[0]
        if part not in parts:
            raise self.error(f"detection: {part!r} is not one of {', '.join(parts)}")
        path = Path(self.env.doc2path(self.env.docname)).parent / "detection.json"
        self.env.note_dependency(str(path))
        return list(parts[part](json.loads(path.read_text("utf-8"))))

    def _figures(self, data: dict[str, list[Row]]) -> Iterator[nodes.Node]:
        items = nodes.bullet_list()
        for text in figures(data):
            inline, _ = self.parse_inline(text)
            items += nodes.list_item("", self._paragraph(inline))
        yield items

    def _faults(self, data: dict[str, list[Row]]) -> Iterator[nodes.Node]:
        for family in families():
            rows = [row for row in data["faults"] if row["code"][:3] == family.name[:3]]
            if rows:
                names = ["Fault", "Reported", "Found by", "First cause", "Twin"]
                cells = map(self._fault_cells, rows)
                table = self._table(names, [34, 13, 29, 14, 10], cells, "found")
                yield self._section(family.name, table)

    def _fault_cells(self, row: Row) -> list[Cell]:
        return [
            self._named(row),
            [*self._linked(row["code"]), nodes.Text(f" {row['found'] or '✗ missed'}")],
            found_by(row),
            judged(row["named"] == row["cause"], row["named"] or "none"),
            judged(not row["twin"], "healthy" if not row["twin"] else "accused"),
        ]

    def _misses(self, data: dict[str, list[Row]]) -> Iterator[nodes.Node]:
        rows = []
        for row in data["misses"]:
            told = reasons(row, "cannot be told")
            said = "; ".join(told) or "nothing: every probe passes"
            shown = self._linked(f"a reference: {row['code']}")
            known = row["reference"]
            rows.append([self._named(row), said, shown if known else "no probe yet"])
        names = ["Fault", "What the report says", "What shows it"]
        yield self._table(names, [38, 38, 24], rows, "missed")

    def _sound(self, data: dict[str, list[Row]]) -> Iterator[nodes.Node]:
        names = ["Design", "Declared", "Outcome", "Notes", "Not checked"]
        for kind, title in KINDS.items():
            rows = [
                [
                    row["name"],
                    ", ".join(row["declared"]) or "nothing",
                    judged(not row["faults"], tally(row)),
                    self._linked(notes_of(row)),
                    "; ".join(why(row)) or "nothing",
                ]
                for row in data["sound"]
                if row["kind"] == kind
            ]
            if rows:
                table = self._table(names, [16, 22, 14, 14, 34], rows, "sound")
                yield self._section(title, table)

    def _probes(self, data: dict[str, list[Row]]) -> Iterator[nodes.Node]:
        names = ["Probe", "What it looks at", "Finds", "Finds alone", "Sound designs"]
        rows = []
        for probe in PROBES:
            reached = [row for row in data["faults"] if accuses(row, probe.name)]
            alone = [row for row in reached if len(accusers(row)) == 1]
            ran = [row for row in data["sound"] if "ok" == row["probes"].get(probe.name)]
            noted = [row for row in data["sound"] if noticed(row, probe.name)]
            quiet = f"ok on {len(ran)}"
            quiet += f", note on {len(noted)}" if noted else ""
            counts = [str(len(reached)), str(len(alone)), quiet]
            rows.append([words(probe.name), probe.about, *counts])
        yield self._table(names, [18, 40, 10, 12, 20], rows, "probes")

    def _matrix(self, data: dict[str, list[Row]]) -> Iterator[nodes.Node]:
        for kind, title in KINDS.items():
            rows = [row for part in data.values() for row in part if row["kind"] == kind]
            said = [p.name for p in PROBES if any(p.name in r["probes"] for r in rows)]
            cells = [
                [row["name"], *(short(row["probes"].get(name)) for name in said)]
                for row in rows
            ]
            names = ["Design", *map(words, said)]
            widths = [20, *(8 for _ in said)]
            table = self._table(names, widths, cells, "matrix")
            yield self._section(f"{title}, every probe", table)

    # Parts of a page.

    def _section(self, title: str, *inside: nodes.Node) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(title)], names=[])
        section += [nodes.title(title, title), *inside]
        self.state.document.note_explicit_target(section, section)
        return section

    def _table(
        self, names: list[str], widths: list[int], rows: Iterable[list[Cell]], kind: str
    ) -> nodes.table:
        columns = [nodes.colspec(colwidth=width) for width in widths]
        columns[0]["stub"] = 1  # the name heads its row
        head, body = nodes.thead(), nodes.tbody()
        head += self._row(names)
        body += [self._row(cells) for cells in rows]
        group = nodes.tgroup("", *columns, head, body, cols=len(widths))
        return nodes.table("", group, classes=["detection", kind])

    def _row(self, cells: Iterable[Cell]) -> nodes.row:
        row = nodes.row()
        for cell in cells:
            inside = [nodes.Text(cell)] if isinstance(cell, str) else cell
            row += nodes.entry("", self._paragraph(inside))
        return row

    def _named(self, row: Row) -> list[nodes.Node]:
        return [nodes.strong("", row["name"]), nodes.Text(f": {row['wrong']}")]

    def _linked(self, text: str) -> list[nodes.Node]:
        """The text, with each code leading to its explanation."""
        return [
            self._link(part) if CODE.fullmatch(part) else nodes.Text(part)
            for part in CODE.split(text)
            if part
        ]

    def _link(self, code: str) -> nodes.Node:
        return addnodes.pending_xref(
            "",
            nodes.inline("", code, classes=["xref", "std", "std-ref"]),
            refdomain="std",
            reftype="ref",
            reftarget=code.lower(),
            refdoc=self.env.docname,
            refexplicit=True,
            refwarn=True,
        )

    def _paragraph(self, inside: list[nodes.Node]) -> nodes.paragraph:
        paragraph = nodes.paragraph("", "", *inside)
        self.set_source_info(paragraph)
        return paragraph


def figures(data: dict[str, list[Row]]) -> list[str]:
    """The counts at the head of the page, in sentences."""
    faults, misses, sound = data["faults"], data["misses"], data["sound"]
    planted = [*faults, *misses]
    found = sum(bool(row["found"]) for row in planted)
    named = sum(row["named"] == row["cause"] for row in planted if row["found"])
    referred = sum(row["reference"] for row in misses)
    quiet = sum(not row["faults"] for row in sound)
    twins = sum(not row["twin"] for row in planted)
    return [
        f"**{found} of {len(planted)}** planted faults are found by what they do. Of the "
        f"other {len(planted) - found}, a reference shows {referred}.",
        f"**{named} of {found}** found faults have the right class of cause named first.",
        f"**{quiet} of {len(sound)}** sound designs pass without a false alarm, and so do "
        f"**{twins} of {len(planted)}** correct twins.",
    ]


def words(probe: str) -> str:
    """The name of a probe, as a report writes it."""
    return probe.replace("_", " ")


def judged(right: bool, text: str) -> str:
    """A word with a sign, so that colour says nothing alone."""
    return f"{'✓' if right else '✗'} {text}"


def accuses(row: Row, probe: str) -> bool:
    """Whether a probe reports something on this subject, as a fault or as a note."""
    said = row["probes"].get(probe)
    return isinstance(said, dict) and any(word in said for word in ("fault", "note"))


def accusers(row: Row) -> list[str]:
    """The probes that report something, in order."""
    return [probe for probe in row["probes"] if accuses(row, probe)]


def noticed(row: Row, probe: str) -> bool:
    """Whether a probe notes a choice on this subject."""
    said = row["probes"].get(probe)
    return isinstance(said, dict) and "note" in said


def found_by(row: Row) -> str:
    """The probes that saw the code itself, and then those that saw what follows."""
    own, others = [], []
    for probe in accusers(row):
        said = row["probes"][probe]
        codes = [code for word in ("fault", "note") for code in said.get(word, ())]
        name = words(probe) if "fault" in said else f"{words(probe)} (note)"
        (own if row["code"] in codes else others).append(name)
    text = ", ".join(own) or "none"
    return f"{text}; beside it: {', '.join(others)}" if others else text


def reasons(row: Row, word: str) -> dict[str, list[str]]:
    """Why probes did not look, each reason with the probes that it holds for."""
    found = defaultdict(list)
    for probe, said in row["probes"].items():
        if isinstance(said, dict) and word in said:
            found[said[word]].append(words(probe))
    return found


def why(row: Row) -> list[str]:
    """What was left out, a phrase for each reason."""
    return [
        f"{', '.join(probes)}: {reason}{' (cannot be told)' if 'told' in word else ''}"
        for word in LEFT_OUT
        for reason, probes in reasons(row, word).items()
    ]


def notes_of(row: Row) -> str:
    """The codes that are noted, each with its probe."""
    noted = [
        f"{code} ({words(probe)})"
        for probe, said in row["probes"].items()
        if isinstance(said, dict)
        for code in said.get("note", ())
    ]
    return ", ".join(noted) or "none"


def tally(row: Row) -> str:
    """How many probes said what."""
    said = row["probes"]
    ok = sum(outcome == "ok" for outcome in said.values())
    count = [f"{ok} ok", f"{len(said) - ok - len(accusers(row))} not checked"]
    alarm = f"false alarm {', '.join(row['faults'])}" if row["faults"] else "no alarm"
    return ", ".join([alarm, *count])


def short(outcome: str | Row | None) -> str:
    """What a probe said of a subject, in a word."""
    if outcome is None:
        return ""
    if outcome == "ok":
        return "ok"
    return next((word for word in ("fault", "note") if word in outcome), "–")


def setup(app):
    """Register the extension with Sphinx."""
    app.add_directive("detection", Detection)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
