"""The small problems that the chapters share.

Each function draws a fresh batch and returns ``(inputs, targets)``: int64 ids, and the
classes to answer with. A position that asks for nothing has the target :data:`IGNORE`.

Numbers are drawn where the generator lives, on the CPU without one, and then moved to
``device``: one seed gives one batch on every device.

Shapes: B batch, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["IGNORE", "copy", "lookback", "recall", "successor"]

#: Target of a position that asks for nothing; ``cross_entropy`` leaves it out.
IGNORE = -100


def recall(
    batch: int,
    pairs: int = 32,
    *,
    keys: int = 64,
    values: int = 16,
    gap: int = 0,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Look up one of several key-value pairs.

    A row holds ``pairs`` positions with a key and its value, ``gap`` blank positions, and
    last a key that was shown, without its value. The answer is its value. Chance is
    1 / ``values``.

    Parameters
    ----------
    batch
        B rows.
    pairs
        Pairs in a row; their keys are distinct.
    keys
        Number of keys to draw from; id ``keys`` is the blank.
    values
        Number of values to draw from; id ``values`` is the blank.
    gap
        Blank positions between the pairs and the question.
    generator, device
        Source of the numbers, and where the batch goes.

    Returns
    -------
    inputs : Tensor
        Shape (B, pairs + gap + 1, 2): the id of the key and that of the value.
    targets : Tensor
        Shape (B,): the value asked for.

    Raises
    ------
    ValueError
        If a size is too small, or ``pairs`` exceeds ``keys``.

    Examples
    --------
    >>> inputs, targets = recall(2, pairs=3, gap=4)
    >>> inputs.shape, targets.shape
    (torch.Size([2, 8, 2]), torch.Size([2]))
    """
    _check(batch=batch, pairs=pairs, keys=keys, values=values)
    _check(0, gap=gap)
    if pairs > keys:
        raise ValueError(
            f"pairs={pairs} must not exceed keys={keys}: keys are distinct"
        )
    where = _device(generator)
    shuffled = torch.rand(batch, keys, generator=generator, device=where).argsort(-1)
    shown = shuffled[:, :pairs]
    held = _draw(values, (batch, pairs), generator)
    asked = _draw(pairs, (batch, 1), generator)

    inputs = torch.empty(batch, pairs + gap + 1, 2, dtype=torch.int64, device=where)
    inputs[..., 0], inputs[..., 1] = keys, values  # blank
    inputs[:, :pairs, 0], inputs[:, :pairs, 1] = shown, held
    inputs[:, -1:, 0] = shown.gather(1, asked)
    return inputs.to(device), held.gather(1, asked)[:, 0].to(device)


def copy(
    batch: int,
    gap: int,
    *,
    symbols: int = 16,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Repeat the first symbol after a gap. Chance is 1 / ``symbols``.

    Parameters
    ----------
    batch
        B rows.
    gap
        Blank positions between the symbol and the question.
    symbols
        Number of symbols; id ``symbols`` is the blank, ``symbols + 1`` the question.
    generator, device
        Source of the numbers, and where the batch goes.

    Returns
    -------
    inputs : Tensor
        Shape (B, gap + 2): a symbol, ``gap`` blanks, the question.
    targets : Tensor
        Shape (B,): the symbol.

    Raises
    ------
    ValueError
        If a size is too small.

    Examples
    --------
    >>> inputs, targets = copy(5, gap=3)
    >>> inputs[0, 1:].tolist(), bool((inputs[:, 0] == targets).all())
    ([16, 16, 16, 17], True)
    """
    _check(batch=batch, symbols=symbols)
    _check(0, gap=gap)
    targets = _draw(symbols, (batch,), generator)
    inputs = torch.full((batch, gap + 2), symbols, device=targets.device)
    inputs[:, 0], inputs[:, -1] = targets, symbols + 1
    return inputs.to(device), targets.to(device)


def successor(
    batch: int,
    items: int = 32,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Point from each item to the one that follows it. Chance is 1 / ``items``.

    A row holds every item once, in random order. The successor of item i is i + 1, that of
    the last is 0. The answer is where it stands, so the scores themselves are the logits.

    Parameters
    ----------
    batch
        B rows.
    items
        L items in a row.
    generator, device
        Source of the numbers, and where the batch goes.

    Returns
    -------
    inputs : Tensor
        Shape (B, L): a permutation of 0 to L - 1.
    targets : Tensor
        Shape (B, L): for each position, the position of its item's successor.

    Raises
    ------
    ValueError
        If a size is too small.

    Examples
    --------
    >>> inputs, targets = successor(3, items=7)
    >>> bool((inputs.gather(1, targets) == (inputs + 1) % 7).all())
    True
    """
    _check(batch=batch)
    _check(2, items=items)
    where = _device(generator)
    inputs = torch.rand(batch, items, generator=generator, device=where).argsort(-1)
    places = inputs.argsort(-1)  # the position of item i
    targets = places.gather(1, (inputs + 1) % items)
    return inputs.to(device), targets.to(device)


def lookback(
    batch: int,
    length: int,
    back: int | Sequence[int] = 2,
    *,
    symbols: int = 16,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Name the symbol a fixed number of positions back, or several at once.

    Chance is 1 / ``symbols`` for each. Positions before there is anything to name have the
    target :data:`IGNORE`.

    Parameters
    ----------
    batch
        B rows.
    length
        L positions.
    back
        How far back, at least 0 and below ``length``. A sequence asks for K symbols at
        once, which takes K places to look at from one position.
    symbols
        Number of symbols.
    generator, device
        Source of the numbers, and where the batch goes.

    Returns
    -------
    inputs : Tensor
        Shape (B, L): random symbols.
    targets : Tensor
        Shape (B, L), or (B, L, K) if ``back`` is a sequence.

    Raises
    ------
    ValueError
        If a size is too small, or ``back`` reaches past ``length``.

    Examples
    --------
    >>> inputs, targets = lookback(1, 5, back=2)
    >>> targets[0, :2].tolist(), bool((targets[0, 2:] == inputs[0, :3]).all())
    ([-100, -100], True)
    >>> lookback(3, 5, back=(1, 4))[1].shape
    torch.Size([3, 5, 2])
    """
    _check(batch=batch, length=length, symbols=symbols)
    offsets = [back] if isinstance(back, int) else list(back)
    if not offsets or not all(0 <= offset < length for offset in offsets):
        raise ValueError(f"back={back} must hold numbers from 0 to {length - 1}")
    inputs = _draw(symbols, (batch, length), generator)
    targets = torch.full((batch, length, len(offsets)), IGNORE, device=inputs.device)
    for i, offset in enumerate(offsets):
        targets[:, offset:, i] = inputs[:, : length - offset]
    if isinstance(back, int):
        targets = targets[..., 0]
    return inputs.to(device), targets.to(device)


def _device(generator: torch.Generator | None) -> torch.device:
    return torch.device("cpu") if generator is None else generator.device


def _draw(
    high: int, shape: tuple[int, ...], generator: torch.Generator | None
) -> Tensor:
    """Ids from 0 to high - 1, all equally likely."""
    return torch.randint(high, shape, generator=generator, device=_device(generator))


def _check(least: int = 1, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < least:
            raise ValueError(f"{name}={size} must be at least {least}")
