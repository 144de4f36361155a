"""Lists of changes are bounded while nobody can take them, and a version that holds all is taken in parts."""

from __future__ import annotations

import signal
import time
import tracemalloc
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import redis

from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable
from livectr.store.layout import Keyspace, decode_rows
from livectr.trainer import commits
from livectr.trainer.build import build
from livectr.trainer.checkpoint.content import CheckpointState
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.comm.collectives import connect
from livectr.trainer.comm.control import Control
from livectr.trainer.commit_state import CommitState
from livectr.trainer.commits import Committer
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish import boundary, outcome
from livectr.trainer.publish.boundary import Boundary
from livectr.trainer.publish.publisher import Publisher
from livectr.trainer.publish.snapshot import Snapshotter
from livectr.trainer.publish.succession import Cursor
from livectr.trainer.publish.version import PublishedModel, VersionSnapshot
from livectr.trainer.run import Training, TrainOptions
from livectr.trainer.schedule import Schedule
from livectr.trainer.tables import tiered_table, tiers
from livectr.trainer.tables.tiers import Tiers
from tests.redis_values import manifest_in, values
from tests.tiers import few
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.processes import start
from tests.trainer.publishing import Trainer
from tests.trainer.redis_proxy import Proxy
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("batches_alone")

IMPRESSIONS = 3_000
LISTED = 300


def test_listed_counts_what_is_kept() -> None:
    table = DynamicTable(RowLayout((Segment("v", 2, AdaGrad()),)), name="t", seed=1)
    table.find_or_insert(np.arange(10))
    first = table.mark()
    table.update(np.arange(4), np.ones((4, 2), np.float32))
    second = table.mark()
    table.update(np.arange(4), np.ones((4, 2), np.float32))
    table.erase(np.arange(3))
    assert table.listed == 10 + 4 + 4 + 3
    table.forget(first)
    assert table.listed == 4 + 4 + 3
    table.forget(second)
    assert table.listed == 4 + 3


def test_compact_frees_what_no_reader_sees() -> None:
    """Readers of every mark see the same of random changes: rows and keys, in the same order."""
    rng = np.random.default_rng(3)
    layout = RowLayout((Segment("v", 2, AdaGrad()),))
    table, plain = (DynamicTable(layout, name="t", seed=1) for _ in range(2))
    marks = [0]
    for number in range(60):
        keys = rng.integers(0, 400, 100)
        for each in (table, plain):
            match number % 4:
                case 0:
                    each.restore(np.unique(keys) + 300, np.ones((len(np.unique(keys)), layout.stride)))
                case 1:
                    each.erase(keys[:30])
                case _:
                    each.update(keys, np.full((100, 2), 0.1, np.float32))
        if number % 3 == 2:
            marks.append(table.mark())
            assert plain.mark() == marks[-1]
        if number == 30:
            table.forget(marks[3])
            plain.forget(marks[3])
            del marks[1:3]
        if number % 5 == 4:
            table.compact()
        for mark in marks:
            for found, expected in zip(table.export(mark), plain.export(mark), strict=True):
                np.testing.assert_array_equal(found, expected)
            assert (table.changed_keys(mark) == plain.export(mark)[0]).all()
            assert (table.erased(mark) == plain.erased(mark)).all()
        assert len(table) == len(plain)
    erased = sum(len(plain.erased(mark)) for mark in marks[1:])
    assert erased and len(plain.export(marks[1])[0])
    last = table.mark()
    table.compact()
    before = plain.listed
    assert table.listed < before / 2
    table.update(np.arange(400), np.ones((400, 2), np.float32))
    table.mark()
    table.compact()
    # all rows have changed since: of them only the last change is listed
    table.forget(last)
    assert table.listed == 400


@pytest.mark.parametrize(
    ("trouble", "compacts"),
    few(
        [
            ("Redis is away", True),
            ("Redis is away", False),
            ("the next checkpoint is far off", False),
            ("both", False),
        ],
        ("Redis is away", True),
        ("both", False),
    ),
)
def test_lists_are_bounded(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch, trouble: str, compacts: bool
) -> None:
    """Past the size of the table they are compacted. Where that does not help, they are dropped, and the next
    version or checkpoint holds everything.
    """
    monkeypatch.setattr(boundary, "LISTED_ROWS", LISTED)
    monkeypatch.setattr(boundary, "LISTED_SHARE", 1.0)
    if not compacts:  # as if erased keys were what is listed
        monkeypatch.setattr(DynamicTable, "compact", lambda table: None)
    monkeypatch.setattr(outcome, "ASK_AGAIN_S", 0.02)
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    source = write_files(tmp_path / "logs", IMPRESSIONS)
    longest: list[int] = []
    with Proxy(redis_url) as proxy, connect() as collectives, ExitStack() as resources:
        options = TrainOptions(
            source, until_end=True, batch_size=16, batch_ramp=0, threads=1, publish=proxy.url, min_examples=0,
            publish_interval_s=1e-6, checkpoint=str(tmp_path / "checkpoint"),
            checkpoint_interval_s=0.0 if trouble == "Redis is away" else 3600.0,
        )  # fmt: skip
        parts, stages = build(ad_pipeline(), options, collectives, resources)
        commit, tables = Committer.commit, parts.step.tables
        first: list[str] = []
        back = 0

        def watched(self: Committer, state: CommitState) -> bool:
            nonlocal back
            began = commit(self, state)
            longest.append(max(table.listed for table in tables.values()))
            last = parts.publisher.last if parts.publisher is not None else None
            if not first and state.steps >= 40 and last and trouble != "the next checkpoint is far off":
                first.append(last.row_set)
                back = min(state.steps + 110, IMPRESSIONS // 16 - 8)
                proxy.go_away()
            if first and state.steps >= back:
                proxy.away = False
            return began

        monkeypatch.setattr(Committer, "commit", watched)
        report = Training(parts, stages).run()
        assert report.examples_trained == IMPRESSIONS
        # a generation's changes come on top before it is closed
        assert max(longest) <= max(LISTED, *(len(table) for table in tables.values())) + 16 * 10
        manifest = manifest_in(client)
        assert manifest.step == parts.progress.steps
        if first:
            assert (manifest.row_set in first) == compacts
        held = newest_manifest(tmp_path / "checkpoint")
        assert held is not None and held.step == parts.progress.steps
        restored = DesStep(ad_pipeline(), seed=1)
        Restored(tmp_path / "checkpoint", held).load_tables(restored.tables)
        for name, table in tables.items():
            keys, rows = table.export()
            held_rows = values(client, Keyspace().rows(manifest.row_set, name, keys))
            served, status = decode_rows(held_rows, manifest.version, manifest.dim)
            assert not status.any() and (served == rows[:, : manifest.dim]).all()
            assert (restored.tables[name].lookup(keys, missing="zeros") == rows[:, : served.shape[1]]).all()
            assert len(restored.tables[name]) == len(table)


def test_a_complete_version_of_a_table_on_ssd_keeps_to_the_memory(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 100_000
    for module in (
        tiers,
        tiered_table,
        __import__("livectr.kernels.table.table", fromlist=["CHUNK"]),
    ):
        monkeypatch.setattr(module, "CHUNK", 2_048, raising=False)
    layout = RowLayout((Segment("rank.v", 16, AdaGrad(), 0.1),))
    store = Tiers(tmp_path, 2_000_000, 0)
    table = store.table(layout, name="ad", seed=1)
    keys = np.random.default_rng(1).permutation(rows).astype(np.int64)
    for start_at in range(0, rows, 5_000):
        table.find_or_insert(keys[start_at : start_at + 5_000])
        store.evict()
    assert table.dram_rows < rows / 4
    spec, storage = SimpleNamespace(layout=layout), SimpleNamespace(tiers=store)
    step = SimpleNamespace(tables={"ad": table}, spec=spec, storage=storage)
    taker = Snapshotter(*cast("tuple[Any, ...]", (None, step, None, None, None, None)))
    tracemalloc.start()
    try:
        _, spool = taker._rows(None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert spool is not None and spool.rows == rows
    assert peak < rows * 16 * 4 / 2
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    trainer = Trainer(redis_url)
    trainer.publisher._model = PublishedModel("f", (("rank.v", 16),), seed=1)
    done = trainer.publish(VersionSnapshot(1, {}, {"ad": rows}, b"", spool=spool))
    assert done is not None and done.rows == rows
    served, status = decode_rows(values(client, Keyspace().rows(done.manifest.row_set, "ad", keys)), 1, 16)
    assert not status.any() and (served == table.lookup(keys)).all()
    # then what changed since
    mark = table.mark()
    table.update(keys[:50], np.ones((50, 16), np.float32))
    _, spool = taker._rows(Boundary({"ad": mark}, 0, 0))
    assert spool is not None and spool.rows == 50
    again = trainer.published(VersionSnapshot(2, {}, {"ad": rows}, b"", spool=spool))
    served, status = decode_rows(values(client, Keyspace().rows(again.row_set, "ad", keys)), 2, 16)
    assert not status.any() and (served == table.lookup(keys)).all()
    trainer.publisher.close()
    store.close()


def test_a_checkpoint_without_lists_does_not_say_what_redis_lacks(tmp_path: Path) -> None:
    """The lists were dropped while a delta is pushed: a restart may not resume from the version before it."""
    table = DynamicTable(RowLayout((Segment("v", 2, AdaGrad()),)), name="t", seed=1)
    served = Cursor(6, 1, "", 9, "run", served=5, served_row_set="1-1")
    publisher = SimpleNamespace(cursor=lambda step, begins: served)
    taker = SimpleNamespace(keys_since=lambda since: {"t": np.arange(3)})
    content = CheckpointState(
        step=9, examples=1, predictions=0, cursor=None, tables={"t": table}, marks={}, dense={},
        source={}, statistics={},
    )  # fmt: skip
    schedule = Schedule(publish_interval_s=1.0, checkpoint_interval_s=0.0)
    committer = Committer(Control(), None, cast(Publisher, publisher), Boundary({"t": 0}, 0, 0), schedule)
    state = cast(CommitState, SimpleNamespace(snapshots=taker))
    listed = committer._completed(state, content, begins=False)
    assert listed.cursor == asdict(served) and list(listed.unpublished) == ["t"]
    committer._marks.published = None
    dropped = committer._completed(state, content, begins=False)
    assert dropped.cursor == asdict(replace(served, served=0, served_row_set="")) and not dropped.unpublished


def test_sigterm_while_redis_says_nothing_commits_and_leaves(tmp_path: Path, redis_url: str) -> None:
    """The checkpoint does not wait for Redis; a push without an answer delays no rank."""
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    source = write_files(tmp_path / "logs", 1_000)
    root = tmp_path / "checkpoint"
    with Proxy(redis_url) as proxy:
        options: dict[str, object] = dict(
            source=source, checkpoint=str(root), checkpoint_interval_s=3600, batch_size=16, batch_ramp=0,
            threads=1, publish=proxy.url.replace("=1", "=6000"), publish_interval_s=0.1, min_examples=0,
        )  # fmt: skip
        process = start(1, options)
        until(lambda: client.exists("{livectr}:manifest"), process=process)
        until(lambda: manifest_in(client).step >= 5, process=process)
        proxy.silent = True
        time.sleep(0.5)  # long enough to be in the middle of a push, if there is anything to push
        process.send_signal(signal.SIGTERM)
        _, reported = process.communicate(timeout=commits.STOP_DEADLINE_S + 110)
    assert process.returncode == 0, reported.decode()
    held = newest_manifest(root)
    assert held is not None and held.step >= 5 and held.examples == 16 * held.step
    assert f"asked to stop after step {held.step}" in reported.decode()
