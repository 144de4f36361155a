"""Materialized features merged by instance id equal computed features, bit for bit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.join.state import SourceState
from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.streams import Stream, label_join, labelled, recent
from livectr.ingest.language.tables import Table
from livectr.ingest.materialized import reader as basic_reader
from livectr.ingest.materialized import writer as materialize
from livectr.ingest.materialized.features import BYTES_TOPIC, ExampleFeatures, MaterializedFeatures
from livectr.ingest.materialized.store import MANIFEST, Manifest
from livectr.ingest.operators import cross, length, log1p, lower, split
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.system.errors import ConfigError, MismatchError, UserError
from tests.ingest.joined_logs import TYPES, random_logs, write_logs

BASIC = ("query", "words", "long", "name", "age", "activity")
ROWS = 400


def pipeline(*, delayed: Delayed = "wait", window: str = "1m", fold: bool = True) -> Pipeline:
    """Scalar and list fields, of impressions, of a look-up and of a history; two dense numbers."""
    impressions = Stream(
        "impressions",
        key="user_id",
        time="ts",
        columns={**TYPES, "query": "string", "price": "float32"},
    )
    clicks = Stream("clicks", key="user_id", time="ts", columns=TYPES)
    users = Table("users", key="user_id", columns={"user_id": "int64", "age": "int32", "name": "string"})
    wait = None if delayed == "wait" else "10s"
    log = label_join(impressions, clicks, on="request_id", window=window, wait=wait, delayed=delayed)
    log = log.lookup(users)
    long = recent(clicks.ad_id, n=3, within="1h")
    return Pipeline(
        log,
        sparse=dict(
            ad=log.ad_id,
            query=lower(log.query) if fold else log.query,
            words=split(lower(log.query), " "),
            ad_x_user=cross(log.ad_id, log.user_id),
            long=long,
            name=users.name,
            short=recent(clicks.ad_id, n=2, within="1m"),
        ),
        dense=dict(age=users.age, price=log.price, activity=log1p(length(long))),
        rank=None,
    )


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(materialize, "GROUP_ROWS", 32)
    monkeypatch.setattr(materialize, "PART_ROWS", 4 * 32)
    monkeypatch.setattr(materialize, "POP_ROWS", 50)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_logs(tmp_path_factory.mktemp("logs"), random_logs(7, rows=ROWS))


def make(pipe: Pipeline, url: str, target: Path, names: tuple[str, ...] | None = BASIC) -> Manifest:
    return materialize.materialize(
        pipe,
        materialize.Materialization(url, target, materialize.choose(pipe, names), "pipeline.py"),
        DeadLetters(None),
    )


@pytest.fixture
def store(url: str, tmp_path: Path) -> Path:
    make(pipeline(), url, tmp_path / "materialized")
    return tmp_path / "materialized"


def examples(
    track: ExampleFeatures,
    url: str,
    *,
    rank: int = 0,
    world: int = 1,
    size: int = 100,
    states: dict[int, SourceState] | None = None,
    state: SourceState | None = None,
) -> Iterator[Examples]:
    """All examples of a rank in batches; `states`: the source's state before each."""
    letters = DeadLetters(None)
    source = ExampleSource(
        track.pipeline,
        url,
        ReadOptions(until_end=True, full_tables=False),
        rank=rank,
        world=world,
        dead_letters=letters,
        state=state,
    )
    try:
        number = 0
        while not source.ended or len(source.orders(1)[0]):
            source.poll(0.01)
            order, _ = source.orders(size)
            settled = len(order) if source.ended else int(np.searchsorted(order, source.frontier))
            if settled == size or (source.ended and settled):
                if states is not None:
                    states[number] = source.snapshot()
                number += 1
                yield source.pop(settled)
    finally:
        source.close()


def features(track: ExampleFeatures, url: str, **options: object) -> list[Features]:
    try:
        return [track.features(batch).host() for batch in examples(track, url, **options)]  # type: ignore[arg-type]
    finally:
        track.close()


def assert_same(got: list[Features], want: list[Features]) -> None:
    """Compare bit for bit."""
    assert len(got) == len(want) > 0
    for one, other in zip(got, want, strict=True):
        assert one.rows == other.rows
        assert np.array_equal(one.offsets, other.offsets) and np.array_equal(one.keys, other.keys)
        assert one.dense.tobytes() == other.dense.tobytes()
        assert one.dense.flags.c_contiguous


@pytest.mark.parametrize("delayed", ["wait", "fnw", "es_dfm"])
@pytest.mark.parametrize("names", [BASIC, ("age",), ("words",), None], ids=["some", "dense", "list", "all"])
@pytest.mark.parametrize("world", [1, 2])
def test_read_features_equal_computed_ones(
    url: str, tmp_path: Path, names: tuple[str, ...] | None, delayed: Delayed, world: int
) -> None:
    pipe = pipeline(delayed=delayed)
    manifest = make(pipe, url, tmp_path / "materialized", names)
    total = 0
    for rank in range(world):
        want = features(ExampleFeatures(pipe), url, rank=rank, world=world)
        got = features(
            ExampleFeatures.open(pipe, str(tmp_path / "materialized")), url, rank=rank, world=world
        )
        assert_same(got, want)
        total += sum(batch.rows for batch in want)
    assert manifest.rows == total == sum(file.rows for file in manifest.files)


def test_the_files_are_as_they_are_described(store: Path) -> None:
    manifest = Manifest.read(store)
    assert [f.name for f in manifest.features] == ["query", "words", "long", "name", "age", "activity"]
    assert [f.kind for f in manifest.features] == ["key", "keys", "keys", "key", "dense", "dense"]
    for partition in range(3):
        parts = sorted((store / f"partition={partition}").glob("part-*.parquet"))
        assert len(parts) > 1
        order = []
        for path in parts:
            file = pq.ParquetFile(path)
            groups = [file.metadata.row_group(g) for g in range(file.num_row_groups)]
            assert all(group.num_rows == 32 for group in groups[:-1])
            assert groups[0].column(0).compression == "ZSTD"
            assert file.schema_arrow.field("words").type.value_type == pa.int64()
            assert file.schema_arrow.field("age").type == pa.float32()
            order += file.read(["order"])["order"].to_pylist()
        assert order == sorted(order)


def test_only_the_columns_that_are_needed_are_read(url: str, store: Path) -> None:
    pipe = pipeline()
    track = ExampleFeatures.open(pipe, str(store))
    assert {root.name for root in track.pipeline.plan.roots} == {
        "impressions.ad_id",
        "impressions.user_id",
        "impressions.price",
        "recent(clicks.ad_id,2,60000)",
    }
    assert track.pipeline.narrow_tables == ()  # users are not read at all
    assert track.pipeline.fingerprint == pipe.fingerprint
    assert track.pipeline.fields == pipe.fields
    features(track, url)
    # A pipeline with one of the stored features reads that column alone.
    log = pipe.log
    small = Pipeline(log, sparse=dict(ad=log.ad_id, query=lower(log.query)), rank=None)
    other = ExampleFeatures.open(small, str(store))
    features(other, url)
    assert 0 < other.bytes_read[BYTES_TOPIC] < 0.7 * track.bytes_read[BYTES_TOPIC]


def test_a_resumed_run_reads_from_where_it_resumes(url: str, store: Path) -> None:
    pipe = pipeline()
    states: dict[int, SourceState] = {}
    want = features(ExampleFeatures(pipe), url)
    track = ExampleFeatures.open(pipe, str(store))
    assert_same(features(track, url, states=states), want)
    half = len(want) // 2
    state = SourceState.from_parts(states[half].parts())
    resumed = ExampleFeatures.open(pipe, str(store))
    assert_same(features(resumed, url, state=state), want[half:])
    assert resumed.bytes_read[BYTES_TOPIC] < 0.75 * track.bytes_read[BYTES_TOPIC]


def test_a_run_may_resume_with_more_basic_features_but_not_with_fewer(url: str, store: Path) -> None:
    pipe = pipeline()
    computed: dict[int, SourceState] = {}
    read: dict[int, SourceState] = {}
    want = features(ExampleFeatures(pipe), url, states=computed)
    features(ExampleFeatures.open(pipe, str(store)), url, states=read)
    half = len(want) // 2
    assert_same(features(ExampleFeatures.open(pipe, str(store)), url, state=computed[half]), want[half:])
    with pytest.raises(MismatchError, match=r"wait in the checkpoint lack .*continue with the materialized"):
        features(ExampleFeatures(pipe), url, state=read[half])


@pytest.fixture
def unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """(logs without repeated request ids, store); events are late by less than a row group, and no feature
    depends on other rows."""
    monkeypatch.setattr(materialize, "GROUP_ROWS", 64)
    logs = random_logs(3, rows=800)
    for partition, log in logs.impressions.items():
        for number, row in enumerate(log):
            row["request_id"] = f"{partition}-{number}"
    url = write_logs(tmp_path / "logs", logs)
    make(pipeline(), url, tmp_path / "materialized", ("query", "words", "name", "age"))
    return url, tmp_path / "materialized"


def test_rows_that_the_logs_no_longer_have_are_passed_over(unique: tuple[str, Path], tmp_path: Path) -> None:
    url, store = unique
    root = tmp_path / "less"
    shutil.copytree(Path(url.removeprefix("file:")), root)
    for path in (root / "impressions").iterdir():
        lines = path.read_text().splitlines()
        gone = range(len(lines) // 4, len(lines) // 2)  # more than the window holds
        path.write_text("".join(f"{line}\n" for i, line in enumerate(lines) if i not in gone and i % 9))
    pipe, less = pipeline(), f"file:{root}"
    assert_same(features(ExampleFeatures.open(pipe, str(store)), less), features(ExampleFeatures(pipe), less))


@pytest.mark.parametrize("window", ["30s", "30m"])
def test_another_label_window_needs_no_other_store(unique: tuple[str, Path], window: str) -> None:
    url, store = unique
    pipe = pipeline(window=window)
    assert_same(features(ExampleFeatures.open(pipe, str(store)), url), features(ExampleFeatures(pipe), url))


def test_an_instance_that_the_store_lacks_is_named(url: str, store: Path) -> None:
    path = store / "partition=1" / "part-00001.parquet"
    whole = pq.read_table(path)
    gone = whole["instance"][40].as_py()
    pq.write_table(whole.filter(pa.compute.not_equal(whole["instance"], gone)), path, row_group_size=32)
    _resize(store, path)
    track = ExampleFeatures.open(pipeline(), str(store))
    with pytest.raises(
        UserError, match=rf"no instance {gone} of partition 1 .*; make it again .*features materialize"
    ):
        features(track, url)


def test_a_partition_that_the_store_lacks_is_named(url: str, store: Path) -> None:
    values = json.loads((store / MANIFEST).read_text())
    values["files"] = [file for file in values["files"] if file["partition"] != 2]
    (store / MANIFEST).write_text(json.dumps(values))
    with pytest.raises(UserError, match=r"no instance -?\d+ of partition 2"):
        features(ExampleFeatures.open(pipeline(), str(store)), url)


def test_rows_of_other_events_under_the_same_ids_are_no_match(url: str, store: Path) -> None:
    path = store / "partition=0" / "part-00000.parquet"
    whole = pq.read_table(path)
    later = pa.compute.add(whole["time_ms"], 1)
    pq.write_table(whole.set_column(2, whole.schema.field(2), later), path, row_group_size=32)
    _resize(store, path)
    with pytest.raises(UserError, match="another event time"):
        features(ExampleFeatures.open(pipeline(), str(store)), url)


def test_a_changed_expression_is_refused(store: Path) -> None:
    with pytest.raises(ConfigError, match=r"'query' has changed .*key\(lower\(impressions.query\)\) became"):
        MaterializedFeatures.open(store, pipeline(fold=False))


def test_histories_depend_on_how_long_a_click_is_known(store: Path) -> None:
    MaterializedFeatures.open(store, pipeline(window="10m"))
    with pytest.raises(ConfigError, match=r"'long' has changed .*another one"):
        MaterializedFeatures.open(store, pipeline(window="11m"))


def test_another_json_path_or_look_up_is_a_change() -> None:
    def stored(path: str, on: str) -> list[str]:
        columns = {"user_id": "int64", "boss": "int64", "y": "bool", "context": "string", "os": "string"}
        stream = Stream("log", key="user_id", columns=columns, json_fields={"os": path})
        users = Table("users", key="user_id", columns={"user_id": "int64", "age": "int32"})
        log = labelled(stream, label="y").lookup(users, on=on)
        pipe = Pipeline(log, sparse=dict(os=log.os, age=users.age, user=log.user_id), rank=None)
        return [feature.digest for feature in materialize.choose(pipe, None)]

    base = stored("context.os", "user_id")
    for i, changed in enumerate((stored("context.device.os", "user_id"), stored("context.os", "boss"))):
        assert [one != other for one, other in zip(base, changed, strict=True)] == [i == 0, i == 1, False]


def test_what_is_half_made_or_cut_short_is_refused(url: str, store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        MaterializedFeatures.open(tmp_path / "nowhere", pipeline())
    (store / MANIFEST).rename(tmp_path / "manifest")
    with pytest.raises(ConfigError, match=f"has no {MANIFEST}: it is half-made"):
        MaterializedFeatures.open(store, pipeline())
    (tmp_path / "manifest").rename(store / MANIFEST)
    part = store / "partition=0" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(ConfigError, match="missing or cut short"):
        MaterializedFeatures.open(store, pipeline())
    (store / MANIFEST).write_text("{}")
    with pytest.raises(ConfigError, match="not of this version's form"):
        MaterializedFeatures.open(store, pipeline())


def test_a_run_that_fails_leaves_nothing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Manifest, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        make(pipeline(), url, tmp_path / "out" / "materialized")
    assert list((tmp_path / "out").iterdir()) == []
    monkeypatch.undo()
    (tmp_path / "out" / "materialized").mkdir()
    with pytest.raises(ConfigError, match="exists; delete it or name another folder"):
        make(pipeline(), url, tmp_path / "out" / "materialized")


def test_features_that_cannot_be_chosen() -> None:
    with pytest.raises(ConfigError, match=r"no feature 'wrods'; the pipeline's are ad, query"):
        materialize.choose(pipeline(), ["wrods"])
    log = pipeline().log
    clash = Pipeline(log, sparse=dict(order=log.ad_id), rank=None)
    with pytest.raises(ConfigError, match="'order' is named like a column of the store"):
        materialize.choose(clash, None)


def test_a_store_of_other_features_is_of_no_use(store: Path) -> None:
    log = pipeline().log
    with pytest.raises(ConfigError, match="has no feature of this pipeline; its features are query, words"):
        MaterializedFeatures.open(store, Pipeline(log, sparse=dict(ad=log.ad_id), rank=None))


def test_little_is_kept_in_memory(url: str, store: Path) -> None:
    track = ExampleFeatures.open(pipeline(), str(store))
    assert track.materialized is not None
    for batch in examples(track, url):
        track.features(batch)
        for reader in track.materialized._partitions.values():
            assert len(reader._window) <= basic_reader.WINDOW_GROUPS
            assert reader._prefetch is not None
            assert len(reader._prefetch._ready) <= basic_reader.AHEAD_GROUPS
    track.close()


def _resize(store: Path, path: Path) -> None:
    """Write a file's new size into the manifest."""
    values = json.loads((store / MANIFEST).read_text())
    for file in values["files"]:
        if store / file["path"] == path:
            file["bytes"] = path.stat().st_size
    (store / MANIFEST).write_text(json.dumps(values))
