"""Publishing to a cluster of three: what differs from a single server.

Tests marked SERVER_AND_CLUSTER, of other files, hold for both.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import redis

from livectr.serving.version.reader import Reader
from livectr.store.keyspace import BUCKETS, spread_tag
from livectr.store.layout import RowStatus
from livectr.store.manifest import VersionManifest
from livectr.store.measured_cluster import MeasuredCluster
from livectr.trainer.publish.redis_store import RedisStore
from livectr.trainer.publish.store_errors import LostError
from tests.redis_cluster import Cluster, ask, until_redis
from tests.redis_servers import ClusterClient
from tests.redis_values import manifest_in
from tests.trainer.publishing import Trainer, rows_at, snapshot, start

KEYS = np.arange(3000)


@pytest.fixture(scope="module")
def redis_url(redis_cluster: Cluster) -> str:
    return redis_cluster.url


@pytest.fixture
def client(redis_cluster: Cluster) -> Iterator[ClusterClient]:
    redis_cluster.empty()
    client = ClusterClient("127.0.0.1", redis_cluster.ports[0])
    yield client
    client.close()


@pytest.fixture
def reader(redis_url: str) -> Iterator[Reader]:
    reader = Reader(redis_url, "livectr", "f")
    yield reader
    reader.close()


def served(client: ClusterClient) -> VersionManifest:
    return manifest_in(client)


def test_nodes_hold_equally_many_buckets(
    redis_cluster: Cluster, client: ClusterClient, trainers: list[Trainer]
) -> None:
    start(trainers, redis_cluster.url).publish(snapshot(1, np.arange(16_000)))
    sizes = [node.dbsize() for node in redis_cluster.clients()]
    assert sum(sizes) > 16_000 and min(sizes) > 0.28 * sum(sizes), sizes


def test_readers_never_see_a_mixed_version(
    redis_url: str, client: ClusterClient, trainers: list[Trainer], reader: Reader
) -> None:
    """All rows of a version hold its number; a reader runs while versions are pushed and flipped."""
    trainer = start(trainers, redis_url)
    trainer.publish(snapshot(1, KEYS))
    stop, wrong, reads = threading.Event(), [], []

    def read() -> None:
        while not stop.is_set():
            manifest = served(client)
            rows, status = reader.rows(manifest, {"ad": KEYS})["ad"]
            if (status == RowStatus.OVERWRITTEN).any():
                continue
            reads.append(manifest.version)
            if status.any() or not (rows == rows_at(manifest.version, KEYS)).all():
                wrong.append(manifest.version)

    thread = threading.Thread(target=read)
    thread.start()
    for version in range(2, 20):
        trainer.publish(snapshot(version, KEYS))
    stop.set()
    thread.join()
    assert not wrong and len(set(reads)) > 3


def test_an_erased_row_leaves_redis_and_no_reader_is_told_otherwise(
    redis_url: str, client: ClusterClient, trainers: list[Trainer], reader: Reader
) -> None:
    trainer, few = start(trainers, redis_url), KEYS[:8]
    manifests = [trainer.published(snapshot(1, KEYS))]
    manifests.append(trainer.published(snapshot(2, KEYS[9:10], erased={"ad": few})))

    def status_at(manifest: VersionManifest) -> set[int]:
        return set(reader.rows(manifest, {"ad": few})["ad"][1].tolist())

    assert status_at(manifests[0]) == {RowStatus.FOUND} and status_at(manifests[1]) == {RowStatus.MISSING}
    for step in (3, 4):
        manifests.append(trainer.published(snapshot(step, KEYS[9:10])))
    names = trainer.store.space.rows(manifests[0].row_set, "ad", few)
    assert client.mget(names) == [None] * len(few)
    floors = client.mget(trainer.store.space.floors(range(BUCKETS)))
    assert floors == [b"2"] * BUCKETS, "each bucket has a floor that is read with its rows"
    assert status_at(manifests[0]) == {RowStatus.OVERWRITTEN}
    assert all(status_at(manifest) == {RowStatus.MISSING} for manifest in manifests[1:])


def test_a_node_that_was_emptied_is_told_from_rows_that_never_were(
    redis_cluster: Cluster, client: ClusterClient, trainers: list[Trainer], reader: Reader
) -> None:
    trainer = start(trainers, redis_cluster.url)
    done = trainer.publish(snapshot(1, KEYS))
    assert done is not None
    owner = redis_cluster.owner(b"{livectr}:manifest")
    lost = next(port for port in redis_cluster.ports if port != owner)
    redis_cluster.client(lost).flushall()
    rows, status = reader.rows(done.manifest, {"ad": KEYS})["ad"]
    kept = status == RowStatus.FOUND
    assert 0 < kept.sum() < len(KEYS) and (rows[kept] == rows_at(1, KEYS[kept])).all()
    assert set(status[~kept].tolist()) == {RowStatus.LOST}
    issue = reader.find_issue(done.manifest)
    assert issue is not None and "may be missing" in issue[1]
    assert trainer.publish(snapshot(2, KEYS[:5])) is None and trainer.publisher.full
    done = trainer.publish(snapshot(3, KEYS))
    assert done is not None and reader.find_issue(done.manifest) is None
    rows, status = reader.rows(done.manifest, {"ad": KEYS})["ad"]
    assert not status.any() and (rows == rows_at(3, KEYS)).all()


def test_a_version_is_sealed_when_all_ranks_have_marked_their_shares(
    redis_url: str, client: ClusterClient
) -> None:
    """A delta is sealed on the version before alone; the marks of an earlier push do not count."""
    stores = [RedisStore(redis_url, "livectr") for _ in range(2)]
    assert stores[0].fence.take(None) == 0

    def version(number: int, created_ms: int = 0) -> VersionManifest:
        return VersionManifest(number, 1, "1-0", 0, "f", 2, created_ms, 1, (), {}, sentinel="word")

    def push(manifest: VersionManifest, ranks: tuple[int, ...]) -> None:
        for rank in ranks:
            stores[rank].fence.claim(1)
            stores[rank].open(rank, manifest)
            stores[rank].begin(manifest.version, manifest)
            stores[rank].pushed(rank, manifest, stores[rank].servers())

    for before, manifest in ((None, version(1)), (version(1), version(2)), (version(1), version(2, 9))):
        push(manifest, (0,))
        with pytest.raises(LostError):
            stores[0].seal(manifest, before)
        assert not stores[0].is_complete(manifest)
        push(manifest, (1,))
        stores[0].seal(manifest, before)
        stores[0].seal(manifest, before)  # again, as after an answer that was lost
        assert stores[0].is_complete(manifest)
    push(version(4), (0, 1))
    for wrong in (version(2), version(3)):
        with pytest.raises(LostError):
            stores[0].seal(version(4), wrong)
    assert not stores[0].is_complete(version(4)) and stores[0].is_complete(version(1))
    for store in stores:
        store.close()


def test_a_slot_that_moves_is_read_and_written_to(
    redis_cluster: Cluster, client: ClusterClient, trainers: list[Trainer], reader: Reader
) -> None:
    """Half of a bucket's rows are on the new node: rows are right. Then versions are published again."""
    trainer = start(trainers, redis_cluster.url)
    done = trainer.published(snapshot(1, KEYS))
    space, bucket = trainer.store.space, 3
    slot = client.keyslot(space.bucket_epoch(bucket))  # type: ignore[no-untyped-call]
    nodes = redis_cluster.clients()
    ids = [ask(node, "CLUSTER MYID").decode() for node in nodes]
    source = redis_cluster.ports.index(redis_cluster.owner(space.bucket_epoch(bucket).encode()))
    target = (source + 1) % 3

    def whole() -> None:
        rows, status = reader.rows(done, {"ad": KEYS})["ad"]
        assert not status.any(), (np.bincount(status), reader.problem)
        assert (rows == rows_at(done.step, KEYS)).all()

    def move(keys: list[bytes]) -> None:
        ask(nodes[source], "MIGRATE", "127.0.0.1", redis_cluster.ports[target], "", 0, 10_000, "KEYS", *keys)

    whole()
    ask(nodes[target], "CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    ask(nodes[source], "CLUSTER SETSLOT", slot, "MIGRATING", ids[target])

    keys = sorted(nodes[source].scan_iter(f"livectr:{{{spread_tag(bucket)}}}:*"))
    move(keys[::2])
    whole()
    move(keys[1::2])
    assert ask(nodes[source], "CLUSTER COUNTKEYSINSLOT", slot) == 0
    whole()
    for node in (nodes[target], nodes[source], *nodes):
        ask(node, "CLUSTER SETSLOT", slot, "NODE", ids[target])
    whole()
    for step in (2, 3):  # the first may find that its server has changed
        again = trainer.publish(snapshot(step, KEYS))
        done = done if again is None else again.manifest
    assert done.version > 1
    whole()
    for node in (nodes[source], nodes[target]):
        node.flushall()
    # Moved back as it came: only a node that imports a slot takes a newer epoch for it. With an older one, a
    # message of the other that is still under way would take the slot away again, for good.
    ask(nodes[source], "CLUSTER SETSLOT", slot, "IMPORTING", ids[target])
    ask(nodes[target], "CLUSTER SETSLOT", slot, "MIGRATING", ids[source])
    for node in (nodes[source], nodes[target], *nodes):
        ask(node, "CLUSTER SETSLOT", slot, "NODE", ids[source])
    until_redis(lambda: all(_owner(node, slot) == ids[source] for node in nodes))


def _owner(node: redis.Redis, slot: int) -> str:
    """Id of the node that another thinks holds a slot."""
    for first, last, primary, *_ in ask(node, "CLUSTER SLOTS"):
        if first <= slot <= last:
            return str(primary[2].decode())
    return ""


def test_a_read_is_one_command_of_each_bucket_and_one_round_trip(
    redis_cluster: Cluster, client: ClusterClient, trainers: list[Trainer], reader: Reader
) -> None:
    done = start(trainers, redis_cluster.url).publish(snapshot(1, KEYS))
    assert done is not None
    reader.rows(done.manifest, {"ad": KEYS[:400]})

    nodes = redis_cluster.clients()

    def total(field: str) -> int:
        infos = [node.info("all") for node in nodes]
        found = [info["cmdstat_mget"]["calls"] if field == "mget" else info[field] for info in infos]
        return sum(found)

    total("mget")
    before = total("mget"), total("total_connections_received")
    for _ in range(10):
        reader.rows(done.manifest, {"ad": KEYS[:400]})
    after = total("mget"), total("total_connections_received")
    assert after[0] - before[0] == 10 * BUCKETS and after[1] == before[1]


def test_a_cluster_that_is_away_is_said(redis_cluster: Cluster) -> None:
    client = MeasuredCluster("away", [("127.0.0.1", 1)], {"socket_timeout": 0.5}, 0)
    with pytest.raises(redis.ConnectionError):
        client.fetch([b"a"])
    client.close()
