"""Keys of the dead letters that a broker holds."""

from __future__ import annotations

from kafka import KafkaConsumer, TopicPartition

from livectr.ingest.addresses import kafka_servers
from livectr.ingest.dead_letters.letters import TOPIC


def keys_in(url: str) -> list[str]:
    """Message keys of the letters in a broker, in order."""
    place = TopicPartition(TOPIC, 0)
    consumer = KafkaConsumer(bootstrap_servers=kafka_servers(url), auto_offset_reset="earliest")
    consumer.assign([place])
    end = consumer.end_offsets([place])[place]
    found: list[str] = []
    while consumer.position(place) < end:
        found += [m.key.decode() for records in consumer.poll(200).values() for m in records]
    consumer.close()
    return found
