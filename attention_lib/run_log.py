"""A log of a run in JSON lines: the loss, and statistics of every attention.

One line is one JSON object, so that any tool reads it, and so that a crash costs one line
at most. JSON has neither NaN nor infinity, and they are what one looks for: they are
written as the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from attention_lib import diagnostics
from attention_lib.layers import MultiHeadAttention

__all__ = ["RunLog", "read_log"]

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@final
class RunLog:
    """Append lines to a log file.

    An existing file is continued. What a crash left of its last line is removed.

    Parameters
    ----------
    path
        The file, usually with the ending ``.jsonl``. Its folder must exist.

    Raises
    ------
    FileNotFoundError
        If there is no such folder.

    Examples
    --------
    >>> import tempfile
    >>> layer = MultiHeadAttention(8, num_heads=2)
    >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> with RunLog(path) as log:
    ...     for step in range(3):
    ...         with log.observe(layer, step, every=2):
    ...             output = layer(torch.randn(3, 5, 8), is_causal=True)
    ...         log.write(step=step, loss=output.square().mean())
    >>> lines = read_log(path)
    >>> [line["step"] for line in lines if "loss" in line]
    [0, 1, 2]
    >>> [(line["step"], line["head"]) for line in lines if "entropy" in line]
    [(0, 0), (0, 1), (2, 0), (2, 1)]
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        _repair(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, **values: Any) -> None:
        """Append one line.

        Parameters
        ----------
        values
            What JSON holds, and tensors of one number. By custom one of them is ``step``.

        Raises
        ------
        TypeError
            If a value is nothing that JSON holds.
        ValueError
            If the log is closed.

        Examples
        --------
        >>> import tempfile
        >>> with RunLog(Path(tempfile.mkdtemp()) / "run.jsonl") as log:
        ...     log.write(step=0, loss=torch.tensor(float("nan")))
        >>> log.path.read_text()
        '{"step": 0, "loss": "NaN"}\\n'
        """
        self._append([values])

    @contextlib.contextmanager
    def observe(self, model: nn.Module, step: int, *, every: int = 1) -> Iterator[None]:
        """Write the statistics of every attention that the model calls inside.

        At a step that is no multiple of ``every`` nothing is done at all. At the others
        each layer computes its weights once more, without a gradient and without dropout:
        outputs, gradients and random numbers stay as they are.

        Parameters
        ----------
        model
            Holds one :class:`~attention_lib.MultiHeadAttention` or more, not compiled.
        step
            Number of the step, written with each line.
        every
            Observe each that many steps.

        Yields
        ------
        None
            A line for each call of a layer and each head: ``step``, ``layer`` (its name in
            the model), ``head``, then over all queries that attend to something the means
            of ``entropy`` and ``sink_mass`` and the ``saturation``; the largest
            ``query_norm`` and ``key_norm``; ``score_limit``, which is their product times
            the scale and which no dot product of the head exceeds; and ``nonfinite``, the
            share of rows of weights that hold NaN. Nothing is written if the block raises.

        Raises
        ------
        ValueError
            If ``every`` is below 1, or the model has no such layer.

        Notes
        -----
        Entropy, sink mass and saturation are those of
        :func:`~attention_lib.diagnostics.summary`.
        """
        if every < 1:
            raise ValueError(f"every={every} must be at least 1")
        layers = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, MultiHeadAttention)
        }
        if not layers:
            kind = type(model).__name__
            raise ValueError(f"model has no MultiHeadAttention to observe: {kind}")
        if step % every:
            yield
            return
        lines: list[dict[str, Any]] = []

        def watch(name: str) -> Any:
            def look(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                for head, numbers in enumerate(_statistics(layer, args, kwargs)):
                    lines.append({"step": step, "layer": name, "head": head, **numbers})

            return look

        with contextlib.ExitStack() as hooks:
            for name, layer in layers.items():
                handle = layer.register_forward_hook(watch(name), with_kwargs=True)
                hooks.callback(handle.remove)
            yield
        self._append(lines)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _append(self, lines: list[dict[str, Any]]) -> None:
        text = "".join(
            json.dumps(_plain(line), ensure_ascii=False, allow_nan=False) + "\n"
            for line in lines
        )
        if self._file.closed:
            raise ValueError(f"{self.path.name} is closed")
        # In one piece and at once: what is written survives a crash of the run.
        self._file.write(text)
        self._file.flush()


def read_log(path: Path | str) -> list[dict[str, Any]]:
    """The lines of a log, in order, while it grows or after a crash.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    list of dict
        One for each line; NaN and infinities are floats again. A last line that was cut
        off is left out. After a restart the same step may come twice: the later counts.

    Raises
    ------
    ValueError
        If another line is not a JSON object; it is named by its number, from 1.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> _ = path.write_text('{"step": 0, "loss": "Infinity"}\\n{"step": 1, "lo')
    >>> read_log(path)
    [{'step': 0, 'loss': inf}]
    """
    lines = Path(path).read_bytes().split(b"\n")
    found = []
    for number, line in enumerate(lines, 1):
        values = _object(line)
        if values is not None:
            found.append(_floats(values))
        elif number < len(lines):
            raise ValueError(f"{Path(path).name}, line {number} is no JSON object")
    return found


@torch.no_grad()
def _statistics(layer: Any, args: Any, kwargs: Any) -> list[dict[str, float]]:
    """What a call of the layer looked like, for each head."""
    if kwargs.get("cache") is not None:
        # The call has filled the cache. Fill it once more, with the same, in a copy that
        # shares the memory and stands where the original stood.
        tokens = (args[0] if args else kwargs["query"]).shape[1]
        twin = copy.copy(kwargs["cache"])
        twin._length -= tokens
        kwargs = {**kwargs, "cache": twin}
    was_training, layer.training = layer.training, False  # no dropout, no draw
    try:
        _, weights = layer.forward(*args, **{**kwargs, "need_weights": True})
    finally:
        layer.training = was_training
    tokens = [
        *args,
        *(
            kwargs[name]
            for name in ("query", "key", "value")[len(args) :]
            if name in kwargs
        ),
    ]
    q, k, _ = layer.project(*tokens)
    q = q if layer.query_norm is None else layer.query_norm(q)
    k = k if layer.key_norm is None else layer.key_norm(k)
    shared = layer.num_heads // layer.num_kv_heads
    query_norm = q.float().norm(dim=-1).amax(dim=(0, 2))  # (H,)
    key_norm = k.float().norm(dim=-1).amax(dim=(0, 2)).repeat_interleave(shared)
    scale = layer.head_dim**-0.5 if layer.scale is None else abs(layer.scale)
    attends = (weights != 0).any(-1)  # (B, H, L)
    counted = attends.sum(dim=(0, 2)).clamp(min=1)
    table = {
        "entropy": diagnostics.entropy(weights).sum(dim=(0, 2)) / counted,
        "sink_mass": diagnostics.sink_mass(weights).sum(dim=(0, 2)) / counted,
        "saturation": diagnostics.saturation(weights.transpose(0, 1).flatten(1, 2)),
        "query_norm": query_norm,
        "key_norm": key_norm,
        "score_limit": query_norm * key_norm * scale,
        "nonfinite": 1 - weights.isfinite().all(-1).float().mean(dim=(0, 2)),
    }
    # One transfer from the device for all of them.
    columns = torch.stack([column.float() for column in table.values()], dim=1).tolist()
    return [dict(zip(table, row, strict=True)) for row in columns]


def _plain(value: Any) -> Any:
    """The value as JSON without NaN holds it."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise TypeError(
                f"a tensor of shape {tuple(value.shape)} is no single number"
            )
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _floats(value: Any) -> Any:
    if isinstance(value, str):
        return NOT_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_floats(item) for item in value]
    return value


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _repair(path: Path) -> None:
    """Remove what a crash left of the last line; end a whole one."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        text = file.read()
        last = text[text.rfind(b"\n") + 1 :]
        if last and _object(last) is not None:
            file.write(b"\n")
        elif last:
            file.truncate(len(text) - len(last))
