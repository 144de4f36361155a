"""A training run: its report, what it publishes, what ends it, and what it refuses before it begins."""

import json
import re
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import redis
import safetensors.numpy
import torch

from livectr.ingest.join import arrivals
from livectr.ingest.pipeline import Pipeline
from livectr.local.ports import free_ports
from livectr.models import LR
from livectr.models.precision import Precision, arithmetic_name
from livectr.store.layout import Keyspace, decode_history, decode_lookup_rows, decode_rows
from livectr.store.manifest import VersionManifest
from livectr.store.vectors import decode_vectors
from livectr.system.errors import ConfigError, ConnectError, MismatchError
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.version import Published
from livectr.trainer.quality.metrics import auc, gauc
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.run import TrainOptions, train
from tests.metrics_page import REFUSED, scrape, trusting
from tests.redis_values import manifest_in, value, values
from tests.serving.certificates import Authority
from tests.trainer.ad_logs import ADS, START_MS, USERS, ad_pipeline, events, write_files
from tests.trainer.processes import finish, start
from tests.waiting import until

IMPRESSIONS = 3_000


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), IMPRESSIONS)


def test_the_report_is_what_the_predictions_say(tmp_path: Path, source: str) -> None:
    report = train(
        ad_pipeline(),
        TrainOptions(
            source,
            until_end=True,
            batch_size=128,
            batch_ramp=0,
            report=str(tmp_path / "out" / "report.json"),
            predictions=str(tmp_path / "predictions"),
        ),
    )
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    held = read_predictions(tmp_path / "predictions")
    assert written["examples_trained"] == report.examples_trained == len(held) == IMPRESSIONS
    assert len(np.unique(held["instance"])) == IMPRESSIONS
    assert (np.diff(held["time_ms"]) >= 0).all()
    assert written["auc"] == pytest.approx(auc(held["rank"], held["label"].astype(np.float32)))
    last = held[int(0.8 * IMPRESSIONS) :]
    assert written["last_20_percent"]["auc"] == pytest.approx(
        auc(last["rank"], last["label"].astype(np.float32))
    )
    assert written["prerank"]["auc"] == pytest.approx(auc(held["prerank"], held["label"].astype(np.float32)))
    ads = [record["ad_id"] for _, record in events(IMPRESSIONS)["impressions"]]
    before: Counter[int] = Counter()
    for instance, item, seen in held[["instance", "item", "seen"]].tolist():
        assert (item, seen) == (ads[instance], before[item])
        before[item] += 1
    cold = held[held["seen"] < 20]
    assert written["cold_examples"] == len(cold) == 20 * ADS
    by_user = gauc(cold["user"], cold["rank"], cold["label"].astype(np.float32))
    assert (written["cold_gauc"], written["cold_users_left_out"]) == by_user
    assert written["last_20_percent"]["cold_examples"] == 0 and written["shadows"] == {}
    for name in ("gauc", "logloss", "calibration", "examples_per_second"):
        assert np.isfinite(written[name])
    assert written["events"] == sum(written["stream"]["events"].values()) > IMPRESSIONS
    assert (written["dead_letters"], written["published_versions"]) == (0, 0)
    assert written["table_rows"]["ad"] == ADS
    assert written["field_keys"]["ad"] == IMPRESSIONS > written["field_keys"]["user"] > 0  # once a group


@pytest.mark.parametrize("requested", ["fp32", "bf16"])
def test_the_arithmetic_is_told(
    source: str, requested: Precision, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The measured one, in the log and in the report; a setting without an effect is a warning."""
    file = tmp_path / "report.json"
    options = TrainOptions(source, until_end=True, max_steps=2, precision=requested, report=str(file))
    with caplog.at_level("INFO"):
        train(ad_pipeline(), options)
    found = arithmetic_name(requested, torch.device("cpu"))
    assert json.loads(file.read_text())["precision"] == found
    assert f"networks multiply in {found}" in caplog.messages
    warned = any("precision is bf16, but this CPU has no products of bf16" in m for m in caplog.messages)
    assert warned is (requested == "bf16" and found == "fp32")


def test_shadows_are_logged_and_reported(tmp_path: Path, source: str) -> None:
    pipeline = replace(ad_pipeline(), shadows={"ids": LR()})
    options = dict(max_steps=6, batch_size=128, batch_ramp=0, until_end=True, checkpoint=str(tmp_path / "c"))
    report = train(pipeline, TrainOptions(source, **options))  # type: ignore[arg-type]
    held = read_predictions(tmp_path / "c" / "predictions")
    assert held.dtype.names[-3:] == ("rank", "prerank", "ids")  # type: ignore[index]
    label, shadow = held["label"].astype(np.float32), report.shadows["ids"]
    assert shadow["auc"] == pytest.approx(auc(held["ids"], label)) != report.auc
    assert (shadow["gauc"], shadow["skipped_users"]) == gauc(held["user"], held["ids"], label)
    assert shadow["cold_examples"] == report.cold_examples == (held["seen"] < 20).sum() > 0
    assert shadow["last_20_percent"].keys() == report.last_20_percent.keys()
    other = replace(pipeline, shadows={"other": LR()})
    with pytest.raises(MismatchError, match="differs in shadow models"):
        train(other, TrainOptions(source, **options))  # type: ignore[arg-type]
    assert len(read_predictions(tmp_path / "c" / "predictions")) == len(held)


def test_what_is_published_is_what_was_trained(
    tmp_path: Path, source: str, redis_url: str, client: redis.Redis
) -> None:
    report = train(
        ad_pipeline(),
        TrainOptions(
            source, until_end=True, batch_size=128, batch_ramp=0, publish=redis_url, publish_interval_s=0.05
        ),
    )
    space = Keyspace()
    manifest = VersionManifest.from_json(value(client, space.manifest))
    assert manifest.version == report.published_versions >= 2
    assert manifest.tables == report.table_rows
    ads = np.arange(ADS)
    rows, status = decode_rows(
        values(client, space.rows(manifest.row_set, "ad", ads)), manifest.version, manifest.dim
    )
    assert not status.any() and np.abs(rows).sum() > 0
    assert all(client.exists(name) for name in (*manifest.dense, *manifest.changed))
    assert sum(dim for _, dim in manifest.segments) == manifest.dim
    # look-up rows, histories, item vectors
    assert decode_lookup_rows([value(client, name) for name in space.lookup_rows("ads", ads)])[7][:2] == [
        7,
        "c2",
    ]
    assert all(client.mget(space.lookup_rows("users", np.arange(USERS))))
    users = values(client, space.histories("recent(clicks.ad_id,5,3600000)", np.arange(USERS)))
    items, times = decode_history(next(value for value in users if value))
    assert 1 <= len(items) <= 5 and (items < ADS).all() and (times >= START_MS).all()
    ids, vectors = decode_vectors(value(client, manifest.item_vectors[0]))
    assert sorted(ids.tolist()) == ads.tolist() and vectors.shape[0] == ADS and np.isfinite(vectors).all()
    # the next run, of the same log without a checkpoint, replaces the version
    train(
        ad_pipeline(),
        TrainOptions(
            source,
            until_end=True,
            batch_size=128,
            batch_ramp=0,
            publish=redis_url,
            max_steps=2,
            min_examples=0,
            take_over=True,
        ),
    )
    again = VersionManifest.from_json(value(client, space.manifest))
    assert (
        again.version > manifest.version
        and again.epoch > manifest.epoch
        and again.row_set != manifest.row_set
    )


def test_two_ranks_publish_one_version(
    tmp_path: Path, source: str, redis_url: str, client: redis.Redis
) -> None:
    options = dict(source=source, until_end=True, batch_size=128, batch_ramp=0, publish=redis_url, threads=1)
    report = tmp_path / "report.json"
    text = finish(start(2, {**options, "publish_interval_s": 0.2, "report": str(report)}))
    assert "FutureWarning" not in text
    written = json.loads(report.read_text())
    assert (written["world"], written["examples_trained"]) == (2, IMPRESSIONS)
    space = Keyspace()
    manifest = VersionManifest.from_json(value(client, space.manifest))
    assert manifest.world == len(manifest.dense) == len(manifest.changed) == 2
    assert manifest.tables.keys() == {field.table for field in ad_pipeline().fields}
    assert manifest.version == written["published_versions"]
    for table, count in (("ad", ADS), ("user", USERS)):
        held = values(client, space.rows(manifest.row_set, table, np.arange(count)))
        assert not decode_rows(held, manifest.version, manifest.dim)[1].any()
    assert all(client.mget(space.lookup_rows("ads", np.arange(ADS))))
    assert all(client.mget(space.lookup_rows("users", np.arange(USERS))))
    histories = client.mget(space.histories("recent(clicks.ad_id,5,3600000)", np.arange(USERS)))
    assert sum(value is not None for value in histories) > USERS / 2
    dense = [safetensors.numpy.load(client.get(name)) for name in manifest.dense]
    assert not dense[0].keys() & dense[1].keys()
    assert decode_vectors(value(client, manifest.item_vectors[0]))[1].shape[0] == ADS


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[VersionManifest]:
    """Manifests of the versions that a test publishes."""
    served: list[VersionManifest] = []
    observe = Publisher.observe

    def noting(publisher: Publisher, flags: list[int]) -> Published | None:
        published = observe(publisher, flags)
        if published is not None:
            served.append(published.manifest)
        return published

    monkeypatch.setattr(Publisher, "observe", noting)
    return served


def test_freshness_counts_each_example_once(
    source: str,
    redis_url: str,
    client: redis.Redis,
    served: list[VersionManifest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("livectr.trainer.progress._now_ms", lambda: START_MS)
    train(
        ad_pipeline(),
        TrainOptions(
            source, until_end=True, batch_size=64, batch_ramp=0, publish=redis_url, publish_interval_s=0.1
        ),
    )
    assert len(served) >= 2
    assert sum(sum(manifest.freshness.counts) for manifest in served) == IMPRESSIONS
    assert manifest_in(client) == served[-1]


def test_freshness_leaves_out_what_was_there_before_the_run(
    tmp_path: Path,
    source: str,
    redis_url: str,
    client: redis.Redis,
    served: list[VersionManifest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run begins at event 1,000 of the log. Its second process begins later, but the run is the same."""
    options = TrainOptions(
        source,
        until_end=True,
        batch_size=64,
        batch_ramp=0,
        publish=redis_url,
        checkpoint=str(tmp_path / "checkpoint"),
    )
    monkeypatch.setattr("livectr.trainer.progress._now_ms", lambda: START_MS + 1_000 * 20)
    train(ad_pipeline(), replace(options, max_steps=20))
    assert sum(sum(manifest.freshness.counts) for manifest in served) == 20 * 64 - 1_000
    monkeypatch.setattr("livectr.trainer.progress._now_ms", lambda: START_MS + 2_500 * 20)
    train(ad_pipeline(), options)
    assert sum(sum(manifest.freshness.counts) for manifest in served) == IMPRESSIONS - 1_000


def test_a_live_run_ends_when_nothing_comes_any_more(tmp_path: Path) -> None:
    source = write_files(tmp_path, 500)
    report = train(
        ad_pipeline(),
        TrainOptions(
            source,
            until_idle_s=0.7,
            idle_partition_s=0.2,
            batch_size=64,
            batch_ramp=0,
            batch_interval_ms=1_000,
        ),
    )
    assert report.examples_trained == 500
    assert report.steps >= 10  # 10 s of event time, ticks of one second


def test_max_steps_is_a_limit(source: str) -> None:
    report = train(ad_pipeline(), TrainOptions(source, batch_size=64, batch_ramp=0, max_steps=3))
    assert (report.steps, report.examples_trained) == (3, 192)


def other_model(pipeline: Pipeline) -> Pipeline:
    return Pipeline(pipeline.log, sparse=pipeline.sparse, dense=pipeline.dense, rank=LR())


def test_mistakes_are_told_before_any_state_is_touched(
    tmp_path: Path, source: str, redis_url: str, client: redis.Redis
) -> None:
    root = tmp_path / "checkpoint"
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        train(ad_pipeline(), TrainOptions(source, checkpoint=str(root), publish="redis://127.0.0.1:1/0"))
    assert not root.exists()
    with pytest.raises(ConfigError, match="elsewhere"):
        train(ad_pipeline(), TrainOptions(f"file:{tmp_path}/elsewhere", publish=redis_url))
    with pytest.raises(ConfigError, match="batch_size"):
        TrainOptions(source, batch_size=0)
    train(ad_pipeline(), TrainOptions(source, checkpoint=str(root), max_steps=1, batch_size=64, batch_ramp=0))
    with pytest.raises(MismatchError, match="rank model") as raised:
        train(
            other_model(ad_pipeline()),
            TrainOptions(source, checkpoint=str(root), publish=redis_url, batch_size=64, batch_ramp=0),
        )
    assert str(root) in str(raised.value) and "\n" not in str(raised.value)
    with pytest.raises(MismatchError, match=r"seed \(1 there, 2 here\)"):
        train(ad_pipeline(), TrainOptions(source, checkpoint=str(root), seed=2))
    assert client.dbsize() == 0


def test_prometheus_is_served_while_it_trains(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By https, to a client with a certificate; tests/trainer/test_endpoint.py has plain metrics."""
    port = free_ports(1)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", port))
        taken.listen()
        with pytest.raises(ConfigError, match=f"metrics port {port}"):
            train(ad_pipeline(), TrainOptions(source, metrics_port=port))
    authority = Authority(tmp_path)
    cert, key = map(str, authority.issue("trainer"))
    client = trusting(authority, *authority.issue("prometheus"))
    tls: dict[str, Any] = dict(
        metrics_tls_cert=cert, metrics_tls_key=key, metrics_tls_client_ca=str(authority.ca)
    )
    found: dict[str, float] = {}
    auc_name = 'livectr_auc{model="rank"}'
    enough, ended = threading.Event(), threading.Event()

    def follow() -> None:
        while not ended.is_set() and not enough.is_set():
            with suppress(OSError):  # not there yet
                page = scrape(port, client)
                with pytest.raises(REFUSED):
                    scrape(port)
                lines = re.findall(r"^(livectr_\w+(?:\{[^}]*\})?) ([-\d.e+]+|NaN)$", page, re.M)
                found.update((name, float(number)) for name, number in lines)
                many = found.get("livectr_examples_total", 0) >= 0.8 * IMPRESSIONS
                if many and found.get('livectr_table_rows{table="ad"}') == ADS and found.get(auc_name, 0) > 0:
                    enough.set()
            time.sleep(0.02)

    def monotonic() -> float:
        """The log has been silent for long once the page has told enough, or nobody reads it any more."""
        return time.monotonic() + (0 if thread.is_alive() else 3_600)

    thread = threading.Thread(target=follow)
    monkeypatch.setattr(arrivals, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr("livectr.trainer.quality.monitor.GAUGES_EVERY_S", 0.1)
    thread.start()
    try:
        train(
            ad_pipeline(),
            TrainOptions(
                source,
                metrics_port=port,
                batch_size=64,
                batch_ramp=0,
                until_idle_s=1_800,
                idle_partition_s=0.2,
                **tls,
            ),
        )
    finally:
        ended.set()
        thread.join()
    assert enough.is_set() and 0 < found[auc_name] < 1


def test_an_emptied_redis_comes_back_from_the_running_trainer(
    tmp_path: Path, redis_url: str, client: redis.Redis
) -> None:
    """Redis is a rebuildable view."""
    source = write_files(tmp_path, 4_000)
    emptied = threading.Event()

    def empty() -> None:
        until(lambda: client.get("{livectr}:manifest") is not None)
        client.flushall()
        emptied.set()

    thread = threading.Thread(target=empty)
    thread.start()
    report = train(
        ad_pipeline(),
        TrainOptions(
            source, until_end=True, batch_size=32, batch_ramp=0, publish=redis_url, publish_interval_s=0.1
        ),
    )
    thread.join()
    assert emptied.is_set()
    manifest = manifest_in(client)
    assert manifest.step == report.steps
    for name in ("ad", "user"):
        keys = np.arange(manifest.tables[name])
        _, status = decode_rows(
            values(client, Keyspace().rows(manifest.row_set, name, keys)), manifest.version, manifest.dim
        )
        assert not status.any()
