"""Client of a cluster: values of many slots, deadlines, errors and their meaning, metrics."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY
from redis import exceptions
from redis.sentinel import MasterNotFoundError, SlaveNotFoundError

from livectr.store.measured_cluster import MeasuredCluster
from livectr.store.measured_redis import ScriptCall
from livectr.store.redis_client import connect_redis
from livectr.store.redis_errors import Outcome, of_cluster, outcome_of
from tests.metrics_page import metric_value
from tests.redis_cluster import Cluster

NAMES = [f"n:{{{tag}}}:{number}".encode() for tag in range(40) for number in range(5)]


def trips(name: str) -> float:
    return metric_value("livectr_redis_seconds_count", client=name)


@pytest.fixture(scope="module")
def client(redis_cluster: Cluster) -> Iterator[MeasuredCluster]:
    redis_cluster.empty()
    made = connect_redis("cluster", redis_cluster.url, timeout_s=3600, retries=1)
    assert isinstance(made, MeasuredCluster)
    for name in NAMES[::2]:
        made.set(name.decode(), b"v" + name)
    yield made
    made.close()


def test_values_of_many_slots_are_one_round_trip(client: MeasuredCluster) -> None:
    before = trips("cluster")
    found = client.fetch([*reversed(NAMES), b"no tag"])
    assert found == [*reversed([b"v" + n if i % 2 == 0 else None for i, n in enumerate(NAMES)]), None]
    assert client.fetch([]) == [] and trips("cluster") == before + 2


def test_scripts_of_many_slots_are_one_round_trip(client: MeasuredCluster) -> None:
    before = trips("cluster")
    calls = [ScriptCall("return redis.call('GET', KEYS[1])", [name], []) for name in NAMES]
    assert client.call_all(calls) == client.fetch(NAMES) and trips("cluster") == before + 2
    assert client.call(calls[0]) == b"v" + NAMES[0] and client.call_all([]) == []


def test_all_keys_are_found_and_removed(client: MeasuredCluster) -> None:
    for tag in range(40):
        client.set(f"other:{{{tag}}}", b"1")
    names = [name for part in client.scan_all("other:*") for name in part]
    assert len(names) == 40 and client.remove([*names, b"other:none"]) == 40
    assert [*client.scan_all("other:*")] == [] and client.remove([]) == 0


def test_a_node_that_stalls_costs_no_more_than_the_deadline(
    redis_cluster: Cluster, client: MeasuredCluster
) -> None:
    client.fetch(NAMES)
    process = redis_cluster.processes[redis_cluster.ports[1]]
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(exceptions.TimeoutError):
            client.fetch(NAMES, time.monotonic() + 0.5)  # the client's own time-out is an hour
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert client.fetch(NAMES)[0] == b"v" + NAMES[0], "no answer of the read before is taken for this read's"


def test_errors_of_a_node_are_raised_and_counted(client: MeasuredCluster) -> None:
    with pytest.raises(exceptions.ResponseError, match="boom"):
        client.call_all([ScriptCall("return redis.error_reply('ERR boom')", [name], []) for name in NAMES])
    assert client.fetch(NAMES[:1]) == [b"v" + NAMES[0]]
    failed = {"client": "cluster", "outcome": "unavailable"}
    assert REGISTRY.get_sample_value("livectr_redis_errors_total", failed) == 1


def test_connections_are_broken_and_made_again(client: MeasuredCluster) -> None:
    client.fetch(NAMES)
    client.interrupt()
    assert client.fetch(NAMES)[0] == b"v" + NAMES[0]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (exceptions.MovedError("3 127.0.0.1:1"), Outcome.DEGRADED),
        (exceptions.AskError("3 127.0.0.1:1"), Outcome.DEGRADED),
        (exceptions.TryAgainError("later"), Outcome.DEGRADED),
        (exceptions.ClusterDownError("down"), Outcome.DEGRADED),
        (exceptions.ClusterError("TTL exhausted."), Outcome.DEGRADED),
        (exceptions.SlotNotCoveredError("3"), Outcome.DEGRADED),
        (exceptions.RedisClusterException("All slots are not covered"), Outcome.DEGRADED),
        (exceptions.RedisClusterException("Redis Cluster cannot be connected."), Outcome.DEGRADED),
        (exceptions.ClusterCrossSlotError("keys"), Outcome.EXIT),
        (exceptions.NoPermissionError("no"), Outcome.UNAVAILABLE),
    ],
)
def test_errors_mean_another_thing_to_a_client_of_clusters(error: Exception, outcome: Outcome) -> None:
    assert outcome_of(of_cluster(error)) is outcome


@pytest.mark.parametrize("kind", [MasterNotFoundError, SlaveNotFoundError])
def test_errors_of_sentinels_pass(kind: type[Exception]) -> None:
    assert outcome_of(kind("nobody")) is Outcome.DEGRADED


def test_a_refusal_at_the_start_is_raised_as_it_is(redis_cluster: Cluster) -> None:
    """redis-py would say that the node is in no cluster."""
    for node in redis_cluster.clients():
        node.acl_setuser("nobody", enabled=True, passwords=["+secret"], commands=["+ping"])
    client = connect_redis("nobody", redis_cluster.url.replace("://", "://nobody:secret@"), timeout_s=5)
    with pytest.raises(exceptions.NoPermissionError, match="cluster"):
        client.get("a")
    client.close()
    for node in redis_cluster.clients():
        node.acl_deluser("nobody")
