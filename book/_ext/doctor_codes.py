"""The directive ``doctor-codes``: what each code of the doctor means.

Its argument chooses a part: ``list`` (a table of codes and titles) or ``explanations``.
The words are those of ``attention_lib/doctor/explanations``, read when the page is built.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from attention_lib.doctor.codes import Explanation, Family, families

PARTS = ("list", "explanations")
CODE = re.compile(r"`[^`\n]*`|\b(AT[1-9]\d\d)\b")


class DoctorCodes(SphinxDirective):
    """Write one part of the page of codes."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the part's nodes."""
        part = self.arguments[0]
        if part not in PARTS:
            raise self.error(f"doctor-codes: {part!r} is not one of {', '.join(PARTS)}")
        folder = resources.files("attention_lib.doctor").joinpath("explanations")
        for path in folder.iterdir():
            self.env.note_dependency(str(Path(str(path))))
        text = listed(families()) if part == "list" else explained(families())
        node = nodes.Element()
        node.document = self.state.document
        lines = StringList(text.splitlines(), source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset, node, match_titles=True)
        return node.children


def listed(known: tuple[Family, ...]) -> str:
    """A table of all codes, each leading to its explanation."""
    rows = [
        f"| {{ref}}`{e.code} <{label(e.code)}>` | {e.title} |"
        for family in known
        for e in family.explanations
    ]
    return "\n".join(["| Code | What was found |", "|:--|:--|", *rows])


def explained(known: tuple[Family, ...]) -> str:
    """All explanations, a part of the page for each family."""
    parts = []
    for family in known:
        parts += [f"## {family.name}", linked(family.introduction)]
        parts += map(explanation, family.explanations)
    return "\n\n".join(parts)


def explanation(entry: Explanation) -> str:
    """One code as Markdown, with its own anchor; its sections start in bold."""
    parts = [f"({label(entry.code)})=\n### {entry.code}: {entry.title}"]
    for name, text in entry.sections:
        own = linked(text, but=entry.code)
        inline = not text.startswith(("- ", "```"))
        parts.append(f"**{name}.** {own}" if inline else f"**{name}.**\n\n{own}")
    return "\n\n".join(parts)


def label(code: str) -> str:
    """The anchor of a code, as reports give it."""
    return code.lower()


def linked(text: str, but: str = "") -> str:
    """The text, with each other code leading to its explanation; code stays as it is."""
    blocks = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)

    def link(match: re.Match) -> str:
        code = match[1]
        if code is None or code == but:
            return match[0]
        return f"{{ref}}`{code} <{label(code)}>`"

    return "".join(
        block if block.startswith("```") else CODE.sub(link, block) for block in blocks
    )


def setup(app):
    """Register the extension with Sphinx."""
    app.add_directive("doctor-codes", DoctorCodes)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
