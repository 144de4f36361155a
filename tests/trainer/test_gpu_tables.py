"""Training with tables on the emulated device: the bits of host tables; tests/gpu runs the same on a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

import livectr.trainer.build
import livectr.trainer.main_step
import livectr.trainer.run
from livectr.ingest.extract import device_extractor
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.ingest.extract.device_features import DeviceFeatures
from livectr.ingest.language.policies import TablePolicy
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.kernels.gpu_table.gpu_cache import GpuCache
from livectr.kernels.runtime.device import EmulatedDevice
from livectr.kernels.table.table import DynamicTable
from livectr.store.layout import Keyspace, RowStatus, decode_rows, key_of
from livectr.system.errors import ConfigError, InternalError
from livectr.trainer import step_settings
from livectr.trainer.comm.collectives import connect
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.small_batch import SmallBatches
from livectr.trainer.des.step import DesStep
from livectr.trainer.options import TrainOptions
from livectr.trainer.run import train
from livectr.trainer.stream import extraction
from livectr.trainer.stream.cut import Cut
from livectr.trainer.stream.feed import Feed
from livectr.trainer.tables.gpu_tables import GpuTables, gpu_tables
from livectr.trainer.tables.rank_tables import tier_of
from livectr.trainer.tables.tiers import Tiers
from tests.ranks import run_ranks
from tests.redis_values import manifest_in, values
from tests.tiers import few
from tests.trainer import gpu_tables_checks as checks
from tests.trainer.ad_logs import ad_pipeline, without_statistics, write_files
from tests.trainer.run_result import Result, assert_same

IMPRESSIONS = 2_000
RUN_BUDGET = 160
"""Rows on the device of a whole run; a batch of 32 has fewer keys."""


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("case", few(checks.CASES, "both, gathered", "grouped"))
def test_cached_training_equals_the_host(case: str, prefetch: bool) -> None:
    checks.cached_training_equals_the_host(EmulatedDevice, "cpu", case, prefetch=prefetch)


@pytest.mark.parametrize("case", ["both", "both in fp16", "grouped, gathered"])
def test_a_gpu_over_dram_over_an_ssd_trains_the_same_tables(case: str, tmp_path: Path) -> None:
    tiers = Tiers(tmp_path, 60_000, 0)
    plain = checks.step_of(case, "cpu", None)
    both = checks.step_of(case, "cpu", tier_of(tiers, GpuTables(checks.BUDGET, EmulatedDevice)))
    marks = dict.fromkeys(plain.tables, 0)
    given = list(checks.batches(case, 0))
    results = zip(*(checks.learned(step, given, prefetch=True) for step in (plain, both)), strict=True)
    for number, ((features, _), (one, other)) in enumerate(zip(given, results, strict=True)):
        assert one.loss == other.loss
        for role, logits in one.logits.items():
            np.testing.assert_array_equal(other.logits[role], logits)
        if number == 9 and isinstance(features, Features):
            np.testing.assert_array_equal(item_vectors(both, features), item_vectors(plain, features))
        if number in (2, checks.STEPS - 1):
            both.storage.flush()
            for name, table in plain.tables.items():
                for since in {0, marks[name]}:
                    assert rows_of(both.tables[name], since) == rows_of(table, since)
                marks[name] = table.mark()
                assert both.tables[name].mark() == marks[name]
    checks.fewer_rows_than_tables_have(both, checks.BUDGET)
    assert sum(table.spilled_rows for table in tiers.tables.values()) > 0
    tiers.close()


def rows_of(table: DynamicTable, since: int) -> dict[int, bytes]:
    keys, rows = table.export(since)
    return {key: row.tobytes() for key, row in zip(keys.tolist(), rows, strict=True)}


def test_two_ranks_train_as_with_host_tables() -> None:
    """Run every exchange: rows that other ranks request come from the device, too."""
    run_ranks(2, "tests.trainer.gpu_tables_worker")


@pytest.mark.parametrize("case", few(checks.CASES, "both, gathered", "grouped, gathered"))
def test_resident_training_equals_the_host(case: str) -> None:
    checks.resident_training_equals_the_host(EmulatedDevice, "cpu", case)


@pytest.mark.parametrize("case", ["both, gathered", "grouped"])
def test_host_tables_get_ids_alone(case: str) -> None:
    checks.host_tables_get_ids_alone(EmulatedDevice, "cpu", case)


@pytest.mark.parametrize("case", checks.CASES)
def test_networks_wait_once(case: str) -> None:
    checks.networks_wait_once(EmulatedDevice, "cpu", case)


def test_a_step_waits_once() -> None:
    checks.a_step_waits_once(EmulatedDevice, "cpu")


def test_a_resumed_step_continues() -> None:
    checks.a_resumed_step_continues(EmulatedDevice, "cpu")


POLICY = TablePolicy(max_age="10s", max_rows=25, evict="lfu")


@pytest.mark.parametrize("policy", few([None, POLICY], POLICY))
def test_a_run_with_checkpoints_and_versions_equals_the_host(
    policy: TablePolicy | None, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun, stopped and resumed: checkpoints, predictions and what Redis holds are those of host tables."""
    pipeline = replace(ad_pipeline(), policies=policy)
    source = write_files(tmp_path / "logs", IMPRESSIONS)
    common = dict(batch_size=32, batch_ramp=0, publish_interval_s=0.1, threads=1, until_end=True)
    monkeypatch.setattr(
        step_settings, "ONLINE", 0
    )  # rows on a GPU are learned by batch, and networks by torch
    monkeypatch.setattr(SmallBatches, "of", lambda *args: None)
    train(pipeline, TrainOptions(source, checkpoint=str(tmp_path / "host"), **common))  # type: ignore[arg-type]
    made: list[GpuTables] = []

    def emulated(options: TrainOptions) -> GpuTables:
        made.append(GpuTables(RUN_BUDGET, EmulatedDevice))
        return made[-1]

    def noted(cache: GpuCache) -> None:
        end_step(cache)
        prefetched[id(cache)] = cache.prefetched

    end_step, prefetched = GpuCache.end_step, dict[int, int]()
    monkeypatch.setattr(GpuCache, "end_step", noted)
    monkeypatch.setattr(livectr.trainer.main_step, "gpu_tables", emulated)
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    cached = TrainOptions(source, checkpoint=str(tmp_path / "gpu"), publish=redis_url, **common)  # type: ignore[arg-type]
    train(pipeline, replace(cached, max_steps=20))
    report = train(pipeline, cached)
    assert len(made) == 2 and report.steps > 40 and report.published_versions > 1
    assert len(prefetched) == 2 and all(prefetched.values()), "cold rows come ahead of their batch"
    result = Result(tmp_path / "gpu")
    assert_same(result, Result(tmp_path / "host"))
    if policy is None:
        assert sum(report.table_rows.values()) > RUN_BUDGET
    manifest = manifest_in(client)
    assert manifest.step == result.step
    for name, (keys, rows) in result.tables.items():
        found = list(client.scan_iter(f"{Keyspace().namespace}:{{??}}:{manifest.row_set}:{name}:*"))
        served, status = decode_rows(values(client, found) if found else [], manifest.version, manifest.dim)
        published = {
            key_of(key): row
            for key, row, s in zip(found, served, status, strict=True)
            if s == RowStatus.FOUND
        }
        assert published.keys() == set(keys.tolist()), name
        for key, row in zip(keys.tolist(), rows, strict=True):
            np.testing.assert_array_equal(published[key], row[: manifest.dim])


@pytest.mark.parametrize(
    ("rows", "brought", "depth"), [(20_000, "nothing", 1), (0, "ids", 1), (20_000, "nothing", 2)]
)
def test_features_of_a_run_stay_on_the_device(
    rows: int, brought: str, depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits of a run on the host. The host gets what it observes, and keys where it has the tables.

    Without statistics two batches are extracted at a time.
    """
    pipeline = ad_pipeline() if depth == 1 else without_statistics()
    source = write_files(tmp_path / "logs", IMPRESSIONS)
    common = dict(batch_size=200, batch_ramp=0, until_end=True, threads=1)
    monkeypatch.setattr(step_settings, "ONLINE", 0)
    train(pipeline, TrainOptions(source, checkpoint=str(tmp_path / "host"), **common))  # type: ignore[arg-type]
    built: list[DeviceExtractor] = []
    depths: set[int] = set()
    taken: list[Features | DeviceFeatures] = []

    class Emulated(DeviceExtractor):
        def __init__(self, plan: FeaturePlan, **options: Any) -> None:
            super().__init__(plan, EmulatedDevice, **options)
            built.append(self)

        def resident(self, *args: Any) -> Features | DeviceFeatures:
            taken.append(super().resident(*args))
            return taken[-1]

    def noted(feed: Feed, cut: Cut) -> None:
        begin(feed, cut)
        depths.add(feed.in_flight)

    begin = Feed._begin
    monkeypatch.setattr(extraction, "compiler", lambda device, **options: partial(Emulated, **options))
    tables = GpuTables(rows, EmulatedDevice) if rows else None
    monkeypatch.setattr(livectr.trainer.main_step, "gpu_tables", lambda options: tables)
    monkeypatch.setattr(livectr.trainer.build, "with_gpu_budgets", lambda options, *_, on_gpu: replace(
        options, device="gpu", gpu_rows=rows))  # fmt: skip
    monkeypatch.setattr(Feed, "_begin", noted)
    report = train(pipeline, TrainOptions(source, checkpoint=str(tmp_path / "gpu"), **common))  # type: ignore[arg-type]
    results = (Result(tmp_path / name, pipeline) for name in ("gpu", "host"))
    assert_same(*results, statistics=len(pipeline.plan.statistics))
    assert depths == set(range(1, depth + 1)) and report.steps == 10
    assert {extract.brought for extract in built} == {brought}
    waits = sum(extract.waits - extract.reruns for extract in built)
    assert waits == len(built) + len(taken), "one a batch, and one when an extractor is made"
    there = [features for features in taken if isinstance(features, DeviceFeatures)]
    assert len(there) == len(taken) >= 10 < sum(extract.launches for extract in built)
    downloaded = sum(extract.downloaded for extract in built)
    seen = sum(f.observed.nbytes + 8 * len(f.counts) + f.rows + 1_000 for f in there)
    ids = sum(f.ids().keys.nbytes + f.ids().offsets.nbytes for f in there)
    assert (downloaded < seen) if rows else (ids < downloaded)
    again = sum(extract.downloaded for extract in built) - downloaded
    assert again == (ids if rows else 0) and ids > 2 * seen


@pytest.mark.parametrize("common_features", few([True, False], True))
def test_a_run_builds_an_extractor_of_each_plan_once(
    common_features: bool, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training, and the features of published items: a GPU's kernels are compiled and loaded once."""
    built: list[DeviceExtractor] = []

    class Emulated(DeviceExtractor):
        def __init__(self, plan: FeaturePlan, **options: Any) -> None:
            super().__init__(plan, EmulatedDevice, **options)
            built.append(self)

    monkeypatch.setattr(device_extractor, "DeviceExtractor", Emulated)
    monkeypatch.setattr(device_extractor, "require_gpu", lambda: None)
    monkeypatch.setattr(livectr.trainer.build, "with_gpu_budgets", lambda options, *_, on_gpu: options)
    monkeypatch.setattr(livectr.trainer.run, "connect", lambda wire, device: connect(wire=wire))
    source = write_files(tmp_path / "logs", IMPRESSIONS)
    redis.Redis.from_url(redis_url).flushall()
    given = dict(batch_size=200, batch_ramp=0, device="gpu", gpu_rows=0, until_end=True)
    options = TrainOptions(source, common_features=common_features, publish=redis_url, **given)  # type: ignore[arg-type]
    report = train(ad_pipeline(), options)
    assert report.published_versions > 0 and sum(extract.launches for extract in built) > 0
    plans = [tuple(map(id, extract.plan.outputs)) for extract in built]
    assert len(plans) == len(set(plans)) > 0


def test_what_cannot_be_together_is_refused() -> None:
    gpu = GpuTables(100, EmulatedDevice)
    admitting = replace(ad_pipeline(), policies=TablePolicy(admit_after=2))
    with pytest.raises(ConfigError, match="has admit_after, which tables on a GPU do not support"):
        DesStep(admitting, tier=gpu, seed=1)
    with pytest.raises(ConfigError, match="need a PyTorch that sees it"):
        DesStep(ad_pipeline(), tier=GpuTables(100), seed=1)


def test_settings() -> None:
    with pytest.raises(ConfigError, match="gpu_rows is -1, but must be at least 0"):
        TrainOptions("file:x", device="gpu", gpu_rows=-1)
    with pytest.raises(ConfigError, match="gpu_rows is 7, but device is cpu"):
        TrainOptions("file:x", gpu_rows=7)
    assert gpu_tables(TrainOptions("file:x")) is None
    assert gpu_tables(TrainOptions("file:x", device="gpu", gpu_rows=0)) is None
    assert gpu_tables(TrainOptions("file:x", device="gpu", gpu_rows=7)) == GpuTables(7)
    with pytest.raises(InternalError, match="gpu_rows has no number"):
        gpu_tables(TrainOptions("file:x", device="gpu"))
