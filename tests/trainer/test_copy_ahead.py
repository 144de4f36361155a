"""A complete version of large tables is copied at many boundaries: training does not wait for all rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import redis

from livectr.kernels.table.table import DynamicTable
from livectr.store.layout import Keyspace, decode_rows
from livectr.trainer.build import build
from livectr.trainer.comm.collectives import connect
from livectr.trainer.commit_state import CommitState
from livectr.trainer.commits import Committer
from livectr.trainer.parts import Parts
from livectr.trainer.publish import boundary, spool
from livectr.trainer.run import Training, TrainOptions
from livectr.trainer.stages import Stages
from tests.redis_values import manifest_in, values
from tests.trainer.ad_logs import ad_pipeline, write_files

pytestmark = pytest.mark.usefixtures("batches_alone")

IMPRESSIONS, BATCH, CHUNK = 3_000, 16, 40
UNUSED = np.arange(10**6, 10**6 + 2_000)
"""Keys of rows that no batch has."""
AGAIN, LATE = 60, 180
"""Steps after which a complete version is asked for; it is there before the second."""


@pytest.fixture
def run(
    tmp_path: Path, client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Parts, Stages]]:
    """A run whose rows are copied ahead in small chunks, a chunk at a boundary."""
    monkeypatch.setattr(spool, "CHUNK", CHUNK, raising=False)
    monkeypatch.setattr(spool, "AHEAD_S", 0.0, raising=False)
    options = TrainOptions(
        write_files(tmp_path / "logs", IMPRESSIONS), until_end=True, batch_size=BATCH, batch_ramp=0,
        threads=1, publish=redis_url, publish_interval_s=1e-6, min_examples=0,
        checkpoint=str(tmp_path / "checkpoint"), checkpoint_interval_s=0.0,
    )  # fmt: skip
    with connect() as collectives, ExitStack() as resources:
        yield build(ad_pipeline(), options, collectives, resources)


def test_training_does_not_wait_for_all_rows(
    run: tuple[Parts, Stages], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are those of the version's boundary, also if they changed, were erased, or came meanwhile."""
    parts, stages = run
    tables, publisher, commits = parts.step.tables, parts.publisher, stages.commits
    assert publisher is not None
    commit, read, copied = Committer.commit, DynamicTable.read, [0]
    at: dict[int, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    waits: list[int] = []
    erased, inserted = 0, False

    def counted(table: DynamicTable, rows: np.ndarray, *, state: bool = True) -> object:
        copied[0] += len(rows) * (not state)
        return read(table, rows, state=state)

    def watched(committer: Committer, state: CommitState) -> bool:
        nonlocal erased, inserted
        table = tables["ad"]
        if not publisher.busy and state.steps >= AGAIN and committer.complete == 1:
            if not inserted:
                inserted = len(table.find_or_insert(UNUSED)) > 0
            elif not publisher.full:
                publisher.begin_again()
            elif erased < 100:  # of chunks that are copied, and that are not
                erased += table.erase(UNUSED[erased :: len(UNUSED) // 20])
        at[state.steps] = {name: table.export() for name, table in tables.items()}
        copied[0] = 0
        began = commit(committer, state)
        if publisher.full and committer.complete == 1:
            waits.append(copied[0])
        return began

    monkeypatch.setattr(DynamicTable, "read", counted)
    monkeypatch.setattr(Committer, "commit", watched)
    Training(parts, stages).run()
    rows = sum(map(len, tables.values()))
    assert commits.complete == 2 and waits and max(waits) < rows / 3, (rows, waits)
    assert len(waits) > 5 and erased >= 100
    manifest = manifest_in(client)
    assert manifest.step == parts.progress.steps, "deltas continued"
    for name, (keys, exported) in at[manifest.step].items():
        served, status = decode_rows(
            values(client, Keyspace().rows(manifest.row_set, name, keys)), manifest.version, manifest.dim
        )
        assert not status.any() and (served == exported[:, : manifest.dim]).all()


@pytest.mark.full
def test_a_copy_whose_changes_were_dropped_is_taken_at_once(
    run: tuple[Parts, Stages], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More changes than rows while it is copied: it would never be whole."""
    parts, stages = run
    publisher, commit = parts.publisher, Committer.commit
    assert publisher is not None
    monkeypatch.setattr(spool.CopyAhead, "advance", lambda _: None)
    monkeypatch.setattr(boundary, "LISTED_ROWS", 300)
    monkeypatch.setattr(boundary, "LISTED_SHARE", 1.0)
    # as if erased keys were what is listed
    monkeypatch.setattr(DynamicTable, "compact", lambda table: None)

    def watched(committer: Committer, state: CommitState) -> bool:
        if not publisher.busy and state.steps >= AGAIN and committer.complete == 1 and not publisher.full:
            publisher.begin_again()
        if state.steps >= LATE:
            assert committer.complete >= 2
        return commit(committer, state)

    monkeypatch.setattr(Committer, "commit", watched)
    Training(parts, stages).run()
    manifest = manifest_in(client)
    assert manifest.step == parts.progress.steps
    for name, table in parts.step.tables.items():
        keys, exported = table.export()
        served, status = decode_rows(
            values(client, Keyspace().rows(manifest.row_set, name, keys)), manifest.version, manifest.dim
        )
        assert not status.any() and (served == exported[:, : manifest.dim]).all()
