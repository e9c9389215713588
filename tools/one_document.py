"""Join the built pages of the book into one document for paper.

One document instead of one per page: links between chapters stay links, and pages are
numbered through.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename
from urllib.parse import urldefrag, urljoin, urlsplit

import yaml
from bs4 import BeautifulSoup
from bs4.element import Tag
from notebook_files import Refusal

CSS = Path(__file__).with_name("print.css")
LOADED = {"img": "src", "link": "href", "script": "src"}


@dataclass(frozen=True)
class Page:
    """A built page, its name without ending, and the part of the book it opens."""

    name: str
    path: Path
    part: str
    soup: BeautifulSoup

    @property
    def title(self) -> str:
        """The heading of the page."""
        words = self.soup.find("article").h1.find_all(string=True)
        text = "".join(word for word in words if word.parent.name != "a")
        return " ".join(text.split())


def read_pages(toc: Path, site: Path) -> list[Page]:
    """The built pages in the order of the table of contents."""
    tree = yaml.safe_load(toc.read_text(encoding="utf-8"))
    places = [("", tree["root"])]
    for part in tree.get("parts", [tree]):
        places += [(part.get("caption", ""), each["file"]) for each in part["chapters"]]
    pages, last = [], ""
    for part, place in places:
        path = site / f"{place}.html"
        if not path.is_file():
            raise Refusal(f"{path}: is not built; run `make book` first")
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        pages.append(Page(path.stem, path, part if part != last else "", soup))
        last = part
    return pages


def join(pages: list[Page], title: str, numbers: Mapping[str, int]) -> str:
    """The whole book as HTML; ``numbers`` are the pages on which its chapters start."""
    names = {page.name for page in pages}
    articles = [_article(page, names) for page in pages]
    first = pages[0]
    head = first.soup.head
    for script in head.find_all("script"):
        if "MathJax" not in str(script) and "mathjax" not in str(script):
            script.decompose()
    _absolute(head, first.path)
    head.title.string = title
    style = head.find_all("link")[-1]
    style.insert_after(
        BeautifulSoup(f"<style>{CSS.read_text('utf-8')}</style>", "html.parser")
    )
    return (
        f'<!doctype html><html lang="en" data-theme="light">{head}<body>'
        f"{_cover(title)}{_contents(pages, numbers)}"
        '<div class="bd-main"><div class="bd-content"><div class="bd-article-container">'
        f"{''.join(articles)}</div></div></div></body></html>"
    )


def _cover(title: str) -> str:
    return (
        f'<section class="cover"><p class="title">{html.escape(title)}</p>'
        "<p>Every claim is a measurement.</p>"
        "<p>Text and figures: CC BY 4.0. Code: BSD 3-Clause.</p></section>"
    )


def _contents(pages: list[Page], numbers: Mapping[str, int]) -> str:
    rows = []
    for page in pages:
        if page.part:
            rows.append(f'<div class="part">{html.escape(page.part)}</div>')
        title = html.escape(page.title)
        number = numbers.get(page.name, "")
        rows.append(
            f'<a href="#{page.name}"><span>{title}</span><span>{number}</span></a>'
        )
    return f'<section class="contents"><p class="title">Contents</p>{"".join(rows)}</section>'


def _article(page: Page, names: set[str]) -> str:
    """A page's text with everything open, its names and links made the book's."""
    article = page.soup.find("article")
    for tag in article.select("script, a.headerlink, button"):
        tag.decompose()
    for box in article.find_all("details"):
        box["open"] = ""
    for image in article.find_all("img"):
        image.attrs.pop("loading", None)
    for inner in article.select("#exercise-content"):
        del inner["id"]  # the same in every exercise
    _absolute(article, page.path)
    for tag in article.find_all(id=True):
        tag["id"] = f"{page.name}--{tag['id']}"
    for link in article.find_all("a", href=True):
        link["href"] = _within(link["href"], page, names)
    article["id"] = page.name
    return str(article)


def _within(href: str, page: Page, names: set[str]) -> str:
    """A link to another page, as one to a place in the document."""
    address, fragment = urldefrag(href)
    if urlsplit(address).scheme:
        return href
    name = basename(address).removesuffix(".html") if address else page.name
    if name not in names:
        return href
    return f"#{name}--{fragment}" if fragment else f"#{name}"


def _absolute(tag: Tag, page: Path) -> None:
    """Let what a part of a page loads be found from anywhere."""
    for name, attribute in LOADED.items():
        for each in tag.find_all(name):
            if each.get(attribute):
                each[attribute] = urljoin(page.as_uri(), each[attribute])
