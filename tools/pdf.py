"""Print the built book as one PDF, with every answer and solution in view.

Build the pages first: `make book`, or `make class` for an edition without solutions.
The printing is Chromium's, with whatever it is called on this machine; the variable
CHROMIUM may name it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from notebook_files import Refusal
from notebooks import ROOT
from one_document import Page, join, read_pages
from tqdm import tqdm

if TYPE_CHECKING:  # needed to print, not to say what is missing
    from pikepdf import Pdf
    from playwright.sync_api import Browser, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 300_000  # milliseconds, for equations of the whole book


def launch(playwright: Playwright) -> Browser:
    """Start Chromium, from the machine or from Playwright."""
    from playwright.sync_api import Error

    found = filter(None, (shutil.which(name) for name in NAMES))
    path = os.environ.get("CHROMIUM") or next(found, None)
    try:
        return playwright.chromium.launch(executable_path=path)
    except Error as error:
        raise Refusal(
            f"Chromium does not start: {str(error).splitlines()[0]}\n"
            "Install it with `playwright install chromium`, or name it: CHROMIUM=/path"
        ) from None


def print_document(browser: Browser, document: Path, target: Path) -> None:
    """Print a file when its pictures and equations are there."""
    page = browser.new_page()
    page.goto(document.as_uri(), wait_until="load", timeout=PATIENCE)
    page.evaluate("() => MathJax.startup.promise.then(() => document.fonts.ready)")
    page.pdf(path=target, prefer_css_page_size=True, outline=True, tagged=True)
    page.close()


def first_pages(document: Pdf, pages: list[Page]) -> dict[str, int]:
    """The page on which each chapter starts, from the outline of a printed book."""
    with document.open_outline() as outline:
        starts = {
            item.title: document.pages.index(item.destination[0]) + 1
            for item in outline.root
        }
    return {p.name: starts[p.title] for p in pages if p.title in starts}


def make(browser: Browser, site: Path, toc: Path, title: str, target: Path) -> None:
    """Print the book twice: its contents name the pages that the first print shows."""
    from pikepdf import ObjectStreamMode, Pdf

    numbers: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        document, printed = Path(folder, "book.html"), Path(folder, "book.pdf")
        for _ in tqdm(range(2), desc="printing", unit="pass", disable=None):
            pages = read_pages(toc, site)
            document.write_text(join(pages, title, numbers), encoding="utf-8")
            print_document(browser, document, printed)
            with Pdf.open(printed) as pdf:
                numbers = first_pages(pdf, pages)
                # Packed, the tags for screen readers take a third of the room.
                pdf.save(target, object_stream_mode=ObjectStreamMode.generate)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(prog="python tools/pdf.py", description=__doc__)
    parser.add_argument(
        "--site",
        type=Path,
        default=root / "_build/html",
        metavar="FOLDER",
        help="the built pages; default: _build/html",
    )
    parser.add_argument(
        "--to",
        type=Path,
        default=root / "_build/attention-measured.pdf",
        metavar="FILE",
        help="default: _build/attention-measured.pdf",
    )
    given = parser.parse_args(arguments)
    config = yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))
    site, toc = given.site.resolve(), root / "_toc.yml"
    try:
        if not (site / "index.html").is_file():
            raise Refusal(f"{site}: no built pages there; run `make book` first")
        given.to.parent.mkdir(parents=True, exist_ok=True)
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            browser = launch(playwright)
            make(browser, site, toc, config["title"], given.to)
            browser.close()
    except ImportError as error:
        print(
            f"{error.name} is missing: pip install -r requirements-class.txt",
            file=sys.stderr,
        )
        return 1
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    size = given.to.stat().st_size / 1e6
    print(f"{given.to}: {size:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
