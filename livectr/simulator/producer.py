"""Producer of many records at a time: batches are written by one compiled call and sent by kafka-python.

kafka-python's `send` makes objects of each record, about 20 µs of work. `BatchProducer` puts whole batches
where `send` would have put its records: producer ids, sequence numbers, checksums, leaders, retries and
log-in are kafka-python's. It takes 0.7 µs a record, librdkafka 0.9 to 1.3 µs. tests/livectr/test_producer.py
holds what it relies on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from kafka import KafkaProducer, TopicPartition
from kafka.errors import UnknownError
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecordsBuilder
from numpy.typing import NDArray

from livectr.kernels.stream.record_writer import Written, write_records
from livectr.system.errors import ConfigError, InternalError

BATCH_BYTES = 256 << 10
MAX_WAITING_BYTES = 64 << 20
"""Bytes that may wait for the broker; `write` waits then."""
_HEADER_BYTES = DefaultRecordBatchBuilder.header_size_in_bytes()
_FORMAT, _NO_CODEC = 2, 0


class BatchProducer:
    """Idempotent producer; acknowledged records are there once, those of a partition in order.

    Args:
        options: of kafka-python's producer.
        max_request_bytes: largest message.
    """

    def __init__(self, options: dict[str, Any], max_request_bytes: int) -> None:
        self._producer: Any = KafkaProducer(
            **options, batch_size=BATCH_BYTES, max_request_size=max_request_bytes
        )
        self._max_request_bytes = max_request_bytes
        self._failed: Any = None
        self._waiting_bytes = 0
        self._room = threading.Condition()
        self.records = self.batches = 0

    def write(
        self, topic: str, partition: NDArray[np.int32], keys: Sequence[bytes | None], values: Sequence[bytes]
    ) -> None:
        """Send n records. Returns when they are on their way: an error may come with a later call.

        Args:
            topic: with all partitions; it has to exist.
            partition: i32[n].
            keys: of n records; None: no key.
            values: of n records.

        Raises:
            ConfigError: a message is too large.
            InternalError: the broker refused earlier records.
        """
        largest = max(map(len, values), default=0)
        if largest > self._max_request_bytes:
            raise ConfigError(
                f"an event of topic {topic!r} has {largest:,} bytes; at most {self._max_request_bytes:,} fit "
                "into a message"
            )
        self._producer.partitions_for(topic)  # waits until the leaders are known
        for batch in write_records(partition, keys, values, BATCH_BYTES - _HEADER_BYTES):
            self._check()
            self._put(topic, batch)
        self._producer._sender.wakeup()

    def flush(self) -> None:
        """Wait for acknowledgements of all records. Raises InternalError: the broker refused some."""
        while True:
            try:
                self._producer.flush()
                break
            except UnknownError:  # a batch was split meanwhile, and its halves are on their way
                time.sleep(0.01)
        self._check()

    def close(self) -> None:
        """Flush and end. Raises InternalError when the brokers refused records."""
        try:
            self.flush()
        finally:
            self._producer.close()

    def _put(self, topic: str, written: Written) -> None:
        """Append a batch to its partition's queue, as `RecordAccumulator.append` does."""
        size = len(written.data)
        with self._room:
            self._room.wait_for(lambda: self._failed or self._waiting_bytes < MAX_WAITING_BYTES)
            self._waiting_bytes += size
        records = MemoryRecordsBuilder(_FORMAT, _NO_CODEC, BATCH_BYTES)
        builder = records._builder
        builder._buffer.extend(written.data)
        builder._num_records = records._next_offset = written.records
        builder._last_offset = written.records - 1
        builder._first_timestamp = builder._max_timestamp = int(time.time() * 1000)
        place = TopicPartition(topic, written.partition)
        batch = ProducerBatch(place, records)
        _Acknowledged(self, batch, written.records, size)
        queue = self._producer._accumulator
        with queue._tp_lock(place):
            queue._batches[place].append(batch)
            queue._incomplete.add(batch)
        self.records += written.records
        self.batches += 1

    def _done(self, error: Any, size: int) -> None:  # called in the producer's thread
        with self._room:
            self._failed = self._failed or error
            self._waiting_bytes -= size
            self._room.notify_all()

    def _check(self) -> None:
        if self._failed is not None:
            raise InternalError(f"the broker did not take an event: {self._failed!r}")


class _Acknowledged:
    """Outcome of a batch's records, in place of a future for each of them.

    kafka-python splits a batch that is too large for a topic, and moves each record's future to the batch
    that has the record: here the same one for all records.
    """

    def __init__(self, owner: BatchProducer, batch: ProducerBatch, count: int, size: int) -> None:
        self._owner, self._size = owner, size
        self._watched: list[Any] = []
        batch._record_futures = _Repeated(self, count)
        self._watch(batch.produce_future)

    def rebind(self, future: Any, _offset: int) -> None:
        if future in self._watched:
            return
        for whole in self._watched:
            whole._latch.set()  # a flush that waits for it looks again
        self._watch(future)

    def _watch(self, future: Any) -> None:
        self._watched.append(future)
        future._add_cb_eb(self._completed, self._failed)

    def _completed(self, result: tuple[int, int, Any]) -> None:
        errors = result[2]
        self._owner._done(errors(0) if errors else None, self._size)
        self._size = 0  # of a split batch, the first half gives the room back

    def _failed(self, error: Any) -> None:
        self._owner._done(error, self._size)
        self._size = 0


class _Repeated(Sequence[_Acknowledged]):
    """A list of equal entries, without their memory."""

    def __init__(self, entry: _Acknowledged, count: int) -> None:
        self._entry, self._count = entry, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._entry

    def __iter__(self) -> Iterator[_Acknowledged]:
        return iter([self._entry] * self._count)
