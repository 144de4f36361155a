"""kafka-python's consumer and orjson: `python -m bench.kafka.peers.kafka_python kafka://HOST:PORT`."""

from __future__ import annotations

import sys

import orjson
from kafka import KafkaConsumer, TopicPartition

from bench.kafka.one_core import rate
from livectr.ingest.addresses import kafka_servers


def main() -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=kafka_servers(sys.argv[1]),
        auto_offset_reset="earliest",
        max_poll_records=16_384,
        fetch_max_bytes=32 << 20,
        max_partition_fetch_bytes=4 << 20,
    )
    places = [
        TopicPartition(t, p) for t in ("impressions", "clicks") for p in consumer.partitions_for_topic(t)
    ]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    wanted = sum(consumer.end_offsets(places).values())

    def read() -> int:
        count = 0
        while count < wanted:
            for records in consumer.poll(200).values():
                count += len([orjson.loads(record.value) for record in records])
        return count

    print(rate(read))
    consumer.close()


if __name__ == "__main__":
    main()
