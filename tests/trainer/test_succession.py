"""Who may publish where a version is served already, and that what is served never goes back."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from livectr.ingest.pipeline import Pipeline
from livectr.models.lr import LR
from livectr.store.manifest import VersionManifest
from livectr.system.errors import MismatchError, UserError
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.publish.succession import Cursor, refusal
from livectr.trainer.run import TrainOptions, train
from tests.redis_values import manifest_in
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.processes import finish, start
from tests.waiting import until

IMPRESSIONS = 2_000
HELD = VersionManifest(
    version=7, epoch=3, row_set="3-0", step=82, fingerprint="p", world=1, created_ms=0, dim=1, segments=(),
    tables={}, run_id="a", examples=900, committed=500,
)  # fmt: skip
AT = Cursor(7, 3, "3-0", 82, "a")


@pytest.mark.parametrize(
    ("held", "cursor", "learned", "fingerprint", "says"),
    [
        (None, None, 0, "p", None),
        (HELD, AT, 900, "p", None),
        (
            HELD,
            replace(AT, version=6, row_set=""),
            500,
            "p",
            None,
        ),  # killed after versions without a checkpoint
        (HELD, replace(AT, version=8, step=90), 990, "p", None),  # killed before the flip
        (HELD, AT, 499, "p", "whose checkpoint had 500 examples, but this --checkpoint has 499"),
        (HELD, replace(AT, run_id="b"), 9_999, "p", "another run, which has learned 900 examples"),
        (HELD, None, 0, "p", "another run"),
        (HELD, AT, 900, "q", "another pipeline"),
    ],
)
def test_rules(
    held: VersionManifest | None, cursor: Cursor | None, learned: int, fingerprint: str, says: str | None
) -> None:
    reported = refusal(held, cursor, learned=learned, fingerprint=fingerprint, where="namespace 'n'")
    if says is None:
        assert reported is None
    else:
        assert reported is not None and says in reported
        assert (
            "namespace 'n' serves version 7" in reported
            and "--take-over" in reported
            and "\n" not in reported
        )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), IMPRESSIONS)


def held_by(client: redis.Redis) -> VersionManifest:
    return manifest_in(client)


def everything(client: redis.Redis) -> dict[bytes, bytes | None]:
    return {key: client.dump(key) for key in client.scan_iter()}


def other_model(pipeline: Pipeline) -> Pipeline:
    return Pipeline(pipeline.log, sparse=pipeline.sparse, dense=pipeline.dense, rank=LR())


def test_nobody_takes_over_by_accident(
    tmp_path: Path, source: str, redis_url: str, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused with nothing fenced or removed; a restart of the same run needs no flag."""
    options = dict(
        until_end=True, batch_size=128, batch_ramp=0, publish=redis_url, publish_interval_s=60.0, threads=1
    )

    def run(checkpoint: str | None, pipeline: Pipeline | None = None, **more: object) -> None:
        path = str(tmp_path / checkpoint) if checkpoint is not None else None
        train(pipeline or ad_pipeline(), TrainOptions(source, checkpoint=path, **{**options, **more}))  # type: ignore[arg-type]

    run("first", max_steps=8, min_examples=1000)
    early = held_by(client)
    assert early.examples == 1024 and early.step == 8
    shutil.copytree(tmp_path / "first", tmp_path / "backup")
    run("first", max_steps=12)
    old = held_by(client)
    assert old.examples == 1536 and old.run_id == early.run_id and old.version > early.version
    run("first", max_steps=13)  # its older generation is of the second process, too
    old = held_by(client)
    before = everything(client)
    for checkpoint, pipeline, says in (
        ("new", None, "another run, which has learned 1,664 examples"),
        (None, None, "another run"),
        ("other", other_model(ad_pipeline()), "another pipeline"),
        ("backup", None, "but this --checkpoint has 1,024"),
    ):
        with pytest.raises(MismatchError, match=says) as raised:
            run(checkpoint, pipeline)
        assert isinstance(raised.value, UserError) and "--take-over" in str(raised.value)
        assert everything(client) == before
    # a model that has learned too little takes the place of none, whoever asks
    run("new", take_over=True, max_steps=3, min_examples=1000)
    assert held_by(client) == old
    assert "must have learned 1000" in caplog.text
    run("new", take_over=True, min_examples=1000)
    taken = held_by(client)
    assert taken.run_id != old.run_id and taken.version > old.version and taken.examples == IMPRESSIONS
    # the first run's checkpoint is none of that run's
    with pytest.raises(MismatchError, match="another run"):
        run("first")
    # a while without publishing does not make it another run
    run("new", publish=None)
    run("new")
    assert held_by(client).run_id == taken.run_id
    # going back is done by whoever says so
    run("backup", take_over=True, max_steps=8)
    assert held_by(client).examples == 1024


def test_a_warm_start_counts(tmp_path: Path, source: str, redis_url: str, client: redis.Redis) -> None:
    options: dict[str, Any] = dict(until_end=True, batch_size=128, batch_ramp=0, threads=1)
    train(ad_pipeline(), TrainOptions(source, checkpoint=str(tmp_path / "a"), max_steps=8, **options))
    options |= dict(publish=redis_url, min_examples=1100, warm_start=str(tmp_path / "a"), max_steps=1)
    train(ad_pipeline(), TrainOptions(source, warm_parts="none", **options))
    assert client.get("{livectr}:manifest") is None
    train(ad_pipeline(), TrainOptions(source, warm_parts="full", **options))
    assert held_by(client).examples == 128


class Served(threading.Thread):
    """Looks at what is served, all the time."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(daemon=True)
        self.client = client
        self.versions: list[VersionManifest] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            text = self.client.get("{livectr}:manifest")
            if text is not None and (not self.versions or text != self.versions[-1].to_json()):
                self.versions.append(VersionManifest.from_json(text))
            time.sleep(0.002)


def test_killed_between_a_publish_and_its_checkpoint_it_does_not_go_back(
    tmp_path: Path, source: str, redis_url: str, client: redis.Redis
) -> None:
    """The only checkpoint is that of the start; versions are published all the time."""
    options: dict[str, object] = dict(
        source=source, checkpoint=str(tmp_path), checkpoint_interval_s=3600, publish=redis_url,
        publish_interval_s=0.05, batch_size=16, batch_ramp=0, threads=1, until_end=True, min_examples=0,
    )  # fmt: skip
    served = Served(client)
    served.start()
    try:
        process = start(1, options)
        until(lambda: served.versions and served.versions[-1].step >= 20, process=process)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kept, at = newest_manifest(tmp_path), held_by(client)
        assert kept is not None and kept.examples < at.examples
        finish(start(1, options))
    finally:
        served.stop.set()
        served.join()
    assert len({manifest.epoch for manifest in served.versions}) == 2
    for before, after in zip(served.versions, served.versions[1:], strict=False):
        assert after.version > before.version and after.examples >= before.examples
        assert after.step >= before.step
    assert served.versions[-1].examples == IMPRESSIONS
