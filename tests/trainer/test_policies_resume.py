"""kill -9 while keys enter, age and leave: the resumed run keeps and publishes what an unbroken one keeps."""

import functools
import random
import shutil
from pathlib import Path

import pytest
import redis

from livectr.store.layout import Keyspace, RowStatus, decode_rows, key_of
from tests.redis_values import manifest_in, values
from tests.trainer.ad_logs import ADS, USERS, write_files
from tests.trainer.kills import kill_group, kill_somewhere, kill_up_to
from tests.trainer.processes import finish, start
from tests.trainer.run_result import Result, assert_close, assert_same

IMPRESSIONS = 4_000
OPTIONS: dict[str, object] = dict(
    batch_size=32, batch_ramp=0, publish_interval_s=0.1, threads=1, until_end=True
)
POLICY: dict[str, object] = dict(
    admit_after=2, sketch="64KiB", max_age="3s", max_rows=25, evict="lfu", half_life="10s"
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), IMPRESSIONS)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, source: str) -> Result:
    root = tmp_path_factory.mktemp("unbroken")
    finish(start(1, {**OPTIONS, "source": source, "checkpoint": str(root)}, policy=POLICY))
    result = Result(root)
    sizes = {name: len(keys) for name, (keys, _) in result.tables.items()}
    assert 20 <= sizes["user"] <= 25 < USERS and 20 <= sizes["ad"] <= 25 < ADS
    return result


def test_killed_anywhere_tables_and_redis_hold_what_stays(
    tmp_path: Path, source: str, unbroken: Result, redis_url: str
) -> None:
    root = tmp_path / "checkpoint"
    options = {**OPTIONS, "source": source, "checkpoint": str(root), "publish": redis_url}
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    kill = functools.partial(kill_somewhere, root=root, rng=random.Random(), sudden=kill_group)
    kill_up_to(
        2,
        lambda: start(1, options, policy=POLICY),
        kill,
        lambda: shutil.rmtree(root),
        client.flushall,
    )
    finish(start(1, options, policy=POLICY))
    assert_same(Result(root), unbroken)
    manifest = manifest_in(client)
    assert manifest.step == unbroken.step
    for name, (keys, rows) in unbroken.tables.items():
        found = list(client.scan_iter(f"{Keyspace().namespace}:{{??}}:{manifest.row_set}:{name}:*"))
        served, status = decode_rows(values(client, found) if found else [], manifest.version, manifest.dim)
        there = status == RowStatus.FOUND
        published = {
            key_of(key): row for key, row, is_there in zip(found, served, there, strict=True) if is_there
        }
        assert published.keys() == set(keys.tolist()), name
        for key, row in zip(keys.tolist(), rows, strict=True):
            assert (published[key] == row[: manifest.dim]).all()


def test_another_number_of_ranks_keeps_the_same_rows(tmp_path: Path, source: str, unbroken: Result) -> None:
    """Two ranks to the middle, one to the end: what enters, ages and leaves is what one rank alone keeps."""
    options = {**OPTIONS, "source": source, "checkpoint": str(tmp_path)}
    finish(start(2, {**options, "max_steps": unbroken.step // 2}, policy=POLICY))
    assert Result(tmp_path).step == unbroken.step // 2
    finish(start(1, options, policy=POLICY))
    assert_close(Result(tmp_path), unbroken)
