"""Checkpoints: restored bits are written bits; whatever is torn, one generation back is whole."""

import fcntl
import hashlib
import json
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import planted
from livectr.kernels.table.table import DynamicTable
from livectr.models import FM, LR, DeepFM, Hedge
from livectr.system.errors import CheckpointError, MismatchError, UserError
from livectr.trainer.checkpoint import telemetry
from livectr.trainer.checkpoint.checkpoint import Checkpointer
from livectr.trainer.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    MAP_OF_DENSE,
    READ,
    Manifest,
    check_identity,
    identity_of,
)
from livectr.trainer.comm.control import Control
from livectr.trainer.tables.tiers import SLACK, Tiers
from tests.metrics_page import metric_value
from tests.tiers import examples
from tests.trainer.checkpoint_run import (
    IDENTITY,
    LAYOUT,
    Run,
    content,
    reopen,
    restored_tables,
    rewrite,
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "checkpoint")
    yield made
    made.checkpoint.close()


def test_a_manifest_tells_rows_and_keys(run: Run) -> None:
    run.train()
    run.train()
    manifest = run.commit()
    assert manifest.table_rows == {name: len(table) for name, table in run.tables.items()}
    assert manifest.field_keys == {"user": 20, "ad": 30}
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_an_empty_directory_has_nothing_to_restore(run: Run) -> None:
    assert run.checkpoint.restore() is None


def test_what_is_restored_is_what_was_committed(run: Run) -> None:
    run.train()
    run.commit()
    restored = reopen(run)
    assert restored is not None
    assert (restored.manifest.step, restored.manifest.examples, restored.manifest.cursor) == (
        1,
        10,
        {"version": 1},
    )
    assert content(restored_tables(restored)) == content(run.tables)
    dense = restored.dense()
    assert dense["rank.w"].tolist() == [[1, 1], [1, 1]] and dense["adam.step"].shape == ()
    assert restored.sources() == [{"partitions.json": b'{"at": 1}', "0/empty.arrow": b""}]
    statistics = restored.statistics()
    assert {n: (str(a.dtype), a.tolist()) for n, a in statistics.items()} == {
        "zscore-1": ("float64", [1, 0.1, np.inf]),
        "frequency-2": ("int64", [0, 1, 2, 3]),
    }


@examples(20)
@given(plan=st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=12))
def test_any_chain_of_bases_deltas_and_restarts_restores(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[int, bool]]
) -> None:
    run = Run(tmp_path_factory.mktemp("chain"))
    for keys, restart in plan:
        run.train(keys)
        run.commit()
        if restart:
            restored = reopen(run)
            assert restored is not None
            run.tables = restored_tables(restored)
    restored = reopen(run)
    assert restored is not None and restored.manifest.step == len(plan)
    assert content(restored_tables(restored)) == content(run.tables)
    run.checkpoint.close()


@pytest.mark.parametrize("tiered", [True, False])
def test_tables_larger_than_memory_are_written_and_read_in_parts(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiered: bool
) -> None:
    monkeypatch.setattr("livectr.trainer.checkpoint.table_chain.PART_BYTES", 400)
    for module in (
        "livectr.kernels.table.table",
        "livectr.trainer.tables.tiered_table",
        "livectr.trainer.tables.tiers",
    ):
        monkeypatch.setattr(f"{module}.CHUNK", 10)
    tiers = [Tiers(tmp_path, SLACK * 100, rank) for rank in range(2)]  # some 32 of 400 rows

    def tables(spill: Tiers) -> dict[str, DynamicTable]:
        return {name: spill.table(LAYOUT, name=name, seed=1) for name in ("ad", "user")}

    if tiered:
        run.tables = tables(tiers[0])
    whole = Run(tmp_path / "whole")
    for n in range(20):
        for one in (run, whole):
            one.train(40)
        tiers[0].evict()
        if n % 5 == 4:
            sizes = [f.bytes for f in run.commit().files if f.kind == "tables"]
            whole.commit()
            assert len(sizes) > 10 and max(sizes) < 3000
    whole.checkpoint.close()
    restored = reopen(run)
    assert restored is not None
    again = tables(tiers[1]) if tiered else restored_tables(restored)
    if tiered:
        restored.load_tables(again)
        assert 0 < sum(table.dram_rows for table in tiers[1].tables.values()) <= tiers[1].budget_rows
    assert content(again) == content(run.tables) == content(whole.tables)
    for spill in tiers:
        spill.close()


def torn_manifest(root: Path, manifest: Manifest) -> None:
    path = root / f"gen-{manifest.generation:08d}" / MANIFEST
    path.write_bytes(path.read_bytes()[: -len(b"tail of it")])


def flipped_digit(root: Path, manifest: Manifest) -> None:
    path = root / f"gen-{manifest.generation:08d}" / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'\\"step\\": 2', b'\\"step\\": 3'))


def empty_manifest(root: Path, manifest: Manifest) -> None:
    (root / f"gen-{manifest.generation:08d}" / MANIFEST).write_bytes(b"")


def bit_rot(root: Path, manifest: Manifest) -> None:
    path = root / [f for f in manifest.files if f.kind == "tables"][-1].path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def short_dense(root: Path, manifest: Manifest) -> None:
    path = root / next(f.path for f in manifest.files if f.kind == "dense")
    path.write_bytes(path.read_bytes()[:-1])


def missing_source(root: Path, manifest: Manifest) -> None:
    (root / next(f.path for f in manifest.files if f.kind == "source")).unlink()


FAULTS = [torn_manifest, flipped_digit, empty_manifest, bit_rot, short_dense, missing_source]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_torn_generation_falls_back_to_the_one_before(
    run: Run, fault: object, caplog: pytest.LogCaptureFixture
) -> None:
    run.train()
    run.commit()
    before = content(run.tables)
    run.train()
    fault(run.root, run.commit())  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        restored = reopen(run)
    assert restored is not None and restored.manifest.step == 1
    assert "generation 2 is torn" in caplog.text
    assert content(restored_tables(restored)) == before
    # the run resumes from there, past the torn generation's number
    run.tables, run.step = restored_tables(restored), 1
    run.train()
    assert run.commit().generation == 3
    restored = reopen(run)
    assert restored is not None and content(restored_tables(restored)) == content(run.tables)


def test_no_whole_generation_is_an_error(run: Run) -> None:
    for _ in range(2):
        run.train()
        empty_manifest(run.root, run.commit())
    with pytest.raises(CheckpointError, match="every generation is torn"):
        reopen(run)


@pytest.mark.parametrize("written", [None, READ[0] - 1, FORMAT + 1])
def test_another_format_is_refused_with_advice(run: Run, written: int | None) -> None:
    """The generation before is no way out: the run would lose a step. The first format had no number."""
    for _ in range(2):
        run.train()
        run.commit()
    path = run.root / "gen-00000002" / MANIFEST
    rewrite(path, lambda values: values.pop("format") if written is None else values.update(format=written))
    with pytest.raises(MismatchError, match=rf"reads formats 4 and {FORMAT}; use the release that wrote it"):
        reopen(run)


@pytest.mark.parametrize("step", [2, 3, 4])
def test_a_commit_that_dies_in_a_step_leaves_the_generation_before(
    run: Run, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of Checkpointer.commit: 2 write, 3 gather digests, 4 rename."""
    run.train()
    run.commit()
    before = content(run.tables)
    run.train()
    with monkeypatch.context() as patch:
        died = {2: "_write_rank", 3: "control", 4: None}[step]
        if died == "_write_rank":
            patch.setattr("livectr.trainer.checkpoint.rank_files.safetensors.torch.save", Died())
        elif died == "control":
            patch.setattr(run.checkpoint.control, "gather_json", Died())
        else:
            patch.setattr(Path, "replace", Died())
        with pytest.raises(ProcessLookupError):
            run.commit()
    restored = reopen(run)
    assert restored is not None and restored.manifest.step == 1
    assert content(restored_tables(restored)) == before
    run.tables = restored_tables(restored)
    run.train()
    run.commit()
    assert not list(run.root.rglob("*.new"))
    assert len(list(run.root.glob("gen-*"))) == 2


class Died:
    """The process ends here."""

    def __call__(self, *args: object, **kwargs: object) -> None:
        raise ProcessLookupError


def test_another_pipeline_is_refused_and_told(run: Run) -> None:
    run.train()
    run.commit()
    run.checkpoint.close()
    other = {**IDENTITY, "fields": [["ad", "ad"]]}
    run.checkpoint = Checkpointer(run.root, Control(), other)
    with pytest.raises(MismatchError, match=r"which differs in fields \(") as raised:
        run.checkpoint.restore()
    assert "models" not in str(raised.value)


@pytest.mark.parametrize(
    ("here", "says"),
    [
        ([["ad", "ad"]], r"fields \(user, words only there\)"),
        (
            [["user", "user"], ["ad", "item"], ["words", "words"]],
            r"\(ad only there; ad \(table item\) only here\)",
        ),
        ([["words", "words"], ["user", "user"], ["ad", "ad"]], r"\(their order\)"),
        ([[f"f{i}", f"f{i}"] for i in range(7)], r"f0, f1, f2, f3, f4, … only here\)"),
    ],
)
def test_fields_that_differ_are_named(here: list[list[str]], says: str) -> None:
    there = [["user", "user"], ["ad", "ad"], ["words", "words"]]
    with pytest.raises(MismatchError, match=says):
        check_identity(Path("c"), {"fields": there}, {"fields": here})


def test_features_that_differ_are_named() -> None:
    there, here = ({"features": {"age": "1", "hour": h}, "fingerprint": h} for h in "23")
    with pytest.raises(MismatchError, match=r"differs in features \(hour\)"):
        check_identity(Path("c"), there, here)


def test_a_checkpoint_from_before_the_meanings_names_the_way_on() -> None:
    there, here = {"seed": 0, "fingerprint": "1"}, {"seed": 0, "fingerprint": "2", "features": {"hour": "3"}}
    with pytest.raises(MismatchError, match=r"before LiveCTR 0\.2.*--checkpoint DIR --warm-start c"):
        check_identity(Path("c"), there, here)
    with pytest.raises(MismatchError, match=r"differs in features .*, seed \(0 there, 1 here\)"):
        check_identity(Path("c"), there, here | {"seed": 1})


def test_weights_behind_another_map_of_dense_features_are_refused() -> None:
    """By checkpoints with a sentence, by servers as another pipeline; a first order has no map."""
    ours = identity_of(planted.pipeline(DeepFM(), fields=2, dense=1), 0)
    before = {name: value for name, value in ours.items() if name != MAP_OF_DENSE} | {"fingerprint": "before"}
    with pytest.raises(MismatchError, match=r"take large dense features in another way.*warm_parts=run"):
        check_identity(Path("c"), before, ours)
    for model, dense in ((LR(), 1), (FM(), 1), (DeepFM(), 0)):
        assert MAP_OF_DENSE not in identity_of(planted.pipeline(model, fields=2, dense=dense), 0)
    assert Hedge().map_of_dense == DeepFM().map_of_dense and not Hedge((LR(), FM())).map_of_dense


def test_two_trainers_cannot_share_a_directory(run: Run) -> None:
    with pytest.raises(UserError, match="another trainer is running"):
        Checkpointer(run.root, Control(), IDENTITY)
    with (run.root / "LOCK").open("rb") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_manifest_of_an_older_program_is_read(run: Run) -> None:
    def rewrite() -> None:
        text = json.dumps(body)
        outer = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": text}
        (run.root / "gen-00000001" / MANIFEST).write_text(json.dumps(outer))

    run.train()
    body = json.loads(json.loads(run.commit().to_json())["body"])
    assert time.time() * 1000 - 600_000 < body.pop("created_ms") <= time.time() * 1000
    reopen(run)
    assert metric_value(telemetry.CHECKPOINT_TIMESTAMP) == run.checkpoint.kept.all[0].created_ms / 1000
    del body["began_ms"]
    opened_s = time.time()
    rewrite()
    restored = reopen(run)
    assert restored is not None and restored.manifest.created_ms == restored.manifest.began_ms == 0
    assert metric_value(telemetry.CHECKPOINT_TIMESTAMP) >= opened_s, "its age is not known"
    del body["row"]
    rewrite()
    with pytest.raises(CheckpointError, match="other fields"):
        reopen(run)


def test_a_manifest_cannot_name_files_elsewhere(run: Run, tmp_path: Path) -> None:
    run.train()
    manifest = run.commit()
    outside = tmp_path / "outside"
    shutil.copy(run.root / manifest.files[0].path, outside)
    path = run.root / "gen-00000001" / MANIFEST
    rewrite(path, lambda values: values["files"][0].update(path="../outside"))
    with pytest.raises(CheckpointError):
        reopen(run)
