"""An unreachable broker is not an idle log: nothing is released early, and the run continues."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaProducer

from livectr.ingest.addresses import kafka_servers
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.local.kafka import Broker, create_topics
from tests.ingest.joined_logs import pipeline, random_logs
from tests.ingest.mixed_messages import messages
from tests.waiting import until


@pytest.mark.full
def test_silence_counts_from_when_the_broker_answers_again(tmp_path: Path) -> None:
    logs = random_logs(3, partitions=1)
    with Broker(data_dir=tmp_path / "kafka") as broker:
        create_topics(broker.url, {"impressions": 1, "clicks": 1, "users": 1})
        with KafkaProducer(bootstrap_servers=kafka_servers(broker.url)) as producer:
            for topic, log in (("impressions", logs.impressions[0]), ("clicks", logs.clicks[0])):
                for value in messages(log):
                    producer.send(topic, value, partition=0)
        source = ExampleSource(
            pipeline(),
            broker.url,
            ReadOptions(until_end=False, until_idle_s=3600.0, idle_partition_s=1800.0),
            rank=0,
            world=1,
            dead_letters=DeadLetters(None),
        )

        def poll_until(done: Callable[[], bool]) -> None:
            until(done, turn=lambda: source.poll(0.05))

        poll_until(lambda: source.stats.events["impressions"] > 0 and source.quiet_s > 0)
        broker.kill()
        killed = time.monotonic()
        poll_until(lambda: source.quiet_s == 0)
        broker.start()
        poll_until(lambda: source.quiet_s > 0)
        assert source.quiet_s < time.monotonic() - killed
        assert not source.idle
        source.close()
