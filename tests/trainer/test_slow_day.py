"""A producer stalls, so that the clock decides what is learned: the order log makes a replay learn the same.

A real broker, and a trainer in a process of its own. It continues without the silent partitions; their
records come when the place of most of them has passed. The trainer is stopped, or killed in the stall.
"""

from __future__ import annotations

import heapq
import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kafka import KafkaProducer

from livectr.ingest.language.keys import key_of
from livectr.local.kafka import create_topics
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.manifest import Manifest, newest_manifest
from livectr.trainer.checkpoint.order_parts import lines_of
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.des.exchange_choice import FIELD_EXCHANGE_KEY
from livectr.trainer.options import TrainOptions
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.run import train
from livectr.trainer.stream.order_log import OrderLog
from tests.ranks import Processes
from tests.trainer.ad_logs import PARTITIONS, START_MS, ad_pipeline, events, write_files, write_kafka
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_same, assert_same_examples
from tests.waiting import until

IMPRESSIONS, STALL, KILL, END = 2_400, 500, 1_100, 1_700
"""Impressions of the log; those before the stall, before the kill, and before the end of the stall."""
SILENT = {("clicks", 1), ("impressions", 2), ("clicks", 2)}
"""Topics and partitions whose producer stalls."""
WINDOW = 5_000 // 20
"""Impressions of a label window."""
LIVE: dict[str, object] = dict(
    batch_size=64,
    batch_ramp=0,
    publish_interval_s=0.15,
    threads=1,
    idle_partition_s=0.3,
    batch_wait_s=0.2,
)


class Producers:
    """Producers of a log: of an event after the other, and of those that are silent."""

    def __init__(self, url: str, prefix: str, *, changing: bool) -> None:
        tables = [prefix + "users", prefix + "ads"]
        if changing:
            topics = {prefix + topic: PARTITIONS for topic in ("impressions", "clicks")}
            create_topics(url, {**topics, **dict.fromkeys(tables, 1)}, compacted=tables)
        else:
            write_kafka(url, prefix, 0)
        self._producer = KafkaProducer(bootstrap_servers=url.removeprefix("kafka://"), linger_ms=5)
        self._prefix = prefix
        sent = events(IMPRESSIONS)
        logs = (
            [(int(str(r["ts"])), topic, p, r) for p, r in sent[topic]] for topic in ("impressions", "clicks")
        )
        self._log = list(heapq.merge(*logs, key=lambda event: event[0]))
        self._held: list[tuple[str, int, dict[str, object]]] = []
        self._shown: list[int] = []

    def write(self, until: int, *, stalled: bool = False) -> int:
        """Write the events up to the time of an impression; returns the impressions that are learned before
        more comes.

        Args:
            stalled: hold those of silent topic partitions back; else what was held comes first.
        """
        held, self._held = self._held, []
        for topic, partition, record in held:
            self._send(topic, partition, record)
            if topic == "impressions":
                self._shown.append(int(str(record["ts"])))
        ready = START_MS + 20 * (until - 2 * WINDOW)
        while self._log and self._log[0][0] < START_MS + 20 * until:
            ts, topic, partition, record = self._log.pop(0)
            if stalled and (topic, partition) in SILENT:
                self._held.append((topic, partition, record))
                continue
            self._send(topic, partition, record)
            if topic == "impressions":
                self._shown.append(ts)
        self._producer.flush()
        return sum(ts < ready for ts in self._shown)

    def _send(self, topic: str, partition: int, record: dict[str, object]) -> None:
        key, value = (
            str(record["user_id" if "user_id" in record else "ad_id"]).encode(),
            json.dumps(record).encode(),
        )
        self._producer.send(self._prefix + topic, value, key=key, partition=partition)

    def close(self) -> None:
        self._producer.close()


@contextmanager
def running(trainer: Processes) -> Iterator[Processes]:
    try:
        yield trainer
    finally:
        trainer.kill()


def manifest_of(root: Path) -> Manifest:
    manifest = newest_manifest(root)
    assert manifest is not None
    return manifest


def await_examples(root: Path, count: int, trainer: Processes) -> None:
    """Wait until so many examples are learned."""
    log = root / "predictions"

    def learned() -> int:
        return len(read_predictions(log)) if log.exists() and log.stat().st_size else 0

    until(
        lambda: learned() >= count,
        f"{count} examples are learned",
        process=trainer,
        why=lambda: str(learned()),
    )


def live_run(
    root: Path,
    url: str,
    prefix: str,
    *,
    killed: bool,
    changing: bool = False,
    world: int = 1,
    **more: object,
) -> None:
    """Train while producers write, stall, and continue; then learn what the log holds."""
    options = {
        **LIVE,
        "source": url,
        "checkpoint": str(root),
        "predictions": str(root / "predictions"),
        **more,
    }
    producers = Producers(url, prefix, changing=changing)
    with ExitStack() as stack:
        trainer = stack.enter_context(running(start(world, options, prefix, changing=changing)))
        producers.write(STALL)
        learned = producers.write(KILL, stalled=True)
        await_examples(root, learned, trainer)
        if killed:
            os.kill(trainer.pid, signal.SIGKILL)
            trainer.communicate()
            trainer = stack.enter_context(running(start(world, options, prefix, changing=changing)))
        learned = producers.write(END, stalled=True)
        await_examples(root, learned, trainer)
        learned = producers.write(IMPRESSIONS)
        await_examples(root, learned, trainer)
        trainer.terminate()
        assert "asked to stop" in finish(trainer)
    producers.close()
    finish(start(world, {**options, "until_end": True}, prefix, changing=changing))


def order_of(root: Path) -> OrderLog:
    manifest = manifest_of(root)
    return OrderLog.parse(lines_of(Restored(root, manifest)), manifest.step, "")


@pytest.mark.parametrize(
    ("killed", "changing", "interval_ms", "world"),
    [(False, False, None, 2), (True, True, None, 1), (True, False, 500, 1)],
    ids=["two", "killed", "ticks"],
)
def test_a_replay_of_a_slow_day_learns_the_same(
    tmp_path: Path,
    kafka_url: str,
    topic_name: Callable[[str], str],
    killed: bool,
    changing: bool,
    interval_ms: int | None,
    world: int,
) -> None:
    """changing: rows of the look-up tables have times, and change all the time."""
    prefix, root = topic_name("slow-"), tmp_path / "live"
    more = {"batch_interval_ms": interval_ms}
    live_run(root, kafka_url, prefix, killed=killed, changing=changing, world=world, **more)
    live, order = Result(root), order_of(root)
    # nothing is lost and nothing is learned twice
    ids = key_of(pa.array(range(IMPRESSIONS), pa.int64()))
    assert np.array_equal(np.sort(live.predictions["instance"]), np.sort(ids))
    # the clock has decided, and more than batches
    assert order.cuts and {1, 2} <= order.decisions.keys()
    assert (np.diff(live.predictions["time_ms"]) < -20 * WINDOW).any(), "no record came late"

    again = {**LIVE, **more, "source": kafka_url, "until_end": True}
    unbroken = tmp_path / "unbroken"
    replay = {**again, "order_of": str(root), "checkpoint": str(unbroken)}
    assert "not followed" not in (text := finish(start(world, replay, prefix, changing=changing))), text
    assert_same(Result(unbroken), live)
    assert order_of(unbroken).cuts == order.cuts and order_of(unbroken).decisions == order.decisions

    other = tmp_path / "other"
    replay |= {"order_of": str(unbroken), "checkpoint": str(other)}
    finish(start(3 - world, replay, prefix, changing=changing))
    elsewhere, first = Result(other), IMPRESSIONS // 10
    assert_same_examples(elsewhere, live)
    assert order_of(other).cuts == order.cuts and order_of(other).decisions == order.decisions
    # another number of ranks adds in another order, which later steps magnify
    np.testing.assert_allclose(
        elsewhere.predictions["rank"][:first], live.predictions["rank"][:first], atol=2e-3
    )

    alone = tmp_path / "alone"
    finish(start(1, {**again, "checkpoint": str(alone)}, prefix, changing=changing))
    found = Result(alone).predictions
    assert not np.array_equal(found["instance"], live.predictions["instance"]), "the clock decided nothing"
    assert np.array_equal(np.sort(found["instance"]), np.sort(ids))


def test_a_replay_has_the_field_exchange_of_its_run(tmp_path: Path) -> None:
    """Ranks on several machines choose it by a measured link, a clock; here settings stand for it."""

    def trained(name: str, **more: object) -> Result:
        options = {
            "source": source,
            "until_end": True,
            "batch_size": 64,
            "batch_ramp": 0,
            "threads": 1,
            **more,
        }
        finish(start(2, {**options, "checkpoint": str(tmp_path / name)}))
        return Result(tmp_path / name)

    def exchange(result: Result) -> list[int]:
        return [int(number) for number in result.dense[FIELD_EXCHANGE_KEY]]

    source = write_files(tmp_path / "logs", 600)
    live, chosen = trained("live", field_exchange="rows"), trained("chosen")
    assert exchange(live) != exchange(chosen), "the same would be chosen"
    replay = trained("replay", order_of=str(tmp_path / "live"))
    assert exchange(replay) == exchange(live)
    assert_same(replay, live)
    assert order_of(tmp_path / "replay").exchanges == order_of(tmp_path / "live").exchanges
    assert order_of(tmp_path / "chosen").exchange(0, 2) != order_of(tmp_path / "live").exchange(0, 2)


def test_a_replay_is_killed_and_resumes(
    tmp_path: Path, kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    """It is stopped after some steps, in the middle of the order log, and started again."""
    prefix, root = topic_name("slow-"), tmp_path / "live"
    live_run(root, kafka_url, prefix, killed=False)
    steps = manifest_of(root).step
    parts = tmp_path / "parts"
    replay = {**LIVE, "source": kafka_url, "order_of": str(root), "checkpoint": str(parts)}
    for most in (steps // 3, steps // 2, steps):
        finish(start(1, {**replay, "max_steps": most}, prefix))
    assert_same(Result(parts), Result(root))
    with pytest.raises(ConfigError, match="had other settings"):
        options = {**replay, "batch_size": 65, "checkpoint": str(tmp_path / "other")}
        train(ad_pipeline(prefix), TrainOptions(**options))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"order_of: .* holds no checkpoint"):
        options = {**replay, "order_of": str(tmp_path / "none"), "checkpoint": str(tmp_path / "other")}
        train(ad_pipeline(prefix), TrainOptions(**options))  # type: ignore[arg-type]
