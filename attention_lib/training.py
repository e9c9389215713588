"""The one short training loop of the book, and how its results are counted."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_lib.tasks import IGNORE

__all__ = ["accuracy", "cross_entropy", "fit"]

Sample = Callable[[], tuple[Tensor, Tensor]]


def fit(
    model: nn.Module,
    sample: Sample,
    *,
    steps: int,
    lr: float = 3e-3,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    progress: bool = True,
    label: str = "",
    on_step: Callable[[int], None] | None = None,
) -> list[float]:
    """Train a model with Adam, one fresh batch a step.

    The model is trained in train mode and left in the mode it came in. Nothing is drawn
    here: one seed for the model, one for the batches, and the result is the same again.

    Parameters
    ----------
    model
        Called with the inputs of a batch; its output goes to the loss.
    sample
        Returns ``(inputs, targets)`` of a fresh batch, on the model's device.
    steps
        Number of updates.
    lr
        Adam's learning rate, constant.
    loss
        Takes the model's output and the targets, returns one number. Without it
        :func:`cross_entropy`.
    progress
        Show a bar while training, if tqdm is installed. It goes away when done. The
        environment variable ``TQDM_DISABLE=1`` hides every bar.
    label
        Name at the bar.
    on_step
        Called after each update with its number, from 0: to log, say.

    Returns
    -------
    list of float
        The loss of every batch before its update.

    Raises
    ------
    FloatingPointError
        If a loss is NaN or infinite, naming the step. The update is not made, so the model
        still holds the parameters that gave it.
    ValueError
        If ``steps`` or ``lr`` is not positive, or the logits do not fit the targets.

    Examples
    --------
    >>> import torch
    >>> from attention_lib import tasks
    >>> draws = torch.Generator().manual_seed(0)
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))
    >>> sample = lambda: tasks.lookback(16, 5, back=0, symbols=4, generator=draws)
    >>> losses = fit(model, sample, steps=60, lr=0.03, progress=False)
    >>> len(losses), losses[-1] < 0.5 < losses[0]
    (60, True)
    """
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    if not lr > 0:
        raise ValueError(f"lr={lr} must be above 0")
    measure = cross_entropy if loss is None else loss
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses: list[float] = []
    with _mode(model, training=True), _bar(steps, label, progress) as advance:
        for step in range(steps):
            inputs, targets = sample()
            error = measure(model(inputs), targets)
            losses.append(error.item())
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(
                    f"loss is {losses[-1]} at step {step} of {steps} (lr={lr}); "
                    f"the losses before it: {[round(x, 4) for x in losses[-4:-1]]}"
                )
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            if on_step is not None:
                on_step(step)
            advance(losses[-1])
    return losses


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the last axis, without the ignored positions.

    Parameters
    ----------
    logits
        Shape (..., C).
    targets
        Shape (...), int64: a class, or :data:`attention_lib.tasks.IGNORE`.

    Returns
    -------
    Tensor
        A number, float32 for half-precision logits.

    Raises
    ------
    ValueError
        If the shapes do not fit.

    Examples
    --------
    >>> import math, torch
    >>> loss = cross_entropy(torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64))
    >>> math.isclose(loss.item(), math.log(5), rel_tol=1e-6)
    True
    """
    _check_fit(logits, targets)
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORE
    )


@torch.no_grad()
def accuracy(model: nn.Module, sample: Sample, *, batches: int = 8) -> float:
    """Share of targets that the largest logit names, in eval mode.

    Parameters
    ----------
    model
        Returns logits of shape (..., C); left in the mode it came in.
    sample
        Returns ``(inputs, targets)`` of a fresh batch.
    batches
        How many batches to draw.

    Returns
    -------
    float
        From 0 to 1. Ignored positions do not count.

    Raises
    ------
    ValueError
        If ``batches`` is below 1, the logits do not fit, or every target is ignored.

    Examples
    --------
    >>> import torch
    >>> inputs = torch.tensor([0, 1, 2, 3])
    >>> sample = lambda: (inputs, torch.tensor([0, 1, 2, 0]))
    >>> accuracy(nn.Embedding.from_pretrained(torch.eye(4)), sample, batches=1)
    0.75
    """
    if batches < 1:
        raise ValueError(f"batches={batches} must be at least 1")
    right = asked = 0
    with _mode(model, training=False):
        for _ in range(batches):
            inputs, targets = sample()
            logits = model(inputs)
            _check_fit(logits, targets)
            right += int((logits.argmax(-1) == targets).sum())
            asked += int((targets != IGNORE).sum())
    if asked == 0:
        raise ValueError(f"targets are all {IGNORE}: sample asks for nothing")
    return right / asked


def _check_fit(logits: Tensor, targets: Tensor) -> None:
    if logits.ndim < 1 or logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"the model returns shape {tuple(logits.shape)}, expected "
            f"({', '.join(map(str, (*targets.shape, 'classes')))}) for these targets"
        )


@contextlib.contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Train or eval mode inside, and outside what each module had."""
    before = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


@contextlib.contextmanager
def _bar(steps: int, label: str, progress: bool) -> Iterator[Callable[[float], None]]:
    """A progress bar that shows the loss; yields what moves it on by one step."""
    try:
        from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]
    except ModuleNotFoundError:
        progress = False
    if not progress:
        yield lambda loss: None
        return
    with tqdm(total=steps, desc=label or None, leave=False) as bar:

        def advance(loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update()

        yield advance
