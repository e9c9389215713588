"""Real text and made-up dates, as character ids.

Shapes: B batch, L characters.
"""

from __future__ import annotations

import datetime
import string
from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["DATE_CHARACTERS", "Corpus", "Vocabulary", "dates", "python_topics"]

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
# Each format can be told from the others, so that every date has one answer.
_FORMATS = (
    "{day} {month} {year}",
    "{month} {day}, {year}",
    "{day:02}.{number:02}.{year}",
    "{number:02}/{day:02}/{year}",
    "{month:.3} {day} {year}",
)
_LONGEST = len("September 30, 2000")


class Vocabulary:
    """Characters and their ids, which are their places in a string.

    Parameters
    ----------
    characters
        The characters, each once.

    Raises
    ------
    ValueError
        If a character comes twice.

    Examples
    --------
    >>> letters = Vocabulary("abc")
    >>> letters.encode("cab").tolist(), letters.decode([2, 0, 1]), len(letters)
    ([2, 0, 1], 'cab', 3)
    """

    def __init__(self, characters: str) -> None:
        if len(set(characters)) < len(characters):
            raise ValueError("characters must hold each character once")
        self.characters = characters
        self._ids = {character: i for i, character in enumerate(characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> Tensor:
        """Ids of a text, int64 of shape (L,); ValueError for an unknown character."""
        if unknown := sorted(set(text) - set(self._ids)):
            raise ValueError(f"text holds {unknown}, which the vocabulary does not")
        return torch.tensor([self._ids[c] for c in text], dtype=torch.int64)

    def decode(self, ids: Tensor | Iterable[int]) -> str:
        """The text of a row of ids."""
        row = ids.tolist() if isinstance(ids, Tensor) else ids
        return "".join(self.characters[i] for i in row)


#: What a date is written with. Id 0, an underscore, pads the shorter ones.
DATE_CHARACTERS = Vocabulary("_ ,-./" + string.digits + string.ascii_letters)


class Corpus:
    """A text as character ids, its last part held out.

    Parameters
    ----------
    text
        The text; the vocabulary holds its characters in the order of their code points.
    validation
        Share of the text, at its end, held out for validation; from 0 to 1, exclusive.

    Attributes
    ----------
    vocabulary
        The :class:`Vocabulary` of the whole text.
    train
        The part to train on, int64 ids.
    validation
        The part held out, int64 ids.

    Raises
    ------
    ValueError
        If a part would be empty.

    Examples
    --------
    >>> corpus = Corpus("to be or not to be", validation=1 / 3)
    >>> len(corpus.vocabulary), len(corpus.train), len(corpus.validation)
    (7, 12, 6)
    >>> inputs, targets = corpus.batch(2, 5)
    >>> bool((inputs[:, 1:] == targets[:, :-1]).all())
    True
    """

    def __init__(self, text: str, *, validation: float = 0.1) -> None:
        cut = len(text) - round(len(text) * validation)
        if not 0 < cut < len(text):
            raise ValueError(
                f"validation={validation} of {len(text)} characters leaves a part empty"
            )
        self.vocabulary = Vocabulary("".join(sorted(set(text))))
        self.train, self.validation = self.vocabulary.encode(text).tensor_split([cut])

    def batch(
        self,
        batch: int,
        length: int,
        *,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Random pieces of the training part: (B, L) ids, and the ids that follow each."""
        places = len(self.train) - length
        if batch < 1 or length < 1 or places < 1:
            raise ValueError(
                f"batch={batch} and length={length} must be at least 1, and length below "
                f"the {len(self.train)} characters for training"
            )
        where = "cpu" if generator is None else generator.device
        starts = torch.randint(places, (batch, 1), generator=generator, device=where)
        pieces = self.train[starts.cpu() + torch.arange(length + 1)].to(device)
        return pieces[:, :-1], pieces[:, 1:]

    def windows(
        self, length: int, *, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """The validation part in consecutive pieces, and the ids that follow each.

        Both of shape (N, L); what is left over at the end is dropped.
        """
        count = (len(self.validation) - 1) // max(length, 1)
        if length < 1 or count < 1:
            raise ValueError(
                f"length={length} must be from 1 to {len(self.validation) - 1}, "
                "the characters for validation"
            )
        end = count * length
        inputs = self.validation[:end].view(count, length)
        targets = self.validation[1 : end + 1].view(count, length)
        return inputs.to(device), targets.to(device)


def python_topics() -> str:
    """The help texts of Python's own ``help("...")`` topics, about 0.5 million characters.

    They come with Python, so there is nothing to download. Each version of Python words
    them a little differently: a loss on them is not the same to the last digit.

    Returns
    -------
    str
        The topics in alphabetical order.

    Examples
    --------
    >>> text = python_topics()
    >>> "yield" in text, len(text) > 300_000
    (True, True)
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def dates(
    batch: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> tuple[Tensor, Tensor]:
    """Dates in five formats, to be written as year-month-day.

    A task for cross-attention: the answer's characters come from known places in the input,
    so the weights can be read as an alignment.

    Parameters
    ----------
    batch
        B rows.
    generator, device
        Source of the numbers, and where the batch goes.

    Returns
    -------
    inputs : Tensor
        Shape (B, 18): ids in :data:`DATE_CHARACTERS` of dates from 1900 to 2099, padded
        with 0.
    targets : Tensor
        Shape (B, 10): ids of the same dates as in ``2026-11-30``.

    Raises
    ------
    ValueError
        If ``batch`` is below 1.

    Examples
    --------
    >>> import torch
    >>> inputs, targets = dates(3, generator=torch.Generator().manual_seed(2))
    >>> for row, answer in zip(inputs, targets):
    ...     print(DATE_CHARACTERS.decode(row), DATE_CHARACTERS.decode(answer))
    May 7 2025________ 2025-05-07
    03/20/1906________ 1906-03-20
    Feb 28 1970_______ 1970-02-28
    """
    if batch < 1:
        raise ValueError(f"batch={batch} must be at least 1")
    where = "cpu" if generator is None else generator.device
    first = datetime.date(1900, 1, 1).toordinal()
    last = datetime.date(2099, 12, 31).toordinal()
    days = torch.randint(first, last + 1, (batch,), generator=generator, device=where)
    kinds = torch.randint(len(_FORMATS), (batch,), generator=generator, device=where)
    rows, answers = [], []
    for ordinal, kind in zip(days.tolist(), kinds.tolist(), strict=True):
        date = datetime.date.fromordinal(ordinal)
        written = _FORMATS[kind].format(
            day=date.day,
            month=_MONTHS[date.month - 1],
            number=date.month,
            year=date.year,
        )
        rows.append(DATE_CHARACTERS.encode(written.ljust(_LONGEST, "_")))
        answers.append(DATE_CHARACTERS.encode(date.isoformat()))
    return torch.stack(rows).to(device), torch.stack(answers).to(device)
