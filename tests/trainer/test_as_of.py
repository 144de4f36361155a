"""Tables that change while they are joined: a live run, killed and resumed, learns what a replay learns."""

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaProducer

from livectr.local.kafka import create_topics
from livectr.trainer.checkpoint.manifest import newest_manifest
from tests.tiers import few
from tests.trainer.ad_logs import PARTITIONS, changes, events
from tests.trainer.kills import OPTIONS, kill_group, kill_one_rank, kill_somewhere
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_close, assert_same

IMPRESSIONS, STEPS = 4_000, 50
SAME = {**OPTIONS, "max_steps": STEPS}
LIVE = {**SAME, "until_end": False, "idle_partition_s": 3_600.0, "batch_wait_s": 0.0}
"""No clock decides anything: neither a batch nor the end."""


def write_live(url: str, prefix: str, lasts_s: float) -> None:
    """Write events and rows in the order of their times, for about `lasts_s` seconds."""
    logs = {**events(IMPRESSIONS), **changes(IMPRESSIONS)}
    written = [
        (int(str(row.get("ts", row.get("changed")))), topic, partition, row)
        for topic, log in logs.items()
        for partition, row in log
    ]
    written.sort(key=lambda entry: (entry[0], entry[1] not in ("users", "ads")))
    began = time.monotonic()
    with KafkaProducer(bootstrap_servers=url.removeprefix("kafka://")) as producer:
        for number, (_, topic, partition, row) in enumerate(written):
            key = str(row["ad_id" if topic == "ads" else "user_id"]).encode()
            producer.send(prefix + topic, json.dumps(row).encode(), key=key, partition=partition)
            if number % 50 == 0:
                producer.flush()
                time.sleep(max(0.0, began + lasts_s * number / len(written) - time.monotonic()))


@pytest.fixture(scope="module")
def topics(kafka_url: str) -> Callable[[str], None]:
    """Creates the topics of a prefix."""

    def create(prefix: str) -> None:
        counts = {prefix + name: PARTITIONS for name in ("impressions", "clicks")}
        counts |= {prefix + name: 1 for name in ("users", "ads")}
        create_topics(kafka_url, counts, compacted=[prefix + "users", prefix + "ads"])

    return create


@pytest.fixture(scope="module")
def replayed(
    tmp_path_factory: pytest.TempPathFactory, kafka_url: str, topics: Callable[[str], None]
) -> Result:
    topics("replayed-")
    write_live(kafka_url, "replayed-", 0.0)
    root = tmp_path_factory.mktemp("replayed")
    options = {**SAME, "source": kafka_url, "checkpoint": str(root)}
    finish(start(1, options, "replayed-", changing=True))
    result = Result(root)
    assert result.step == STEPS and len(result.predictions) > 0.7 * IMPRESSIONS
    return result


@pytest.mark.parametrize("worlds", few([[1, 1], [2, 1], [4, 2]], [2, 1]))
def test_a_live_run_that_is_killed_equals_a_replay(
    worlds: list[int],
    tmp_path: Path,
    kafka_url: str,
    topics: Callable[[str], None],
    replayed: Result,
) -> None:
    prefix = f"live{worlds[0]}-"
    topics(prefix)
    writer = threading.Thread(target=write_live, args=(kafka_url, prefix, 10.0))
    writer.start()
    root = tmp_path / "checkpoint"
    options = {**LIVE, "source": kafka_url, "checkpoint": str(root)}
    first, last = worlds
    kill = kill_group if first == 1 else kill_one_rank
    killed = kill_somewhere(start(first, options, prefix, changing=True), root, random.Random(), kill)
    assert killed
    finish(start(last, options, prefix, changing=True))
    writer.join()
    manifest = newest_manifest(root)
    assert manifest is not None and sum(file.kind == "rows" for file in manifest.files) >= last
    compare = assert_same if worlds == [1, 1] else assert_close
    compare(Result(root), replayed)
