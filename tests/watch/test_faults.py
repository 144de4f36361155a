"""Faults of a running system fire the alerts that are meant for them: a drill with times divided by 30."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.watch.demos import WatchedDemo
from tests.watch.expressions import Expression, answer

LONGEST_S = 300


@contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """Hold processes with SIGSTOP."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_faults_fire_their_alerts(tmp_path: Path) -> None:
    words = ["--drill", "30", "--to", str(tmp_path / "rules")]
    subprocess.run([sys.executable, "-m", "k8s.rules", *words], check=True, timeout=60)
    with WatchedDemo(tmp_path, "--rules", str(tmp_path / "rules" / "livectr.yaml")) as demo:

        def fires(alert: str) -> None:
            demo.until(lambda: alert in demo.firing(), LONGEST_S, lambda: f"{alert} does not fire")

        def is_over(alert: str) -> None:
            demo.until(lambda: alert not in demo.firing(), LONGEST_S, lambda: f"{alert} goes on")

        trainer = demo.processes("train", "--pipeline")
        learned = Expression("start", "livectr_published_version > 3 and livectr_lost_versions_total == 0")
        demo.until(lambda: bool(answer(demo.url, learned)), LONGEST_S)
        is_over("LiveCTRNoServer")

        # Redis is emptied: the trainer publishes everything anew.
        demo.redis.flushall()
        fires("LiveCTRRedisRefilled")
        is_over("LiveCTRRedisRefilled")

        # Redis refuses reads: answers that need rows are UNAVAILABLE.
        demo.redis.execute_command("ACL", "SETUSER", "default", "-mget")
        fires("LiveCTRAvailabilityBurnsFast")
        demo.redis.execute_command("ACL", "SETUSER", "default", "+@all")

        # Redis is too small, and evicts.
        used = int(demo.redis.info("memory")["used_memory"])
        demo.redis.config_set("maxmemory-policy", "allkeys-random")
        demo.redis.config_set("maxmemory", used * 9 // 10)
        fires("LiveCTRRedisEvicts")
        demo.redis.config_set("maxmemory", 0)
        demo.redis.config_set("maxmemory-policy", "noeviction")
        is_over("LiveCTRRedisEvicts")
        is_over("LiveCTRNoServer")

        # A server that is held again and again: its answers are slow.
        rank = demo.processes("serve", "rank")
        deadline = time.monotonic() + LONGEST_S
        while "LiveCTRLatencyBurnsFast" not in demo.firing():
            assert time.monotonic() < deadline, "LiveCTRLatencyBurnsFast does not fire"
            for _ in range(10):
                with stopped(rank):
                    time.sleep(0.3)
                time.sleep(0.1)

        # The trainer stands still: versions get old, and after it what it learns is late.
        with stopped(trainer):
            fires("LiveCTRNoPublish")
            time.sleep(110)  # more than the bound of freshness
        fires("LiveCTRFreshnessBurnsFast")
        is_over("LiveCTRNoPublish")

        # Redis is emptied while nobody fills it: servers are not ready after lost_grace_s.
        with stopped(trainer):
            demo.redis.flushall()
            fires("LiveCTRNoServer")
        is_over("LiveCTRNoServer")
