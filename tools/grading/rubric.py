"""A rubric: what a chapter's notebooks are graded by, without the chapter."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path


class Refused(Exception):
    """What cannot be graded: a reason that can be counted, and words about this one."""

    def __init__(self, reason: str, words: str = "") -> None:
        super().__init__(f"{reason}: {words}" if words else reason)
        self.reason = reason


@dataclass(frozen=True)
class Task:
    """One exercise as it is graded.

    Attributes
    ----------
    number, title, points
        Such as "6.1", "Compare positions" and 1.
    answers
        Names that a student defines.
    check
        Source of the check; its last line is worth a result.
    forbids
        Parts of names, in lower case, that an answer must not call.
    """

    number: str
    title: str
    points: int
    answers: tuple[str, ...]
    check: str
    forbids: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rubric:
    """All that grading a chapter takes.

    Attributes
    ----------
    chapter, title
        Such as 6 and "Masking".
    package
        Version of attention_lib whose checks these are.
    preamble
        Code that the exercises rest on.
    library
        The chapter's other definitions, for answers that call them.
    given, solutions
        Fingerprints of the chapter's own cells.
    tasks
        The exercises, in order.
    """

    chapter: int
    title: str
    package: str
    preamble: str
    library: str
    given: frozenset[str]
    solutions: frozenset[str]
    tasks: tuple[Task, ...]

    def dumps(self) -> str:
        """The rubric as JSON, which an instructor may edit."""
        data = dataclasses.asdict(self)
        data["given"], data["solutions"] = sorted(self.given), sorted(self.solutions)
        return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)


def load(path: Path) -> Rubric:
    """Read a rubric; `Refused` says what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        tasks = tuple(
            Task(**{**task, **{k: tuple(task[k]) for k in ("answers", "forbids")}})
            for task in data.pop("tasks")
        )
        data.update({k: frozenset(data[k]) for k in ("given", "solutions")})
        return Rubric(**data, tasks=tasks)
    except OSError as error:
        raise Refused("no rubric", f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Refused("not a rubric", f"{path}: {error}") from None


def fingerprint(source: str) -> str:
    """What two cells share when they differ in white space at most."""
    lines = (line.rstrip() for line in source.strip().splitlines())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
