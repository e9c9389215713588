"""Builds the book and looks at what it made."""

import contextlib
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]

# Attributes that make a browser load something, and the relations of <link> that do.
LOADING = ("src", "srcset", "poster", "data", "xlink:href")
RELATIONS = {
    "dns-prefetch",
    "icon",
    "manifest",
    "modulepreload",
    "preconnect",
    "prefetch",
    "preload",
    "stylesheet",
}
OUTSIDE = re.compile(r"\s*((?:https?:)?//[^\s\"'<>)]+)", re.IGNORECASE)
IN_STYLE = re.compile(
    r"(?:url\(|@import)\s*[\"']?\s*((?:https?:)?//[^\s\"')]+)", re.IGNORECASE
)
IN_SCRIPT = re.compile(
    r"(?:\b(?:import|fetch|importScripts|Worker|open)\s*\(?\s*|\bfrom\s*|\.src\s*=\s*)"
    r"[\"'`]((?:https?:)?//[^\s\"'`]+)"
)


def clean_environment(**extra: str) -> dict[str, str]:
    """Return the environment without what would change the book's addresses."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ATTENTION_", "GIT_")) and name != "GITHUB_REF_NAME"
    }
    return kept | {"OMP_NUM_THREADS": "1"} | extra


def build(target: Path, **environment: str) -> tuple[Path, list[str]]:
    """Build the book strictly under ``target``.

    Return the folder of its pages and what the build complains about.
    """
    program = shutil.which("jupyter-book", path=Path(sys.executable).parent)
    if program is None:
        raise FileNotFoundError("jupyter-book is not installed beside this Python")
    command = [program, "build", str(ROOT), "--path-output", str(target)]
    done = subprocess.run(
        [*command, "-W", "-n", "--keep-going"],
        check=False,
        cwd=target,
        env=clean_environment(**environment),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines = done.stdout.splitlines()
    problems = [line for line in lines if re.search("WARNING|ERROR", line)]
    if done.returncode and not problems:
        problems = lines[-30:]
    return target / "_build" / "html", problems


def page_paths(site: Path) -> list[str]:
    """Return the pages of a built book, relative to it."""
    paths = (path.relative_to(site) for path in site.rglob("*.html"))
    return sorted(path.as_posix() for path in paths if path.parts[0] != "_static")


def outside_loads(path: Path) -> list[str]:
    """Return the addresses on other hosts that a built file would load.

    Links that a reader may follow do not count.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".css":
        return IN_STYLE.findall(text)
    if path.suffix == ".js":
        return IN_SCRIPT.findall(text)
    found = []
    page = BeautifulSoup(text, "html.parser")
    for tag in page.find_all(True):
        values = [str(tag[name]) for name in LOADING if tag.has_attr(name)]
        loads = tag.name in ("image", "use") or (
            tag.name == "link" and RELATIONS & set(tag.get_attribute_list("rel"))
        )
        if loads and tag.has_attr("href"):
            values.append(str(tag["href"]))
        for value in values:
            parts = value.split(",") if tag.has_attr("srcset") else [value]
            found += [match[1] for part in parts if (match := OUTSIDE.match(part))]
        found += IN_STYLE.findall(str(tag.get("style", "")))
        if tag.name == "style":
            found += IN_STYLE.findall(tag.get_text())
        if tag.name == "script":
            found += IN_SCRIPT.findall(tag.get_text())
    return found


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line in the log for each."""

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve ``folder`` on this machine; give its address."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
