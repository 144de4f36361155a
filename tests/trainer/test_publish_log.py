"""A restart resumes with deltas: whenever a trainer was killed, Redis gets what an unbroken run publishes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from livectr.ingest.pipeline import load_pipeline
from livectr.store.keyspace import key_of
from livectr.store.layout import RowStatus, decode_rows
from livectr.store.manifest import VersionManifest
from livectr.trainer.run import TrainOptions, train
from tests.ranks import Processes
from tests.redis_cluster import Cluster
from tests.redis_servers import ClusterClient
from tests.redis_values import manifest_in, value, values
from tests.tiers import few
from tests.trainer.cut_off import CUT_OFF
from tests.trainer.expiring_log import PIPELINE, ROWS, write
from tests.waiting import left_s

KILLS: list[tuple[int, list[tuple[str, int]]]] = [
    (1, [("rows", 40)]),
    (1, [("written", 9)]),
    (1, [("unflipped", 9)]),
    (1, [("flipped", 9)]),
    (1, [("flipped", 7), ("written", 2), ("rows", 7), ("unflipped", 1), ("flipped", 2)]),
    (2, [("rows", 50), ("written", 3)]),
    (2, [("slow lists", 10)]),
]
"""Ranks, and where and when they are killed, run after run. The fifth has every point."""
IN_A_CLUSTER = [(1, [("rows", 40), ("unflipped", 3)]), (2, [("rows", 50), ("unflipped", 3)])]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("logs"))


def held_by(client: redis.Redis | ClusterClient, namespace: str = "livectr") -> VersionManifest:
    return manifest_in(client, namespace)


def served(
    client: redis.Redis | ClusterClient, namespace: str
) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
    """Rows at the served version, and look-up rows and histories, by their names behind the bucket."""
    manifest = held_by(client, namespace)
    rows: dict[bytes, bytes] = {}
    facts: dict[bytes, bytes] = {}
    for name in client.scan_iter(f"{namespace}:{{*}}:*", count=1000):
        rest = name.split(b":", 2)[2]
        if (
            rest.startswith(manifest.row_set.encode() + b":")
            and rest.count(b":") >= 2
            and b":part:" not in rest
        ):
            row, status = decode_rows(values(client, [name]), manifest.version, manifest.dim)
            assert status[0] in (RowStatus.FOUND, RowStatus.MISSING)
            if status[0] == RowStatus.FOUND:
                rows[rest.partition(b":")[2]] = row.tobytes()
        elif rest.startswith((b"lookup:", b"history:")):
            facts[rest] = value(client, name)
    return rows, facts


def check_equal(client: redis.Redis | ClusterClient, *, bits: bool) -> None:
    """Redis has the rows, look-up rows and histories of the unbroken run, and no others.

    Args:
        bits: rows are equal bit by bit; else up to the order of sums.
    """
    (rows, found), (expected, facts) = served(client, "livectr"), served(client, "unbroken")
    assert len(expected) > 100 and facts
    assert {key_of(name) for name in rows} == {key_of(name) for name in expected}
    for name, row in rows.items():
        floats = (np.frombuffer(row, np.float32), np.frombuffer(expected[name], np.float32))
        assert row == expected[name] if bits else np.allclose(*floats, atol=1e-5), name
    assert found == facts


def options_of(source: str, url: str, folder: Path, **changes: Any) -> dict[str, Any]:
    return dict(
        source=source, until_end=True, publish=url, checkpoint=str(folder), batch_size=64, batch_ramp=0,
        publish_interval_s=1e-6, checkpoint_interval_s=0.05, threads=1, min_examples=0,
    ) | changes  # fmt: skip


def kill_at(options: dict[str, Any], point: str, calls: int, world: int = 1) -> None:
    ranks = Processes(world, "tests.trainer.cut_off", (json.dumps(options), point, str(calls)))
    _, written = ranks.communicate(timeout=left_s())
    assert ranks.returncode and CUT_OFF in written, written.decode()


def check_resumes_with_deltas(
    folder: Path, source: str, url: str, client: redis.Redis | ClusterClient, kills: list[tuple[str, int]],
    world: int,
) -> None:  # fmt: skip
    """Kill trainers one after the other; the next ones publish deltas, which end where an unbroken run ends.

    Args:
        kills: point and number of its call (tests.trainer.cut_off).
        world: ranks of the trainers that are killed.
    """
    whole = options_of(source, url, folder / "unbroken", namespace="unbroken")
    train(load_pipeline(PIPELINE), TrainOptions(**whole))
    options = options_of(source, url, folder / "checkpoint")
    row_sets, versions = set(), [0]
    for point, calls in kills:
        kill_at(options, point, calls, world)
        manifest = held_by(client)
        row_sets.add(manifest.row_set)
        assert manifest.version >= versions[-1]
        versions.append(manifest.version)
    report = train(load_pipeline(PIPELINE), TrainOptions(**options))
    manifest = held_by(client)
    assert manifest.examples == ROWS and manifest.version > versions[-1]
    assert row_sets == {manifest.row_set}, "all versions after the first were deltas"
    assert report.complete_versions <= 1
    check_equal(client, bits=world == 1)


@pytest.mark.parametrize(("world", "kills"), few(KILLS, KILLS[-1]))
def test_a_killed_trainer_resumes_with_deltas(
    tmp_path: Path, source: str, redis_url: str, client: redis.Redis, world: int, kills: list[tuple[str, int]]
) -> None:
    check_resumes_with_deltas(tmp_path, source, redis_url, client, kills, world)


@pytest.mark.full
@pytest.mark.parametrize(
    ("world", "kills"),
    few(IN_A_CLUSTER, IN_A_CLUSTER[1]),
)
def test_a_killed_trainer_resumes_with_deltas_in_a_cluster(
    tmp_path: Path, source: str, redis_cluster: Cluster, world: int, kills: list[tuple[str, int]]
) -> None:
    """Each bucket must name its last push: the namespace's node does not know those of other nodes."""
    redis_cluster.empty()
    with ClusterClient("127.0.0.1", redis_cluster.ports[0]) as client:
        check_resumes_with_deltas(tmp_path, source, redis_cluster.url, client, kills, world)


def test_no_rank_writes_rows_before_all_have_listed_their_keys(
    tmp_path: Path, source: str, redis_url: str, client: redis.Redis
) -> None:
    """Else a version that is cut off would leave rows in Redis that no list names."""
    whole = options_of(source, redis_url, tmp_path / "unbroken", namespace="unbroken")
    train(load_pipeline(PIPELINE), TrainOptions(**whole))
    options = options_of(source, redis_url, tmp_path / "checkpoint")
    ranks = Processes(2, "tests.trainer.cut_off", (json.dumps(options), "refused list", "3"))
    _, written = ranks.communicate(timeout=left_s())
    assert ranks.returncode == 0, written.decode()
    assert written.count(b"publishing failed, to be repeated: refused by a test") == 1
    assert written.count(b"another rank could not write its list of changed keys") == 1
    assert held_by(client).row_set == "1-0", "the version was repeated as a delta"
    check_equal(client, bits=False)
