"""Faults of servers and Redis fire the alerts that are meant for them: a drill with times divided by 30."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from k8s.rules.objectives import LATENCY_S
from livectr.client.clients import RankClient
from livectr.demo.demo import PIPELINE
from livectr.local.ports import free_ports
from tests.watch.demos import WatchedDemo
from tests.watch.drills import drill, hurried_rules, slowed, stopped


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedDemo]:
    """Demo of the example, once it has learned and both servers answer."""
    folder = tmp_path_factory.mktemp("drill")
    # A low rate leaves time to catch up, on a machine with much else to do.
    with WatchedDemo(folder, "--rate", "100", "--rules", str(hurried_rules(folder))) as running:
        learned = "livectr_published_version > 3 and livectr_lost_versions_total == 0"
        running.until(lambda: running.holds(learned))
        running.is_over("LiveCTRNoServer")
        yield running


@drill("LiveCTRRedisRefilled")
def test_redis_is_emptied(demo: WatchedDemo) -> None:
    """The trainer publishes everything again."""
    demo.redis.flushall()
    demo.fires("LiveCTRRedisRefilled")
    demo.is_over("LiveCTRRedisRefilled")


@drill("LiveCTRAvailabilityBurnsFast", "LiveCTRAvailabilityBurnsSlowly")
def test_redis_refuses_reads(demo: WatchedDemo) -> None:
    """Answers that need rows are UNAVAILABLE."""
    demo.redis.execute_command("ACL", "SETUSER", "default", "-mget")
    try:
        demo.fires("LiveCTRAvailabilityBurnsFast", "LiveCTRAvailabilityBurnsSlowly")
    finally:
        demo.redis.execute_command("ACL", "SETUSER", "default", "+@all")


@drill("LiveCTRRedisEvicts")
def test_redis_is_too_small(demo: WatchedDemo) -> None:
    """Redis evicts."""
    used = int(demo.redis.info("memory")["used_memory"])
    demo.redis.config_set("maxmemory-policy", "allkeys-random")
    demo.redis.config_set("maxmemory", used * 9 // 10)
    try:
        demo.fires("LiveCTRRedisEvicts")
    finally:
        demo.redis.config_set("maxmemory", 0)
        demo.redis.config_set("maxmemory-policy", "noeviction")
    demo.is_over("LiveCTRRedisEvicts")
    demo.is_over("LiveCTRNoServer")


@drill("LiveCTRLatencyBurnsFast", "LiveCTRLatencyBurnsSlowly")
def test_a_server_is_held_again_and_again(demo: WatchedDemo) -> None:
    """Requests wait for a server that does not run, and its handlers know nothing of it."""
    server = '{pod="rank-0"'
    late = f"rate(livectr_pause_seconds_count{server}}}[30s]) - ignoring(le) "
    late += f'rate(livectr_pause_seconds_bucket{server}, le="{LATENCY_S}"}}[30s])'
    with slowed(demo.processes("serve", "rank"), 0.3, 0.1):
        # Other load of the machine may fire the alerts, but does not hold a server for so long.
        share = f"({late}) / rate(livectr_pause_seconds_count{server}}}[30s])"
        demo.until(lambda: demo.holds(f"{share} > 0.4"), lambda: "the stops are not measured")
        demo.fires("LiveCTRLatencyBurnsFast", "LiveCTRLatencyBurnsSlowly")


@contextmanager
def another_server(demo: WatchedDemo, user: str) -> Iterator[None]:
    """Run a rank server with a Redis user of its own, and let Prometheus read it as pod rank-1."""
    port = free_ports(1)
    demo.redis.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all")
    command = [sys.executable, "-m", "livectr", "serve", "rank", "--pipeline", str(PIPELINE)]
    command += ["--redis", f"redis://{user}:secret@127.0.0.1:{demo.redis_port}"]
    command += ["--listen", "127.0.0.1:0", "--set", f"metrics_port={port}"]
    settings = demo.keep / "prometheus" / "prometheus.json"
    (prometheus,) = (part for part in demo.family if f"--config.file={settings}" in part.cmdline())
    before = settings.read_text()
    changed = json.loads(before)
    (rank,) = (job for job in changed["scrape_configs"] if job["job_name"] == "rank")
    labels = {"namespace": "demo", "pod": "rank-1"}
    rank["static_configs"].append({"targets": [f"127.0.0.1:{port}"], "labels": labels})
    with (
        (demo.keep / "rank-1.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as server,
    ):
        try:
            settings.write_text(json.dumps(changed))
            prometheus.send_signal(signal.SIGHUP)
            yield
            assert server.poll() is None, (demo.keep / "rank-1.log").read_text()
        finally:
            settings.write_text(before)
            prometheus.send_signal(signal.SIGHUP)
            server.terminate()


@drill("LiveCTRVersionsSplit")
def test_a_server_is_cut_off_from_redis(demo: WatchedDemo) -> None:
    """It continues answering with its last version."""
    with another_server(demo, "cut"):
        served = 'livectr_served_version{pod="rank-1"} > 0'
        demo.until(lambda: demo.holds(served), lambda: "the second server serves nothing")
        demo.redis.execute_command("ACL", "SETUSER", "cut", "off")
        demo.redis.execute_command("CLIENT", "KILL", "USER", "cut")
        old = 'livectr_served_version_age_seconds{pod="rank-1"} > 30'
        demo.until(lambda: demo.holds(old), lambda: "its version does not grow old")
        demo.fires("LiveCTRVersionsSplit")
    demo.is_over("LiveCTRVersionsSplit")


@drill("LiveCTRNoPublish", "LiveCTRFreshnessBurnsFast", "LiveCTRFreshnessBurnsSlowly")
def test_the_trainer_stands_still(demo: WatchedDemo) -> None:
    """Versions get old, and after it what it learns is late."""
    with stopped(demo.processes("train", "--pipeline")):
        demo.fires("LiveCTRNoPublish")
        time.sleep(110)  # more than the bound of freshness
    demo.fires("LiveCTRFreshnessBurnsFast", "LiveCTRFreshnessBurnsSlowly")
    demo.is_over("LiveCTRNoPublish")


@contextmanager
def asked(demo: WatchedDemo) -> Iterator[None]:
    """Ask the rank server for the worst ads of all alone, again and again."""
    (server, *_) = demo.processes("serve", "rank")
    words = server.cmdline()
    context = {
        "user_id": 7,
        "page": "search",
        "position": 1,
        "query": "new books",
        "context": '{"device": {"os": "ios"}}',
    }
    ended = threading.Event()

    def ask(client: RankClient) -> None:
        ads = list(range(1, 193))
        worst = client.rank(context, {"ad_id": ads}).index[-4:]
        while not ended.wait(0.05):
            client.rank(context, {"ad_id": [ads[i] for i in worst] * 250})

    with RankClient(words[words.index("--listen") + 1], 10) as client:
        asker = threading.Thread(target=ask, args=(client,))
        asker.start()
        try:
            yield
            assert asker.is_alive()
        finally:
            ended.set()
            asker.join()


@drill("LiveCTRPredictionsMoved")
def test_a_client_sends_the_worst_ads_only(demo: WatchedDemo) -> None:
    """Predictions fall, and clicks of the log do not. The usual mean is a median: it takes some minutes."""
    usual = "livectr_served_pctr_count offset 4m > 0 and on () livectr_window_clicks > 1000"
    demo.until(lambda: demo.holds(usual), lambda: "there is no usual mean")
    with asked(demo):
        demo.fires("LiveCTRPredictionsMoved")
    demo.is_over("LiveCTRPredictionsMoved")


@drill("LiveCTRNoServer")
def test_redis_is_emptied_while_nobody_fills_it(demo: WatchedDemo) -> None:
    """Servers are not ready after lost_grace_s."""
    with stopped(demo.processes("train", "--pipeline")):
        demo.redis.flushall()
        demo.fires("LiveCTRNoServer")
    demo.is_over("LiveCTRNoServer")


@drill("LiveCTRNoServer")
def test_servers_hang(demo: WatchedDemo) -> None:
    """They answer no request and no scrape."""
    with stopped(demo.processes("serve", "rank")):
        demo.fires("LiveCTRNoServer")
    demo.is_over("LiveCTRNoServer")
