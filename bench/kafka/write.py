"""Write events on one core: `python -m bench.kafka.write WAY kafka://HOST:PORT EVENTS`. It prints
events a second.

WAY is `simulate` (events are made meanwhile, at full speed), or the producer alone: `ours`, `kafka-python` or
`confluent`, all with acknowledgement, idempotence and batches of 256 KiB.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.kafka.one_core import rate
from livectr.ingest.addresses import kafka_servers
from livectr.local.kafka import create_topics
from livectr.simulator.partition import integer_keys, partitions_of
from livectr.simulator.producer import BATCH_BYTES
from livectr.simulator.simulate import SimulateOptions, simulate
from livectr.simulator.sinks import LINGER_MS, KafkaSink
from livectr.simulator.traffic import TrafficOptions

PARTITIONS = 4
_PART = 20_000
"""Events that are handed over at a time."""

Write = Callable[[NDArray[np.int32], list[bytes], list[bytes]], None]


def main() -> None:
    way, url, events = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if way == "simulate":
        traffic = TrafficOptions(rate=100_000, seconds=events / 115_000)  # with clicks
        options = SimulateOptions(url, traffic=traffic, partitions=PARTITIONS, real_time=False, images=False)
        print(rate(lambda: int(simulate(options)["records"])))
        return
    topic = f"write-{uuid.uuid4().hex}"
    create_topics(url, {topic: PARTITIONS})
    ids = np.arange(_PART)
    keys = integer_keys(ids % 2000)
    values = [b'{"request_id":%d,"user_id":%d,"ad_id":%d,"ts":1700000000000,"position":2,"page":"home",'
              b'"query":null,"context":"{\\"device\\": {\\"os\\": \\"ios\\"}}"}' % (i, i % 2000, i % 500)
              for i in range(_PART)]  # fmt: skip
    partition = partitions_of(keys, PARTITIONS)
    write, flush = _WAYS[way](url, topic)

    def run() -> int:
        for _ in range(events // _PART):
            write(partition, keys, values)
        flush()
        return events // _PART * _PART

    print(rate(run))


def _ours(url: str, topic: str) -> tuple[Write, Callable[[], Any]]:
    sink = KafkaSink(url, {topic: PARTITIONS}, ())
    return lambda partition, keys, values: sink.write(topic, partition, keys, values), sink.flush


def _kafka_python(url: str, topic: str) -> tuple[Write, Callable[[], Any]]:
    from kafka import KafkaProducer

    servers = kafka_servers(url)
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=LINGER_MS, batch_size=BATCH_BYTES)

    def write(partition: NDArray[np.int32], keys: list[bytes], values: list[bytes]) -> None:
        for p, key, value in zip(partition.tolist(), keys, values, strict=True):
            producer.send(topic, value, key=key, partition=p)

    return write, producer.flush


def _confluent(url: str, topic: str) -> tuple[Write, Callable[[], Any]]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": ",".join(kafka_servers(url)),
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.kbytes": 1 << 20,
            "queue.buffering.max.messages": 10_000_000,
        }
    )

    def write(partition: NDArray[np.int32], keys: list[bytes], values: list[bytes]) -> None:
        for p, key, value in zip(partition.tolist(), keys, values, strict=True):
            producer.produce(topic, value, key, p)
        producer.poll(0)

    return write, producer.flush


_WAYS = {"ours": _ours, "kafka-python": _kafka_python, "confluent": _confluent}


if __name__ == "__main__":
    main()
