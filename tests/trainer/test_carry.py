"""A changed pipeline continues a run: its first logits are the old model's, and nothing is learned twice."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from livectr import ops
from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.policies import TablePolicy
from livectr.ingest.language.promotion import Promotion
from livectr.ingest.language.streams import label_join, recent
from livectr.ingest.pipeline import Field, Pipeline
from livectr.kernels.table.layout import RowLayout
from livectr.models import DNN, FM, LR, DeepFM
from livectr.system.errors import CheckpointError, ConfigError, MismatchError
from livectr.trainer.carry.carry import EarlierRun, carry
from livectr.trainer.checkpoint.manifest import Folder, newest_manifest, number
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.quality.predictions import Records, read_predictions
from livectr.trainer.report import Report
from livectr.trainer.run import TrainOptions, train
from tests.tiers import few
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.kept import Kept, Rows
from tests.trainer.processes import finish, start
from tests.trainer.short_logs import constants

STEPS = 8
OPTIONS = dict(batch_size=64, batch_ramp=0, until_end=True, threads=1)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), 1_200)


def run(pipeline: Pipeline, source: str, root: Path, **options: object) -> Report:
    settings: Mapping[str, object] = {**OPTIONS, "checkpoint": str(root), **options}
    return train(pipeline, TrainOptions(source, **settings))  # type: ignore[arg-type]


def logged(root: Path) -> Records:
    return read_predictions(root / "predictions")


def added(pipeline: Pipeline, at: int = 3) -> Pipeline:
    """The pipeline with a number and three fields more, of a new column and a new history among them."""
    log, fields = pipeline.log, list(pipeline.sparse.items())
    hours = ops.cross(ops.hour(log.ts), log.ad_id)
    assert log.clicks is not None
    lately = recent(log.clicks.ad_id, n=3, within="10m", where=log.clicks.user_id > 3)  # of a new history
    request = ops.bucketize(log.request_id, [100, 500])
    fields[at:at] = [("hour_x_ad", hours), ("request", request), ("lately", lately)]
    return replace(pipeline, sparse=dict(fields), dense={**pipeline.dense, "request_number": log.request_id})


def of(root: Path, **options: object) -> dict[str, object]:
    """Options of a run that continues another."""
    return dict(warm_start=str(root), warm_parts="run", **options)


@pytest.mark.parametrize(
    "rank",
    [DeepFM(dim=4, hidden=(16, 8)), FM(dim=4), DNN(dim=4, hidden=(8,)), LR()],
    ids=lambda m: type(m).__name__,
)
def test_the_first_logits_are_those_of_the_old_model(tmp_path: Path, source: str, rank: object) -> None:
    old, root = replace(ad_pipeline(), rank=rank), tmp_path / "old"
    run(old, source, root, max_steps=STEPS)
    with constants(online=0):  # batches are scored before any of their examples is learned
        run(added(old), source, tmp_path / "new", **of(root, max_steps=STEPS + 1))
        run(old, source, root, max_steps=STEPS + 1)
    new, want = logged(tmp_path / "new"), logged(root)[-64:]
    np.testing.assert_array_equal(new["instance"], want["instance"])
    for role in ("rank", "prerank"):
        # LR adds up its terms in vectors: two terms more are another order
        np.testing.assert_array_max_ulp(new[role], want[role], 4 if rank == LR() else 0)


@pytest.mark.parametrize("delayed", few(["wait", "fnw", "es_dfm"], "wait", "es_dfm"))
def test_every_example_is_learned_by_one_of_the_two(tmp_path: Path, source: str, delayed: Delayed) -> None:
    """Also those whose impression waited for its label, and with histories of before."""
    old, root = ad_pipeline(delayed=delayed), tmp_path / "old"
    run(old, source, tmp_path / "whole", at_end="learn")
    first = run(old, source, root, max_steps=STEPS)
    report = run(added(old), source, tmp_path / "new", **of(root))
    parts = [logged(tmp_path / name)["instance"] for name in ("old", "new")]
    np.testing.assert_array_equal(np.concatenate(parts), logged(tmp_path / "whole")["instance"])
    assert (first.steps, report.complete) == (STEPS, True) and report.steps > STEPS
    resumed = run(added(old), source, tmp_path / "new", **of(root))  # the flags may stay
    assert resumed.steps == report.steps
    ended = run(added(old), source, tmp_path / "ended", **of(tmp_path / "whole"))  # nothing waits any more
    assert ended.complete and not len(logged(tmp_path / "ended"))


def test_a_pipeline_that_changed_in_nothing_goes_on_bit_by_bit(tmp_path: Path, source: str) -> None:
    pipeline, root = (
        replace(ad_pipeline(), policies=TablePolicy(max_age="30d", admit_after=2, sketch="4KiB")),
        tmp_path / "old",
    )
    run(pipeline, source, root, max_steps=STEPS)
    run(pipeline, source, tmp_path / "new", **of(root))
    run(pipeline, source, root)
    ours, theirs = state_of(tmp_path / "new"), state_of(root)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    want = logged(root)
    assert logged(tmp_path / "new").tobytes() == want[-len(logged(tmp_path / "new")) :].tobytes()


def test_a_run_that_relearns_is_the_one_that_was_changed_then(
    tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It continues from an older generation, bit by bit as if the feature had been added there."""
    old, root, early = ad_pipeline(), tmp_path / "old", tmp_path / "early"
    run(old, source, root, max_steps=STEPS // 2)
    shutil.copytree(root, early)
    run(old, source, root, max_steps=STEPS)
    run(added(old), source, tmp_path / "then", **of(early))
    with caplog.at_level("INFO"):
        run(added(old), source, tmp_path / "again", **of(root, relearn="1h"))
    assert re.search(
        rf"learns again: {64 * STEPS // 2} examples since generation \d+, which is \d+ seconds older than "
        "the newest; none is 60 minutes old",
        caplog.text,
    )
    ours, theirs = state_of(tmp_path / "again"), state_of(tmp_path / "then")
    assert [name for name in ours if ours[name] != theirs[name]] == [] and ours.keys() == theirs.keys()
    assert logged(tmp_path / "again").tobytes() == logged(tmp_path / "then").tobytes()


def state_of(root: Path) -> dict[str, bytes]:
    """Rows, weights, moments, policies and statistics of the newest generation."""
    manifest = newest_manifest(root)
    assert manifest is not None
    restored, found = Restored(root, manifest), dict[str, bytes]()
    tables = {table: Rows() for table in manifest.table_rows}
    restored.load_tables(tables)  # type: ignore[arg-type]  # what loading uses
    found |= {name: table.bytes() for name, table in tables.items()}
    found |= {name: tensor.numpy().tobytes() for name, tensor in restored.dense().items()}
    found |= {f"{n} {name}": v.tobytes() for n, s in enumerate(restored.policies()) for name, v in s.items()}
    return found | {name: values.tobytes() for name, values in restored.statistics().items()}


def test_what_is_carried_is_told(tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture) -> None:
    """A field that is renamed, one that goes, a wider table row, and rows that read a new column."""
    old, root = ad_pipeline(), tmp_path / "old"
    run(old, source, root, max_steps=STEPS)
    fields = {n: e for n, e in old.sparse.items() if n not in ("hour", "category")}
    fields["genre"] = Field(old.sparse["category"], was="category")  # type: ignore[arg-type]
    fields["request"] = old.log.request_id
    towers = replace(old.prerank, item=("ad", "genre", "price_z"), dim=8)  # type: ignore[type-var]
    new = replace(old, sparse=fields, prerank=towers)
    with caplog.at_level("INFO"):
        run(new, source, tmp_path / "new", **of(root, max_steps=STEPS))
    told = caplog.text
    assert f"continues {root} after step {STEPS}" in told
    assert "new: request" in told and "dropped: hour" in told
    assert re.search(r"carried: [\d,]+ rows of 8 tables", told)
    assert re.search(r"changed, so new: .*prerank\.t,", told)
    assert re.search(r"null in impressions that wait: impressions.request_id in \d+", told)
    ours, theirs = state_of(tmp_path / "new"), state_of(root)
    assert ours["rank.first.weight/genre"] == theirs["rank.first.weight/category"]
    assert ours["adam.exp_avg.rank.first.weight/genre"] == theirs["adam.exp_avg.rank.first.weight/category"]
    assert len(Kept(tmp_path / "new", new).tables["genre"]) == len(Kept(root, old).tables["category"]) > 0


def test_a_challenger_begins_with_the_champion_s_embeddings(tmp_path: Path, source: str) -> None:
    """A model of the same width does; a wider one begins with those of the first order alone."""
    old, root = replace(ad_pipeline(), rank=DeepFM(dim=4, hidden=(16, 8))), tmp_path / "old"
    run(old, source, root, max_steps=STEPS)
    others = {"deeper": DeepFM(dim=4, hidden=(32, 8)), "wider": DeepFM(dim=8, hidden=(16, 8))}
    new = replace(old, challengers=others, promotion=Promotion())
    run(new, source, tmp_path / "new", **of(root, max_steps=STEPS))
    manifest = newest_manifest(tmp_path / "new")
    assert manifest is not None
    places = RowLayout.described(manifest.row).places
    rows = [np.frombuffer(row, np.float32) for row in Kept(tmp_path / "new", new).tables["ad"].rows.values()]
    held = {name: np.stack(rows)[:, at : at + dim] for name, (at, dim, _, _) in places.items()}
    parts = [name.removeprefix("rank.") for name in places if name.startswith("rank.")]
    assert len(parts) > 1 and len(rows) > 10 and held["rank.v"].any()
    for part in parts:
        np.testing.assert_array_equal(held[f"deeper.{part}"], held[f"rank.{part}"])
    assert held["wider.v"].shape != held["rank.v"].shape
    np.testing.assert_array_equal(held["wider.w"], held["rank.w"])


def test_two_ranks_continue_one_and_one_continues_two(tmp_path: Path, source: str) -> None:
    pipeline = ad_pipeline()
    run(pipeline, source, tmp_path / "one", max_steps=STEPS)
    options = {**OPTIONS, "source": source, "max_steps": STEPS}
    log = finish(start(2, {**options, "checkpoint": str(tmp_path / "two"), **of(tmp_path / "one")}))
    assert f"continues {tmp_path / 'one'} after step {STEPS}" in log
    run(pipeline, source, tmp_path / "back", **of(tmp_path / "two", max_steps=STEPS))
    one, back = state_of(tmp_path / "one"), state_of(tmp_path / "back")
    assert [name for name in one if one[name] != back.get(name)] == []


def test_a_policy_that_is_new_lets_old_rows_live(tmp_path: Path, source: str) -> None:
    pipeline, root = ad_pipeline(), tmp_path / "old"
    run(pipeline, source, root, max_steps=STEPS)
    policed = replace(pipeline, policies=TablePolicy(max_age="1d"))
    run(policed, source, tmp_path / "new", **of(root, max_steps=STEPS + 1))
    rows = Kept(tmp_path / "new", policed).tables
    assert all(len(rows[name]) >= len(held) > 0 for name, held in Kept(root, pipeline).tables.items())


@pytest.mark.parametrize(
    "change, says",
    [
        (dict(window="10s"), r"the log of the run is another one: window_ms \(5000 there, 10000 here\)"),
        (dict(on="ad_id"), r"another one: on \(\['request_id'\] there, \['ad_id'\] here\)"),
    ],
    ids=["window", "key"],
)
def test_another_log_is_refused(tmp_path: Path, source: str, change: dict[str, str], says: str) -> None:
    old, root = ad_pipeline(), tmp_path / "old"
    run(old, source, root, max_steps=1)
    view = old.log
    assert view.clicks is not None
    given = {"on": "request_id", "window": "5s"} | change
    log = label_join(view.impressions, view.clicks, on=given["on"], window=given["window"])
    for lookup in view.lookups:
        log = log.lookup(lookup.table)
    with pytest.raises(MismatchError, match=says):
        run(replace(old, log=log), source, tmp_path / "new", **of(root))
    assert not list((tmp_path / "new").glob("gen-*"))


def test_another_seed_another_model_or_nothing_to_continue(tmp_path: Path, source: str) -> None:
    old, root, new = ad_pipeline(), tmp_path / "old", tmp_path / "new"
    with pytest.raises(ConfigError, match=r"old holds no checkpoint; name what was another run's"):
        run(old, source, new, **of(root))
    run(old, source, root, max_steps=1)
    with pytest.raises(MismatchError, match=r"has seed 1, this one 7; a run continues with its seed"):
        run(old, source, new, **of(root, seed=7))
    sparse = {"someone": old.log.user_id}
    other = replace(old, sparse=sparse, dense={}, rank=LR(), prerank=None, items=None)
    with pytest.raises(MismatchError, match=r"nothing of the model in .* has the names and shapes"):
        run(other, source, new, **of(root))
    with pytest.raises(ConfigError, match="warm_parts=run makes the checkpoint of the new run"):
        TrainOptions(source, warm_start=str(root), warm_parts="run")
    with pytest.raises(ConfigError, match="sparse field 'who' was 'user', but that is still a feature"):
        replace(old, sparse={**old.sparse, "who": Field(old.log.ad_id, was="user")})
    assert not list(new.glob("gen-*"))


def test_a_generation_that_is_replaced_while_it_is_read(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is taken, and what was written is removed. A real trainer shows it once in many runs."""
    old, root = ad_pipeline(), tmp_path / "old"
    run(old, source, root, max_steps=2)
    link = os.link

    def replaced(a: Path, b: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        run(old, source, root, max_steps=STEPS, checkpoint_interval_s=0.0)
        raise FileNotFoundError(a)

    monkeypatch.setattr(os, "link", replaced)
    run(added(old), source, tmp_path / "new", **of(root, max_steps=STEPS))
    begun = min((tmp_path / "new").glob("gen-*/MANIFEST.json"))
    assert Folder(tmp_path / "new").manifest(number(begun.parent)).step == STEPS
    assert begun.parent.name == f"gen-{newest_manifest(root).generation:08d}"  # type: ignore[union-attr]


def test_a_checkpoint_that_can_only_be_read_is_carried(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that can make no links there has open files, and the new checkpoint no links to them."""
    old, root, new = ad_pipeline(), tmp_path / "old", tmp_path / "new"
    run(old, source, root, max_steps=2)
    link = os.link

    def writable(a: Path, b: Path, **_: bool) -> None:
        if Path(b).is_relative_to(root):
            raise OSError(errno.EROFS, "read-only")
        link(a, b)

    with monkeypatch.context() as only_read:
        only_read.setattr(os, "link", writable)
        carry(EarlierRun(str(root), source), added(old), 1, new)
    files = [path for path in new.rglob("*") if not path.is_dir()]
    assert files and not [path for path in files if path.is_symlink()]
    assert run(added(old), source, new, max_steps=STEPS).steps == STEPS


def test_a_torn_checkpoint_is_not_written_over(tmp_path: Path, source: str) -> None:
    old, root, new = ad_pipeline(), tmp_path / "old", tmp_path / "new"
    for folder in (root, new):
        run(old, source, folder, max_steps=1)
    for path in new.glob("gen-*/MANIFEST.json"):
        path.write_bytes(path.read_bytes()[:-9])
    files = {path: path.read_bytes() for path in new.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="every generation is torn"):
        run(old, source, new, **of(root))
    assert files == {path: path.read_bytes() for path in new.rglob("*") if path.is_file()}
