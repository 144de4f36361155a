"""Faults of logs, model, disk and trainer fire the alerts that are meant for them, with times divided by 30.

The demo works on a small disk of its own, a tmpfs in a mount namespace. This needs root, or user namespaces.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaProducer

from livectr.local.kafka import broker_jars
from tests.waiting import left_s
from tests.watch.demos import WatchedDemo
from tests.watch.drills import drill, hurried_rules

DISK_BYTES = 2 << 30
LEFT = 0.12
"""Share of the disk that is left, below the alert's bound: Prometheus takes 128 MiB of it at a time."""
WEAK = Path(__file__).with_name("weak_pipeline.py")
GARBAGE_PER_S = 60
QUOTA_BYTES_PER_S = 20_000
"""Less than a fourth of what the demo writes."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedDemo]:
    """Demo with a Kafka log, a small disk, a weak model, and checkpoints that are far apart."""
    folder = tmp_path_factory.mktemp("drill")
    (folder / "keep").mkdir()
    mount = f'mount -t tmpfs -o size={DISK_BYTES} tmpfs "$0" && exec "$@"'
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    rules = str(hurried_rules(folder))
    with WatchedDemo(
        folder,
        *("--log", "kafka", "--pipeline", str(WEAK), "--rules", rules),
        within=[*namespace, "sh", "-c", mount, str(folder / "keep")],
        environment={"LIVECTR_CHECKPOINT_INTERVAL_S": "1d"},
    ) as running:
        running.until(lambda: running.holds("livectr_published_version > 1"))
        yield running


@drill("LiveCTRMiscalibrated", "LiveCTRShadowBetter")
def test_the_model_is_weaker_than_its_shadow(demo: WatchedDemo) -> None:
    """A roll-out of wrong learning rates: random weights remain, which order nothing."""
    demo.fires("LiveCTRMiscalibrated", "LiveCTRShadowBetter")


@drill("LiveCTRCheckpointOld")
def test_checkpoints_are_far_apart(demo: WatchedDemo) -> None:
    """Somebody has set checkpoint_interval_s to a day."""
    demo.fires("LiveCTRCheckpointOld")


@contextmanager
def garbage(address: str, topic: str) -> Iterator[None]:
    """Send lines that are no JSON to a topic."""
    ended = threading.Event()
    producer = KafkaProducer(bootstrap_servers=address)

    def send() -> None:
        while not ended.wait(1):
            for _ in range(GARBAGE_PER_S):
                producer.send(topic, b"<html>502 Bad Gateway</html>")
            producer.flush()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        producer.close()


@drill("LiveCTRDeadLetters")
def test_a_producer_sends_what_is_no_json(demo: WatchedDemo) -> None:
    """A proxy's error page gets into the log of clicks."""
    with garbage(broker(demo), "clicks"):
        demo.fires("LiveCTRDeadLetters")


@contextmanager
def overflowing(address: str) -> Iterator[None]:
    """Send impressions of an ad whose price is nearly the largest float32, some in every batch."""
    ended = threading.Event()
    producer = KafkaProducer(bootstrap_servers=address)
    ad = {"ad_id": 10**9, "category": "cars", "price": 3e38}
    producer.send("ads", json.dumps(ad).encode(), key=str(ad["ad_id"]).encode())
    producer.flush()

    def send() -> None:
        number = 10**15
        while not ended.wait(0.05):
            for user in range(4):  # of several partitions
                number += 1
                shown = {"request_id": number, "user_id": user, "ad_id": ad["ad_id"], "position": 0}
                event = json.dumps({**shown, "ts": time.time_ns() // 1_000_000}).encode()
                producer.send("impressions", event, key=str(user).encode())
            producer.flush()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        producer.close()


@drill("LiveCTRBatchesSkipped")
def test_the_log_brings_numbers_that_overflow(demo: WatchedDemo) -> None:
    """A producer writes a sentinel for an unknown price. The run learns again once that has ended."""
    with overflowing(broker(demo)):
        demo.fires("LiveCTRBatchesSkipped")
    demo.is_over("LiveCTRBatchesSkipped")


def broker(demo: WatchedDemo) -> str:
    """HOST:PORT of the demo's broker."""
    (words,) = (
        part.cmdline() for part in demo.family if "kafka" in part.cmdline() and "--listen" in part.cmdline()
    )
    return words[words.index("--listen") + 1]


@contextmanager
def quota(address: str, bytes_per_s: int) -> Iterator[None]:
    """Limit the bytes that a broker gives each client in a second."""
    java = shutil.which("java")
    assert java is not None

    def alter(*words: str) -> None:
        command = [java, "-cp", f"{broker_jars()}/*", "kafka.admin.ConfigCommand", "--alter"]
        command += ["--bootstrap-server", address, "--entity-type", "clients", "--entity-default"]
        subprocess.run([*command, *words], check=True, timeout=left_s(), stdout=subprocess.DEVNULL)

    alter("--add-config", f"consumer_byte_rate={bytes_per_s}")
    try:
        yield
    finally:
        alter("--delete-config", "consumer_byte_rate")


@drill("LiveCTRLagRises")
def test_the_broker_gives_less_than_is_written(demo: WatchedDemo) -> None:
    """Somebody has set a quota for all consumers."""
    with quota(broker(demo), QUOTA_BYTES_PER_S):
        demo.fires("LiveCTRLagRises")


@drill("LiveCTRDiskFills")
def test_the_disk_fills(demo: WatchedDemo) -> None:
    """Somebody leaves a large file on the volume of the checkpoint."""
    folder = Path(f"/proc/{demo.pid}/root{demo.keep}")  # the demo's own view of its mounts
    disk = os.statvfs(folder)
    assert disk.f_blocks * disk.f_frsize == DISK_BYTES, "the demo is not on its own disk"
    assert "LiveCTRDiskFills" not in demo.firing()
    filler = folder / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - int(LEFT * DISK_BYTES))
    try:
        demo.fires("LiveCTRDiskFills")
    except AssertionError as error:
        disk = os.statvfs(folder)
        raise AssertionError(f"{disk.f_bavail / disk.f_blocks:.3f} of the disk is free") from error
    finally:
        filler.unlink()
    demo.is_over("LiveCTRDiskFills")
