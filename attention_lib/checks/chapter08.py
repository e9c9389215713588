"""Checks for the exercises of chapter 8, the Transformer block."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_lib import masks
from attention_lib.block import TransformerBlock
from attention_lib.checks._report import (
    NotYet,
    check,
    copies,
    demand_bool,
    demand_tensor,
    explain,
)

__all__ = [
    "alive",
    "count_parameters",
    "layer_norm",
    "next_probabilities",
    "pre_norm_block",
    "sees_future",
]

Tokens = Callable[[Tensor], Tensor]


@check("8.1", forbids=("layer_norm", "layernorm", "group_norm", "groupnorm"))
def layer_norm(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str:
    """Check ``layer_norm(x, gain, shift)`` against torch's.

    Examples
    --------
    >>> def annotated(x, gain, shift):
    ...     centred = x - x.mean(-1, keepdim=True)
    ...     return gain * centred / (x.std(-1, keepdim=True) + 1e-5) + shift
    >>> layer_norm(annotated)  # doctest: +ELLIPSIS
    Exercise 8.1: not yet. The deviation divides by E - 1: torch's std does so ...
    """
    x = torch.randn(2, 3, 4) * 2 + 1
    gain, shift = torch.randn(4) + 2, torch.randn(4)
    found = demand_tensor(answer(*copies(x, gain, shift)), (2, 3, 4), "The output")
    wanted = F.layer_norm(x, (4,), gain, shift)
    centred = x - x.mean(-1, keepdim=True)
    mean_square = centred.square().mean(-1, keepdim=True)
    explain(
        found,
        wanted,
        {
            "The deviation divides by E - 1: torch's std does so unless told "
            "correction=0.": gain * centred / x.std(-1, keepdim=True) + shift,
            "The gain and the shift are missing.": F.layer_norm(x, (4,)),
            "The shift is missing.": F.layer_norm(x, (4,), gain),
            "The gain is missing.": F.layer_norm(x, (4,), None, shift),
            "The mean is not taken away.": gain
            * x
            / x.square().mean(-1, keepdim=True).sqrt()
            + shift,
            "You divide by the variance, not by its root.": gain * centred / mean_square
            + shift,
            "Mean and variance run over the positions. They belong to one token, the "
            "last axis.": gain
            * (x - x.mean(1, keepdim=True))
            / x.std(1, correction=0, keepdim=True)
            + shift,
            "Mean and variance run over all numbers. They belong to one token, the "
            "last axis.": gain * (x - x.mean()) / x.std(correction=0) + shift,
        },
    )
    # A token whose variance is as small as epsilon tells where epsilon stands.
    small = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.004, 0.996, 1.0]])
    ones, zeros = torch.ones(4), torch.zeros(4)
    found = answer(small.clone(), ones, zeros)
    if not bool(torch.isfinite(found).all()):
        raise NotYet(
            "A token of four equal entries gives NaN or infinity: add epsilon to the "
            "variance."
        )
    wanted = F.layer_norm(small, (4,))
    if not torch.allclose(found, wanted, atol=0.02):
        raise NotYet(
            "On a token with a variance of 0.000008 the result differs: epsilon = "
            "0.00001 is added to the variance, inside the root."
        )
    return "The same as torch's, where the variance is large and where it is tiny."


@check("8.2")
def pre_norm_block(
    answer: Callable[[Tensor, Tokens, Tokens, Tokens, Tokens], Tensor],
) -> str:
    """Check a pre-norm block put together from its four parts.

    Examples
    --------
    >>> def block(x, norm_1, attend, norm_2, feed_forward):
    ...     x = norm_1(x + attend(x))
    ...     return norm_2(x + feed_forward(x))
    >>> pre_norm_block(block)
    Exercise 8.2: not yet. This is the post-norm block.
    """
    parts = TransformerBlock(6, 2)
    for parameter in parts.parameters():
        nn.init.normal_(parameter, std=0.5)
    norm_1, norm_2 = parts.attention_norm, parts.feed_forward_norm
    attend, feed = parts.attention, parts.feed_forward
    x = torch.randn(2, 5, 6)
    with torch.no_grad():
        found = demand_tensor(
            answer(x.clone(), *copy.deepcopy((norm_1, attend, norm_2, feed))),
            (2, 5, 6),
            "The output",
        )
        middle = x + attend(norm_1(x))
        after = norm_1(x + attend(x))
        explain(
            found,
            middle + feed(norm_2(middle)),
            {
                "This is the post-norm block.": norm_2(after + feed(after)),
                "There is no residual: each part's output must be added to its input.": (
                    feed(norm_2(attend(norm_1(x))))
                ),
                "The second part is not added to the tokens.": feed(norm_2(middle)),
                "The first part is not added to the tokens.": attend(norm_1(x))
                + feed(norm_2(attend(norm_1(x)))),
                "The feed-forward network reads x, not the tokens after attention: "
                "these are parallel parts.": middle + feed(norm_2(x)),
                "The second part adds to the first x: what attention added is lost.": x
                + feed(norm_2(middle)),
                "The norms are not used.": x + attend(x) + feed(x + attend(x)),
                "The residual takes the normalised tokens, so the norm stands in the "
                "stream. Add to x itself.": _norm_in_stream(
                    x, norm_1, attend, norm_2, feed
                ),
                "Both parts use the first norm.": middle + feed(norm_1(middle)),
            },
        )
    return "The same as TransformerBlock, with all four parts in their place."


@check("8.3", forbids=("transformer", "multihead", "numel", "feedforward"))
def count_parameters(answer: Callable[[int, int], int]) -> str:
    """Check the number of parameters of a block of width E and hidden width 4E.

    Examples
    --------
    >>> count_parameters(lambda E, H: 12 * E**2 + 13 * E)
    Exercise 8.3: passed. 12 E² and a little, whatever the number of heads.
    """
    for E, H in ((10, 2), (24, 3), (64, 4), (64, 8)):
        found = answer(E, H)
        if found is None:
            raise NotYet("The function returns nothing yet.")
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise NotYet(f"Return a number, not {type(found).__name__}.")
        wanted = sum(p.numel() for p in TransformerBlock(E, H).parameters())
        for cause, wrong in (
            ("The biases and the norms are missing.", 12 * E**2),
            ("The norms are missing: a gain and a shift each.", 12 * E**2 + 9 * E),
            ("The biases of the six matrices are missing.", 12 * E**2 + 4 * E),
            ("The output projection is missing.", 11 * E**2 + 12 * E),
            (
                "The projections do not grow with H: the heads share their width.",
                8 * E**2 + 5 * E + 4 * E + H * (4 * E**2 + 4 * E),
            ),
            ("One of the two norms is missing.", 12 * E**2 + 11 * E),
        ):
            if found == wrong and wrong != wanted:
                raise NotYet(cause)
        if found != wanted:
            raise NotYet(
                f"For E={E} and H={H} you say {found:,}; the block holds {wanted:,}."
            )
    return "12 E² and a little, whatever the number of heads."


@check("8.4")
def next_probabilities(answer: Callable[[Tensor, float, int], Tensor]) -> str:
    """Check probabilities at a temperature, of the k best tokens alone.

    Examples
    --------
    >>> def flat(logits, temperature, k):
    ...     return (logits / temperature).softmax(-1)
    >>> next_probabilities(flat)
    Exercise 8.4: not yet. All tokens have a probability: k is not used.
    """
    logits = torch.randn(3, 7) * 2
    for temperature, k in ((0.5, 3), (2.0, 2), (1.5, 7)):
        best, places = logits.topk(k, dim=-1)
        gone = torch.full_like(logits, -torch.inf)
        kept = gone.scatter(-1, places, best)
        plain = (logits / temperature).softmax(-1)
        cut = torch.zeros_like(plain).scatter(-1, places, plain.gather(-1, places))
        found = answer(logits.clone(), temperature, k)
        found = demand_tensor(found, (3, 7), "The probabilities")
        explain(
            found,
            (kept / temperature).softmax(-1),
            {
                "All tokens have a probability: k is not used.": plain,
                "The kept probabilities do not add up to 1: cut the logits before the "
                "softmax, or divide by the sum.": cut,
                "The temperature is not used.": kept.softmax(-1),
                "You multiply by the temperature. Divide: a low one must sharpen.": (
                    kept * temperature
                ).softmax(-1),
                "The tokens left out keep some probability: set their logits to minus "
                "infinity, not to 0.": (
                    kept.masked_fill(kept.isneginf(), 0.0) / temperature
                ).softmax(-1),
                "These are the k worst tokens.": gone.scatter(
                    -1, *_reversed(logits.topk(k, dim=-1, largest=False))
                )
                .div(temperature)
                .softmax(-1),
            },
        )
    return "Three temperatures and three k, each row a distribution over k tokens."


@check("8.5")
def sees_future(answer: Callable[[nn.Module], bool]) -> str:
    """Check a detector of models in which a position depends on later ones.

    Examples
    --------
    >>> sees_future(lambda model: False)  # doctest: +ELLIPSIS
    Exercise 8.5: not yet. A model without any mask leaks, and you say it does not...
    """
    for words, leaks in (
        ("A model that is causal always", ()),
        ("A model without any mask", ("train", "eval")),
        ("A model that is causal in training but not in eval", ("eval",)),
        ("A model that is causal in eval but not in training", ("train",)),
        ("A model whose positions see one too many", ("next",)),
    ):
        for training in (False, True):
            suspect = _Suspect(leaks).train(training)
            mode = suspect.training
            found = demand_bool(answer(suspect))
            if found != bool(leaks):
                has = "leaks" if leaks else "does not leak"
                hint = ""
                if leaks == ("eval",):
                    hint = " Look in eval mode too."
                elif leaks == ("train",):
                    hint = " Look in train mode too."
                elif not leaks:
                    hint = " Dropout also changes outputs: compare without its noise."
                raise NotYet(f"{words} {has}, and you say it {_says(found)}.{hint}")
            if suspect.training != mode:
                raise NotYet("The model is left in another mode than it came in.")
    return "Five models in both modes: leaks of each mode told apart from dropout."


def _says(found: bool) -> str:
    return "does" if found else "does not"


def _reversed(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Values and places as places and values."""
    return pair[1], pair[0]


def _norm_in_stream(
    x: Tensor, norm_1: Tokens, attend: Tokens, norm_2: Tokens, feed: Tokens
) -> Tensor:
    x = norm_1(x)
    x = norm_2(x + attend(x))
    return x + feed(x)


class _Suspect(nn.Module):
    """Ids (B, L) to logits (B, L, 9), with dropout, causal except where it leaks."""

    def __init__(self, leaks: tuple[str, ...]) -> None:
        super().__init__()
        self.leaks = leaks
        self.vocabulary = 9
        self.embed = nn.Embedding(9, 8)
        self.dropout = nn.Dropout(0.3)
        self.block = TransformerBlock(8, 2)
        self.logits = nn.Linear(8, 9)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        mode = "train" if self.training else "eval"
        x = self.dropout(self.embed(ids))
        L = ids.shape[1]
        keep = masks.causal(L, L, offset=int("next" in self.leaks))
        return self.logits(
            self.block(x, attn_mask=None if mode in self.leaks else keep)
        )


@check("8.6")
def alive(answer: Callable[[nn.ModuleList], nn.ModuleList]) -> str:
    """Check ``alive(blocks)``: 48 fresh blocks in which tokens stay apart.

    Examples
    --------
    >>> alive(lambda blocks: blocks)  # doctest: +ELLIPSIS
    Exercise 8.6: not yet. After 48 blocks the tokens differ by 0.2..., expected at least 0.8.
    """
    blocks = answer(nn.ModuleList(TransformerBlock(32, 4) for _ in range(48)))
    if blocks is None:
        raise NotYet("The function returns nothing yet.")
    if not isinstance(blocks, nn.ModuleList) or len(blocks) != 48:
        raise NotYet(f"Return the 48 blocks that came, not {type(blocks).__name__}.")
    with torch.no_grad():
        x, moved = _walk(blocks, torch.randn(8, 16, 32))
    if not bool(x.isfinite().all()):
        raise NotYet("NaN or infinity comes out of the last block.")
    for part, least in zip(("attention", "feed-forward network"), moved, strict=True):
        if least < 0.01:
            raise NotYet(
                f"One {part} moves its tokens by {least:.1%} of their size, expected "
                "at least 1%: a stack of idle parts keeps tokens apart by doing nothing."
            )
    apart = float((x - x.mean(1, keepdim=True)).norm() / x.norm())
    if apart < 0.8:
        raise NotYet(
            f"After 48 blocks the tokens differ by {apart:.1g}, expected at least 0.8."
        )
    return (
        f"The tokens differ by {apart:.2f} after 48 blocks, and the least that an "
        f"attention moves them by is {moved[0]:.0%}. Is a tenth possible?"
    )


def _walk(blocks: nn.ModuleList, x: Tensor) -> tuple[Tensor, Tensor]:
    """What leaves a stack, and the least that each part adds, as a share of the tokens."""
    moved = torch.full((2,), torch.inf)
    for block in blocks:
        if not isinstance(block, TransformerBlock):
            raise NotYet(
                f"Each must stay a TransformerBlock, not {type(block).__name__}."
            )
        y, attended = block(x), block.attention(block.attention_norm(x))
        added = torch.stack([attended.norm(), (y - x - attended).norm()])
        moved, x = torch.minimum(moved, added / x.norm()), y
    return x, moved
