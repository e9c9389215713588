"""Text for a terminal: cleaned of what would disturb it, and wrapped by display width."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

WIDTH = 80


def clean(text: object) -> str:
    """One line that is safe to print: no control character, one blank between words.

    Control characters, lone surrogates and marks that change the direction of reading
    are shown as escapes.
    """
    return "".join(map(_visible, " ".join(str(text).split())))


def _visible(character: str) -> str:
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape").decode()
    return character


def columns(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrap(
    text: object, first: str = "", rest: str = "", width: int = WIDTH
) -> list[str]:
    """The text in lines of at most ``width`` columns; long words are cut.

    Parameters
    ----------
    text
        What to wrap; it is cleaned first. An empty text gives ``first`` alone.
    first, rest
        What the first line and the others start with.
    """
    lines: list[str] = []
    line = first
    for word in clean(text).split(" "):
        start = first if not lines else rest
        if line != start and columns(line) + 1 + columns(word) > width:
            lines.append(line)
            line = start = rest
        gap = "" if line == start else " "
        pieces = list(_pieces(word, width - columns(line + gap), width - columns(rest)))
        line += gap + pieces[0]
        for piece in pieces[1:]:
            lines.append(line)
            line = rest + piece
    return [line.rstrip() for line in (*lines, line)]


def _pieces(word: str, room: int, more: int) -> Iterator[str]:
    """The word, cut so that the first piece has ``room`` columns, the others ``more``."""
    piece, used = "", 0
    for character in word:
        used += _columns(character)
        if used > room and piece:
            yield piece
            piece, used, room = "", _columns(character), more
        piece += character
    yield piece


def shorten(text: str, width: int = WIDTH) -> str:
    """The start of a clean line; what does not fit is replaced by three dots."""
    if columns(text) <= width:
        return text
    kept = ""
    for character in text:
        if columns(kept + character) > width - 3:
            break
        kept += character
    return kept.rstrip() + "..."
