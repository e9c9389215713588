"""The directive ``ledger``: what the book says of each claim, in its cells' own words.

Its argument chooses a part: ``counts``, ``measured`` (a table) or ``unmeasured``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from claims import (
    VERDICTS,
    Claim,
    Printed,
    faults,
    measured,
    read_chapters,
    read_claims,
)
from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

LOG = logging.getLogger(__name__)
PARTS = ("counts", "measured", "unmeasured")
COLUMNS = {"No.": 8, "Claim": 34, "Verdict": 16, "What was measured": 42}  # widths


class Ledger(SphinxDirective):
    """Write one part of the ledger from ``claims.yml`` and the stored outputs."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the part's nodes, and report what the cells do not bear out."""
        part = self.arguments[0]
        if part not in PARTS:
            raise self.error(f"ledger: {part!r} is not one of {', '.join(PARTS)}")
        folder = Path(self.env.doc2path(self.env.docname)).parent
        claims, chapters = read_claims(folder / "claims.yml"), read_chapters(folder)
        for path in (folder / "claims.yml", *folder.glob("*.ipynb")):
            self.env.note_dependency(str(path))
        if part == "counts":
            for text in faults(claims, chapters):
                LOG.warning("ledger: %s", text, location=self.get_location())
            return self._counts(claims)
        rows = [(claim, measured(claim, chapters)) for claim in claims if claim.verdict]
        if part == "measured":
            return [self._table(rows)] if rows else [self._paragraph("None yet.")]
        return self._list([claim for claim in claims if not claim.verdict])

    def _counts(self, claims: list[Claim]) -> list[nodes.Node]:
        verdicts = Counter(claim.verdict for claim in claims if claim.verdict)
        total = f"Measured so far: {verdicts.total()} of {len(claims)} claims."
        each = (f"{sign} {word}: {verdicts[word]}" for word, sign in VERDICTS.items())
        paragraph = self._paragraph(f"{total} {', '.join(each)}.")
        paragraph["classes"].append("ledger-counts")
        return [paragraph]

    def _table(self, rows: list[tuple[Claim, Printed | None]]) -> nodes.table:
        columns = [nodes.colspec(colwidth=width) for width in COLUMNS.values()]
        columns[0]["stub"] = 1  # the number heads its row
        head, body = nodes.thead(), nodes.tbody()
        head += self._row([nodes.Text(name)] for name in COLUMNS)
        for claim, line in rows:
            body += self._row(self._cells(claim, line))
        group = nodes.tgroup("", *columns, head, body, cols=len(COLUMNS))
        return nodes.table("", group, classes=["ledger"])

    def _cells(self, claim: Claim, line: Printed | None) -> list[list[nodes.Node]]:
        link = addnodes.pending_xref(
            "",
            nodes.inline("", claim.id, classes=["xref", "std", "std-ref"]),
            refdomain="std",
            reftype="ref",
            reftarget=claim.label,
            refdoc=self.env.docname,
            refexplicit=True,
            refwarn=True,
        )
        kind = claim.verdict.replace(" ", "-")
        text = f"{VERDICTS.get(claim.verdict, '?')} {claim.verdict}"
        verdict = nodes.inline("", text, classes=["verdict", kind])
        sentence = nodes.Text(line.sentence if line else "")
        return [[link], self.parse_inline(claim.claim)[0], [verdict], [sentence]]

    def _list(self, claims: list[Claim]) -> list[nodes.Node]:
        if not claims:
            return [self._paragraph("None: every claim has its verdict.")]
        items = nodes.bullet_list(classes=["ledger-open"])
        for claim in claims:
            text, _ = self.parse_inline(f"{claim.id}. {claim.claim}")
            items += nodes.list_item("", self._paragraph("", *text))
        return [items]

    def _row(self, cells) -> nodes.row:
        row = nodes.row()
        row += [nodes.entry("", self._paragraph("", *cell)) for cell in cells]
        return row

    def _paragraph(self, text: str, *children: nodes.Node) -> nodes.paragraph:
        """A paragraph that knows its place, so that it can be translated."""
        children = children or (nodes.Text(text),)
        paragraph = nodes.paragraph(text, "", *children)
        self.set_source_info(paragraph)
        return paragraph


def setup(app):
    """Register the extension with Sphinx."""
    app.add_directive("ledger", Ledger)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
