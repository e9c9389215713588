"""Lets every page work without a network, and keeps it light.

MathJax comes from a pinned package; only the parts that draw the book's equations
are copied, beside their licence in `_static/mathjax`. The theme's icon script goes: its
style sheet draws the same icons.
"""

import shutil
from importlib.metadata import distribution
from pathlib import Path

# Relative to MathJax's root. The extensions are small and load when a macro asks.
MATHJAX = (
    "startup.js",
    "core.js",
    "input/tex.js",
    "input/tex/extensions",
    "output/chtml.js",
    "output/chtml/fonts",
    "a11y/assistive-mml.js",
)
LOADER = {"load": ["core", "input/tex", "output/chtml", "a11y/assistive-mml"]}
UNUSED = ("_static/**/*.map", "_static/scripts/fontawesome.js")


def mathjax_root() -> Path:
    """Return the folder of the package that carries MathJax."""
    # Its folder has a hyphen in its name, so it cannot be imported.
    package = distribution("sphinx-mathjax-offline")
    return Path(package.locate_file("sphinx-mathjax-offline/static/mathjax"))


def configure(app, config):
    """Point the pages at their own copy."""
    config.mathjax_path = "mathjax/startup.js"
    config.mathjax3_config = {**(config.mathjax3_config or {}), "loader": LOADER}


def copy_mathjax(app, exception):
    """Copy the parts of MathJax that the pages load."""
    if exception or app.builder.format != "html":
        return
    source, target = mathjax_root(), Path(app.outdir, "_static/mathjax")
    for name in MATHJAX:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, path, dirs_exist_ok=True)
        else:
            shutil.copy(source / name, path)
    for pattern in UNUSED:
        for path in Path(app.outdir).glob(pattern):
            path.unlink()


def setup(app):
    """Register the extension with Sphinx."""
    app.connect("config-inited", configure, priority=400)
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
