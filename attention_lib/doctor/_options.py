"""What the command line of the doctor takes, and how it explains itself."""

from __future__ import annotations

import argparse

PROGRAM = "python -m attention_lib.doctor"
FORMATS = ("text", "json", "github", "sarif", "html")
KINDS = ("attention", "core", "encoding", "rotary", "bias", "decoder")
DTYPES = ("float32", "float64", "float16", "bfloat16")
NONE = "none"

DESCRIPTION = """\
Examine an attention module by what it does, and say what is wrong with it.

TARGET is a class, a function or an object, as package.module:name. A class is
called with --embed-dim and --num-heads. A function without arguments makes the
module. A function such as f(q, k, v) is examined as it is, with --kind core."""

USAGE = f"{PROGRAM} TARGET [options]\n       {PROGRAM} explain CODE"

EPILOG = """\
examples:
  python -m attention_lib.doctor model:CausalAttention \\
      --embed-dim 64 --num-heads 4 --causal always
  python -m attention_lib.doctor model:make --allow AT690="bfloat16 is meant"
  python -m attention_lib.doctor model:attend --kind core --format json
  python -m attention_lib.doctor explain AT101

exit status:
  0  healthy
  1  there are faults
  2  the examination could not run: look at the target and the options
  3  the doctor itself failed: please report what it prints
"""


def parser() -> argparse.ArgumentParser:
    """The parser of an examination. Options that were not given are left out."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=USAGE,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    made.add_argument("target", metavar="TARGET", help="package.module:name")
    _making(made.add_argument_group("how to make the module"))
    _promises(made.add_argument_group("what it promises"))
    _running(made.add_argument_group("how to examine"))
    _showing(made.add_argument_group("what to print"))
    return made


def explain_parser() -> argparse.ArgumentParser:
    """The parser of ``explain``."""
    made = argparse.ArgumentParser(
        prog=f"{PROGRAM} explain",
        description="Say what a code means, what causes it and how to fix it.",
        allow_abbrev=False,
    )
    made.add_argument(
        "codes", metavar="CODE", nargs="+", help="such as AT101; several may be given"
    )
    return made


def _making(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--embed-dim", type=_size, metavar="E", help="width of the model, such as 64"
    )
    group.add_argument(
        "--num-heads", type=_size, metavar="H", help="number of heads, such as 4"
    )
    group.add_argument(
        "--as-is", action="store_true", help="examine the target without calling it"
    )


def _promises(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--kind",
        choices=KINDS,
        help="what it is: attention (x to output; the default), core (q, k, v to "
        "output), encoding (adds positions), rotary, bias (of the scores), decoder",
    )
    group.add_argument(
        "--causal",
        choices=("flag", "always", "never"),
        help="does it hide the future: when told to, always or never",
    )
    group.add_argument(
        "--pattern",
        metavar="P",
        help="what it lets through by itself: full, causal, window:3, prefix:3, band:1",
    )
    group.add_argument(
        "--masks", choices=("any", "none"), help="does it take masks: any, or none"
    )
    _yes_no(group, "context", "does it attend to a second sequence as well")
    _with_none(group, "weights", ("heads", "mean"), "the weights it returns, if any")
    _with_none(
        group,
        "positions",
        ("relative", "absolute"),
        "the positions that it adds itself",
    )
    group.add_argument(
        "--normalization",
        choices=("softmax", "sigmoid", "sink"),
        help="what turns scores into weights",
    )
    _yes_no(group, "residual", "does it add its input to its output")
    group.add_argument(
        "--scale", type=float, metavar="S", help="factor of the scores, if unusual"
    )
    _yes_no(group, "differentiable", "can it be trained")
    group.add_argument(
        "--reference",
        metavar="TARGET",
        help="a module that gives the right output, as package.module:name",
    )


def _running(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dtype", choices=DTYPES, help="also examine it in this dtype")
    group.add_argument("--seed", type=int, metavar="N", help="seed of the inputs")
    group.add_argument(
        "--allow",
        action="append",
        type=_allowance,
        metavar='CODE="REASON"',
        help="let a finding pass, for a reason, which is printed; may be repeated",
    )


def _showing(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--format", choices=FORMATS, default="text", help="the default is text"
    )
    group.add_argument(
        "--output", metavar="FILE", default=None, help="write to a file, not the screen"
    )


def _yes_no(group: argparse._ArgumentGroup, name: str, text: str) -> None:
    group.add_argument(
        f"--{name}", action=argparse.BooleanOptionalAction, help=f"{text} (yes or no)"
    )


def _with_none(
    group: argparse._ArgumentGroup, name: str, choices: tuple[str, ...], text: str
) -> None:
    said = ", ".join((*choices, NONE))
    group.add_argument(
        f"--{name}", choices=(*choices, NONE), metavar="WHICH", help=f"{text}: {said}"
    )


def _size(text: str) -> int:
    try:
        size = int(text)
    except ValueError:
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text!r}")
    return size


def _allowance(text: str) -> tuple[str, str]:
    from attention_lib.doctor.codes import codes

    code, _, reason = text.partition("=")
    code, reason = code.strip().upper(), reason.strip().strip("\"'").strip()
    if not reason:
        raise argparse.ArgumentTypeError(
            f'{text!r} has no reason; write {code or "AT501"}="why it is right here"'
        )
    if code not in codes():
        raise argparse.ArgumentTypeError(f"there is no code {code!r}")
    return code, reason
