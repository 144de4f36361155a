"""JSON texts of a block, as they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Texts:
    """Batch of n texts; text i is data[starts[i] : stops[i]].

    Args:
        data: buffer of bytes, with anything between the texts.
        starts, stops: i64[n].
        lines: the texts are joined by line feeds, and there is nothing else.
    """

    data: Any
    starts: I64
    stops: I64
    lines: bool = False

    @staticmethod
    def of(texts: Sequence[bytes]) -> Texts:
        """Join texts by line feeds."""
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        stops = np.cumsum(sizes + 1) - 1
        return Texts(b"\n".join(texts), stops - sizes, stops, lines=True)

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def texts(self) -> list[bytes]:
        """The texts, one by one."""
        data = memoryview(self.data)
        spans = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return [bytes(data[start:stop]) for start, stop in spans]

    def take(self, rows: I64) -> Texts:
        """Some of the texts, without a copy."""
        return Texts(self.data, self.starts[rows], self.stops[rows])

    def part(self, first: int, stop: int) -> Texts:
        """Texts from `first` to before `stop`, without a copy."""
        if first == 0 and stop == len(self):
            return self
        return Texts(self.data, self.starts[first:stop], self.stops[first:stop])

    def joined(self) -> Texts:
        """The texts, joined by line feeds."""
        return self if self.lines else Texts.of(self.texts)

    def are_objects(self, most_bytes: int | None = None) -> bool:
        """Return true if each text has 2 to `most_bytes` bytes, begins with `{` and ends with `}`."""
        sizes = self.stops - self.starts
        if not len(self) or sizes.min() < 2 or (most_bytes is not None and sizes.max() > most_bytes):
            return False
        buffer = np.frombuffer(self.data, np.uint8)
        return bool((buffer[self.starts] == ord("{")).all() and (buffer[self.stops - 1] == ord("}")).all())
