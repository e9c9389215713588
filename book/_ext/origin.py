"""Links to the repository that this copy of the book is built from.

A fork's book opens the fork. The address and the branch come from the checkout; the
variables ATTENTION_REPOSITORY and ATTENTION_BRANCH override them, and an empty
ATTENTION_REPOSITORY means "none". Without an address there are no such links.
"""

import ipaddress
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

PRIVATE = (".home.arpa", ".internal", ".lan", ".local", ".localdomain", ".localhost")


class Origin(NamedTuple):
    """Where readers find the source: a web address and a branch."""

    address: str
    branch: str

    @property
    def on_github(self) -> bool:
        """Whether Colab can open its notebooks."""
        return urlsplit(self.address).hostname == "github.com"

    def colab(self, path: str) -> str:
        """Return the address that opens the notebook at ``path`` in Colab."""
        where = f"{urlsplit(self.address).path}/blob/{self.branch}/{path}"
        return f"https://colab.research.google.com/github{quote(where)}"


def web_address(remote: str) -> str | None:
    """Return the public web address of a git remote, or None when it has none.

    >>> web_address("git@github.com:someone/book.git")
    'https://github.com/someone/book'
    >>> web_address("https://someone:secret@github.com/someone/book.git/")
    'https://github.com/someone/book'
    >>> web_address("/srv/git/book.git") is None
    True
    """
    scp = re.fullmatch(r"(?:[\w.-]+@)?([\w.-]+):(?!//)(.+)", remote.strip())
    url = f"ssh://{scp[1]}/{scp[2]}" if scp else remote.strip()
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:  # a malformed host or port
        return None
    path = parts.path.strip("/").removesuffix(".git")
    if parts.scheme not in ("https", "ssh") or not is_public(host):
        return None
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)+", path, re.ASCII):
        return None
    keep_port = parts.scheme == "https" and port not in (None, 443)
    return f"https://{host}{f':{port}' if keep_port else ''}/{path}"


def is_public(host: str) -> bool:
    """Whether ``host`` is a name that readers elsewhere can resolve."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "." in host and not host.endswith(PRIVATE)
    return False


def git(root: Path, *arguments: str) -> str:
    """Return what a git command prints, or nothing when it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", root, *arguments],
            check=False,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def find_origin(root: Path, environ: Mapping[str, str]) -> Origin | None:
    """Return the origin of the checkout at ``root``, or None without a public one."""
    if "ATTENTION_REPOSITORY" in environ:
        remote = environ["ATTENTION_REPOSITORY"]
        if remote and web_address(remote) is None:
            raise ValueError(
                f"ATTENTION_REPOSITORY={remote!r} must be the https or ssh address "
                "of a repository on a public host, or empty"
            )
    elif git(root, "rev-parse", "--show-prefix"):
        return None  # a copy inside some other repository
    else:
        remote = git(root, "remote", "get-url", "origin")
    address = web_address(remote)
    branch = (
        environ.get("ATTENTION_BRANCH")
        or git(root, "symbolic-ref", "--quiet", "--short", "HEAD")
        or environ.get("GITHUB_REF_NAME")  # continuous integration detaches HEAD
        or "main"
    )
    return Origin(address, branch) if address else None


def find(app, config):
    """Note the origin and the address that the sources are written with."""
    project = tomllib.loads(Path(app.srcdir, "pyproject.toml").read_text("utf-8"))
    config.book_upstream = project["project"]["urls"]["Repository"]
    config.book_origin = find_origin(Path(app.srcdir), os.environ)


def use_own_address(app, docname, source):
    """Let the page's install line and links name this origin."""
    if app.config.book_origin:
        source[0] = source[0].replace(
            app.config.book_upstream, app.config.book_origin.address
        )


def add_buttons(app, pagename, templatename, context, doctree):
    """Put Colab and repository buttons at the head of the page."""
    origin = app.config.book_origin
    if origin is None or doctree is None:
        return
    buttons = [
        {
            "type": "link",
            "url": origin.address,
            "tooltip": "Source repository",
            "icon": "fas fa-code-branch",
            "label": "repository",
        }
    ]
    path = app.env.doc2path(pagename, base=False)
    if origin.on_github and str(path).endswith(".ipynb"):
        buttons.insert(
            0,
            {
                "type": "link",
                "url": origin.colab(str(path)),
                "tooltip": "Open this notebook in Colab",
                "text": "Colab",
                "label": "colab",
            },
        )
    context["header_buttons"][:0] = buttons


def patch_downloads(app, exception):
    """Let the notebooks that readers download install from this origin, too."""
    origin = app.config.book_origin
    if exception or origin is None or app.builder.format != "html":
        return
    for path in Path(app.outdir, "_sources").rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8")
            new = text.replace(app.config.book_upstream, origin.address)
            if new != text:
                path.write_text(new, "utf-8")


def setup(app):
    """Register the extension with Sphinx."""
    app.add_config_value("book_upstream", None, "env")
    app.add_config_value("book_origin", None, "env")  # another origin, another book
    app.connect("config-inited", find)
    app.connect("source-read", use_own_address)
    app.connect("html-page-context", add_buttons, priority=502)
    app.connect("build-finished", patch_downloads)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
