"""Blocks: the records of a Kafka batch as they lie in memory, without an object for each.

kafka-python fetches, verifies checksums, follows leaders and leaves out aborted transactions, batch by batch.
It makes an object of every record, which takes ten times longer than everything else. `use_blocks` lets a
consumer return each batch as one record, whose value is a `RecordBlock`. It replaces the class by which the
consumer's fetcher goes through a fetched partition; tests hold what it relies on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from livectr.ingest.decode.texts import Texts
from livectr.kernels.stream.records import I64, Spans

_TAKEN_BYTES = 8 << 20
"""Bytes of values after which a poll of a partition ends."""


@dataclass(frozen=True)
class RecordBlock:
    """Consecutive records of a partition: `ingest.decode.messages.Messages`.

    Args:
        data: buffer of bytes.
        spans: where n records have their keys and values.
        append_ms: i64[n], append times of the broker in ms; None: times are the producers'.
    """

    data: Any
    spans: Spans
    append_ms: I64 | None = None

    def __len__(self) -> int:
        """Bytes of the data; kafka-python asks for them."""
        return len(self.data)

    @property
    def rows(self) -> int:
        """n, number of records."""
        return len(self.spans.offsets)

    @property
    def offsets(self) -> I64:
        """i64[n], offset of each record."""
        return self.spans.offsets

    @property
    def times_ms(self) -> I64:
        """i64[n], times of the records in ms, by the broker or the producer."""
        return self.spans.times if self.append_ms is None else self.append_ms

    @property
    def texts(self) -> Texts:
        """Values; that of a null has a negative size."""
        return Texts(self.data, self.spans.starts, self.spans.stops)

    def values(self) -> list[bytes | None]:
        """Values, one by one."""
        return _bytes(self.data, self.spans.starts, self.spans.stops)

    def keys(self) -> list[bytes | None]:
        """Keys, one by one."""
        return _bytes(self.data, self.spans.key_starts, self.spans.key_stops)

    def between(self, first: int, stop: int) -> RecordBlock:
        """Records of offsets from `first` to before `stop`."""
        begin, end = np.searchsorted(self.spans.offsets, [first, stop])
        if begin == 0 and end == self.rows:
            return self
        rows = slice(begin, end)
        return RecordBlock(
            self.data, self.spans.take(rows), None if self.append_ms is None else self.append_ms[rows]
        )

    @staticmethod
    def joined(blocks: Sequence[RecordBlock], unknown_ms: int) -> RecordBlock:
        """Blocks one behind the other.

        Args:
            blocks: one or more, of one partition.
            unknown_ms: append time of records whose time is their producer's, beside others that have one.
        """
        if len(blocks) == 1:
            return blocks[0]
        ends = np.cumsum([0, *map(len, blocks)]).tolist()
        spans = Spans.joined([block.spans.moved(at) for block, at in zip(blocks, ends, strict=False)])
        append_ms = None
        if any(block.append_ms is not None for block in blocks):
            append_ms = np.concatenate(
                [np.full(b.rows, unknown_ms) if b.append_ms is None else b.append_ms for b in blocks]
            )
        return RecordBlock(b"".join(block.data for block in blocks), spans, append_ms)


class _Batches:
    """Batches of fetched bytes, each of which yields a block."""

    def __init__(self, records: MemoryRecords) -> None:
        self._records = records

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        if isinstance(batch, DefaultRecordBatch):  # format 2, a `kafka_batches.ReadableBatch`
            batch.blocks = True
        return batch


class _BlockRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """Fetched records of a partition, a block at a time."""

    def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
        return super()._unpack_records(tp, _Batches(records), *deserializers)  # type: ignore[no-any-return]

    def take(self, n: int | None = None) -> list[Any]:
        """Take records up to a number and a size; an error after some of them comes with the next call."""
        taken: list[Any] = []
        size = 0
        while (n is None or len(taken) < n) and size < _TAKEN_BYTES:
            try:
                more = super().take(1)
            except Exception as error:
                if not taken:
                    raise
                self._next_inline_exception = error
                break
            if not more:
                break
            taken += more
            size += len(more[0].value or b"")
        return taken


def use_blocks(consumer: KafkaConsumer) -> None:
    """Let a consumer return blocks; a batch that cannot be one comes record by record."""
    consumer._fetcher.PartitionRecords = _BlockRecords


def _bytes(data: Any, starts: I64, stops: I64) -> list[bytes | None]:
    view = memoryview(data)
    spans = zip(starts.tolist(), stops.tolist(), strict=True)
    return [bytes(view[start:stop]) if stop >= start else None for start, stop in spans]
