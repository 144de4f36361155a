"""Checkpoints in S3, over HTTP: no copy on disk is needed, a store may be away, and damage is told."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import livectr
from livectr.cli import main
from livectr.system.errors import CheckpointError, ConfigError, ConnectError, MismatchError
from livectr.system.object_store import ObjectStore
from livectr.trainer.checkpoint import telemetry
from livectr.trainer.checkpoint.age import check_age
from livectr.trainer.checkpoint.folder import write_manifest
from livectr.trainer.checkpoint.manifest import FileEntry, Manifest, newest_manifest, newest_whole
from livectr.trainer.checkpoint.prediction_parts import bring_back
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.checkpoint.stored import OWNER, PREDICTIONS, Stored
from livectr.trainer.comm.control import Control
from livectr.trainer.des.step import DesStep
from livectr.trainer.options import TrainOptions
from livectr.trainer.quality.predictions import read_predictions, wrong_predictions
from livectr.trainer.run import train
from tests.metrics_page import metric_value
from tests.ranks import Processes
from tests.s3_server import BUCKET, S3Server
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.kills import IMPRESSIONS, OPTIONS, kill_group, kill_one_rank, kill_up_to
from tests.trainer.processes import finish, start
from tests.trainer.redis_proxy import Proxy
from tests.trainer.run_result import Result, assert_close, assert_same
from tests.waiting import left_s, until


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as running:
        yield running


@pytest.fixture(autouse=True)
def _environment(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.use(monkeypatch)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), IMPRESSIONS)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, source: str) -> Result:
    """A run without interruption, in a folder."""
    root = tmp_path_factory.mktemp("unbroken")
    train(ad_pipeline(), TrainOptions(source, checkpoint=str(root), **OPTIONS))  # type: ignore[arg-type]
    return Result(root)


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/runs/{request.node.name}"


def downloaded(address: str, folder: Path) -> Result:
    """Final state of a run, from its objects alone."""
    stored = Stored(ObjectStore(address), folder, folder / "predictions")
    manifest = newest_whole(stored, Control(), "")
    assert manifest is not None
    bring_back(stored, manifest, partial(wrong_predictions, folder / "predictions"))
    write_manifest(folder, manifest)
    stored.close()
    return Result(folder)


def newest_generation(address: str) -> int:
    return max(Stored.temporary(address).generations(), default=0)


def kill_after_a_commit(
    process: Processes, address: str, rng: random.Random, sudden: Callable[[int], None]
) -> bool:
    """Kill a process soon after a new generation is stored; False: it had ended."""
    before = newest_generation(address)
    until(lambda: newest_generation(address) != before or process.poll() is not None)
    time.sleep(rng.random() * 0.4)
    ended = process.poll() is not None
    if not ended:
        sudden(process.pid)
    process.communicate(timeout=left_s())
    return not ended


def go(source: str, address: str, copy: Path, **more: object) -> None:
    options = {**OPTIONS, "checkpoint": address, "checkpoint_copy": str(copy), **more}
    train(ad_pipeline(), TrainOptions(source, **options))  # type: ignore[arg-type]


def test_killed_anywhere_it_resumes_from_an_empty_disk(
    tmp_path: Path, source: str, address: str, unbroken: Result, server: S3Server
) -> None:
    copy, rng = tmp_path / "copy", random.Random()
    options = {**OPTIONS, "source": source, "checkpoint": address, "checkpoint_copy": str(copy)}

    def kill(process: Processes) -> bool:
        killed = kill_after_a_commit(process, address, rng, kill_group)
        shutil.rmtree(copy)
        return killed

    where = address.removeprefix("s3://")
    kill_up_to(2, lambda: start(1, options), kill, lambda: server.files.delete_dir_contents(where))
    finish(start(1, options))
    assert_same(downloaded(address, tmp_path / "downloaded"), unbroken)
    # objects that no kept generation names are gone, as are those that a kill left unfinished
    stored = Stored(ObjectStore(address), tmp_path)
    named = {file.path for number in stored.generations() for file in stored.manifest(number).files}
    keys = server.keys(address.removeprefix(f"s3://{BUCKET}/"))
    assert {key for key in keys if key.endswith((".safetensors", ".bin"))} == named
    stored.close()


def test_each_rank_downloads_what_it_reads(
    tmp_path: Path, source: str, address: str, unbroken: Result
) -> None:
    """1 -> 2 -> 1 ranks, each time from an empty disk."""
    options = {**OPTIONS, "source": source, "checkpoint": address}
    finish(start(1, {**options, "checkpoint_copy": str(tmp_path / "a"), "max_steps": 25}))
    two = start(2, {**options, "checkpoint_copy": str(tmp_path / "b")})
    assert kill_after_a_commit(two, address, random.Random(), kill_one_rank)
    reader = Stored.temporary(address)
    manifest = newest_manifest(reader)
    assert manifest is not None and manifest.world == 2
    held = {file.path: reader.tensors_of(file) for file in manifest.files if file.kind == "tables"}
    Restored.of(reader, manifest).load_tables({"ad": DesStep(ad_pipeline(), seed=1).tables["ad"]})
    wanted = {path for path, names in held.items() if names & {"ad/keys", "ad/erased"}}
    assert {str(path.relative_to(reader.root)) for path in reader.root.rglob("*.safetensors")} == wanted
    assert wanted < held.keys(), "the other rank's tables are other files"
    reader.close()
    finish(start(1, {**options, "checkpoint_copy": str(tmp_path / "c")}))
    assert_close(downloaded(address, tmp_path / "downloaded"), unbroken)


def test_a_store_that_is_away_holds_nothing_up_and_nothing_is_lost(
    tmp_path: Path,
    source: str,
    address: str,
    unbroken: Result,
    server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def failures() -> float:
        return metric_value(telemetry.CHECKPOINT_STORE_FAILURES)

    copy, before, learned = tmp_path / "copy", failures(), threading.Event()
    monkeypatch.setattr("livectr.trainer.checkpoint.stored.LAST_DEADLINE_S", 60.0)
    with Proxy(server.endpoint) as proxy:
        server.use(monkeypatch, f"http://127.0.0.1:{urlsplit(proxy.url).port}")

        def outage() -> None:
            until(lambda: newest_manifest(copy) is not None)
            proxy.go_away()
            try:
                until(lambda: failures() > before)
                until(lambda: len(read_predictions(copy / "predictions")) == IMPRESSIONS)
                learned.set()
            finally:
                proxy.away = False

        thread = threading.Thread(target=outage, daemon=True)
        thread.start()
        go(source, address, copy, at_end="learn")  # else it would wait for the generation before the end
        thread.join()
    server.use(monkeypatch)
    assert learned.is_set(), "training did not continue while the store was away"
    assert_same(downloaded(address, tmp_path / "downloaded"), unbroken)


def test_damage_is_told_and_the_generation_before_is_used(
    tmp_path: Path,
    source: str,
    address: str,
    unbroken: Result,
    server: S3Server,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("livectr.trainer.checkpoint.prediction_parts.PART_BYTES", 16_384)
    prefix = address.removeprefix(f"s3://{BUCKET}/")
    for steps in (20, 40):
        go(source, address, tmp_path / "copy", max_steps=steps)
    stored = Stored(ObjectStore(address), tmp_path)
    newest, older = (stored.manifest(number) for number in sorted(stored.generations(), reverse=True)[:2])
    stored.close()
    assert len([file for file in newest.files if file.kind == PREDICTIONS]) > 2
    mine = {file.path for file in older.files}
    hurt = next(file.path for file in newest.files if file.path not in mine and file.kind == "dense")
    data = server.read(f"{prefix}/{hurt}")
    server.write(f"{prefix}/{hurt}", data[:-1] + bytes([data[-1] ^ 1]))
    go(source, address, tmp_path / "fresh")
    assert f"generation {newest.generation} is torn: {address}/{hurt} is not what was written" in caplog.text
    assert_same(downloaded(address, tmp_path / "downloaded"), unbroken)
    for key in server.keys(prefix):
        if key.endswith("dense.safetensors"):
            server.write(f"{prefix}/{key}", b"other")
    outside = FileEntry("../outside", "dense", 1, "0" * 64)
    with pytest.raises(CheckpointError, match=r"\.\./outside lies outside the checkpoint"):
        Stored.temporary(address).ensure(outside)
    with pytest.raises(CheckpointError, match=f"{address}: every generation is torn .*dense.safetensors"):
        go(source, address, tmp_path / "last")


def test_the_trainer_that_began_last_wins(
    tmp_path: Path, source: str, address: str, server: S3Server
) -> None:
    prefix = address.removeprefix(f"s3://{BUCKET}/")
    copy = tmp_path / "copy"

    def usurp() -> None:
        until(lambda: newest_generation(address) > before)
        server.write(f"{prefix}/{OWNER}", b'{"token": "other", "host": "node-7", "pid": 41}')

    go(source, address, tmp_path / "first", max_steps=2)
    owner = server.read(f"{prefix}/{OWNER}")
    with pytest.raises(MismatchError, match="belongs to another pipeline, which differs in seed"):
        go(source, address, tmp_path / "else", seed=2)
    assert server.read(f"{prefix}/{OWNER}") == owner, "a trainer of another pipeline stops nobody"
    before = newest_generation(address)
    thread = threading.Thread(target=usurp, daemon=True)
    thread.start()
    with pytest.raises(MismatchError, match=r"process 41 of node-7\) has begun on the checkpoint s3://"):
        go(source, address, copy)
    thread.join()
    kept = newest_manifest(copy)
    assert kept is not None and kept.generation == newest_generation(address)


def test_readers_take_the_address(
    tmp_path: Path,
    source: str,
    address: str,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    go(source, address, tmp_path / "copy", max_steps=5)
    folder = {**OPTIONS, "max_steps": 5, "checkpoint": str(tmp_path / "folder")}
    train(ad_pipeline(), TrainOptions(source, **folder))  # type: ignore[arg-type]
    assert livectr.read_embeddings(address, "ad").equals(livectr.read_embeddings(tmp_path / "folder", "ad"))
    check_age(address, 600)
    with pytest.raises(ConfigError, match=rf"the checkpoint {address} is .* old"):
        check_age(address, 600, now_s=time.time() + 3600)
    caplog.set_level("INFO")
    go(source, f"{address}-next", tmp_path / "next", max_steps=1, warm_start=address, warm_parts="full")
    assert "starts with content, embeddings, network of" in caplog.text
    assert main(["inspect", "--checkpoint", address]) == 2
    assert f"a folder is read here, not {address}; copy the objects" in capsys.readouterr().err


def test_a_wrong_place_is_told_before_training(
    tmp_path: Path, source: str, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="there is no bucket nowhere at http"):
        go(source, "s3://nowhere/run", tmp_path / "copy")
    with pytest.raises(ConfigError, match="checkpoint_copy is for a checkpoint in S3"):
        go(source, str(tmp_path / "folder"), tmp_path / "copy")
    with pytest.raises(ConfigError, match="names no bucket"):
        go(source, "s3://", tmp_path / "copy")
    server.refuse_keys(True)
    try:
        with pytest.raises(ConfigError, match=r"does not let these credentials use s3://.*AWS_ACCESS_KEY_ID"):
            go(source, f"s3://{BUCKET}/run", tmp_path / "copy")
    finally:
        server.refuse_keys(False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ConnectError, match=r"cannot be reached .*; check AWS_ENDPOINT_URL and AWS_REGION"):
        go(source, f"s3://{BUCKET}/run", tmp_path / "copy")


def test_a_run_is_continued_into_objects_and_out_of_them(tmp_path: Path, source: str, address: str) -> None:
    """As into a folder; a start that was killed before the manifest was there begins again.

    From an older generation the log since then is learned again.
    """
    pipeline, root = ad_pipeline(), tmp_path / "old"
    shared = {**OPTIONS, "threads": 1}
    train(pipeline, TrainOptions(source, checkpoint=str(root), max_steps=30, **shared))  # type: ignore[arg-type]
    copy = {"checkpoint": address, "checkpoint_copy": str(tmp_path / "copy")}
    (tmp_path / "copy" / "gen-00000099" / "rank-0").mkdir(parents=True)
    continued = dict(warm_start=str(root), warm_parts="run")
    train(pipeline, TrainOptions(source, **copy, **continued, max_steps=40, **shared))  # type: ignore[arg-type]
    shutil.rmtree(tmp_path / "copy")
    report = train(pipeline, TrainOptions(source, **copy, **continued, **shared))  # type: ignore[arg-type]
    assert report.complete
    for name, more in (("back", {}), ("again", {"relearn": "1h"})):
        back = dict(warm_start=address, warm_parts="run", checkpoint=str(tmp_path / name), **more)
        train(pipeline, TrainOptions(source, **back, **shared))  # type: ignore[arg-type]
    train(pipeline, TrainOptions(source, checkpoint=str(root), **shared))  # type: ignore[arg-type]
    want = Restored(root, newest(root)).dense()
    for folder in (tmp_path / "copy", tmp_path / "back", tmp_path / "again"):
        found = Restored(folder, newest(folder)).dense()
        assert found.keys() == want.keys()
        assert all(found[name].equal(tensor) for name, tensor in want.items())


def newest(folder: Path) -> Manifest:
    manifest = newest_manifest(folder)
    assert manifest is not None
    return manifest
