"""Control collectives: numbers and bytes that steer a step, never its tensors.

They use Gloo on the CPU, whatever carries the tensors, and take microseconds on one machine. With one rank
every call is the identity. No objects are sent: torch's object collectives would pickle them.
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

I64 = npt.NDArray[np.int64]
LEAST_ROWS = 1024
"""Rows of an all-gather, padding included, from which its bytes count more than its start."""


class Control:
    """Control collectives of a rank; all ranks must make the same calls in the same order.

    Args:
        rank: this rank.
        world: N ranks.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank = rank
        self.world = world
        self._group: dist.ProcessGroup | None = None
        if world > 1:
            self._group = dist.new_group(backend="gloo")

    def apart(self) -> "Control":
        """Control for another thread of this rank, which has connections of its own. Collective."""
        return Control(self.rank, self.world if self._group is not None else 1)

    def gather(self, values: I64) -> I64:
        """All-gather int64 arrays of one shape [...] → [N, ...]."""
        mine = np.ascontiguousarray(values, np.int64)
        if self.world == 1:
            return mine[None]
        out = torch.empty(self.world, mine.size, dtype=torch.int64)
        dist.all_gather(list(out), torch.from_numpy(mine.reshape(-1)), group=self._group)
        return out.numpy().reshape(self.world, *mine.shape)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum float32 `tensor`, on the CPU, over all ranks in place, and return it."""
        if self._group is not None:
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def gather_ragged(self, values: I64, counts: I64) -> list[I64]:
        """All-gather int64[counts[rank], ...]; every rank passes the same counts int64[N].

        An all-gather sends N times the longest array; an all-reduce over disjoint rows sends all rows twice.
        If one rank has most rows, that is less.
        """
        if self.world == 1:
            return [values]
        longest, total = int(counts.max(initial=0)), int(counts.sum())
        if self.world * longest > max(2 * total, LEAST_ROWS):
            starts = np.cumsum(counts) - counts
            rows = np.zeros((total, *values.shape[1:]), np.int64)
            rows[starts[self.rank] : starts[self.rank] + len(values)] = values
            dist.all_reduce(torch.from_numpy(rows), group=self._group)
            return np.split(rows, starts[1:])
        padded = np.zeros((longest, *values.shape[1:]), np.int64)
        padded[: len(values)] = values
        return [part[:n] for part, n in zip(self.gather(padded), counts.tolist(), strict=True)]

    def gather_bytes(self, value: bytes) -> list[bytes]:
        """All-gather bytes of any length."""
        if self.world == 1:
            return [value]
        lengths = self.gather(np.array([len(value)]))[:, 0]
        words = -(-lengths // 8)
        packed = np.frombuffer(value.ljust(8 * int(words[self.rank]), b"\0"), np.int64)
        parts = self.gather_ragged(packed, words)
        return [part.tobytes()[:n] for part, n in zip(parts, lengths.tolist(), strict=True)]

    def gather_json(self, value: object) -> list[Any]:
        """All-gather JSON values."""
        return [json.loads(part) for part in self.gather_bytes(json.dumps(value).encode())]

    def broadcast_bytes(self, value: bytes) -> bytes:
        """Broadcast rank 0's bytes, of any length."""
        if self.world == 1:
            return value
        length = torch.tensor([len(value)])
        dist.broadcast(length, 0, group=self._group)
        buffer = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == 0:
            buffer.numpy()[:] = np.frombuffer(value, np.uint8)
        dist.broadcast(buffer, 0, group=self._group)
        return buffer.numpy().tobytes()

    def broadcast_json(self, value: object) -> Any:
        """Broadcast rank 0's JSON value."""
        return json.loads(self.broadcast_bytes(json.dumps(value).encode()))
