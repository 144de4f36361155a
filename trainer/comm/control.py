"""Small agreements among the ranks: numbers and bytes that steer a step, never its tensors.

They travel over Gloo on the CPU whatever carries the tensors, and cost microseconds on one machine. With
one rank every call is the identity. No objects are sent: torch's object collectives would pickle them.
"""

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

I64 = npt.NDArray[np.int64]


class Control:
    """Collectives of rank `rank` of N = `world`; every rank must make the same calls in the same order."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank = rank
        self.world = world
        self._group: dist.ProcessGroup | None = None
        if world > 1:
            self._group = dist.new_group(backend="gloo")

    def gather(self, values: I64) -> I64:
        """Everyone's int64 array of one common shape [...] as [N, ...]."""
        mine = np.ascontiguousarray(values, np.int64)
        if self.world == 1:
            return mine[None]
        out = torch.empty(self.world, mine.size, dtype=torch.int64)
        dist.all_gather(list(out), torch.from_numpy(mine.reshape(-1)), group=self._group)
        return out.numpy().reshape(self.world, *mine.shape)

    def gather_ragged(self, values: I64, counts: I64) -> list[I64]:
        """Everyone's int64[counts[rank], ...], where every rank knows counts int64[N]."""
        longest = int(counts.max(initial=0))
        padded = np.zeros((longest, *values.shape[1:]), np.int64)
        padded[: len(values)] = values
        return [part[:n] for part, n in zip(self.gather(padded), counts.tolist(), strict=True)]

    def gather_bytes(self, value: bytes) -> list[bytes]:
        """Everyone's bytes, of any length."""
        if self.world == 1:
            return [value]
        lengths = self.gather(np.array([len(value)]))[:, 0]
        words = -(-lengths // 8)
        packed = np.frombuffer(value.ljust(8 * int(words[self.rank]), b"\0"), np.int64)
        parts = self.gather_ragged(packed, words)
        return [part.tobytes()[:n] for part, n in zip(parts, lengths.tolist(), strict=True)]

    def gather_json(self, value: object) -> list[Any]:
        """Everyone's JSON value."""
        return [json.loads(part) for part in self.gather_bytes(json.dumps(value).encode())]

    def broadcast_bytes(self, value: bytes) -> bytes:
        """Rank 0's bytes, of any length."""
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
        """Rank 0's JSON value."""
        return json.loads(self.broadcast_bytes(json.dumps(value).encode()))
