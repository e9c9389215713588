"""Strides, sizes of one, long inputs, dtypes: what must not matter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attention_lib.doctor.causes import finding
from attention_lib.doctor.copies import stray_tensors
from attention_lib.doctor.findings import Finding
from attention_lib.doctor.probing import Bench, Skip, SubjectError

__all__ = ["constants", "lengths", "ones", "refusal", "strides"]


def strides(bench: Bench) -> Iterator[Finding]:
    """The same numbers in another memory layout must give the same output."""
    x = bench.tokens()
    y = bench.out(x)
    wide = torch.cat([x, x], -1)
    views = {
        "sequence-first memory": x.transpose(0, 1).contiguous().transpose(0, 1),
        "a slice of wider rows": wide[..., : bench.E],
        "features in the first axis": x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    }
    for name, view in views.items():
        try:
            z = bench.out(view, as_is=True)
        except SubjectError as error:
            yield finding(
                "AT302",
                "strides",
                "a tensor that is not contiguous is refused",
                f"With {name}: {error.what}",
                severity="note",
                why="view() needs contiguous memory",
                kind="layout in memory",
                sure="shown",
                remedy=("- x.view(...)", "+ x.reshape(...)"),
                effect="an error behind a transpose or a slice",
            )
            return
        gap = bench.close(z, y)
        if gap > bench.noise:
            yield finding(
                "AT302",
                "strides",
                "the layout in memory changes the output",
                f"With {name} the output differs by {gap:.2g} (relative).",
                measured=gap,
                expected=0.0,
                why="memory is read without its strides (as_strided, data_ptr)",
                kind="layout in memory",
                sure="shown",
            )
            return


def ones(bench: Bench) -> Iterator[Finding]:
    """One item and one token are sizes like any other: no axis may vanish."""
    x = bench.tokens()
    y = bench.out(x)
    for name, part, want in (
        ("one item", x[:1], y[:1]),
        ("one token", x[:, :1], None),
        ("one item of one token", x[:1, :1], None),
    ):
        try:
            z = bench.out(part)
        except SubjectError as error:
            yield finding(
                "AT521",
                "ones",
                f"{name} breaks it",
                f"With x {tuple(part.shape)}: {error.what}",
                why="squeeze() without an axis drops every axis of length one",
                kind="length",
                remedy=("- t.squeeze()", "+ t.squeeze(1)"),
                smallest=f"batch {part.shape[0]}, length {part.shape[1]}",
            )
            return
        if torch.isfinite(y).all() and not torch.isfinite(z).all():
            yield finding(
                "AT521",
                "ones",
                f"{name} gives NaN or infinity",
                f"With x {tuple(part.shape)} outputs are not finite.",
                why="a deviation or a mean over tokens divides by their number less one",
                kind="length",
                sure="shown",
                effect="the first token that is generated is NaN",
                smallest=f"batch {part.shape[0]}, length {part.shape[1]}",
            )
            return
        gap = 0.0 if want is None else bench.close(z, want)
        if gap > bench.noise:
            yield finding(
                "AT301",
                "ones",
                "an item alone gives another output than in a batch",
                f"Outputs differ by {gap:.2g} (relative).",
                measured=gap,
                expected=0.0,
                why="something is computed over the batch",
                kind="axis order",
            )
            return


def refusal(
    bench: Bench, how: dict[str, Any], working: list[int], failing: int, what: str
) -> Finding:
    """The finding for a length that is refused."""
    clear = what.startswith(("ValueError", "NotImplementedError")) and any(
        word in what.lower() for word in ("max", "length", "position", "long", "size")
    )
    absolute = bench.facts.positions == "absolute"
    named = " with causal=True" if how.get("causal") else ""
    return finding(
        "AT520",
        "lengths",
        f"length {failing} is refused{named}"
        + ("" if clear else ", by an error that does not say so"),
        f"Length {max(working)} works; length {failing} raises {what}",
        severity="note" if clear or absolute else "fault",
        measured=float(max(working)),
        why="a table made for a longest length is too short",
        kind="length",
        sure="shown",
        remedy=(
            "+ if L > self.max_len:",
            '+     raise ValueError(f"length {L} is more than max_len {self.max_len}")',
        ),
        effect="runs until the first long input",
    )


def _some(bench: Bench, working: list[int], refused: dict[int, str]) -> Finding:
    """Some lengths work, and shorter ones do not."""
    width = bench.E // max(bench.H, 1)
    square = working in ([width], [bench.E])
    L = max(L for L in refused if L < max(working))
    return finding(
        "AT520",
        "lengths",
        f"only length {working[0]} works"
        if len(working) == 1
        else "only some lengths work",
        f"Lengths {working} work; length {L} raises {refused[L]}",
        severity="note" if refused[L].startswith("ValueError") else "fault",
        measured=float(working[0]),
        why="keys are not transposed: scores need as many tokens as features"
        if square
        else "a size is fixed, or the length must be a multiple of another",
        kind="length",
        sure="shown" if square else "consistent",
        remedy=("- scores = q @ k", "+ scores = q @ k.transpose(-1, -2)")
        if square
        else (),
        effect="an error for any other length",
    )


def lengths(bench: Bench) -> Iterator[Finding]:
    """Lengths up to 300: each works, or is refused by a clear error."""
    for how in [{}, {"causal": True}] if bench.has_flag else [{}]:
        working: list[int] = []
        refused: dict[int, str] = {}
        for L in sorted({1, 2, 3, 5, 9, 17, 33, 65, 130, 300, bench.L}):
            try:
                y = bench.out(bench.tokens(2, 1, L), **how)
            except SubjectError as error:
                refused[L] = error.what
                if len(refused) > 6:
                    break
                continue
            working.append(L)
            if not torch.isfinite(y).all():
                break
        small = [L for L in refused if 1 < L < max(working, default=0)]
        large = [L for L in refused if L > max(working, default=L)]
        if small:
            yield _some(bench, working, refused)
        elif large:
            yield refusal(bench, how, working, large[0], refused[large[0]])
        if small or large:
            bench.notes["longest"] = max(working)
            return
    bench.notes.setdefault("longest", 300)


class _Foreign(TorchDispatchMode):
    """Collects tensors that a call uses and neither makes nor was given."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.known = {t.untyped_storage()._cdata for t in known}
        self.held = list(known)
        self.found: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = tree_leaves((args, kwargs or {}))
        for t in given:
            if isinstance(t, Tensor) and t.untyped_storage()._cdata not in self.known:
                self.known.add(t.untyped_storage()._cdata)
                self.held.append(t)
                self.found.append(t)
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, Tensor):
                self.known.add(t.untyped_storage()._cdata)
                self.held.append(t)  # so that its storage is not used again
        return out


def foreign_tensors(bench: Bench, call: Any, given: list[Tensor]) -> list[Tensor]:
    """Tensors of more than one number that a call takes from nowhere.

    They are no argument, no parameter, no buffer, and were not made by the call: so
    ``to``, ``half`` and ``state_dict`` pass them by.
    """
    known = list(given)
    for module in bench.modules:
        known += [*module.parameters(), *module.buffers()]
    modes = (_Foreign(known), _Foreign(known))
    for mode in modes:  # what both calls use was there before
        try:
            with torch.no_grad(), mode:
                call()
        except Exception:  # noqa: BLE001 - some operations refuse to be watched
            return []
    again = {t.untyped_storage()._cdata for t in modes[1].found}
    return [
        t
        for t in modes[0].found
        if t.numel() > 1 and t.untyped_storage()._cdata in again
    ]


def constants(bench: Bench) -> Iterator[Finding]:
    """Tables must be buffers: what a call uses must move with the module."""
    if bench.module is None:
        raise Skip("not a module: nothing to move")
    kept = stray_tensors(bench.module)
    if not kept:
        return
    x = bench.tokens()
    causal: dict[str, Any] = {"causal": True} if bench.has_flag else {}
    own = {t.untyped_storage()._cdata for _, _, t in kept}
    found = [
        t
        for t in foreign_tensors(bench, lambda: bench.raw(x, **causal), [x])
        if t.untyped_storage()._cdata in own and not t.requires_grad
    ]
    if found:
        shapes = ", ".join(str(tuple(t.shape)) for t in found[:3])
        yield finding(
            "AT510",
            "constants",
            "a table does not follow the module's device and dtype",
            f"{len(found)} tensors ({shapes}) are neither parameters nor buffers.",
            measured=float(len(found)),
            expected=0.0,
            why="a tensor is kept as a plain attribute",
            kind="dtype/device",
            sure="shown",
            remedy=(
                "- self.table = table",
                '+ self.register_buffer("table", table, persistent=False)',
            ),
            effect="an error, or another dtype, once the module is moved",
        )
