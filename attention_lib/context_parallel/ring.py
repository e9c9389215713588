"""The ranks in a ring: who holds which part of the sequence, and how parts travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Ring"]


class Ring:
    """The ranks of a process group, each of which sends to the next.

    A sequence is cut into 2P chunks for P ranks. Rank r holds chunk r and chunk
    2P - 1 - r: an early and a late one, so that under a causal mask every rank has the
    same work.

    Parameters
    ----------
    group
        The process group; the default one, or a single process where
        ``torch.distributed`` is not initialised.

    Attributes
    ----------
    rank, size
        Which rank this is, of how many.
    bytes_sent
        What this rank has sent to its neighbour so far.

    Examples
    --------
    In one process the ring is a point, and everything stays as it is:

    >>> ring = Ring()
    >>> ring.rank, ring.size, ring.chunks
    (0, 1, (0, 1))
    >>> x = torch.arange(8.0).view(4, 2)
    >>> torch.equal(ring.gather(ring.shard(x)), x)
    True

    References
    ----------
    Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers for
    Near-Infinite Context", 2024. Brandon et al., "Striped Attention", 2023, on balance.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        alone = not (dist.is_available() and dist.is_initialized())
        self.group = group
        self.rank = 0 if alone else dist.get_rank(group)
        self.size = 1 if alone else dist.get_world_size(group)
        self.bytes_sent = 0
        self._agreed: set[tuple[object, ...]] = set()

    @property
    def chunks(self) -> tuple[int, int]:
        """Numbers of the two chunks that this rank holds, of 2P."""
        return self.rank, 2 * self.size - 1 - self.rank

    def chunks_of(self, rank: int) -> tuple[int, int]:
        """Numbers of the two chunks that another rank holds."""
        return rank, 2 * self.size - 1 - rank

    def shard(self, x: Tensor, dim: int = -2) -> Tensor:
        """This rank's part of a whole sequence.

        Parameters
        ----------
        x
            The whole sequence, the same on every rank.
        dim
            Its axis of tokens.

        Returns
        -------
        Tensor
            1/P of the tokens: an early chunk, then a late one.

        Raises
        ------
        ValueError
            If the length is not a multiple of 2P.
        """
        parts = self._split(x, dim, 2 * self.size)
        return torch.cat([parts[chunk] for chunk in self.chunks], dim)

    def gather(self, x: Tensor, dim: int = -2) -> Tensor:
        """The whole sequence from every rank's part. No gradient flows through it.

        Parameters
        ----------
        x
            This rank's part, of the same shape on every rank.
        dim
            Its axis of tokens.

        Returns
        -------
        Tensor
            All tokens in their order, the same on every rank.

        Raises
        ------
        ValueError
            If the number of tokens is odd.
        """
        mine = x.detach().contiguous()
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        if self.size == 1:
            parts = [mine]
        else:
            dist.all_gather(parts, mine, group=self.group)
        placed: list[Tensor] = [mine] * (2 * self.size)
        for rank, part in enumerate(parts):
            early, late = self._split(part, dim, 2)
            first, last = self.chunks_of(rank)
            placed[first], placed[last] = early, late
        return torch.cat(placed, dim)

    def positions(self, length: int, device: torch.device | None = None) -> Tensor:
        """Where the tokens of this rank's part stand in the whole sequence.

        Parameters
        ----------
        length
            Number of tokens of the whole sequence.
        device
            Of the result.

        Returns
        -------
        Tensor
            Shape (length / P,), int64: what rotary embeddings ask for as ``positions``.

        Examples
        --------
        >>> Ring().positions(4)
        tensor([0, 1, 2, 3])
        """
        return self.shard(torch.arange(length, device=device), dim=0)

    def agree(self, *tensors: Tensor) -> None:
        """Refuse parts that differ between ranks, before anything is sent.

        Ranks compare shapes and dtypes once for each new combination.

        Raises
        ------
        ValueError
            On every rank, if a rank has another number of tokens, say.
        """
        seen = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
        if self.size == 1 or seen in self._agreed:
            return
        everyone: list[object] = [None] * self.size
        dist.all_gather_object(everyone, seen, group=self.group)
        for rank, theirs in enumerate(everyone):
            if theirs != seen:
                raise ValueError(
                    f"rank {rank} brings {_words(theirs)}, rank {self.rank} brings "
                    f"{_words(seen)}: every rank needs the same"
                )
        self._agreed.add(seen)

    def send(self, *tensors: Tensor) -> Pass:
        """Start to send tensors to the next rank and to receive the previous one's.

        Parameters
        ----------
        *tensors
            Contiguous, of the same shapes on every rank. They must stay as they are
            until the pass has ended.

        Returns
        -------
        Pass
            Its ``wait()`` gives what the previous rank sent.
        """
        return Pass(self, tensors)

    def peer(self, step: int) -> int:
        """The global rank of a neighbour, ``step`` ranks onwards."""
        rank = (self.rank + step) % self.size
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    @staticmethod
    def _split(x: Tensor, dim: int, chunks: int) -> tuple[Tensor, ...]:
        if x.shape[dim] % chunks:
            raise ValueError(
                f"a sequence of {x.shape[dim]} tokens must be a multiple of {chunks}, "
                "two chunks for each rank: pad it"
            )
        return x.tensor_split(chunks, dim)


class Pass:
    """One exchange between neighbours that is under way."""

    def __init__(self, ring: Ring, tensors: tuple[Tensor, ...]) -> None:
        self.ring = ring
        self.received = tuple(torch.empty_like(tensor) for tensor in tensors)
        to, source = ring.peer(1), ring.peer(-1)
        sends = [dist.P2POp(dist.isend, x, to, ring.group) for x in tensors]
        receives = [
            dist.P2POp(dist.irecv, x, source, ring.group) for x in self.received
        ]
        self.works = self._guard(lambda: dist.batch_isend_irecv(sends + receives))
        ring.bytes_sent += sum(x.nbytes for x in tensors)

    def wait(self) -> tuple[Tensor, ...]:
        """What the previous rank sent.

        Raises
        ------
        RuntimeError
            If a neighbour is gone, or does not answer within the group's timeout.
        """
        self._guard(lambda: [work.wait() for work in self.works])
        return self.received

    def _guard(self, action: Callable[[], Any]) -> Any:
        """What went wrong, in words."""
        try:
            return action()
        except RuntimeError as error:
            ring = self.ring
            raise RuntimeError(
                f"rank {ring.rank} of {ring.size} lost a neighbour (sending to rank "
                f"{ring.peer(1)}, receiving from rank {ring.peer(-1)}): that process "
                "has ended or did not answer within the group's timeout"
            ) from error


def _words(parts: object) -> str:
    """Shapes and dtypes of tensors, in a line."""
    return ", ".join(f"{shape} {dtype}" for shape, dtype in parts)  # type: ignore[attr-defined]
