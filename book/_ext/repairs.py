"""Repairs of the finished pages: weight, accessibility, sizes of pictures.

Each entry undoes one fault of the theme or of an extension. The page tests fail when a
new version of the theme makes one of them miss.
"""

import re
from pathlib import Path

import imagesize

REPAIRS = [
    (re.compile(pattern, re.DOTALL), new)
    for pattern, new in [
        # The style sheet draws the icons; the script would load 1.5 MB to do it again.
        (r'\s*<script defer src="[^"]*fontawesome\.js[^"]*"></script>', ""),
        # Without JavaScript the theme knows only light and dark.
        (r'(<html [^>]*?) data-theme="auto"', r"\1"),
        # A label that differs from the text in view keeps voice control from finding it.
        (r'(<button class="btn search-button-field[^>]*?) aria-label="[^"]*"', r"\1"),
        (r'<summary aria-label="Toggle hidden content">', "<summary>"),
        # Everything in view belongs to a named region.
        (
            r'<div id="pst-primary-sidebar"(?! role)',
            r'<div id="pst-primary-sidebar" role="region" aria-label="Book"',
        ),
        # A heading of a table says whether it heads a column or a row.
        (r'<th class="head', '<th scope="col" class="head'),
        (r'<th class="stub', '<th scope="row" class="stub'),
        # A bibliography is plain text; the roles are deprecated or wrongly nested.
        (r' role="doc-biblioentry"| role="list"(?= class="citation-list")', ""),
        # What a hidden solution opens is a solution.
        (
            r'(<div class="cell[^"]* tag_solution.*?)>Show the code<(.*?)>Hide the code<',
            r"\1>Show the solution<\2>Hide the solution<",
        ),
        # An exercise's own number stands in its title.
        (
            r'(<p class="admonition-title">Exercise) \((\d+\.\d+) ([^<]*)\)</p>',
            r"\1 \2 · \3</p>",
        ),
        # A comment that starts with a bracket is the shape of what the line makes.
        (r'<span class="c1"># (?=\()', '<span class="c1 shape"># '),
    ]
]

# The whole index and its tools, which only the page of results needs.
SEARCH = re.compile(
    r'\s*<script src="[^"]*(?:searchtools|language_data|searchindex)\.js"></script>'
)


def with_size(page: Path, match: re.Match) -> str:
    """Give a picture its size, so that text does not jump, and load it when near."""
    tag, source = match[0], match[1]
    if "loading=" in tag or re.match(r"data:|https?:", source):
        return tag
    new = '<img loading="lazy" decoding="async"'
    if not re.search(r"\b(?:width|height)=", tag):
        width, height = imagesize.get(page.parent / source.partition("?")[0])
        if width > 0:
            new += f' width="{width:.0f}" height="{height:.0f}"'
    return tag.replace("<img", new, 1)


def repair(app, exception):
    """Rewrite each built page once; a second run changes nothing."""
    if exception or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = old = page.read_text("utf-8")
        for pattern, new in REPAIRS:
            text = pattern.sub(new, text)
        if page.name != "search.html":
            text = SEARCH.sub("", text)
        head, article, rest = text.partition("<article")
        rest = re.sub(
            r'<img\b[^>]*?\bsrc="([^"]+)"[^>]*>',
            lambda match, page=page: with_size(page, match),
            rest,
        )
        text = head + article + rest
        if text != old:
            page.write_text(text, "utf-8")


def setup(app):
    """Register the extension with Sphinx."""
    app.connect("build-finished", repair)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
