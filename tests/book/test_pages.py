"""The built pages: nothing comes from outside, everything works, everyone can read.

The book is built once, strictly. Chromium then opens it from disk and from a local
server; these tests are skipped where there is no Chromium.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import (
    ARGUMENTS,
    DESK,
    NAMES,
    PHONE,
    Visit,
    find_chromium,
    inspect,
)
from notebooks import repository
from site_tools import ROOT, build, outside_loads, page_paths, serve

FORK = "https://github.com/someone/fork"
UPSTREAM = repository(ROOT)
MOST_BYTES = 2_500_000  # a page with everything it loads


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The book, built as a fork on GitHub would build it."""
    target = tmp_path_factory.mktemp("book")
    return build(target, ATTENTION_REPOSITORY=FORK, ATTENTION_BRANCH="main")


@pytest.fixture(scope="session")
def site(built: tuple[Path, list[str]]) -> Path:
    """The folder of the built pages."""
    return built[0]


# What the build and the files say.


def test_build_has_no_warnings(built: tuple[Path, list[str]]) -> None:
    assert built[1] == []


def test_files_load_nothing_from_outside(site: Path) -> None:
    kinds = (".css", ".html", ".js")
    files = [path for path in site.rglob("*") if path.suffix in kinds]
    assert {path.suffix for path in files} == set(kinds)
    found = {str(path.relative_to(site)): outside_loads(path) for path in files}
    assert {name: addresses for name, addresses in found.items() if addresses} == {}


def test_licences_lie_beside_what_is_carried(site: Path) -> None:
    static = site / "_static"
    assert "Apache License" in (static / "mathjax/LICENSE.txt").read_text("utf-8")
    assert "SIL OPEN FONT LICENSE" in (static / "fonts/OFL.txt").read_text("utf-8")


PLANTED = {
    '<img src="https://x.org/a.png">': "https://x.org/a.png",
    '<img src="a.png" srcset="b.png 1x, //x.org/c.png 2x">': "//x.org/c.png",
    '<link rel="stylesheet" href="http://x.org/a.css">': "http://x.org/a.css",
    '<link rel="preload" as="font" href="//x.org/a">': "//x.org/a",
    '<script src="https://x.org/a.js"></script>': "https://x.org/a.js",
    '<script>fetch("https://x.org/a")</script>': "https://x.org/a",
    '<p style="background: url(https://x.org/a)">': "https://x.org/a",
    "<style>@import '//x.org/a.css';</style>": "//x.org/a.css",
    '<iframe src="https://x.org/a"></iframe>': "https://x.org/a",
    '<svg><use xlink:href="https://x.org/a#b"/></svg>': "https://x.org/a#b",
    '<object data="https://x.org/a"></object>': "https://x.org/a",
    '<video poster="https://x.org/a"></video>': "https://x.org/a",
    '<a href="https://x.org">read on</a>': None,
    '<link rel="canonical" href="https://x.org">': None,
    '<script src="a.js">// see https://x.org</script>': None,
    '<img src="data:image/svg+xml,https://x.org">': None,
}


@pytest.mark.parametrize(("markup", "address"), PLANTED.items())
def test_outside_load_is_found(tmp_path: Path, markup: str, address: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(markup, encoding="utf-8")
    assert outside_loads(path) == ([address] if address else [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.css", "p { background: url( 'https://x.org/a' ) }"),
        ("a.css", '@import "https://x.org/a";'),
        ("a.js", 'await import("https://x.org/a")'),
        ("a.js", "script.src = 'https://x.org/a'"),
    ],
)
def test_outside_load_in_file_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert outside_loads(tmp_path / name) == ["https://x.org/a"]


def test_fork_opens_the_fork(site: Path) -> None:
    chapters = sorted((site / "_sources" / "book").glob("*.ipynb"))
    assert chapters
    for source in chapters:
        page = (site / "book" / f"{source.stem}.html").read_text(encoding="utf-8")
        for text in (page, source.read_text(encoding="utf-8")):
            assert f"git+{FORK}" in text
            assert UPSTREAM not in text
        assert f"/github/someone/fork/blob/main/book/{source.name}" in page


def test_pictures_have_size_and_words(site: Path) -> None:
    faults = []
    for name in page_paths(site):
        article = (site / name).read_text(encoding="utf-8").partition("<article")[2]
        for tag in re.findall(r"<img\b[^>]*>", article):
            wanted = ["alt="] if "data:" in tag else ["alt=", "width=", "height="]
            faults += [(name, tag) for word in wanted if word not in tag]
    assert faults == []


# What a browser shows.


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """A headless Chromium without a network."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is missing")
    path = find_chromium()
    if path is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is on the path")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(params=["file", "http"])
def base(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """The book's address: from disk, then from a local server."""
    if request.param == "file":
        yield site.as_uri()
    else:
        with serve(site) as address:
            yield address


@pytest.fixture(scope="module", params=["desk-http", "phone-file"])
def findings(request: pytest.FixtureRequest, browser, site: Path) -> dict[str, dict]:
    """What is wrong with each page: at a desk, from a server; on a phone, from disk."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    # The page at the root only sends on to the first one.
    names = [name for name in page_paths(site) if name != "index.html"]
    with contextlib.ExitStack() as stack:
        if request.param == "desk-http":
            base, screen = stack.enter_context(serve(site)), DESK
        else:
            base, screen = site.as_uri(), PHONE
        return {name: inspect(browser, base, name, site, axe, screen) for name in names}


@pytest.mark.parametrize(
    "kind",
    ["faults", "undrawn math", "violations", "too wide"],
    ids=["opens-clean", "draws-math", "is-accessible", "fits-the-screen"],
)
def test_every_page(findings: dict[str, dict], kind: str) -> None:
    assert {name: found[kind] for name, found in findings.items() if found[kind]} == {}


def test_every_page_is_light(findings: dict[str, dict]) -> None:
    weights = {name: found["bytes"] for name, found in findings.items()}
    print("\n".join(f"{size / 1000:6.0f} kB  {name}" for name, size in weights.items()))
    assert {name: size for name, size in weights.items() if size > MOST_BYTES} == {}


def pages_with(site: Path, marker: str) -> list[str]:
    """Return the pages that hold ``marker``."""
    names = page_paths(site)
    return [name for name in names if marker in (site / name).read_text("utf-8")]


def test_root_sends_on_to_the_first_page(browser, base: str) -> None:
    with Visit(browser, base, "index.html") as visit:
        visit.page.wait_for_url(f"{base}/book/index.html")
        # Sending on stops what the page was still loading.
        assert not [fault for fault in visit.faults if not fault.startswith("failed")]


def test_there_is_math_to_draw(browser, site: Path) -> None:
    name = pages_with(site, 'class="math')[0]
    with Visit(browser, site.as_uri(), name) as visit:
        assert visit.undrawn_math() == []
        assert visit.page.locator("article .math mjx-container").count() > 0
        # Screen readers get the equation, too.
        assert visit.page.locator("article .math mjx-assistive-mml").count() > 0


def test_search(browser, base: str) -> None:
    with Visit(browser, base, "book/index.html") as visit:
        page = visit.page
        page.keyboard.press("Control+k")
        page.keyboard.type("query")
        page.keyboard.press("Enter")
        results = page.locator("#search-results li a")
        results.first.wait_for()
        assert results.count() > 1
        if base.startswith("http"):  # a page on disk may not read the others
            page.locator("#search-results li .context").first.wait_for()
        page.wait_for_load_state("networkidle")
        results.first.click()
        page.locator("article h1").wait_for()
        assert visit.faults == []


@pytest.fixture
def stepper_page(site: Path) -> str:
    """A page that holds a step-through figure."""
    pages = pages_with(site, 'class="stepper"')
    if not pages:
        pytest.skip("no page holds a step-through figure")
    return pages[0]


def test_stepper_by_keyboard(browser, base: str, stepper_page: str) -> None:
    with Visit(browser, base, stepper_page) as visit:
        box = visit.page.locator(".stepper").first
        frames = box.locator("figure")

        def shown() -> list[bool]:
            return [frame.is_visible() for frame in frames.all()]

        last = frames.count() - 1
        assert shown() == [step == 0 for step in range(last + 1)]
        box.locator("input[type=range]").focus()
        for key, at in [("ArrowRight", 1), ("End", last), ("ArrowLeft", last - 1)]:
            visit.page.keyboard.press(key)
            assert shown() == [step == at for step in range(last + 1)]
        visit.page.keyboard.press("Home")
        visit.page.keyboard.press("Tab")  # to the button that goes on
        visit.page.keyboard.press("Enter")
        assert shown() == [step == 1 for step in range(last + 1)]
        assert visit.faults == []


def test_without_javascript(browser, base: str, site: Path, stepper_page: str) -> None:
    with Visit(browser, base, stepper_page, java_script_enabled=False) as visit:
        page = visit.page
        assert page.locator("article h1").is_visible()
        frames = page.locator(".stepper").first.locator("figure")
        assert all(frame.is_visible() for frame in frames.all())
        answer = page.locator("article details:visible").first
        answer.locator("summary").click()
        assert answer.get_attribute("open") is not None
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(255, 255, 255)"
        assert not [fault for fault in visit.faults if fault.startswith("outside")]


def test_paper_shows_everything(browser, site: Path) -> None:
    name = pages_with(site, "<details")[0]
    with Visit(browser, site.as_uri(), name) as visit:
        page = visit.page
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("article details:not([open])").count() == 0
        # What fades in would be printed while it is still transparent.
        code = page.locator("article details .cell_input:visible").first
        assert code.evaluate("box => getComputedStyle(box).animationName") == "none"
        assert page.locator("#pst-primary-sidebar").is_hidden()
        frames = page.locator(".stepper figure")
        assert all(frame.is_visible() for frame in frames.all())
