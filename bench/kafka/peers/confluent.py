"""confluent-kafka's consumer (librdkafka) and orjson: `python -m bench.kafka.peers.confluent kafka://HOST:PORT`."""

from __future__ import annotations

import sys

import orjson
from confluent_kafka import Consumer, TopicPartition

from bench.kafka.one_core import rate
from livectr.ingest.addresses import kafka_servers


def main() -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(kafka_servers(sys.argv[1])),
            "group.id": "bench",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.max.bytes": 32 << 20,
            "max.partition.fetch.bytes": 4 << 20,
            "queued.max.messages.kbytes": 1 << 18,
        }
    )
    found = consumer.list_topics().topics
    places = [TopicPartition(t, p, 0) for t in ("impressions", "clicks") for p in found[t].partitions]
    wanted = sum(consumer.get_watermark_offsets(place)[1] for place in places)
    consumer.assign(places)

    def read() -> int:
        count = 0
        while count < wanted:
            count += len([orjson.loads(m.value()) for m in consumer.consume(10_000, 0.2)])
        return count

    print(rate(read))
    consumer.close()


if __name__ == "__main__":
    main()
