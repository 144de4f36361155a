"""The consumer group's offsets on a real broker, as Kafka's own tool shows them."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from livectr.ingest.addresses import connect_admin, kafka_servers
from livectr.local.kafka import Broker, create_topics
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.options import TrainOptions
from livectr.trainer.run import train
from livectr.trainer.stream import telemetry
from livectr.trainer.stream.group_offsets import GroupOffsets
from tests.kafka_tools import described_group
from tests.metrics_page import metric_value
from tests.tiers import few
from tests.trainer.ad_logs import PARTITIONS, ad_pipeline, write_kafka
from tests.trainer.processes import finish, start
from tests.waiting import until

IMPRESSIONS = 600


def failures() -> float:
    return metric_value(telemetry.GROUP_COMMIT_FAILURES)


@pytest.mark.parametrize("world", few([1, 2], 2))
def test_kafkas_tool_shows_the_lag_after_the_checkpoint(
    tmp_path: Path, kafka_url: str, topic_name: Callable[[str], str], world: int
) -> None:
    prefix = topic_name("group-")
    write_kafka(kafka_url, prefix, IMPRESSIONS)
    options: dict[str, object] = {
        **{"source": kafka_url, "checkpoint": str(tmp_path / "c"), "group": prefix, "until_end": True},
        **{"batch_size": 64, "batch_ramp": 0, "threads": 1},
    }
    finish(start(world, options, prefix))
    shown = described_group(kafka_url, prefix)
    assert len(shown) == 2 * PARTITIONS and {lag for _, lag in shown.values()} == {0}
    assert sum(at for (topic, _), (at, _) in shown.items() if topic.endswith("impressions")) == IMPRESSIONS
    write_kafka(kafka_url, prefix, 50, seed=1)
    shown = described_group(kafka_url, prefix)
    assert sum(lag for (topic, _), (_, lag) in shown.items() if topic.endswith("impressions")) == 50
    # A run resumes from its checkpoint, whatever the broker says.
    with connect_admin(kafka_url) as admin:
        wrong = {TopicPartition(*place): OffsetAndMetadata(0, "", -1) for place in shown}
        admin.alter_group_offsets(prefix, wrong)
    before = newest_manifest(tmp_path / "c")
    finish(start(world, options, prefix))
    after = newest_manifest(tmp_path / "c")
    assert before is not None and after is not None and after.examples - before.examples <= 50
    assert {lag for _, lag in described_group(kafka_url, prefix).values()} == {0}


def test_a_group_with_members_is_counted_and_training_continues(
    tmp_path: Path, kafka_url: str, topic_name: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    prefix = topic_name("group-")
    write_kafka(kafka_url, prefix, IMPRESSIONS)
    member = KafkaConsumer(
        prefix + "impressions",
        bootstrap_servers=kafka_servers(kafka_url),
        group_id=prefix,
        auto_offset_reset="earliest",
    )
    # One call, until there are records: kafka-python 3.0.12 never ends a join that one call has left undone.
    member.poll(120_000)
    assert member.assignment()
    before = failures()
    options = TrainOptions(
        kafka_url, checkpoint=str(tmp_path / "c"), group=prefix, until_end=True, batch_ramp=0, threads=1
    )
    with caplog.at_level(logging.WARNING):
        report = train(ad_pipeline(prefix), options)
    member.close()
    assert report.examples_trained == IMPRESSIONS and failures() > before
    assert f"takes no offsets of group {prefix}" in caplog.text and "name another group" in caplog.text


@pytest.mark.full
def test_offsets_that_are_lost_at_the_end_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that keeps its connections and answers nothing holds no run up; the log says what is lost."""
    monkeypatch.setattr("livectr.trainer.stream.group_offsets.CLOSE_S", 0.5)
    with Broker(data_dir=tmp_path) as broker, caplog.at_level(logging.WARNING):
        create_topics(broker.url, {"events": 1})
        offsets, before = GroupOffsets(broker.url, "silent"), failures()
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            offsets.commit({("events", 0): 3})
            offsets.close()
        finally:
            os.kill(broker.pid, signal.SIGCONT)
    assert failures() > before
    assert "takes no offsets of group silent" in caplog.text and "does not answer" in caplog.text


@pytest.mark.full
def test_a_broker_that_is_away_takes_the_newest_offsets_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("livectr.trainer.stream.group_offsets.RETRY_S", 0.2)
    with Broker(data_dir=tmp_path) as broker:
        create_topics(broker.url, {"events": 1})
        with closing(GroupOffsets(broker.url, "ads")) as offsets, caplog.at_level(logging.WARNING):
            broker.stop()
            offsets.commit({("events", 0): 3})
            until(lambda: "takes no offsets" in caplog.text)
            offsets.commit({("events", 0): 5})
            broker.start()
            until(lambda: "again" in caplog.text)
        assert described_group(broker.url, "ads") == {("events", 0): (5, -5)}


def test_mistakes() -> None:
    mistakes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"source": "file:/logs", "checkpoint": "/c"}, "only a kafka:// source"),
        ({"source": "kafka://b:9092"}, "group needs checkpoint"),
        ({"source": "kafka://b:9092", "checkpoint": "/c", "group": " "}, "group is empty"),
    )
    for options, says in mistakes:
        with pytest.raises(ConfigError, match=says):
            TrainOptions(**{"group": "ads", **options})
