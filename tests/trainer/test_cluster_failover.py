"""A node of a cluster fails over to a replica that lags: no stale row is taken for right, no zombie harms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from livectr.serving.version.breaker import DownError
from livectr.serving.version.reader import Reader
from livectr.store.layout import RowStatus
from livectr.store.manifest import VersionManifest
from livectr.trainer.publish import outcome
from livectr.trainer.publish.push import Share
from livectr.trainer.publish.store_errors import FencedError
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.publish.version import Push
from tests.redis_cluster import Cluster, ask, until_redis
from tests.redis_servers import stop_replicating
from tests.trainer.publishing import Trainer, rows_at, snapshot

KEYS = np.arange(3000)
TESTS = 5
"""Number of the tests below."""


@pytest.fixture(scope="module")
def clusters() -> Iterator[list[Cluster]]:
    """A cluster for each test: they form together, which takes a server two seconds."""
    with ExitStack() as stack:
        made = [Cluster(replicas=1) for _ in range(TESTS)]
        for cluster in made:
            stack.push(cluster)
            cluster.begin()
        for cluster in made:
            cluster.finish()
        yield made


@pytest.fixture
def cluster(clusters: list[Cluster], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(outcome, "ASK_AGAIN_S", 0.02)
    return clusters.pop()


@pytest.fixture
def trainers(cluster: Cluster) -> Iterator[list[Trainer]]:
    made = [Trainer(cluster.url)]
    yield made
    for trainer in made:
        trainer.publisher.close()


@pytest.fixture
def reader(cluster: Cluster) -> Iterator[Reader]:
    reader = Reader(cluster.url, "livectr", "f")
    reader.ping()
    yield reader
    reader.close()


def lag(cluster: Cluster, port: int) -> None:
    """Let the replica of a primary miss what follows."""
    primary, replica = cluster.client(port), cluster.client(cluster.spare[port])
    until_redis(lambda: primary.wait(1, 100) == 1)
    stop_replicating(replica, primary)


def fail_over(cluster: Cluster, port: int) -> None:
    """Kill a primary; its replica takes over, and the other nodes know."""
    replica = cluster.client(cluster.spare[port])
    cluster.kill(port)
    ask(replica, "CLUSTER FAILOVER", "TAKEOVER")
    others = [cluster.client(other) for other in cluster.processes]
    until_redis(lambda: all(f":{cluster.spare[port]}@".encode() in myself(node) for node in others))


def myself(node: object) -> bytes:
    """Lines of the primaries, as a node sees them."""
    text = node.execute_command("CLUSTER NODES")  # type: ignore[attr-defined]
    lines = [f"{address}@" for address, facts in text.items() if "master" in facts["flags"]]
    return "\n".join(lines).encode()


def of_rows(cluster: Cluster) -> int:
    """Port of a primary that does not hold the manifest."""
    manifest = cluster.owner(b"{livectr}:manifest")
    return next(port for port in cluster.ports if port != manifest)


def assert_never_wrong(reader: Reader, manifest: VersionManifest) -> int:
    """Rows that are found are those of the version; returns how many."""
    rows, status = reader.rows(manifest, {"ad": KEYS}, patient=True)["ad"]
    found = status == RowStatus.FOUND
    assert (rows[found] == rows_at(manifest.step, KEYS[found])).all()
    assert set(status[~found].tolist()) <= {RowStatus.LOST}
    return int(found.sum())


def publish_until_whole(trainer: Trainer, reader: Reader, step: int) -> VersionManifest:
    """Publish all rows as often as it takes; the last version is right."""
    for again in range(6):
        done = trainer.publish(snapshot(step + again, KEYS))
        if done is not None and trainer.store.is_complete(done.manifest):
            assert assert_never_wrong(reader, done.manifest) == len(KEYS)
            return done.manifest
    raise AssertionError("no version was published")


def test_rows_that_a_node_lost_after_the_flip(
    cluster: Cluster, trainers: list[Trainer], reader: Reader
) -> None:
    """The manifest names the version, and the node's sentinels the one before: its rows count as lost."""
    (trainer,) = trainers
    assert trainer.publish(snapshot(1, KEYS)) is not None
    port = of_rows(cluster)
    lag(cluster, port)
    done = trainer.publish(snapshot(2, KEYS))
    assert done is not None and assert_never_wrong(reader, done.manifest) == len(KEYS)
    fail_over(cluster, port)
    until_redis(lambda: reader.find_issue(done.manifest) is not None)
    assert 0 < assert_never_wrong(reader, done.manifest) < len(KEYS)
    assert reader.manifest() == done.manifest.to_json(), "the manifest's node has lost nothing"
    until_redis(lambda: not trainer.store.is_complete(done.manifest))
    assert trainer.publish(snapshot(3, KEYS[:5])) is None, "a delta on rows that are lost"
    publish_until_whole(trainer, reader, 4)


def test_rows_that_a_node_lost_in_the_middle_of_a_push(
    cluster: Cluster, trainers: list[Trainer], reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    (trainer,) = trainers
    first = trainer.publish(snapshot(1, KEYS))
    assert first is not None
    port = of_rows(cluster)
    write = Share.write

    def write_and_fail_over(self: Share, store: object, **flags: object) -> None:
        lag(cluster, port)
        write(self, store, **flags)  # type: ignore[arg-type]
        fail_over(cluster, port)

    monkeypatch.setattr(Share, "write", write_and_fail_over)
    assert trainer.publish(snapshot(2, KEYS)) is None
    monkeypatch.undo()
    assert reader.manifest() == first.manifest.to_json()
    until_redis(lambda: assert_never_wrong(reader, first.manifest) == len(KEYS))
    publish_until_whole(trainer, reader, 3)


def test_a_zombie_whose_epoch_comes_back(cluster: Cluster, trainers: list[Trainer], reader: Reader) -> None:
    """The manifest's node forgets the successor. The zombie's epoch is there again, and buckets refuse it."""
    (zombie,) = trainers
    first = zombie.publish(snapshot(1, KEYS))
    assert first is not None
    port = cluster.owner(b"{livectr}:manifest")
    lag(cluster, port)
    trainers.append(Trainer(cluster.url, take_over=True))
    successor = trainers[1]
    assert successor.publish(snapshot(2, KEYS)) is not None
    fail_over(cluster, port)
    until_redis(lambda: reader.manifest() == first.manifest.to_json())
    with pytest.raises(FencedError):
        for step in range(3, 9):
            zombie.publish(snapshot(step, KEYS))
    assert reader.manifest() == first.manifest.to_json()
    assert_never_wrong(reader, first.manifest)
    served = publish_until_whole(successor, reader, 10)
    assert served.epoch == successor.store.connection.epoch > 2


def test_a_successor_finds_a_push_whose_traces_at_the_manifest_were_lost(
    cluster: Cluster, trainers: list[Trainer], reader: Reader
) -> None:
    """Rows of a push that never flipped lie about: no delta continues over them."""
    (first,) = trainers
    done = first.publish(snapshot(1, KEYS))
    assert done is not None
    m = done.manifest
    port = cluster.owner(b"{livectr}:manifest")
    lag(cluster, port)
    first.publisher.begin(snapshot(2, KEYS))
    until_redis(lambda: first.publisher.push.state is Push.PUSHED)
    fail_over(cluster, port)
    until_redis(lambda: reader.manifest() == m.to_json())
    cursor = Cursor(m.version, m.epoch, m.row_set, m.step, m.run_id)
    trainers.append(Trainer(cluster.url, cursor))
    assert not trainers[1].store.client.exists("{livectr}:pushing"), "the mark was lost"
    assert trainers[1].publisher.full
    few = trainers[1].publish(snapshot(3, KEYS))
    assert few is not None and few.manifest.row_set != m.row_set
    assert assert_never_wrong(reader, few.manifest) == len(KEYS)


def test_requests_meet_a_dead_node(cluster: Cluster, trainers: list[Trainer], reader: Reader) -> None:
    """No replica takes over for a while: requests are told within their time-out; then rows are right."""
    (trainer,) = trainers
    done = trainer.publish(snapshot(1, KEYS))
    assert done is not None
    port = of_rows(cluster)
    until_redis(lambda: cluster.client(port).wait(1, 100) == 1)
    assert not reader.rows(done.manifest, {"ad": KEYS})["ad"][1].any()
    cluster.kill(port)
    with pytest.raises(DownError):
        reader.rows(done.manifest, {"ad": KEYS})

    def answers() -> bool:
        reader.resume()
        try:
            return not reader.rows(done.manifest, {"ad": KEYS})["ad"][1].any()
        except DownError:
            return False

    until_redis(answers)  # the nodes have elected the replica by themselves
    publish_until_whole(trainer, reader, 2)
