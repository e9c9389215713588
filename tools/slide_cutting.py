"""Cut a built chapter into slides.

A heading opens a column of slides. Figures, code, tables, questions and short sentences
go onto slides, as many as fit a screen; long prose goes to the speaker's notes. Code that
the page folds away or that draws a figure is left out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from bs4 import BeautifulSoup
from bs4.element import Tag

ROOM = 560  # pixels below the heading, of 720
LINE = 24  # of code
CODE_LINES = 22  # on one slide
RESULT = 240  # what a cell prints may take, and still stay with its code
LONG = 30  # words: a longer paragraph is for the notes
ANSWER = '<div class="answer fragment">'
SKIPPED = {"tag_install", "tag_solution", "tag_check"}
FOLDED = {"tag_hide-input", "tag_hide-cell"}


@dataclass
class Slide:
    """One screen: its heading, what it shows, and what the speaker may say."""

    title: str
    parts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    height: float = 0
    opens: bool = False  # a column


@dataclass(frozen=True)
class Part:
    """A piece of a slide with the height that it is likely to take."""

    html: str
    height: float
    stays: bool = False  # with what came before, drawn smaller if need be


def cut(page: str) -> list[Slide]:
    """The slides of a built page of the book."""
    article = BeautifulSoup(page, "html.parser").find("article")
    for link in article.select(
        "a.headerlink, p.admonition-title:-soup-contains('At a glance')"
    ):
        link.decompose()
    for link in article.select("a.internal, a[href^='#']"):
        link.unwrap()  # the pages that it leads to are not here
    for inner in article.find_all("section"):
        if inner.parent.name == "div":
            inner.name = "div"  # a section is a slide
    for image in article.find_all("img"):
        image.attrs.pop("loading", None)  # all are needed, to see what fits
    slides = []
    for section in article.find_all("section", recursive=False):
        slides += _section(section, opens=True)
    return slides


def _section(section: Tag, opens: bool) -> list[Slide]:
    heading = section.find(re.compile("^h[1-6]$"), recursive=False)
    slides = [Slide(heading.decode_contents(), opens=opens)]
    prose: list[str] = []
    for child in section.find_all(True, recursive=False):
        if child is heading:
            continue
        if child.name == "section":
            slides += _section(child, opens=child.h2 is not None)
            continue
        if child.name == "p" and len(child.get_text().split()) > LONG:
            slides[-1].notes.append(str(child))
            prose.append(str(child))
            continue
        for part in _parts(child):
            _place(slides, part, fresh=_starts_slide(child))
    if len(slides) == 1 and not slides[0].parts:  # nothing but prose
        slides[0].parts, slides[0].notes = prose, []
    return slides


def _place(slides: list[Slide], part: Part, fresh: bool) -> None:
    """Put a part on the last slide, or on a new one where it does not fit."""
    last = slides[-1]
    full = last.height + part.height > ROOM and not part.stays
    if last.parts and (fresh or full or _is_complete(last)):
        slides.append(Slide(last.title))
    slides[-1].parts.append(part.html)
    slides[-1].height += part.height


def _is_complete(slide: Slide) -> bool:
    """A chapter's first slide, or an answer: what comes next would give it away."""
    return "chapter-head" in slide.parts[0] or slide.parts[-1].startswith(ANSWER)


def _starts_slide(child: Tag) -> bool:
    """A question stands alone: what came before may hold its answer."""
    return bool({"predict", "exercise", "takeaway"} & set(child.get("class", [])))


def _parts(child: Tag) -> Iterator[Part]:
    classes = set(child.get("class", []))
    if "cell" in classes:
        yield from _cell(child, classes)
    elif child.name == "details":
        child.summary.decompose()
        html = f"{ANSWER}{child.decode_contents()}</div>"
        yield Part(html, _text_height(child))
    elif child.name not in ("span", "script", "style"):  # a target, or nothing in view
        yield Part(str(child), _text_height(child))


def _cell(cell: Tag, classes: set[str]) -> Iterator[Part]:
    if classes & SKIPPED:
        return
    code = cell.select_one(".cell_input pre")
    draws = cell.select_one(".cell_output img") is not None
    if not (code is None or draws or classes & FOLDED or _only_imports(code)):
        yield from _code(code)
    for output in cell.select(".cell_output > *"):
        if output.find("img"):
            height = 450.0
        elif output.find("table"):
            height = 36.0 * len(output.find_all(["tr", "br"]))
        else:
            height = 22.0 * len(output.get_text().strip().splitlines()) + 20
        html = f'<div class="output">{output}</div>'
        yield Part(html, height, stays=height <= RESULT)


def _code(pre: Tag) -> Iterator[Part]:
    """The code of a cell, in several pieces where it is long."""
    lines = pre.decode_contents().rstrip("\n").split("\n")
    plain = pre.get_text().rstrip("\n").split("\n")
    while lines:
        end = len(lines)
        if end > CODE_LINES:
            empty = [i for i in range(5, CODE_LINES + 1) if not plain[i].strip()]
            outer = [i for i in empty if plain[i + 1][:1] not in (" ", "")]
            end = max(outer or empty or [CODE_LINES])
        piece = "\n".join(lines[:end]).strip("\n")
        html = f'<div class="highlight"><pre>{piece}</pre></div>'
        yield Part(html, LINE * len(piece.splitlines()) + 30)
        lines, plain = lines[end:], plain[end:]
        while plain and not plain[0].strip():
            lines, plain = lines[1:], plain[1:]


def _only_imports(code: Tag) -> bool:
    """Whether a cell mostly imports, which says nothing to an audience."""
    try:
        body = ast.parse(code.get_text()).body
    except SyntaxError:
        return False
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    return len(imports) > len(body) / 2


def _text_height(tag: Tag) -> float:
    """What text takes at 24 pixels, with its margins."""
    blocks = tag.find_all(["p", "tr"]) or [tag]
    lines = sum(1 + len(block.get_text()) // 95 for block in blocks)
    return 38 * lines + 30
