"""Opens pages in a headless Chromium and notes what goes wrong."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Self
from urllib.parse import unquote

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no network
    "--no-first-run",
]

DESK = {"viewport": {"width": 1320, "height": 900}}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True,
    "has_touch": True,
}

# A label must hold the text in view; axe looks at that only when asked. Without
# "preload" it does not fetch the style sheets again. Colours are looked at apart.
AXE = {
    "preload": False,
    "resultTypes": ["violations"],
    "rules": {
        "color-contrast": {"enabled": False},
        "label-content-name-mismatch": {"enabled": True},
    },
}
AXE_COLOURS = {"preload": False, "runOnly": ["color-contrast"]}
# Code has thousands of words in a dozen colours, and the entries of the API look alike:
# one of each is enough, and quick.
THIN_OUT = """() => {
  document.querySelectorAll("dl.py ~ dl.py").forEach((entry) => entry.remove());
  const seen = new Set();
  for (const word of document.querySelectorAll("pre span[class]")) {
    const place = word.closest(".cell_input, .cell_output, body")?.className;
    const kind = `${word.className} in ${place}`;
    if (seen.has(kind)) word.remove();
    seen.add(kind);
  }
}"""
UNDRAWN_MATH = r"""() => [
  ...[...document.querySelectorAll("article .math")]
    .filter((box) => !box.querySelector("mjx-container")),
  ...document.querySelectorAll("mjx-merror, mjx-container [style*='color: red']"),
].map((box) => box.textContent.trim())"""
TOO_WIDE = """() => {
  const width = document.documentElement.clientWidth;
  const sticksOut = (box) => box.getBoundingClientRect().right > width + 1;
  const wide = document.documentElement.scrollWidth > width
    ? [...document.querySelectorAll("body *")].filter(sticksOut) : [];
  const buttons = [...document.querySelectorAll(".article-header-buttons > *")]
    .filter((box) => sticksOut(box) || box.getBoundingClientRect().height > 60);
  return [...buttons, ...wide].map((box) => box.tagName + "." + box.className);
}"""


def find_chromium() -> str | None:
    """Return the browser's path: the variable CHROMIUM, or a known name."""
    found = (shutil.which(name) for name in NAMES)
    return os.environ.get("CHROMIUM") or next(filter(None, found), None)


class Visit:
    """A page opened in a fresh context, with what went wrong on the way."""

    def __init__(self, browser, base: str, name: str, **options) -> None:
        self.faults: list[str] = []
        self.finished: list = []  # requests with an answer
        self.base = base
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on("request", self.note_request)
        self.page.on("requestfinished", lambda r: self.finished.append(r))
        self.page.on("requestfailed", lambda r: self.faults.append(f"failed: {r.url}"))
        self.page.on("response", self.note_response)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("console", self.note_console)
        self.page.goto(f"{base}/{name}", wait_until="networkidle")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()

    def note_request(self, request) -> None:
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.faults.append(f"outside: {request.url}")

    def note_response(self, response) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status}: {response.url}")

    def note_console(self, message) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def undrawn_math(self, patience: float = 10_000) -> list[str]:
        """Return the equations that are not drawn after some milliseconds."""
        with contextlib.suppress(Exception):  # the list says it better
            self.page.wait_for_function(
                f"() => ({UNDRAWN_MATH})().length === 0", timeout=patience
            )
        return self.page.evaluate(UNDRAWN_MATH)


def found(axe, page, options: dict) -> list[tuple]:
    """Return each rule that axe finds broken, with the places."""
    return [
        (rule["id"], [(node["target"], node["html"][:150]) for node in rule["nodes"]])
        for rule in axe.run(page, options=options).response["violations"]
    ]


def inspect(browser, base: str, name: str, site: Path, axe, screen: dict) -> dict:
    """Open one page and return what is wrong with it, and its weight in bytes.

    Pictures further down and hidden parts count: they are loaded and opened first.
    """
    with Visit(browser, base, name, reduced_motion="reduce", **screen) as visit:
        page = visit.page
        undrawn = visit.undrawn_math()
        page.evaluate(
            "document.querySelectorAll('img').forEach(i => i.loading = 'eager');"
            "document.querySelectorAll('details').forEach(box => box.open = true)"
        )
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(400)  # the theme looks again for what scrolls
        too_wide = page.evaluate(TOO_WIDE)[:5]
        violations = found(axe, page, AXE)
        page.evaluate(THIN_OUT)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.wait_for_selector(f"html[data-theme={scheme}]")
            violations += [(scheme, *fault) for fault in found(axe, page, AXE_COLOURS)]
        paths = {unquote(r.url.partition("?")[0]) for r in visit.finished}
        local = [path.removeprefix(f"{base}/") for path in paths if base in path]
        return {
            "faults": visit.faults,
            "undrawn math": undrawn,
            "bytes": sum((site / path).stat().st_size for path in local),
            "violations": violations,
            "too wide": too_wide,
        }
