"""What each code of the doctor means.

The words are in ``explanations/``, one Markdown file a family: ``at1xx.md`` has AT100 to
AT199. A code is a heading ``## AT101: title`` with the sections of :data:`SECTIONS` below
it, in that order. To change what is said of a code, edit it there; the command line, the
reports and the book's page read the same file.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from attention_lib.doctor._wrap import clean, wrap

__all__ = ["explain"]

SECTIONS = (
    "What it means",
    "How it is established",
    "What it does",
    "Usual causes",
    "How to fix it",
    "When it is meant",
)
FORM = re.compile(r"AT[1-9]\d\d")
FENCE = re.compile(r"^```\w*$")


@dataclass(frozen=True)
class Explanation:
    """What is said of one code: its title, and a Markdown text for each section."""

    code: str
    title: str
    sections: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Family:
    """Codes that share their first digit."""

    name: str  # "AT1xx: who sees whom"
    introduction: str
    explanations: tuple[Explanation, ...]


def explain(code: str) -> str:
    """What a code of the doctor means, in lines of at most 80 columns.

    What it says of the module, how it was established, what it does to training or
    generation, its usual causes, how to fix it, and when it is no fault.

    Parameters
    ----------
    code
        Such as ``"AT101"``; ``"at101"`` and ``"101"`` do as well.

    Returns
    -------
    str
        To be printed.

    Raises
    ------
    TypeError
        If ``code`` is not a string.
    ValueError
        If there is no such code. The message names those near it.

    Examples
    --------
    >>> print(explain("AT101").splitlines()[0])
    AT101: the output can see the future
    """
    if not isinstance(code, str):
        raise TypeError(f"code must be a string, got {type(code).__name__}")
    found = find(code)
    if found is None:
        raise ValueError(f"no code {clean(code)!r}{_near(code)}")
    lines = wrap(f"{found.code}: {found.title}", rest="  ")
    for name, text in found.sections:
        lines += ["", name, *_section(text)]
    return "\n".join(lines)


def title(code: str) -> str:
    """The title of a code; empty where there is no such code."""
    found = find(code)
    return found.title if found else ""


def find(code: str) -> Explanation | None:
    """What is said of a code, or nothing."""
    wanted = _canonical(code)
    if not FORM.fullmatch(wanted):
        return None
    name = f"{wanted[:3].lower()}xx.md"
    files = [text for file, text in _files() if file == name]
    found = [entry for text in files for entry in read_family(text).explanations]
    return next((entry for entry in found if entry.code == wanted), None)


def families() -> tuple[Family, ...]:
    """All that is explained, in the order of the codes."""
    return tuple(read_family(text) for _, text in _files())


def codes() -> tuple[str, ...]:
    """Every code that is explained, in order."""
    return tuple(e.code for family in families() for e in family.explanations)


def read_family(text: str) -> Family:
    """Read one file of explanations.

    Raises
    ------
    ValueError
        If the file does not have the form that the head of this module describes.
    """
    head, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    name, _, introduction = head.removeprefix("# ").partition("\n")
    entries = tuple(map(_read_code, parts))
    return Family(name.strip(), introduction.strip(), entries)


def _read_code(text: str) -> Explanation:
    head, *parts = re.split(r"^### ", text, flags=re.MULTILINE)
    code, _, name = head.strip().partition(": ")
    pairs = [part.partition("\n") for part in parts]
    sections = tuple((heading.strip(), body.strip()) for heading, _, body in pairs)
    if not FORM.fullmatch(code) or not name:
        raise ValueError(f"expected '## AT101: title', got {head.strip()!r}")
    if tuple(heading for heading, _ in sections) != SECTIONS:
        came = ", ".join(heading for heading, _ in sections)
        raise ValueError(f"{code} has the sections {came}; expected {SECTIONS}")
    if not all(body for _, body in sections):
        raise ValueError(f"{code} has an empty section")
    return Explanation(code, name, sections)


def _files() -> list[tuple[str, str]]:
    """The names and texts of the files of explanations, in order."""
    folder = resources.files("attention_lib.doctor").joinpath("explanations")
    paths = (path for path in folder.iterdir() if path.name.endswith(".md"))
    return sorted((path.name, path.read_text("utf-8")) for path in paths)


def _canonical(code: str) -> str:
    bare = code.strip().upper()
    return f"AT{bare}" if bare.isdecimal() else bare


def _near(code: str) -> str:
    """Codes that may have been meant, as the end of a sentence."""
    wanted = _canonical(code)
    known = codes()
    family = [c for c in known if c[:3] == wanted[:3]] if FORM.match(wanted) else []
    near = difflib.get_close_matches(wanted, family or known, n=3, cutoff=0.5) or family
    listed = near or [f"{known[0]} to {known[-1]}"]
    return f". Near it: {', '.join(listed)}" if near else f". There are {listed[0]}"


def _section(text: str) -> Iterator[str]:
    """A section for a terminal: paragraphs and lists wrapped, code as it is."""
    for block in re.split(r"\n{2,}", text):
        lines = block.split("\n")
        if FENCE.match(lines[0]):
            yield from (f"    {line}".rstrip() for line in lines[1:-1])
        elif lines[0].startswith("- "):
            for item in re.split(r"^- ", block, flags=re.MULTILINE)[1:]:
                yield from wrap(item, "  - ", "    ")
        else:
            yield from wrap(block, "  ", "  ")
