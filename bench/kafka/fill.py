"""Fill the topics: `python -m bench.kafka.fill kafka://HOST:PORT EVENTS`, with librdkafka, which is fast.

It prints the events a second.
"""

from __future__ import annotations

import json
import sys
import time

import pyarrow as pa
from confluent_kafka import Producer

from bench.ingest import HOURS, START_MS, events_of, tables_of
from livectr.ingest.addresses import kafka_servers

_PART = 100_000
"""Impressions that are made at a time."""
_APART_MS = (HOURS + 1) * 3_600_000
"""Time from the first of these to the first of the next: later clicks come before them."""


def main() -> None:
    url, events = sys.argv[1], int(sys.argv[2])
    producer = Producer(
        {
            "bootstrap.servers": ",".join(kafka_servers(url)),
            "linger.ms": 50,
            "batch.size": 1 << 18,
            "queue.buffering.max.kbytes": 1 << 20,
            "queue.buffering.max.messages": 10_000_000,
        }
    )

    def send(topic: str, batch: pa.RecordBatch, key: str, partition: int) -> None:
        for event in batch.to_pylist():
            producer.produce(topic, json.dumps(event), str(event[key]), partition)
        producer.poll(0)

    for topic, batches in tables_of().items():
        send(topic, batches[0], batches[0].schema.names[0], 0)
    start, sent, part = time.perf_counter(), 0, 0
    while sent < events:
        start_ms = START_MS + part * _APART_MS
        for topic, batches in events_of(_PART, part, partitions=2, start_ms=start_ms).items():
            for partition, batch in enumerate(batches):
                send(topic, batch.slice(0, events - sent), "user_id", partition)
                sent += min(batch.num_rows, events - sent)
        part += 1
    producer.flush()
    print(sent, "events", sent / (time.perf_counter() - start))


if __name__ == "__main__":
    main()
