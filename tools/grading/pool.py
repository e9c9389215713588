"""Submissions graded side by side, each in a process that can be stopped."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from grading.rubric import Rubric
from grading.trial import CLOSED, Job, Marker, opened, order, silence

LOADING = 120.0
TICK = 0.002
MOST_SAID = 2**20
TIMED_OUT = "timed out"
FAULT = 70  # a fault of the grader, not of a submission


@dataclass
class Outcome:
    """What became of one exercise: a status and words."""

    status: str
    words: str


@dataclass
class Graded:
    """What became of one submission.

    `status` is "graded", "refused", "tampered" or "crashed"; `reason` is short, for
    counting.
    """

    path: Path
    status: str = "graded"
    reason: str = ""
    words: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Options:
    """How submissions are run.

    Attributes
    ----------
    workers
        Submissions at a time.
    seconds, memory
        An exercise's time, and bytes that a submission may take beyond the grader's.
    seed
        Of the draws in the checks.
    solutions
        Whether the chapter's own solution cells count as answers.
    fork
        Whether to fork; without, each submission loads torch anew.
    """

    workers: int = 1
    seconds: int = 20
    memory: int = 2 * 2**30
    seed: int = 1
    solutions: bool = False
    fork: bool = hasattr(os, "fork")


class Child:
    """A forked process, with as much of Popen's interface as is used here."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = FAULT
            try:
                work()
                code = 0
            finally:
                os._exit(code)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> None:
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)


class Attempt:
    """A process at work on a submission, and what it has said so far."""

    def __init__(
        self, graded: Graded, marker: Marker | None, rubric: Path, options: Options
    ) -> None:
        self.graded, self.options = graded, options
        self.key = secrets.token_bytes(32)
        self.top = Path(tempfile.mkdtemp(prefix="grading-"))
        folder, said = self.top / "work", self.top / "said"
        folder.mkdir()
        said.touch()
        job = Job(
            submission=str(graded.path.absolute()),
            folder=str(folder),
            seed=options.seed,
            memory=options.memory,
            seconds=options.seconds,
            solutions=options.solutions,
            skip=tuple(graded.outcomes),
        )
        self.said = open(said, "rb")  # noqa: SIM115 - closed by close()
        self.rest, self.read, self.count = b"", 0, 0
        self.at, self.done, self.why = "", False, ""
        self.deadline = time.monotonic() + LOADING
        self.process: Child | subprocess.Popen[bytes]
        if marker is not None:
            self.process = Child(lambda: self._forked(marker, job, said))
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "grading.trial"],
                stdin=subprocess.PIPE,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
                start_new_session=True,
            )
            assert self.process.stdin is not None
            self.process.stdin.write(order(job, rubric.absolute(), self.key, said))
            self.process.stdin.close()

    def _forked(self, marker: Marker, job: Job, said: Path) -> None:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        silence()
        os.closerange(3, 4096)
        out = os.open(said, os.O_WRONLY | os.O_APPEND)
        key, self.key = self.key, b""
        marker.attempt(job, key, out)

    def finished(self) -> bool:
        """Hear what the process says, and stop it where it goes too far."""
        over = self.process.poll() is not None
        self._listen()
        if over or self.done or self.why:
            return True
        if time.monotonic() > self.deadline:
            self.why = TIMED_OUT
        elif self._memory() > self.options.memory:
            self.why = "took too much memory"
        return bool(self.why)

    def _memory(self) -> int:
        try:
            return psutil.Process(self.process.pid).memory_info().rss - BASE
        except psutil.Error:
            return 0

    def _listen(self) -> None:
        new = self.said.read(MOST_SAID)
        self.read += len(new)
        *lines, self.rest = (self.rest + new).split(b"\n")
        if self.read > MOST_SAID or (self.process.returncode is not None and self.rest):
            lines.append(b"")
        for line in lines:
            words = opened(line, self.key, self.count)
            if words is None:
                self.graded.status, self.why = "tampered", "tampered"
                self.graded.reason = "wrote into the grader's channel"
                self.done = True
                return
            self.count += 1
            self._take(*words)

    def _take(self, kind: str, *words: str) -> None:
        graded = self.graded
        self.deadline = time.monotonic() + self.options.seconds
        if kind == "start":
            self.at = words[0]
        elif kind == "result":
            number, status, text = words
            graded.outcomes[number], self.at = Outcome(status, text), ""
        elif kind == "note" and words[0] not in graded.words:
            graded.words.append(words[0])
        elif kind == "refused":
            graded.status, graded.reason = "refused", words[0]
            graded.words, self.done = [words[1]], True
        elif kind == "tampered":
            graded.status, graded.reason = "tampered", words[1]
            self.done = True
        elif kind == "done":
            self.done = True

    def close(self) -> bool:
        """End the process and its kin; whether the submission needs another attempt."""
        _kill(self.process)
        self._listen()
        self.said.close()
        shutil.rmtree(self.top, ignore_errors=True)
        if self.done:
            return False
        why = self.why or _ending(self.process.returncode)
        if self.at:
            outcome = Outcome("crashed", why)
            if why == TIMED_OUT:
                outcome = Outcome(why, f"no answer after {self.options.seconds} s")
            self.graded.outcomes[self.at] = outcome
            return True
        self.graded.status, self.graded.reason = "crashed", why
        return False


BASE = 0


def grade(
    paths: Iterable[Path],
    rubric: Rubric,
    rubric_file: Path,
    options: Options,
) -> Iterator[Graded]:
    """Grade notebooks and give each when it is done, in the order of finishing."""
    global BASE
    waiting = list(reversed(list(paths)))
    if not waiting:
        return
    marker = Marker(rubric) if options.fork else None
    BASE = psutil.Process().memory_info().rss if marker else 0
    running = list[Attempt]()
    started: dict[Path, float] = {}
    # Python drops an interrupt that arrives while it forks: note it, and stop after.
    stop: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: stop.append(number))
    try:
        while waiting or running:
            if stop:
                raise KeyboardInterrupt
            while waiting and len(running) < options.workers:
                path = waiting.pop()
                started[path] = time.monotonic()
                running.append(Attempt(Graded(path), marker, rubric_file, options))
            for attempt in [one for one in running if one.finished()]:
                running.remove(attempt)
                graded = attempt.graded
                if attempt.close() and len(graded.outcomes) < len(rubric.tasks):
                    running.append(Attempt(graded, marker, rubric_file, options))
                    continue
                graded.seconds = time.monotonic() - started.pop(graded.path)
                yield graded
            time.sleep(TICK)
    finally:
        signal.signal(signal.SIGINT, before)
        for attempt in running:
            attempt.close()


def _kill(process: Child | subprocess.Popen[bytes]) -> None:
    """End a process and the group it leads."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    if process.poll() is None:
        os.kill(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
    process.wait()


def _ending(code: int | None) -> str:
    if code == FAULT:
        return "could not be graded: the grader itself failed"
    if code == CLOSED:
        return "closed the grader's channel"
    if code is not None and code < 0:
        try:
            return f"ended by {signal.Signals(-code).name}"
        except ValueError:
            pass
    return f"ended the process (exit code {code})"
