"""The book's links follow the checkout it is built from."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import origin
import pytest
from site_tools import ROOT, clean_environment

FORK = origin.Origin("https://github.com/someone/fork", "spring-2027")


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/someone/fork", "https://github.com/someone/fork"),
        ("https://github.com/someone/fork.git", "https://github.com/someone/fork"),
        ("https://GitHub.com/someone/fork/", "https://github.com/someone/fork"),
        ("https://me:token@github.com/someone/fork", "https://github.com/someone/fork"),
        (
            "https://token@github.com/someone/fork.git",
            "https://github.com/someone/fork",
        ),
        (
            "https://github.com/someone/fork?a=secret#b",
            "https://github.com/someone/fork",
        ),
        ("git@github.com:someone/fork.git", "https://github.com/someone/fork"),
        ("github.com:someone/fork", "https://github.com/someone/fork"),
        ("ssh://git@github.com/someone/fork.git", "https://github.com/someone/fork"),
        ("ssh://git@codeberg.org:2222/a/b.git", "https://codeberg.org/a/b"),
        (
            "https://gitlab.com/group/part/book.git",
            "https://gitlab.com/group/part/book",
        ),
        ("https://git.example.org:8443/a/b", "https://git.example.org:8443/a/b"),
        ("https://example.org:443/a/my.book-2.git", "https://example.org/a/my.book-2"),
    ],
)
def test_web_address(remote: str, address: str) -> None:
    assert origin.web_address(remote) == address


@pytest.mark.parametrize(
    "remote",
    [
        "",
        "/srv/git/book.git",
        "../book",
        "C:\\book",
        "C:/book",
        "file:///srv/git/book.git",
        "http://github.com/someone/fork",
        "git://github.com/someone/fork",
        "https://localhost/a/b",
        "https://git:8443/a/b",
        "https://10.0.0.4/a/b",
        "https://[::1]/a/b",
        "https://[bad/a/b",
        "https://git.lan/a/b",
        "git@work:someone/fork.git",
        "https://github.com/only-one-part",
        'https://github.com/a/b"><script>',
        "https://github.com:port/a/b",
    ],
)
def test_no_web_address(remote: str) -> None:
    assert origin.web_address(remote) is None


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout on the branch ``spring-2027`` without a remote."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    monkeypatch.setenv(
        "GIT_CONFIG_GLOBAL", "/dev/null"
    )  # a reader's own may rewrite URLs
    git(tmp_path, "init", "--quiet", "--initial-branch=spring-2027")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message=first")
    return tmp_path


def test_checkout_without_remote(checkout: Path) -> None:
    assert origin.find_origin(checkout, {}) is None


def test_checkout_with_remote(checkout: Path) -> None:
    git(checkout, "remote", "add", "origin", "git@github.com:someone/fork.git")
    assert origin.find_origin(checkout, {}) == FORK
    # The checkout's branch is what is built, whatever the continuous integration says.
    assert origin.find_origin(checkout, {"GITHUB_REF_NAME": "other"}) == FORK


def test_checkout_with_detached_head(checkout: Path) -> None:
    git(checkout, "remote", "add", "origin", FORK.address)
    git(checkout, "checkout", "--quiet", "--detach")
    assert origin.find_origin(checkout, {"GITHUB_REF_NAME": "spring-2027"}) == FORK
    assert origin.find_origin(checkout, {}) == FORK._replace(branch="main")


def test_environment_overrides_checkout(checkout: Path) -> None:
    git(checkout, "remote", "add", "origin", "git@github.com:someone/else.git")
    environment = {"ATTENTION_REPOSITORY": FORK.address, "ATTENTION_BRANCH": "b"}
    assert origin.find_origin(checkout, environment) == FORK._replace(branch="b")
    assert origin.find_origin(checkout, {"ATTENTION_REPOSITORY": ""}) is None
    with pytest.raises(ValueError, match="ATTENTION_REPOSITORY='/srv/x'"):
        origin.find_origin(checkout, {"ATTENTION_REPOSITORY": "/srv/x"})


def test_folder_inside_another_repository(checkout: Path) -> None:
    git(checkout, "remote", "add", "origin", FORK.address)
    inside = checkout / "copy"
    inside.mkdir()
    assert origin.find_origin(inside, {}) is None


def test_folder_without_git(tmp_path: Path) -> None:
    assert origin.find_origin(tmp_path, {}) is None


def header(found: origin.Origin | None, path: str) -> list[dict[str, str]]:
    """Return the buttons that a page at ``path`` gets."""
    app = SimpleNamespace(
        config=SimpleNamespace(book_origin=found),
        env=SimpleNamespace(doc2path=lambda name, base: path),
    )
    context = {"header_buttons": [{"url": "download"}]}
    origin.add_buttons(app, "page", "page.html", context, doctree=object())
    return context["header_buttons"]


def test_buttons() -> None:
    colab = "https://colab.research.google.com/github/someone/fork/blob/"
    urls = [button["url"] for button in header(FORK, "book/02-a.ipynb")]
    assert urls == [f"{colab}spring-2027/book/02-a.ipynb", FORK.address, "download"]
    assert [button["url"] for button in header(FORK, "book/api.md")] == urls[1:]
    elsewhere = origin.Origin("https://codeberg.org/someone/fork", "main")
    urls = [button["url"] for button in header(elsewhere, "book/02-a.ipynb")]
    assert urls == [elsewhere.address, "download"]  # Colab opens GitHub alone
    assert [button["url"] for button in header(None, "book/02-a.ipynb")] == ["download"]


def test_colab_quotes_the_branch() -> None:
    assert FORK._replace(branch="a#b/c").colab("d.ipynb").endswith("/a%23b/c/d.ipynb")


@pytest.mark.parametrize("remote", [None, "git@github.com:someone/fork.git"])
def test_small_book(checkout: Path, remote: str | None) -> None:
    """Checkout to page: with a remote there are buttons, without one there are none."""
    upstream = "https://example.org/up/stream"
    sources = {
        "pyproject.toml": f'[project.urls]\nRepository = "{upstream}"\n',
        "conf.py": f"import sys\nsys.path.insert(0, {str(ROOT / 'book' / '_ext')!r})\n"
        "extensions = ['sphinx_book_theme', 'origin']\n"
        "html_theme = 'sphinx_book_theme'\n",
        "index.rst": "Title\n=====\n\n.. code-block:: none\n\n"
        f"   %pip install git+{upstream}\n",
    }
    for name, text in sources.items():
        (checkout / name).write_text(text, encoding="utf-8")
    if remote:
        git(checkout, "remote", "add", "origin", remote)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", ".", "html"]
    subprocess.run(command, cwd=checkout, env=clean_environment(), check=True)
    page = (checkout / "html" / "index.html").read_text(encoding="utf-8")
    source = (checkout / "html" / "_sources" / "index.rst").read_text(encoding="utf-8")
    expected = FORK.address if remote else upstream
    assert f"git+{expected}" in page
    assert f"git+{expected}" in source
    assert ("btn-repository" in page) == bool(remote)
    assert "colab" not in page
