"""A private copy of a subject, so that an examination changes nothing of the caller's.

A module is copied deeply. Of a function, everything it holds is copied: the object a
method is bound to, the variables of a closure, the modules among its globals.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["modules_of", "private_copy", "stray_tensors"]


def private_copy(subject: Any) -> Any:
    """A copy of the subject that shares no module with it.

    Parameters
    ----------
    subject
        A module, a function, a method, a partial or any callable object.

    Returns
    -------
    object
        The copy. What cannot be copied is returned as it is.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> call = lambda x: layer(x)
    >>> mine = private_copy(call)
    >>> modules_of(mine)[0] is layer
    False
    """
    try:
        if isinstance(subject, types.FunctionType):
            return _copy_function(subject)
        if isinstance(subject, types.MethodType):
            held = private_copy(subject.__self__)
            return types.MethodType(subject.__func__, held)
        if isinstance(subject, functools.partial):
            parts = [private_copy(part) for part in subject.args]
            named = {k: private_copy(v) for k, v in subject.keywords.items()}
            return functools.partial(private_copy(subject.func), *parts, **named)
        return _deepcopy(subject)
    except Exception:  # a subject may refuse in any way it likes
        return subject


def _deepcopy(thing: Any) -> Any:
    """A deep copy in which the functions that an object holds are copied as well."""
    made = copy.deepcopy(thing)
    if isinstance(made, nn.Module) or not hasattr(made, "__dict__"):
        return made
    for name, value in vars(made).items():
        if isinstance(value, types.FunctionType) and _holds_modules(value):
            setattr(made, name, _copy_function(value))
    return made


def _holds_modules(function: types.FunctionType) -> bool:
    return bool(modules_of(function))


def _copy_function(function: types.FunctionType) -> types.FunctionType:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(types.CellType(private_copy(cell.cell_contents)))
        except ValueError:  # an empty cell
            cells.append(cell)
    scope = function.__globals__
    own = {
        name: private_copy(scope[name])
        for name in function.__code__.co_names
        if isinstance(scope.get(name), nn.Module)
    }
    made = types.FunctionType(
        function.__code__,
        {**scope, **own} if own else scope,
        function.__name__,
        function.__defaults__,
        tuple(cells) if function.__closure__ else None,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    return made


def _held(thing: Any) -> Iterator[Any]:
    """What an object holds, one level down."""
    if isinstance(thing, types.MethodType):
        yield thing.__self__
    elif isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, types.FunctionType):
        for cell in thing.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                continue
        scope = thing.__globals__
        for name in thing.__code__.co_names:
            if isinstance(scope.get(name), nn.Module):
                yield scope[name]
        yield from thing.__defaults__ or ()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    elif not isinstance(thing, (type, types.ModuleType, Tensor, str, bytes)):
        try:
            yield from vars(thing).values()
        except TypeError:
            return


def _walk(thing: Any, depth: int = 6) -> Iterator[Any]:
    seen: set[int] = set()
    level = [thing]
    for _ in range(depth):
        below: list[Any] = []
        for item in level:
            if id(item) in seen:
                continue
            seen.add(id(item))
            yield item
            below.extend(_held(item))
        level = below


def modules_of(subject: Any) -> list[nn.Module]:
    """The outermost modules that a subject is or holds, those in plain lists too.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> modules_of(lambda x: layer(x))[0] is layer
    True
    """
    found: list[nn.Module] = []
    inner: set[int] = set()
    for thing in _walk(subject):
        if isinstance(thing, nn.Module) and id(thing) not in inner:
            found.append(thing)
            inner.update(id(module) for module in thing.modules())
    return found


def stray_tensors(subject: Any) -> list[tuple[Any, str, Tensor]]:
    """Tensors kept as plain attributes: holder, name, tensor.

    They are neither parameters nor buffers, so ``to``, ``half`` and ``state_dict`` pass
    them by.
    """
    found: list[tuple[Any, str, Tensor]] = []
    for module in modules_of(subject):
        for part in module.modules():
            for name, value in vars(part).items():
                if isinstance(value, Tensor):
                    found.append((part, name, value))
    return found


def double(subject: Any, dtype: torch.dtype = torch.float64) -> None:
    """Cast every module of a private copy, those in plain lists too."""
    for module in modules_of(subject):
        module.to(dtype)
