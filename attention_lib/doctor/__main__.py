"""The doctor on a command line: ``python -m attention_lib.doctor package.module:name``.

Exit status: 0 healthy, 1 findings, 2 could not run, 3 an error of the doctor's own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shlex
import sys
import traceback
from typing import Any

from attention_lib.doctor._options import (
    DTYPES,
    NONE,
    PROGRAM,
    explain_parser,
    parser,
)
from attention_lib.doctor._target import BadTarget, Target, load

HEALTHY, FINDINGS, COULD_NOT_RUN, OWN_ERROR = range(4)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    arguments
        Those after the program's name; taken from the command line if left out.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if given[:1] == ["explain"]:
            return _explain(given[1:])
        return _examine(parser().parse_args(given))
    except BadTarget as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return _refuse("interrupted")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COULD_NOT_RUN
    except Exception:  # noqa: BLE001 - whatever it was, it is the doctor's
        return _own_error(given)


def _explain(arguments: list[str]) -> int:
    from attention_lib.doctor.codes import explain

    texts = []
    for code in explain_parser().parse_args(arguments).codes:
        try:
            texts.append(explain(code))
        except ValueError as error:
            return _refuse(str(error), did="")
    _print("\n\n\n".join(texts) + "\n")
    return HEALTHY


def _examine(options: argparse.Namespace) -> int:
    chosen = dict(vars(options))
    form, output = chosen.pop("format"), chosen.pop("output")
    target, as_is = chosen.pop("target"), chosen.pop("as_is", False)
    declared = _declared(chosen)
    width, heads = declared.get("embed_dim"), declared.get("num_heads")
    # What the user's module prints must not end up in the report.
    with contextlib.redirect_stdout(sys.stderr):
        subject = load(target, width, heads, as_is=as_is)
        if "reference" in declared:
            declared["reference"] = load(declared["reference"], width, heads).subject
        report = _report(subject.subject, declared)
    _write(_rendered(report, form, subject, output), output)
    if output is not None:
        print(f"{report!r}, written to {output}", file=sys.stderr)
    return int(report.exit_code)


def _report(subject: Any, declared: dict[str, Any]) -> Any:
    """Examine; an unknown subject or a wrong declaration is the user's to mend."""
    from attention_lib.doctor.examination import examine

    try:
        return examine(subject, **declared)
    except ValueError as error:
        raise BadTarget(str(error)) from None


def _declared(chosen: dict[str, Any]) -> dict[str, Any]:
    """The options as ``examine`` takes them."""
    declared = dict(chosen)
    for name in ("weights", "positions"):
        if declared.get(name) == NONE:
            declared[name] = None
    if "dtype" in declared:
        import torch

        assert declared["dtype"] in DTYPES
        declared["dtype"] = getattr(torch, declared["dtype"])
    if "allow" in declared:
        declared["allow"] = dict(declared["allow"])
    return declared


def _rendered(report: Any, form: str, target: Target, output: str | None) -> str:
    from attention_lib.doctor.report import terminal_has_color

    where = {"file": target.file, "line": target.line}
    if form == "json":
        return report.to_json() + "\n"
    if form == "github":
        return report.to_github(**where) + "\n"
    if form == "sarif":
        return report.to_sarif(**where) + "\n"
    if form == "html":
        return report.to_html()
    color = output is None and terminal_has_color(sys.stdout)
    return report.to_text(color=color) + "\n"


def _write(text: str, output: str | None) -> None:
    if output is None:
        _print(text)
        return
    try:
        with open(output, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        said = error.strerror or type(error).__name__
        raise BadTarget(f"cannot write {output}: {said}") from None


def _print(text: str) -> None:
    """Print, with escapes for what the terminal cannot show."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _refuse(said: str, did: str = "could not run: ") -> int:
    print(f"attention doctor: {did}{said}", file=sys.stderr)
    return COULD_NOT_RUN


def _own_error(given: list[str]) -> int:
    """Say that the fault is the doctor's, and what to report."""
    import torch

    from attention_lib import __version__

    versions = (
        f"attention_lib {__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.system()}"
    )
    lines = [
        "attention doctor: an error of its own; it says nothing about your module.",
        "Please report these lines:",
        f"  command   {PROGRAM} {shlex.join(given)}",
        f"  versions  {versions}",
        *(f"  {line}" for line in traceback.format_exc().rstrip().splitlines()),
    ]
    print("\n".join(lines), file=sys.stderr)
    return OWN_ERROR


if __name__ == "__main__":
    sys.exit(main())
