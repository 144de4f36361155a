"""Counters of a pipeline: rows by key, as of each example, and of the newest for versions.

All ranks hold the same counters and count the examples of all ranks in the global sequence. So a row is a
function of the logs, whatever the number of ranks and however the sequence is cut into batches.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest import metrics
from livectr.ingest.join.payload import TIME, lookup_column
from livectr.ingest.join.ready import Popped
from livectr.ingest.language.ages import Aged
from livectr.ingest.language.counts import Counted
from livectr.ingest.pipeline import Pipeline
from livectr.kernels.runtime.offsets import check_offsets
from livectr.kernels.stream.counters import AgeTable, CounterTable, KeyedRows, SavedCounters
from livectr.kernels.stream.join import FINAL_NEGATIVE
from livectr.system.errors import MismatchError

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Arrays = Mapping[str, npt.NDArray[Any]]

LISTED_KEYS = 1 << 20
"""Keys that left which may always be listed."""
SHOWN, CLICKED = 1, 2
"""Marks of an example: it counts as an impression, as a click."""


@dataclass(frozen=True)
class Together:
    """Examples of all ranks that are counted at once.

    Attributes:
        words: int64[B, W], of the examples in the global sequence.
        order: int64[B], their orders.
        own: bool[B], those of this rank.
    """

    words: I64
    order: I64
    own: Mask


Gather = Callable[[I64], Together]
"""Words int64[k, W] of this rank's examples → those of all ranks. Collective."""


class CounterRows:
    """Counters of a declaration, with the rows that versions hold."""

    def __init__(self, counted: Counted | Aged) -> None:
        self.counted = counted
        self.counters = _table(counted)
        self._told = 0, 0  # expired and evicted keys, as far as metrics count them

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.counters)

    @property
    def keys(self) -> I64:
        """Keys int64[n] that have a row."""
        return self.counters.export().keys

    def changed(self, since: int = 0) -> tuple[I64, list[list[Any] | None]]:
        """Keys that were counted after a generation of `mark` (0: all), and their rows.

        Returns:
            Keys int64[m] and m rows, key and row as JSON types; None for a key that left.
        """
        keys, rows = self.counters.changed(since)
        texts = zip(keys.tolist(), rows.texts(), strict=True)
        return keys, [[key, base64.b64encode(row).decode()] if row else None for key, row in texts]

    def mark(self) -> int:
        """Close the current generation and return its number."""
        return self.counters.mark()

    def track_left(self) -> None:
        """Keep the keys that leave for `changed` until `forget_left`."""
        self.counters.track()

    def forget_left(self, until: int) -> None:
        """Forget the keys that left up to a generation: no version asks for them any more."""
        self.counters.forget_left(until)

    @property
    def listed(self) -> int:
        """Keys that left and are kept for `changed`."""
        return self.counters.listed

    @property
    def overgrown(self) -> bool:
        """True when more keys that left are kept for `changed` than there are keys."""
        return self.listed > max(LISTED_KEYS, len(self))

    def tell(self) -> None:
        """Bring the metrics up to date."""
        topic, now = self.counted.topic, (self.counters.expired, self.counters.evicted)
        metrics.lookup_bytes.labels(topic).set(self.counters.bytes)
        metrics.lookup_keys.labels(topic).set(len(self))
        metrics.lookup_expired.labels(topic).inc(now[0] - self._told[0])
        metrics.lookup_evicted.labels(topic).inc(now[1] - self._told[1])
        self._told = now


def _table(counted: Counted | Aged) -> KeyedRows:
    """Empty table of a declaration."""
    room = counted.max_bytes
    if isinstance(counted, Aged):
        return AgeTable(counted.grain_ms, counted.lag, counted.within, max_bytes=room)
    return CounterTable(counted.grain_ms, counted.fine, counted.spans[1:], max_bytes=room)


class Counters:
    """Counters of a pipeline's features.

    Attributes:
        rows: name of the table → its counters.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.rows: dict[str, CounterRows] = {}
        self._roots: dict[str, str] = {}
        for lookup in pipeline.counters:
            roots = pipeline.lookup_roots[lookup.table.topic]
            if lookup.counted is not None and roots:
                self.rows[lookup.table.topic] = CounterRows(lookup.counted)
                self._roots[lookup.table.topic] = roots[0].name

        self._timed = any(isinstance(rows.counted, Aged) for rows in self.rows.values())

    def __bool__(self) -> bool:
        """True when a feature reads counters."""
        return bool(self.rows)

    def count(self, popped: Popped | None, gather: Gather | None) -> dict[str, pa.Array]:
        """Count the next examples of the global sequence.

        Args:
            popped: k examples of this rank; None: none.
            gather: gives those of all ranks; None: this rank is alone.

        Returns:
            Name of each root → binary[k], rows of the keys as of before their example.
        """
        words = self._words(popped)
        order = np.empty(0, np.int64) if popped is None else popped.order
        all_ = Together(words, order, np.ones(len(words), np.bool_)) if gather is None else gather(words)
        marks, *keys = np.ascontiguousarray(all_.words.T)
        shown, clicked = (np.ascontiguousarray((marks & m) != 0).view(np.uint8) for m in (SHOWN, CLICKED))
        order, own = np.ascontiguousarray(all_.order), np.ascontiguousarray(all_.own).view(np.uint8)
        event = keys.pop() if self._timed else order
        found = {}
        for (topic, rows), key in zip(self.rows.items(), keys, strict=True):
            offsets, data = rows.counters.push(key, order, shown, clicked, own, event)
            check_offsets(len(data), "bytes of the counters of a batch")
            buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
            found[self._roots[topic]] = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
        return found

    def _words(self, popped: Popped | None) -> I64:
        """Marks and keys of examples, and their times where ages need them: int64[k, 1 + tables (+ 1)]."""
        if popped is None:
            return np.empty((0, 1 + len(self.rows) + self._timed), np.int64)
        final = popped.label >= FINAL_NEGATIVE
        marks = SHOWN * (~popped.late & ~final) + CLICKED * (popped.late | (~final & (popped.label > 0)))
        keys = (popped.rows.column(lookup_column(topic)).to_numpy() for topic in self.rows)
        times = [popped.rows.column(TIME).to_numpy()] if self._timed else []
        return np.stack([marks.astype(np.int64), *keys, *times], axis=1)

    def tell(self) -> None:
        """Bring the metrics up to date."""
        for rows in self.rows.values():
            rows.tell()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Name → array, for a checkpoint."""
        return {
            f"{topic}.{name}": values
            for topic, rows in self.rows.items()
            for name, values in rows.counters.export()._asdict().items()
        }

    def load(self, state: Arrays) -> None:
        """Load a `state` into new counters; those that it lacks begin.

        Raises:
            MismatchError: it does not fit.
        """
        for topic, rows in self.rows.items():
            parts = [state.get(f"{topic}.{name}") for name in SavedCounters._fields]
            known = [part for part in parts if part is not None]
            if not known:
                continue
            try:
                rows.counters.assign(SavedCounters(*known))
            except (TypeError, ValueError) as error:
                raise MismatchError(f"{topic}: what was kept is another pipeline's ({error})") from None
