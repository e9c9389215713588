"""Make slides of chapters: reveal.js, with all that they need in one folder.

They are cut from the built pages, so equations, citations and numbers of figures are
the book's own. Build the pages first: `make class`, or `make book`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from class_edition import PAGES, TARGET
from jinja2 import Environment, FileSystemLoader
from notebook_files import Refusal
from notebooks import ROOT
from slide_cutting import Slide, cut

PAGE = Path(__file__).parent / "slides_page"
FROM_BOOK = ("faces.css", "pygments.css", "fonts", "mathjax")
MATHJAX = re.compile(r"<script>(window\.MathJax = .*?)</script>", re.DOTALL)
TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
REVEAL = {
    "dist/reveal.css": "reveal.css",
    "dist/reveal.js": "reveal.js",
    "plugin/notes/notes.js": "notes.js",
    "LICENSE": "LICENSE.txt",
}


def columns(slides: list[Slide]) -> list[list[Slide]]:
    """The slides, a list for each heading that opens a column."""
    found: list[list[Slide]] = []
    for slide in slides:
        if slide.opens or not found:
            found.append([])
        found[-1].append(slide)
    return found


def write_slides(page: Path, target: Path) -> Path:
    """Write the slides of one built page."""
    text = page.read_text(encoding="utf-8")
    environment = Environment(loader=FileSystemLoader(PAGE), autoescape=False)
    html = environment.get_template("page.html").render(
        title=TITLE.search(text)[1],
        mathjax=MATHJAX.search(text)[1],
        columns=columns(cut(text)),
    )
    pictures = set(re.findall(r'"\.\./(_images/[^"]+)"', html))
    for name in sorted(pictures):
        (target / "_images").mkdir(exist_ok=True)
        shutil.copy(page.parents[1] / name, target / name)
    path = target / page.name
    path.write_text(html.replace('"../_images/', '"_images/'), encoding="utf-8")
    return path


def copy_parts(site: Path, target: Path) -> None:
    """Copy what all slides load: faces, equations, reveal.js with its licence."""
    static = target / "_static"
    for name in FROM_BOOK:
        source = site / "_static" / name
        if source.is_dir():
            shutil.copytree(source, static / name, dirs_exist_ok=True)
        else:
            static.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, static / name)
    for name in ("slides.css", "slides.js"):
        shutil.copy(PAGE / name, static / name)
    try:
        package = distribution("sphinx-revealjs")
    except PackageNotFoundError:
        raise Refusal(
            "reveal.js is not installed: pip install -r requirements-class.txt"
        ) from None
    (static / "reveal").mkdir(exist_ok=True)
    for name, copy in REVEAL.items():
        source = package.locate_file(f"sphinx_revealjs/_static/revealjs/{name}")
        shutil.copy(source, static / "reveal" / copy)


def find_page(chapter: str, site: Path) -> Path:
    """The built page of a chapter, given its number."""
    if not site.is_dir():
        raise Refusal(f"{site}: no built pages there; run `make class` first")
    number = chapter.zfill(2)
    found = sorted((site / "book").glob(f"{number}-*.html"))
    if not found:
        there = sorted(path.stem for path in (site / "book").glob("[0-9]*.html"))
        raise Refusal(
            f"no chapter {chapter}, expected one of: {', '.join(there) or 'none'}"
        )
    return found[0]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python tools/slides.py", description=__doc__)
    parser.add_argument(
        "chapters", nargs="+", metavar="CHAPTER", help="number of a chapter, such as 6"
    )
    parser.add_argument(
        "--site",
        type=Path,
        default=root / TARGET / PAGES,
        metavar="FOLDER",
        help="the built pages; default: the class edition's",
    )
    parser.add_argument(
        "--to",
        type=Path,
        default=root / "_build/slides",
        metavar="FOLDER",
        help="default: _build/slides",
    )
    given = parser.parse_args(arguments)
    try:
        pages = [find_page(chapter, given.site) for chapter in given.chapters]
        copy_parts(given.site, given.to)
        for page in pages:
            print("Slides:", write_slides(page, given.to).resolve().as_uri())
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
