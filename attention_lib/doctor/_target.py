"""Turns ``package.module:name`` of a command line into the subject to examine."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from dataclasses import dataclass
from typing import Any

WIDTHS = ("embed_dim", "d_model", "n_embd", "hidden_size", "dim", "width", "d_in")
HEADS = ("num_heads", "nhead", "n_head", "n_heads", "num_attention_heads", "heads")
BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


class BadTarget(Exception):
    """The target cannot be examined; the message is a line for the user."""


@dataclass(frozen=True)
class Target:
    """A subject, and where it is defined: relative to the current folder, if inside."""

    subject: Any
    file: str | None
    line: int | None


def load(
    target: str,
    embed_dim: int | None = None,
    num_heads: int | None = None,
    *,
    as_is: bool = False,
) -> Target:
    """Import the target, and call it where it makes the subject.

    Raises
    ------
    BadTarget
        If it has no colon, cannot be imported, is not there, or cannot be called.
    """
    thing = find(target)
    file, line = place(thing)
    if as_is or not makes_subject(thing):
        return Target(thing, file, line)
    return Target(_call(target, thing, embed_dim, num_heads), file, line)


def find(target: str) -> Any:
    """The object that a target names."""
    module_name, colon, path = target.partition(":")
    if not colon or not module_name or not path:
        raise BadTarget(f"{target!r} is not of the form package.module:name")
    if module_name.endswith(".py") or os.sep in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise BadTarget(f"{module_name!r} is a file; write its module, {dotted}:{path}")
    found = import_module(module_name)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            owner = getattr(found, "__name__", type(found).__name__)
            raise BadTarget(f"{target}: there is no {name!r} in {owner}") from None
    return found


def import_module(name: str) -> Any:
    """Import a module, the current folder included in the search."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            said = (
                f"there is no module {missing!r} here or among the installed packages"
            )
            raise BadTarget(said) from None
        raise BadTarget(f"importing {name}: it needs {missing!r}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - SystemExit of a script as well
        raise BadTarget(f"importing {name} raised {described(error)}") from None


def described(error: BaseException) -> str:
    """An exception in a line: its type, its first words and where it was raised."""
    words = " ".join(str(error).split())[:200]
    frame, where = error.__traceback__, ""
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        if "importlib" not in name and name != __file__:
            where = f" ({os.path.basename(name)}, line {frame.tb_lineno})"
        frame = frame.tb_next
    return f"{type(error).__name__}{': ' if words else ''}{words}{where}"


def makes_subject(thing: Any) -> bool:
    """Whether to call the thing: a class, or a function that takes sizes or nothing.

    A function that must be given anything else, such as ``f(q, k, v)``, is a subject.
    """
    if inspect.isclass(thing):
        return True
    if not inspect.isroutine(thing):
        return False
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [p for p in parameters if p.default is p.empty and p.kind in BY_POSITION]
    return all(p.name in (*WIDTHS, *HEADS) for p in required)


def _call(
    target: str, factory: Any, embed_dim: int | None, num_heads: int | None
) -> Any:
    try:
        args, named = _arguments(factory, embed_dim, num_heads)
        return factory(*args, **named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - it is the user's
        said = f"{target} could not be made: {described(error)}"
        if isinstance(error, TypeError):
            said += ". A function without arguments that returns the module also does"
        raise BadTarget(said) from None


def _arguments(
    factory: Any, embed_dim: int | None, num_heads: int | None
) -> tuple[list[int], dict[str, int]]:
    """The sizes under the names that the factory has for them, else in order."""
    sizes = [size for size in (embed_dim, num_heads) if size is not None]
    try:
        names = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return sizes, {}
    named: dict[str, int] = {}
    for size, known in ((embed_dim, WIDTHS), (num_heads, HEADS)):
        name = next((name for name in known if name in names), None)
        if size is not None and name is not None:
            named[name] = size
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in names.values())
    if named or (names and not takes_any and inspect.isroutine(factory)):
        return [], named
    return (sizes, {}) if names else ([], {})


def place(thing: Any) -> tuple[str | None, int | None]:
    """Where a thing is defined, if that is below the current folder."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        thing = type(thing)
    try:
        file = inspect.getsourcefile(thing)
        _, line = inspect.getsourcelines(thing)
    except (OSError, TypeError):
        return None, None
    if file is None:
        return None, None
    try:
        relative = os.path.relpath(file)
    except ValueError:  # another drive
        return None, None
    inside = not relative.startswith(os.pardir) and not os.path.isabs(relative)
    return (relative, max(1, line)) if inside else (None, None)
