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
LEFT_OUT = ("not checked", "cannot be told")
MATRIX = {"faults": "", "misses": " (not found)", "sound": " (sound)"}


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
                table = self._table(names, [36, 14, 24, 14, 12], cells, "found")
                yield self._section(family.name, table)

    def _fault_cells(self, row: Row) -> list[Cell]:
        return [
            self._named(row["name"], row["wrong"]),
            [*self._linked(row["code"]), nodes.Text(f" {row['found'] or '✗ missed'}")],
            found_by(row),
            judged(row["named"] == row["cause"], row["named"] or "none"),
            judged(not row["twin"], "healthy" if not row["twin"] else "accused"),
        ]

    def _misses(self, data: dict[str, list[Row]]) -> Iterator[nodes.Node]:
        rows = []
        for row in data["misses"]:
            told = reasons(row, "cannot be told")
            said = "; ".join(told) or "no finding"
            shown = self._linked(f"a reference: {row['code']}")
            known = row["reference"]
            name = self._named(row["name"], row["wrong"])
            rows.append([name, said, shown if known else "no probe yet"])
        names = ["Fault", "What the report says", "What shows it"]
        yield self._table(names, [38, 38, 24], rows, "missed")

    def _sound(self, data: dict[str, list[Row]]) -> Iterator[nodes.Node]:
        names = ["Design and declarations", "Outcome", "Not checked"]
        for kind, title in KINDS.items():
            rows = [
                [
                    self._declared(row),
                    self._linked(judged(not row["faults"], tally(row))),
                    "; ".join(why(row)) or "nothing",
                ]
                for row in data["sound"]
                if row["kind"] == kind
            ]
            if rows:
                table = self._table(names, [34, 24, 42], rows, "sound")
                yield self._section(title, table)

    def _probes(self, data: dict[str, list[Row]]) -> Iterator[nodes.Node]:
        names = ["Probe", "What it looks at", "Finds", "Finds alone", "Sound designs"]
        rows = []
        for probe in PROBES:
            reached = [row for row in data["faults"] if accuses(row, probe.name)]
            alone = [row for row in reached if len(accusers(row)) == 1]
            ran = [
                row for row in data["sound"] if row["probes"].get(probe.name) == "ok"
            ]
            noted = [row for row in data["sound"] if noticed(row, probe.name)]
            quiet = f"ok on {len(ran)}"
            quiet += f", note on {len(noted)}" if noted else ""
            counts = [str(len(reached)), str(len(alone)), quiet]
            name = [nodes.strong("", words(probe.name))]
            rows.append([name, probe.about, *counts])
        yield self._table(names, [18, 40, 10, 12, 20], rows, "probes")

    def _matrix(self, data: dict[str, list[Row]]) -> Iterator[nodes.Node]:
        for kind, title in KINDS.items():
            rows = [
                (row, row["name"] + MATRIX[part])
                for part in MATRIX
                for row in data[part]
                if row["kind"] == kind
            ]
            said = [
                p.name for p in PROBES if any(p.name in r["probes"] for r, _ in rows)
            ]
            cells = [
                [name, *(outcome(row["probes"].get(probe)) for probe in said)]
                for row, name in rows
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

    def _named(self, name: str, more: str) -> list[nodes.Node]:
        return [nodes.strong("", name), nodes.Text(f": {more}")]

    def _declared(self, row: Row) -> list[nodes.Node]:
        inside = self._named(row["name"], "" if row["declared"] else "nothing")
        for n, text in enumerate(row["declared"]):
            inside += [nodes.Text(", " if n else ""), nodes.literal("", text)]
        return inside

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
    first = (
        f"**{found} of {len(planted)}** planted faults are found by what they do. Of the "
        f"other {len(planted) - found}, a reference shows {referred}."
    )
    last = (
        f"**{quiet} of {len(sound)}** sound designs pass without a false alarm, and so do "
        f"**{twins} of {len(planted)}** correct twins."
    )
    cause = "have the right class of cause named first."
    return [first, f"**{named} of {found}** found faults {cause}", last]


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
    """The probes that saw the fault itself, and how many saw what follows from it."""
    own = [
        words(probe)
        for probe in accusers(row)
        if row["code"] in row["probes"][probe].get(row["found"], ())
    ]
    others = len(accusers(row)) - len(own)
    return f"{', '.join(own) or 'none'}{f'; {others} more' if others else ''}"


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


def tally(row: Row) -> str:
    """Whether there was an alarm, how many probes found nothing, what is noted."""
    alarm = f"false alarm {', '.join(row['faults'])}" if row["faults"] else "no alarm"
    ok = sum(outcome == "ok" for outcome in row["probes"].values())
    noted = [
        f"note {code} by {words(probe)}"
        for probe in row["probes"]
        if noticed(row, probe)
        for code in row["probes"][probe]["note"]
    ]
    return ", ".join([alarm, f"{ok} probes ok", *noted])


def outcome(said: str | Row | None) -> Cell:
    """What a probe said of a subject, in a word; what it found stands out."""
    if said is None or said == "ok":
        return said or ""
    found = next((word for word in ("fault", "note") if word in said), "")
    return [nodes.strong("", found)] if found else "–"


def setup(app):
    """Register the extension with Sphinx."""
    app.add_directive("detection", Detection)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
