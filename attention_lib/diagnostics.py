"""Statistics of attention to log while training, and a finder of the first NaN.

The statistics are plain functions of weights or scores and take no part in the gradient. A
query that may attend to nothing has a row of zeros: it never gives NaN. A NaN in the input
does show in the result.

Shapes: H heads, L queries, S keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attention_lib._nonfinite import find_nonfinite

__all__ = [
    "effective_keys",
    "effective_rank",
    "entropy",
    "find_nonfinite",
    "saturation",
    "score_std",
    "sink_mass",
    "summary",
]


@torch.no_grad()
def entropy(weights: Tensor) -> Tensor:
    r"""Entropy of each row of weights, :math:`-\sum_j w_{ij} \ln w_{ij}`, in nats.

    0 if a query attends to one key, :math:`\ln S` if it attends to all S alike.

    Parameters
    ----------
    weights
        Shape (..., L, S). Exact zeros add nothing.

    Returns
    -------
    Tensor
        Shape (..., L), float32 or wider. A row of zeros has entropy 0.

    Raises
    ------
    TypeError, ValueError
        If ``weights`` is not a floating-point tensor of shape (..., L, S).

    Examples
    --------
    >>> import torch
    >>> weights = torch.tensor([[0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0], [0, 0, 0, 0]])
    >>> [round(nats, 4) for nats in entropy(weights).tolist()]
    [1.3863, 0.0, 0.0]
    """
    return torch.special.entr(_wide("weights", weights)).sum(-1)


@torch.no_grad()
def effective_keys(weights: Tensor) -> Tensor:
    """How many keys each query attends to: the exponential of the entropy.

    Also called the perplexity of the row.

    Parameters
    ----------
    weights
        Shape (..., L, S).

    Returns
    -------
    Tensor
        Shape (..., L), from 1 to S; 0 for a row of zeros.

    Raises
    ------
    TypeError, ValueError
        If ``weights`` is not a floating-point tensor of shape (..., L, S).

    Examples
    --------
    >>> import torch
    >>> weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    >>> effective_keys(weights).round(decimals=4).tolist()
    [2.0, 1.0, 0.0]
    """
    return entropy(weights).exp() * _attends(weights)


@torch.no_grad()
def sink_mass(weights: Tensor, first: int = 1) -> Tensor:
    """Weight that each query puts on the first keys, where decoders often park it.

    Parameters
    ----------
    weights
        Shape (..., L, S).
    first
        Number of keys that count as the sink, from 1 to S.

    Returns
    -------
    Tensor
        Shape (..., L), from 0 to 1.

    Raises
    ------
    TypeError, ValueError
        If ``weights`` is not a floating-point tensor of shape (..., L, S), or ``first`` is
        out of range.

    Examples
    --------
    >>> import torch
    >>> sink_mass(torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.5, 0.5]])).tolist()
    [0.75, 0.0]

    References
    ----------
    Xiao, Tian, Chen, Han and Lewis, "Efficient Streaming Language Models with Attention
    Sinks", 2024, section 3.1.
    """
    weights = _wide("weights", weights)
    if not 1 <= first <= weights.shape[-1]:
        raise ValueError(f"first={first} must be from 1 to S={weights.shape[-1]}")
    return weights[..., :first].sum(-1)


@torch.no_grad()
def saturation(weights: Tensor, threshold: float = 0.99) -> Tensor:
    """Share of queries whose largest weight exceeds a threshold.

    Through a saturated row hardly any gradient reaches the scores. A query that may attend
    to one key alone counts as saturated; one that may attend to nothing does not count.

    Parameters
    ----------
    weights
        Shape (..., L, S).
    threshold
        At least 0 and below 1.

    Returns
    -------
    Tensor
        Shape (...), from 0 to 1; 0 where no query attends to anything.

    Raises
    ------
    TypeError, ValueError
        If ``weights`` is not a floating-point tensor of shape (..., L, S), or
        ``threshold`` is out of range.

    Examples
    --------
    >>> import torch
    >>> weights = torch.tensor([[0.999, 0.001], [0.5, 0.5], [0.0, 0.0]])
    >>> saturation(weights).item()
    0.5
    """
    weights = _wide("weights", weights)
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold={threshold} must be at least 0 and below 1")
    largest = weights.amax(-1)
    saturated = torch.where(largest.isnan(), largest, (largest > threshold).to(largest))
    return _mean(saturated, _attends(weights), dim=-1)


@torch.no_grad()
def effective_rank(weights: Tensor) -> Tensor:
    """Effective rank of each matrix of weights: 1 if all queries attend alike.

    The exponential of the entropy of the singular values, divided by their sum.

    Parameters
    ----------
    weights
        Shape (..., L, S).

    Returns
    -------
    Tensor
        Shape (...), from 1 to min(L, S); 0 for zeros alone.

    Raises
    ------
    TypeError, ValueError
        If ``weights`` is not a floating-point tensor of shape (..., L, S).

    Examples
    --------
    >>> import torch
    >>> both = torch.stack([torch.eye(4), torch.full((4, 4), 0.25)])
    >>> effective_rank(both).round(decimals=3).tolist()
    [4.0, 1.0]

    References
    ----------
    Roy and Vetterli, "The Effective Rank: A Measure of Effective Dimensionality", 2007.
    """
    weights = _wide("weights", weights)
    finite = weights.isfinite().all(dim=(-2, -1))
    # The decomposition refuses what is not finite: such a matrix gives NaN instead.
    values = torch.linalg.svdvals(weights.where(finite[..., None, None], 0))
    total = values.sum(-1, keepdim=True)
    shares = values / total.where(total > 0, 1)
    rank = torch.special.entr(shares).sum(-1).exp() * (total[..., 0] > 0)
    return rank.where(finite, torch.nan)


@torch.no_grad()
def score_std(scores: Tensor) -> Tensor:
    """Standard deviation of the scores of each matrix that are not hidden.

    About 1 at the start with scaled dot products. Near 0 the weights are uniform, far above
    1 they saturate.

    Parameters
    ----------
    scores
        Shape (..., L, S). Minus infinity is hidden and left out.

    Returns
    -------
    Tensor
        Shape (...); 0 where at most one score is visible.

    Raises
    ------
    TypeError, ValueError
        If ``scores`` is not a floating-point tensor of shape (..., L, S).

    Examples
    --------
    >>> import torch
    >>> score_std(torch.tensor([[1.0, -torch.inf], [5.0, -torch.inf]])).item()
    2.0
    """
    scores = _wide("scores", scores).flatten(-2)
    visible = ~scores.isneginf()
    mean = _mean(scores, visible, dim=-1)
    return _mean((scores - mean[..., None]) ** 2, visible, dim=-1).sqrt()


@torch.no_grad()
def summary(weights: Tensor, scores: Tensor | None = None) -> dict[str, Tensor]:
    """Every statistic, one number per head, to write into a log.

    Averages run over the batch and over the queries that attend to something.

    Parameters
    ----------
    weights
        Shape (..., H, L, S).
    scores
        Shape (..., H, L, S), masked with minus infinity; without them there is no
        ``score_std``.

    Returns
    -------
    dict[str, Tensor]
        ``entropy``, ``effective_keys``, ``sink_mass``, ``saturation``, ``effective_rank``
        and ``score_std``, each of shape (H,).

    Raises
    ------
    TypeError, ValueError
        If an argument is not a floating-point tensor of shape (..., H, L, S), or their
        shapes differ.

    Examples
    --------
    >>> import torch
    >>> for name, per_head in summary(torch.full((2, 3, 5, 4), 0.25)).items():
    ...     print(name, [round(number, 4) for number in per_head.tolist()])
    entropy [1.3863, 1.3863, 1.3863]
    effective_keys [4.0, 4.0, 4.0]
    sink_mass [0.25, 0.25, 0.25]
    saturation [0.0, 0.0, 0.0]
    effective_rank [1.0, 1.0, 1.0]
    """
    weights = _by_head(_wide("weights", weights))  # (B, H, L, S)
    if scores is not None:
        scores = _by_head(_wide("scores", scores))
        if scores.shape != weights.shape:
            raise ValueError(
                f"scores has shape {tuple(scores.shape)} by item and head, expected "
                f"{tuple(weights.shape)} as weights"
            )
    attends = _attends(weights)  # (B, H, L)
    some = attends.any(-1)  # (B, H)
    result = {
        "entropy": _mean(entropy(weights), attends, dim=(0, 2)),
        "effective_keys": _mean(effective_keys(weights), attends, dim=(0, 2)),
        "sink_mass": _mean(sink_mass(weights), attends, dim=(0, 2)),
        # One matrix of all items, so that every query counts alike.
        "saturation": saturation(weights.transpose(0, 1).flatten(1, 2)),
        "effective_rank": _mean(effective_rank(weights), some, dim=0),
    }
    if scores is not None:
        result["score_std"] = score_std(scores.transpose(0, 1).flatten(1, 2))
    return result


def _wide(name: str, tensor: Tensor) -> Tensor:
    """Checked, and in float32 or wider."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        kind = getattr(tensor, "dtype", type(tensor).__name__)
        raise TypeError(f"{name} must be a floating-point tensor, got {kind}")
    if tensor.ndim < 2 or 0 in tensor.shape[-2:]:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, expected (..., L, S), neither 0"
        )
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _by_head(tensor: Tensor) -> Tensor:
    """(..., H, L, S) as (B, H, L, S)."""
    if tensor.ndim < 3:
        raise ValueError(
            f"weights has shape {tuple(tensor.shape)}, expected (..., H, L, S)"
        )
    return tensor.reshape(-1, *tensor.shape[-3:])


def _attends(weights: Tensor) -> Tensor:
    """Whether a row holds anything but zeros, (..., L)."""
    return (weights != 0).any(-1)


def _mean(numbers: Tensor, counted: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Mean of the counted numbers; 0 where none counts."""
    total = numbers.where(counted, 0).sum(dim)
    return total / counted.sum(dim).clamp(min=1)
