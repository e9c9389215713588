"""Configurations: dataclasses read from TOML, in which no key goes astray.

A misspelt key that is ignored leaves a default in its place, and the run goes on as
another run. So what the dataclass does not know is refused, by name.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["from_dict", "from_toml"]

T = TypeVar("T")


def from_toml(cls: type[T], source: Path | str) -> T:
    """A dataclass filled from TOML.

    Parameters
    ----------
    cls
        A dataclass. Its fields may be bool, int, float, str, ``Literal``, a list, tuple or
        dict of these, another dataclass (a table of the file), or ``... | None``. A field
        without a default must be given.
    source
        A :class:`~pathlib.Path` is a file. A str is the text itself.

    Returns
    -------
    T
        An instance of ``cls``.

    Raises
    ------
    ValueError
        If the TOML cannot be parsed, a key is unknown (the message says which is nearest),
        a key is missing, or a value is none of a ``Literal``'s.
    TypeError
        If a value has another type than its field, or ``cls`` cannot be filled. A bool is
        no int here, and an int is a float.
    FileNotFoundError
        If there is no such file.
    ModuleNotFoundError
        On Python 3.10 without the package tomli.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Layer:
    ...     num_heads: int
    ...     scale: float | None = None
    >>> from_toml(Layer, "num_heads = 4")
    Layer(num_heads=4, scale=None)
    >>> from_toml(Layer, "num_heads = 4\\nscal = 1.0")
    Traceback (most recent call last):
    ValueError: unknown key scal, nearest: scale; Layer has num_heads, scale
    """
    toml = _parser()
    if isinstance(source, Path):
        text, origin = source.read_text(encoding="utf-8"), f"{source.name}: "
    elif isinstance(source, str):
        text, origin = source, ""
    else:
        kind = type(source).__name__
        raise TypeError(f"source must be a Path or TOML as a str, got {kind}")
    try:
        table = toml.loads(text)
    except toml.TOMLDecodeError as error:
        hint = ""
        if not origin and text.strip().endswith(".toml"):
            hint = f"; a str is read as TOML: for a file pass Path({text.strip()!r})"
        raise ValueError(f"{origin}not TOML: {error}{hint}") from None
    try:
        return from_dict(cls, table)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{origin}{error}") from None


def from_dict(cls: type[T], table: Mapping[str, Any]) -> T:
    """A dataclass filled from a mapping, such as the configuration in a record.

    The inverse of ``dataclasses.asdict``, also after a way through JSON, where tuples
    become lists.

    Parameters
    ----------
    cls
        A dataclass, as for :func:`from_toml`.
    table
        Its fields by name; those of a dataclass within as a mapping.

    Returns
    -------
    T
        An instance of ``cls``.

    Raises
    ------
    ValueError, TypeError
        As :func:`from_toml`.

    Examples
    --------
    >>> @dataclasses.dataclass(frozen=True)
    ... class Training:
    ...     lr: float
    ...     seeds: tuple[int, ...] = (0, 1, 2)
    >>> from_dict(Training, {"lr": 0.003, "seeds": [5]})
    Training(lr=0.003, seeds=(5,))
    >>> from_dict(Training, {"lr": "0.003"})
    Traceback (most recent call last):
    TypeError: lr must be a float, got the str '0.003'
    """
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise TypeError(f"cls must be a dataclass, got {cls!r}")
    return _fill(cls, table, "")


def _parser() -> Any:
    """tomllib, or tomli where Python is too old to have it."""
    try:
        import tomllib
    except ModuleNotFoundError:
        try:
            import tomli as tomllib  # type: ignore[import-not-found, no-redef, unused-ignore]
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "Python 3.10 has no TOML parser: pip install tomli"
            ) from None
    return tomllib


def _fill(cls: Any, table: object, path: str) -> Any:
    """The dataclass from its table; ``path`` leads to it, such as "model."."""
    if not isinstance(table, Mapping):
        raise _wrong(path.rstrip(".") or "the configuration", "a table", table)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    unknown = [_unknown(path, key, fields) for key in table if key not in fields]
    if unknown:
        within = f"{cls.__name__} has {', '.join(fields)}"
        raise ValueError(f"unknown key {', unknown key '.join(unknown)}; {within}")
    missing = [
        path + name
        for name, field in fields.items()
        if name not in table
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"missing: {', '.join(missing)} of {cls.__name__}")
    hints = get_type_hints(cls)
    return cls(
        **{
            name: _value(hints[name], given, path + name)
            for name, given in table.items()
        }
    )


def _unknown(path: str, key: object, fields: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(str(key).lower().replace("-", "_"), fields, n=1)
    return f"{path}{key}" + (f", nearest: {path}{near[0]}" if near else "")


def _value(kind: Any, given: object, name: str) -> Any:
    """What was given, once it is of the kind that the field declares."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return given
    if dataclasses.is_dataclass(kind):
        return _fill(kind, given, f"{name}.")
    if origin in (Union, types.UnionType):
        return _one_of(parts, given, name)
    if origin is Literal:
        # 1 == True and 1 == 1.0, but they are not the same choice.
        if not any(type(given) is type(part) and given == part for part in parts):
            choices = ", ".join(map(repr, parts))
            raise ValueError(f"{name} must be one of {choices}, got {given!r}")
        return given
    if kind in (list, tuple) or origin in (list, tuple):
        return _sequence(origin or kind, parts, given, name)
    if kind is dict or origin is dict:
        if not isinstance(given, Mapping):
            raise _wrong(name, "a table", given)
        of = parts[1] if parts else Any
        return {key: _value(of, item, f"{name}.{key}") for key, item in given.items()}
    if kind is float and type(given) is int:
        return float(given)
    if kind in (bool, int, float, str, type(None)):
        if type(given) is not kind:
            raise _wrong(name, _words(kind), given)
        return given
    raise TypeError(f"{name} is declared as {_words(kind)}, which TOML does not hold")


def _one_of(parts: tuple[Any, ...], given: object, name: str) -> Any:
    """The first kind of a union that takes what was given."""
    if given is None and type(None) in parts:
        return None
    kinds = [part for part in parts if part is not type(None)]
    if len(kinds) == 1:  # an optional field: its own error says more
        return _value(kinds[0], given, name)
    # An exact type first, so that the 1 of int | float stays an int.
    for kind in sorted(kinds, key=lambda kind: kind is not type(given)):
        try:
            return _value(kind, given, name)
        except (TypeError, ValueError):
            continue
    raise _wrong(name, " or ".join(map(_words, kinds)), given)


def _sequence(
    origin: Any, parts: tuple[Any, ...], given: object, name: str
) -> list[Any] | tuple[Any, ...]:
    if not isinstance(given, (list, tuple)):
        raise _wrong(name, "a list", given)
    if not parts:
        kinds = [Any] * len(given)
    elif origin is list or parts[1:] == (...,):
        kinds = [parts[0]] * len(given)
    elif len(parts) == len(given):
        kinds = list(parts)
    else:
        raise ValueError(f"{name} must have {len(parts)} items, got {len(given)}")
    return origin(
        _value(kind, item, f"{name}[{i}]")
        for i, (kind, item) in enumerate(zip(kinds, given, strict=True))
    )


def _words(kind: Any) -> str:
    """The kind as a message says it."""
    if kind is type(None):
        return "None"
    if isinstance(kind, type) and get_origin(kind) is None:
        return f"{'an' if kind.__name__[0] in 'aeiou' else 'a'} {kind.__name__}"
    return str(kind)


def _wrong(name: str, expected: str, given: object) -> TypeError:
    came = "None" if given is None else f"the {type(given).__name__} {given!r}"
    return TypeError(f"{name} must be {expected}, got {came}")
