"""`livectr versions` beside a running trainer and a running server: list, roll back, learn on, release."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import numpy as np
import pytest
import redis

import livectr.trainer.publish.snapshot
import livectr.trainer.schedule
import livectr.versions.rollback
from livectr.cli import main
from livectr.client.clients import PreRankClient, RankClient, RecommendClient
from livectr.ingest.language.promotion import Promotion
from livectr.ingest.pipeline import Pipeline
from livectr.library.scoring import CheckpointScorer
from livectr.library.tables import root_columns
from livectr.serving.app import App
from livectr.store.layout import Keyspace
from livectr.store.manifest import VersionManifest
from livectr.trainer.build import build
from livectr.trainer.checkpoint.keeping import readable
from livectr.trainer.checkpoint.manifest import Folder, Manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.checkpoint.step_back import MARK
from livectr.trainer.checkpoint.stored import placed
from livectr.trainer.comm.collectives import connect
from livectr.trainer.options import TrainOptions
from livectr.trainer.publish.telemetry import LOST_VERSIONS, PUBLISHED_VERSION
from livectr.trainer.run import Training, train
from livectr.versions import listing
from livectr.versions.rollback import chosen
from tests.metrics_page import metric_value
from tests.s3_server import BUCKET, S3Server
from tests.trainer import ad_logs
from tests.trainer.ad_logs import write_files
from tests.trainer.planted_log import CARDINALITY, PARTITIONS, contest_pipeline, write_log
from tests.waiting import until

PORTION, PORTIONS = 640, 7
"""Examples of a part of the log, which come together; a live log is cut into whole batches of 64."""
CONTEXT = {"user": 5, "C1": 3, "C3": 7, "C4": 11}
ITEMS = list(range(CARDINALITY[1]))
Script = Generator[str, None, None]
"""Yields while it waits."""
FILE = """\
from livectr.ingest.language.promotion import Promotion
from tests.trainer.planted_log import contest_pipeline

pipeline = contest_pipeline(prerank=True, challengers={}, promotion=Promotion())
"""


def expected(pipeline: Pipeline, root: Path, generation: int) -> np.ndarray:
    """Click probabilities of CONTEXT with every item, by a generation of a checkpoint."""
    manifest = Manifest.from_json((root / f"gen-{generation:08d}" / "MANIFEST.json").read_bytes())
    scorer = CheckpointScorer(pipeline, Restored(root, manifest), {})
    rows = [{**CONTEXT, "item": item} for item in ITEMS]
    return scorer.pctr(root_columns(pipeline, rows, {"items": [{"item": i, "C2": i} for i in ITEMS]}))


@dataclass
class World:
    """Files, Redis and the words of an operator."""

    root: Path
    url: str
    client: redis.Redis
    capsys: pytest.CaptureFixture[str]
    written: int = 0

    @property
    def learned_and_served(self) -> bool:
        """Tell if the served version has learned all of the log, and a checkpoint holds it."""
        if not self.client.exists(Keyspace().manifest) or self.served.examples != self.written:
            return False
        held = readable(self.checkpoint)
        return bool(held) and held[-1].examples == self.written

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def served(self) -> VersionManifest:
        return VersionManifest.from_json(self.client.get(Keyspace().manifest))  # type: ignore[arg-type]

    def says(self, *words: str, code: int = 0) -> str:
        """Output of a command of `livectr versions`, in one line."""
        self.capsys.readouterr()
        assert main(["versions", *words, "--redis", self.url]) == code
        done = self.capsys.readouterr()
        return " ".join((done.err if code else done.out).split())

    def rolls_back(self, *words: str, code: int = 0) -> str:
        files = ["--pipeline", str(self.root / "p.py"), "--checkpoint", str(self.checkpoint)]
        return self.says("rollback", *files, *words, code=code)

    def append(self, portion: int) -> int:
        """Bring a portion of the log; returns the examples until its end."""
        share = PORTION // PARTITIONS
        for partition in range(PARTITIONS):
            lines = (self.root / "all" / "planted" / f"{partition:05d}.jsonl").read_text().splitlines(True)
            with (self.root / "logs" / "planted" / f"{partition:05d}.jsonl").open("a") as file:
                file.write("".join(lines[portion * share : (portion + 1) * share]))
        self.written = (portion + 1) * PORTION
        return self.written

    @property
    def generations(self) -> list[int]:
        """Generations of the checkpoint."""
        return sorted(int(path.parent.name[4:]) for path in self.checkpoint.glob("gen-*/MANIFEST.json"))


@pytest.fixture
def world(tmp_path: Path, redis_url: str, client: redis.Redis, capsys: pytest.CaptureFixture[str]) -> World:
    write_log(tmp_path / "all", PORTION * PORTIONS)
    (tmp_path / "logs" / "planted").mkdir(parents=True)
    (tmp_path / "logs" / "items").symlink_to(tmp_path / "all" / "items")
    (tmp_path / "p.py").write_text(FILE)
    world = World(tmp_path, redis_url, client, capsys)
    world.append(0)
    return world


def test_a_kept_version_is_served_again_until_the_release(
    world: World, serve: Callable[..., App], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(livectr.versions.rollback, "COLLECT_AFTER_S", 0.0)
    monkeypatch.setattr(livectr.trainer.schedule, "CHECKPOINT_PAUSE", 0.0)
    pipeline = contest_pipeline(prerank=True, challengers={}, promotion=Promotion())
    source = f"file:{world.root / 'logs'}"
    options = TrainOptions(
        source, batch_size=64, batch_ramp=0, threads=1, min_examples=0, publish=world.url,
        checkpoint=str(world.checkpoint), publish_interval_s=0.1, keep_ages="1ms", publish_gate_window=500,
        idle_partition_s=0.1, batch_interval_ms=None,
    )  # fmt: skip
    lost = metric_value(LOST_VERSIONS)
    with connect() as collectives, ExitStack() as resources:
        parts, stages = build(pipeline, options, collectives, resources)
        learned = lambda: parts.progress.examples  # noqa: E731
        script = operator(world, learned, serve, pipeline, source)
        # The script continues at each round of the training.
        Training(parts, stages, lambda: next(script, "done") == "done").run()
    assert metric_value(LOST_VERSIONS) == lost, "a rollback is no loss"


def rounds_until(condition: Callable[[], bool]) -> Script:
    """Wait by yielding: the script runs inside of the trainer's loop, which a wait of its own would stop."""
    while not condition():
        yield "waits"


def operator(
    world: World, learned: Callable[[], int], serve: Callable[..., App], pipeline: Pipeline, source: str
) -> Script:
    """Commands of an operator while the trainer runs, which continues at each yield."""
    for portion in range(1, PORTIONS - 1):
        yield from rounds_until(lambda: world.learned_and_served)
        world.append(portion)
    yield from rounds_until(lambda: world.learned_and_served)
    before = world.served
    listed = world.says("list", "--checkpoint", str(world.checkpoint))
    assert f"│ Redis │ {before.version} │" in listed and listed.count("kept for rollback") == 2
    assert len(world.generations) == 4
    kept, newest = world.generations[0], world.generations[-1]
    of_kept = expected(pipeline, world.checkpoint, kept)
    assert f"has no generation 999; it has {', '.join(map(str, world.generations))}" in world.rolls_back(
        "--generation", "999", code=2
    )
    assert "say --source" in world.rolls_back(code=2)

    address = serve("recommend", pipeline).server.address
    with (
        RankClient(address) as ranks,
        PreRankClient(address) as towers,
        RecommendClient(address) as funnels,
    ):

        def of(want: np.ndarray) -> None:
            reply = ranks.rank(CONTEXT, {"item": ITEMS})
            np.testing.assert_allclose(reply.pctr, want[list(reply.index)], atol=1e-6)
            assert not reply.degraded and reply.version == world.served.version

        def chosen() -> Any:
            return towers.prerank({"user": 5, "C1": 3, "C3": 7}, ITEMS, len(ITEMS))

        def follows() -> bool:
            return bool(ranks.describe().version == world.served.version)

        yield from rounds_until(follows)
        of(expected(pipeline, world.checkpoint, newest))
        first = chosen()

        said = world.rolls_back("--source", source, "--reason", "worse since noon")
        held = world.served
        assert said.startswith(f"version {held.version} is served: the model of generation {kept}, which")
        assert held.version > before.version and held.examples < before.examples
        assert held.run_id == before.run_id and held.row_set != before.row_set
        yield from rounds_until(follows)
        yield from rounds_until(lambda: ranks.describe().held == "worse since noon")
        of(of_kept)
        second = chosen()
        assert second.version == held.version and list(second.score) != list(first.score)
        pinned: list[Callable[[int], Any]] = [
            lambda version: ranks.pinned(version).rank(CONTEXT, {"item": ITEMS}),
            lambda version: towers.pinned(version).prerank({"user": 5, "C1": 3, "C3": 7}, ITEMS, 3),
            lambda version: funnels.pinned(version).recommend(CONTEXT, 3),
        ]
        for answer in pinned:
            assert answer(held.version).version == held.version
            with pytest.raises(grpc.RpcError, match=f"serves {held.version}; pin the version of a") as no:
                answer(before.version)
            assert no.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        names = world.client.keys(f"livectr:*:{before.row_set}:*")
        assert names == [], "rows of the version before are gone"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LIVECTR_PUBLISH", world.url)  # as in a trainer's pod
            assert main(["versions", "list"]) == 0
        assert "held since" in (said := world.says("list")) and said.endswith("worse since noon")
        assert "nowhere holds no checkpoint held since" in world.says("list", "--checkpoint", "nowhere")

        last = world.append(PORTIONS - 1)
        yield from rounds_until(lambda: learned() == last)
        yield from rounds_until(lambda: metric_value(PUBLISHED_VERSION) == held.version)
        assert world.served == held, "the trainer learns and does not publish"
        of(of_kept)

        world.says("release")
        yield from rounds_until(lambda: world.served.version > held.version)
        after = world.served
        assert after.examples == last and after.run_id == held.run_id and after.epoch > held.epoch
        yield from rounds_until(follows)
        of(expected(pipeline, world.checkpoint, world.generations[-1]))
        assert ranks.rank(CONTEXT, {"item": ITEMS}).version == after.version
        yield from rounds_until(lambda: ranks.describe().held == "")


def test_a_trainer_that_starts_after_a_rollback_waits_for_the_release(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resumes from its newest checkpoint, needs no --take-over, and publishes above the rollback."""
    monkeypatch.setattr(livectr.versions.rollback, "COLLECT_AFTER_S", 0.0)
    pipeline = contest_pipeline(prerank=True, challengers={}, promotion=Promotion())
    source = f"file:{world.root / 'logs'}"
    run: dict[str, Any] = dict(
        until_end=True, batch_size=64, batch_ramp=0, threads=1, min_examples=0, publish=world.url,
        checkpoint=str(world.checkpoint), publish_interval_s=0.01, seed=3, keep_ages="1ms,100ms,1s",
    )  # fmt: skip
    train(pipeline, TrainOptions(source, **run, max_steps=5))
    train(pipeline, TrainOptions(source, **run, max_steps=7))
    before = world.served
    kept = next(m.generation for m in readable(world.checkpoint) if m.examples == 5 * 64)
    world.rolls_back("--source", source, "--generation", str(kept))
    held = world.served
    assert (held.examples, before.examples, held.seed) == (320, 448, 3)
    report = train(pipeline, TrainOptions(source, **run))
    assert report.examples_trained == PORTION and world.served == held
    world.says("release")
    train(pipeline, TrainOptions(source, **run))
    assert world.served.examples == PORTION and world.served.version > held.version
    assert world.served.run_id == before.run_id and world.served.row_set != held.row_set


@pytest.mark.parametrize(
    ("ages_s", "chosen_s"),
    [
        ((3600, 300, 70, 20, 5), 70),  # whoever sees trouble has seen it for longer than some seconds
        ((40, 20, 5), 40),
        ((3600, 300), 300),
    ],
)
def test_a_rollback_goes_back_by_a_minute(tmp_path: Path, ages_s: tuple[int, ...], chosen_s: int) -> None:
    """A younger run goes back by as much as there is. Generations that say they are broken do not count."""
    now_ms, two_newest = 1_764_000_000_000, (1, 0)
    broken: dict[int, dict[str, Any]] = {3800: {"skipped": 3}, 65: {"held": "not finite: …"}}
    ages = sorted((*ages_s, *two_newest, 3800, 65), reverse=True)
    for number, age_s in enumerate(ages, start=1):
        made = Manifest(
            number, 1, number, 10_000 - age_s, 0, {}, None, (), (), {}, {}, {}, "",
            created_ms=now_ms - 1000 * age_s, quality=broken.get(age_s, {}),
        )  # fmt: skip
        (tmp_path / f"gen-{number:08d}").mkdir()
        (tmp_path / f"gen-{number:08d}" / "MANIFEST.json").write_bytes(made.to_json())
    served = SimpleNamespace(examples=10_000, created_ms=now_ms)
    manifest = chosen(Folder(tmp_path), None, cast(VersionManifest, served))
    assert (now_ms - manifest.created_ms) / 1000 == chosen_s


def test_a_rollback_of_another_run_or_of_nothing_is_refused(world: World) -> None:
    pipeline = contest_pipeline(prerank=True, challengers={}, promotion=Promotion())
    source = f"file:{world.root / 'logs'}"
    run: dict[str, Any] = dict(
        until_end=True, batch_size=256, threads=1, min_examples=0, publish=world.url, max_steps=2
    )
    assert "holds no checkpoint" in world.rolls_back("--source", source, code=2)
    train(pipeline, TrainOptions(source, **run, checkpoint=str(world.checkpoint)))
    assert (
        "keeps no generation that has learned less than what is served (keep_ages, keep_bytes)"
        in world.rolls_back("--source", source, code=2)
    )
    words = ("--source", source, "--generation", str(world.generations[-1]))
    text = world.client.get(Keyspace().manifest)
    world.client.set(
        Keyspace().manifest,
        json.dumps({**json.loads(text), "run_id": "another"}, separators=(",", ":")),  # type: ignore[arg-type]
    )
    assert f"serves version {world.served.version} of another run" in world.rolls_back(*words, code=2)
    with pytest.MonkeyPatch.context() as patch:  # a version comes while the checkpoint is read
        flip = json.dumps({**json.loads(text), "version": 77}, separators=(",", ":"))  # type: ignore[arg-type]
        patch.setattr(listing, "_generations", lambda _: world.client.set(Keyspace().manifest, flip) and [])
        assert "│ Redis │ 77 │" in world.says("list", "--checkpoint", str(world.checkpoint))
    world.client.flushall()
    assert "holds no whole version" in world.rolls_back(*words, code=2)
    assert world.client.keys("*") == []
    assert "nothing is published under the namespace 'livectr'" in world.says("list", code=2)


def test_a_rollback_reads_a_checkpoint_in_an_object_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is the generation's model. To let the trainer go on from there needs a folder."""
    pipeline = contest_pipeline(prerank=True, challengers={}, promotion=Promotion())
    source, address = f"file:{world.root / 'logs'}", f"s3://{BUCKET}/run"
    with S3Server() as server:
        server.use(monkeypatch)
        options: dict[str, Any] = dict(until_end=True, batch_size=256, threads=1, min_examples=0)
        options |= dict(publish=world.url, checkpoint=address, checkpoint_copy=str(world.root / "copy"))
        for steps in (1, 2):
            train(pipeline, TrainOptions(source, **options, max_steps=steps))
        manifests, newest = readable(placed(address)), world.served
        older = next(m for m in manifests if m.examples < newest.examples)
        files = ["--pipeline", str(world.root / "p.py"), "--checkpoint", address]
        words = ["rollback", *files, "--source", source]
        generation = ["--generation", str(older.generation)]
        assert "needs a checkpoint in a folder" in world.says(*words, *generation, "--and-train", code=2)
        assert world.served == newest
        said = world.says(*words, *generation)
        assert said.startswith(
            f"version {newest.version + 1} is served: the model of generation {older.generation}"
        )
        assert world.served.examples == older.examples and world.client.exists(Keyspace().hold)
        assert f"generation {older.generation} " in world.says("list", "--checkpoint", address)


def test_the_trainer_goes_on_from_a_rollback(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running one forgets what it has learned since, learns it again, and ends as an unbroken run; the next
    one does so where none runs."""
    monkeypatch.setattr(livectr.versions.rollback, "COLLECT_AFTER_S", 0.0)
    monkeypatch.setattr(livectr.trainer.schedule, "CHECKPOINT_PAUSE", 0.0)
    pipeline = contest_pipeline(prerank=True, challengers={}, promotion=Promotion())
    source = f"file:{world.root / 'logs'}"
    run: dict[str, Any] = dict(
        batch_size=64, batch_ramp=0, threads=1, min_examples=0, publish=world.url, keep_ages="1ms",
        publish_interval_s=0.05, checkpoint=str(world.checkpoint),
    )  # fmt: skip
    said: list[str] = []
    failed: list[BaseException] = []

    def operate() -> None:
        try:
            for portion in range(1, PORTIONS):
                until(lambda: world.learned_and_served)
                world.append(portion)
            until(lambda: world.learned_and_served)
            before = world.served
            said.append(world.rolls_back("--source", source, "--and-train"))
            held = world.served
            assert held.version > before.version and held.examples < before.examples
            until(lambda: readable(world.checkpoint)[-1].examples == world.written)
            assert world.served == held, "until the release"
            world.says("release")
            until(lambda: world.served.version > held.version and world.served.examples == world.written)
        except BaseException as error:
            failed.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=operate)
    thread.start()
    report = train(pipeline, TrainOptions(source, **run))
    thread.join()
    if failed:
        raise failed[0]
    assert report.examples_trained == PORTION * PORTIONS
    kept = readable(world.checkpoint)
    said_of = re.search(r"\. ([\d,]+) examples of \d+ seconds before version \d+ are forgotten", said[0])
    assert said_of is not None and int(said_of[1].replace(",", "")) % 64 == 0
    assert said[0].endswith("; the trainer goes on from there, and learns what came after it again")
    assert not (world.checkpoint / MARK).exists() and not [*world.checkpoint.glob(".reading-*")]

    unbroken = world.root / "unbroken"
    alone = run | {"checkpoint": str(unbroken), "publish": None, "until_end": True}
    alone["order_of"] = str(world.checkpoint)  # a partition is idle where the machine is busy
    train(pipeline, TrainOptions(source, **alone))

    def state(root: Path) -> dict[str, bytes]:
        dense = Restored(root, readable(root)[-1]).dense()
        return {name: tensor.numpy().tobytes() for name, tensor in dense.items()}

    assert state(world.checkpoint) == state(unbroken)

    # No trainer runs: the next one goes on from there.
    text = world.rolls_back("--source", source, "--generation", str(kept[-3].generation), "--and-train")
    assert text.endswith("; no trainer runs, and the next one goes on from there")
    assert readable(world.checkpoint)[-1].examples == kept[-3].examples < kept[-1].examples
    report = train(pipeline, TrainOptions(source, **run, until_end=True))
    assert report.examples_trained == PORTION * PORTIONS
    assert state(world.checkpoint) == state(unbroken)


def test_a_generation_with_numbers_that_are_not_finite_is_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by a program that did not look: nothing in its manifest says so."""
    monkeypatch.setattr(livectr.versions.rollback, "COLLECT_AFTER_S", 0.0)
    monkeypatch.setattr(livectr.versions.rollback, "SEEN_AFTER_S", 0)
    pipeline = contest_pipeline(challengers={}, promotion=Promotion())
    (world.root / "p.py").write_text(FILE.replace("prerank=True, ", ""))
    source, unused = f"file:{world.root / 'logs'}", np.array([10**6])
    run: dict[str, Any] = dict(
        until_end=True, batch_size=64, batch_ramp=0, threads=1, min_examples=0, publish=world.url,
        checkpoint=str(world.checkpoint), keep_ages="1ms,1h",
    )  # fmt: skip
    train(pipeline, TrainOptions(source, **run, max_steps=3))
    with monkeypatch.context() as old, connect() as collectives, ExitStack() as resources:
        old.setattr(livectr.trainer.publish.snapshot, "broken_rows", lambda *_: "")
        parts, stages = build(pipeline, TrainOptions(source, **run, max_steps=5), collectives, resources)
        table = parts.step.tables["C2"]
        table.find_or_insert(unused)
        table.assign(unused, np.full_like(table.export()[1][:1], np.nan))
        Training(parts, stages).run()
    for steps in (7, 8, 9):
        train(pipeline, TrainOptions(source, **run, max_steps=steps))
    broken = next(m.generation for m in readable(world.checkpoint) if m.examples > 192)
    before = world.served
    assert (
        f"generation {broken} holds numbers that are not finite (1 rows of table C2, the first of key "
        "1000000); nothing has changed"
    ) in world.rolls_back("--generation", str(broken), code=2)
    assert world.served == before
    said = world.rolls_back()
    assert re.search(r"the model of generation \d+, which has learned 192 examples", said)
    assert re.search(
        rf"Generations with numbers that are not finite were passed over: [\d, ]*{broken}\. It", said
    )


@pytest.mark.parametrize("prerank", [False, True])
def test_look_up_rows_and_histories_stay(
    tmp_path: Path, client: redis.Redis, redis_url: str, prerank: bool
) -> None:
    """They are facts, not the model: no generation has them."""
    maker = "ad_pipeline" if prerank else "without_statistics"
    (tmp_path / "p.py").write_text(f"from tests.trainer.ad_logs import {maker}\n\npipeline = {maker}()\n")
    run: dict[str, Any] = dict(
        until_end=True, batch_size=64, batch_ramp=0, threads=1, min_examples=0, publish=redis_url,
        checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip
    source = write_files(tmp_path / "logs", 600)
    for steps in (2, 5):
        train(getattr(ad_logs, maker)(), TrainOptions(source, **run, max_steps=steps))

    def values() -> dict[bytes, bytes | None]:
        names = [name for kind in ("lookup", "history") for name in client.scan_iter(f"*:{kind}:*")]
        return {name: client.get(name) for name in names}  # type: ignore[misc]

    before, older = values(), readable(tmp_path / "checkpoint")[-2]
    assert {name.split(b":")[2] for name in before} == {b"lookup", b"history"}
    words = ["versions", "rollback", "--pipeline", str(tmp_path / "p.py"), "--redis", redis_url]
    words += ["--checkpoint", str(tmp_path / "checkpoint"), "--generation", str(older.generation)]
    assert main([*words, *(["--source", source] if prerank else [])]) == 0
    assert values() == before
