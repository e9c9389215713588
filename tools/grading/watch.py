"""What stands between an answer and its check: plain values, and a look after each call."""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any

from grading import fence

CLAIMS = ("__class__", "__getattribute__", "__torch_function__")


class Tampered(Exception):
    """A submission changed what its check relies on."""


class Watch:
    """Remembers how things are when it is made, and what a submission changed."""

    def __init__(self) -> None:
        self.changed, self.reset = fence.trace(), fence.reset()
        self.modes, self.kinds = fence.modes(), fence.kinds()
        self.seen: list[str] = []

    def look(self, modes: tuple[int, int] = (0, 0)) -> None:
        """Stop at a change, and keep it in mind: the check may catch what stops it."""
        what = self.changed()
        if what is None and self.modes() != modes:
            what = "what torch's functions do, by a mode"
        if what:
            self.seen.append(what)
            raise Tampered(what)

    def end(self) -> str | None:
        """Put torch's switches back; what was changed first, if anything was."""
        self.reset()
        with contextlib.suppress(Tampered):
            self.look()
        return self.seen[0] if self.seen else None

    def plain(self, answer: Any) -> Any:
        """The answer, handing out plain values: nothing that lies when compared.

        What it changed is looked for after each call: by the end of the check, code that
        answers in the place of a comparison may have put everything back.
        """
        import torch

        lower, known, look = torch.Tensor.as_subclass, self.kinds, self.look
        modes = self.modes
        kinds = (torch.Tensor, str, int, float, list, tuple, dict, set)
        own = torch._C.DisableTorchFunctionSubclass
        exact = frozenset({*kinds, bool, torch.nn.Parameter, torch.Size})

        def plain(value: Any) -> Any:
            kind = type(value)
            if kind in (list, tuple):
                return kind(map(plain, value))
            if kind is dict:
                return {plain(k): plain(v) for k, v in value.items()}
            if kind in exact:
                return value
            if issubclass(kind, torch.Tensor):
                with own():
                    return lower(value, torch.Tensor)
            for base in kinds[1:]:
                if issubclass(kind, base):
                    return plain(base(getattr(base, _READ[base])(value)))
            if kind is types.FunctionType:
                return careful(value)
            layer = issubclass(kind, torch.nn.Module)
            if _claims(kind) or not (layer or kind in known):
                raise TypeError(
                    f"it returned an object of its own class {kind.__name__}"
                )
            return value

        def careful(function: Any) -> Any:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                before = modes()  # a check may measure with one
                try:
                    return plain(function(*args, **kwargs))
                finally:
                    look(before)

            return call

        return careful(answer) if callable(answer) else answer


def _claims(kind: type) -> bool:
    """Whether objects of a class may pass for others."""
    own = [vars(base) for base in kind.__mro__ if base is not object]
    found = (names[name] for names in own for name in CLAIMS if name in names)
    # Types made in C have their own way of looking names up.
    return not all(isinstance(one, types.WrapperDescriptorType) for one in found)


_READ = {
    str: "__str__",
    int: "__index__",
    float: "__float__",
    list: "__iter__",
    tuple: "__iter__",
    dict: "copy",
    set: "__iter__",
}
