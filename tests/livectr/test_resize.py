"""Another number of ranks under traffic: no request fails, nothing is lost, the model is that of one rank.

A producer writes into a real broker all the time, and a client asks a rank server over its socket. The
trainer is told to stop, as Kubernetes does it, and started again with another number of ranks.
"""

from __future__ import annotations

import heapq
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import redis
from kafka import KafkaProducer

from livectr.client.clients import RankClient
from livectr.store.layout import Keyspace, decode_rows
from livectr.store.manifest import VersionManifest
from livectr.trainer.checkpoint.manifest import Manifest, newest_manifest
from tests.ranks import Processes
from tests.serving.processes import ready, server
from tests.serving.service import NO_POLICY
from tests.trainer.ad_logs import ADS, START_MS, USERS, events, write_kafka
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_close, assert_same
from tests.waiting import until

SIZES = (1, 3, 2)
RATE, MOST = 250, 40_000
"""Events a second, and the most impressions: more than in any run."""
ASK_S = 0.02
STEPS: dict[str, object] = dict(
    batch_size=128, batch_ramp=0, threads=1, batch_wait_s=0.0, idle_partition_s=3600.0
)
"""Batches are a function of the log: none is cut by the clock, and no silent partition is left out."""


class Traffic:
    """Impressions and clicks that are written while this is entered.

    Attributes:
        impressions: number that were written.
    """

    def __init__(self, url: str, prefix: str) -> None:
        write_kafka(url, prefix, 0)
        self.impressions = 0
        self._producer = KafkaProducer(bootstrap_servers=url.removeprefix("kafka://"), linger_ms=5)
        self._prefix, self._stop = prefix, threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        topics = events(MOST)
        logs = ([(r["ts"], topic, p, r) for p, r in topics[topic]] for topic in ("impressions", "clicks"))
        began = time.monotonic()
        for number, (_, topic, partition, record) in enumerate(heapq.merge(*logs, key=lambda e: e[0])):  # type: ignore[arg-type, return-value]
            if self._stop.wait(max(0.0, began + number / RATE - time.monotonic())):
                return
            key = str(record["user_id"]).encode()
            self._producer.send(
                self._prefix + topic, json.dumps(record).encode(), key=key, partition=partition
            )
            self.impressions += topic == "impressions"

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush()
        self._producer.close()


class Asking:
    """Client that asks a rank server without retries.

    Attributes:
        answered: answers.
        versions: those that answered, in order.
        wrong: errors, and answers of an older version than the one before, or marked.
    """

    def __init__(self, address: str) -> None:
        self._client = RankClient(address, timeout_s=60.0, options=NO_POLICY)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.answered = 0
        self.versions: list[int] = [0]
        self.wrong: list[object] = []

    def _ask(self) -> None:
        rng = np.random.default_rng(0)
        while not self._stop.wait(ASK_S):
            user, ads = int(rng.integers(USERS)), rng.permutation(ADS)[:20].tolist()
            context = {"user_id": user, "ts": START_MS, "tags": [user % 7, user % 3]}
            try:
                reply = self._client.rank(context, {"ad_id": ads})
            except grpc.RpcError as error:
                self.wrong.append(error)
                continue
            self.answered += 1
            if reply.degraded or len(reply.pctr) != 20 or reply.version < self.versions[-1]:
                self.wrong.append(reply)
            if reply.version != self.versions[-1]:
                self.versions.append(reply.version)

    def follow(self, version: int, trainer: Processes) -> None:
        """Wait for a version, and for some answers more."""
        until(lambda: self.versions[-1] >= version, process=trainer)
        least = self.answered + 50
        until(lambda: self.answered >= least, process=trainer)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.__exit__(None, None, None)


@dataclass(frozen=True)
class Run:
    """Options of a run, and what it has done.

    Args:
        root: folder of its checkpoint.
        options: of the trainer.
        prefix: of the topics.
    """

    root: Path
    options: dict[str, object]
    prefix: str

    def start(self, world: int, **more: object) -> Processes:
        kept = {"checkpoint": str(self.root), "predictions": str(self.root / "predictions")}
        return start(world, {**self.options, **kept, **more}, self.prefix)

    def finish(self, world: int, **more: object) -> None:
        """Learn what the log holds by now, and at most `max_steps`."""
        finish(self.start(world, until_end=True, **more))

    @property
    def manifest(self) -> Manifest:
        manifest = newest_manifest(self.root)
        assert manifest is not None
        return manifest


@contextmanager
def killed(process: Processes) -> Iterator[Processes]:
    try:
        yield process
    finally:
        process.kill()


def published(url: str, namespace: str) -> VersionManifest | None:
    with redis.Redis.from_url(url) as client:
        text = client.get(Keyspace(namespace).manifest)
    return None if text is None else VersionManifest.from_json(text)


def published_after(step: int, url: str, namespace: str, trainer: Processes) -> int:
    """Wait for a version of a later step; its number."""
    found: list[int] = []

    def is_later() -> bool:
        held = published(url, namespace)
        if held is not None and held.step > step:
            found.append(held.version)
        return bool(found)

    until(is_later, process=trainer)
    return found[-1]


def test_one_rank_three_and_two_under_traffic(
    tmp_path: Path, kafka_url: str, redis_url: str, topic_name: Callable[[str], str]
) -> None:
    prefix = topic_name("resize-")
    file = tmp_path / "pipeline.py"
    file.write_text(f"from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline({prefix!r})\n")
    alone = {**STEPS, "source": kafka_url}
    to = {"publish": redis_url, "namespace": prefix, "publish_interval_s": 0.3, "min_examples": 0}
    run = Run(tmp_path / "checkpoint", {**alone, **to}, prefix)
    patient = f"{redis_url}?socket_timeout=60"  # a busy machine's Redis is slow and right
    stops: list[Manifest] = []
    with ExitStack() as stack:
        with Traffic(kafka_url, prefix) as traffic:
            for world in SIZES:
                step = stops[-1].step if stops else 0
                with killed(run.start(world)) as trainer:
                    version = published_after(step, redis_url, prefix, trainer)
                    if not stops:
                        process = stack.enter_context(
                            server("rank", patient, "--namespace", prefix, pipeline=file)
                        )
                        asking = stack.enter_context(Asking(ready(process)[0]))
                    asking.follow(version, trainer)
                    trainer.terminate()
                    assert "asked to stop" in finish(trainer)
                stops.append(run.manifest)
                assert (stops[-1].world, stops[-1].step > step) == (world, True)
        run.finish(SIZES[-1])
        last = published(redis_url, prefix)
        assert last is not None
        until(lambda: asking.versions[-1] == last.version, process=process)
    assert not asking.wrong, asking.wrong[:3]
    found = Result(run.root)
    every = START_MS + 20 * np.arange(traffic.impressions)
    assert np.array_equal(np.sort(found.predictions["time_ms"]), every)
    assert last.step == found.step
    assert_served(redis_url, prefix, last, found)
    # the model of an uninterrupted rank
    one = Run(tmp_path / "one", alone, prefix)
    one.finish(1)
    unbroken = Result(one.root)
    assert_close(found, unbroken)
    by_one = slice(stops[0].predictions)
    assert found.predictions[by_one].tobytes() == unbroken.predictions[by_one].tobytes()
    # bit for bit that of runs of the same sizes without traffic
    quiet = Run(tmp_path / "quiet", alone, prefix)
    for world, stop in zip(SIZES, stops, strict=True):
        quiet.finish(world, max_steps=stop.step)
    quiet.finish(SIZES[-1])
    assert_same(found, Result(quiet.root))


def assert_served(url: str, namespace: str, version: VersionManifest, trained: Result) -> None:
    """Redis holds the rows that were trained."""
    with redis.Redis.from_url(url) as client:
        for name, (keys, rows) in trained.tables.items():
            values: Any = client.mget(Keyspace(namespace).rows(version.row_set, name, keys))
            served, status = decode_rows(values, version.version, version.dim)
            assert not status.any()
            assert served.tobytes() == np.ascontiguousarray(rows[:, : version.dim]).tobytes(), name
