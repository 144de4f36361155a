"""`livectr train` in a tenth of the memory: the same model, also after kill -9; messages about mistakes."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import redis

from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.store.layout import Keyspace, decode_rows
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.des.step import DesStep
from tests.commands import Command
from tests.redis_values import manifest_in, values
from tests.waiting import left_s, until

PIPELINE = Path(__file__).with_name("wide_pipeline.py")
IMPRESSIONS = 4_000
ROW_BYTES = 130
"""Bytes of a row in DRAM, roughly: 10 values, each with two floats of state and more, and the index."""


def write_logs(root: Path) -> str:
    rng = random.Random(3)
    topics: dict[str, dict[int, list[dict[str, int]]]] = {"impressions": {}, "clicks": {}}
    for number in range(IMPRESSIONS):
        user, ad = rng.randrange(4000), int(3000 * rng.random() ** 2)
        event = {"request_id": number, "user_id": user, "ad_id": ad, "ts": 1_700_000_000_000 + 20 * number}
        topics["impressions"].setdefault(user % 2, []).append(event)
        if rng.random() < 0.1 + 0.4 * (ad % 3 == 0):
            topics["clicks"].setdefault(user % 2, []).append({**event, "ts": event["ts"] + 300})
    parts = {**topics, "ads": {0: [{"ad_id": a, "category": a % 50} for a in range(3000)]}}
    for topic, partitions in parts.items():
        (root / topic).mkdir(parents=True)
        for partition, events in partitions.items():
            lines = "".join(json.dumps(event) + "\n" for event in events)
            (root / topic / f"{partition:05d}-log.jsonl").write_text(lines)
    return f"file:{root}"


class Result:
    """Checkpoint of a finished run: rows by table and key, networks, predictions."""

    def __init__(self, root: Path, pipeline: Pipeline) -> None:
        manifest = newest_manifest(root)
        assert manifest is not None
        restored = Restored(root, manifest)
        step = DesStep(pipeline, seed=1)
        restored.load_tables(step.tables)
        self.rows = {}
        for name, table in step.tables.items():
            keys, rows = table.export()
            order = np.argsort(keys)
            self.rows[name] = keys[order], rows[order]
        self.dense = {name: tensor.numpy().tobytes() for name, tensor in restored.dense().items()}
        self.predictions = (root / "predictions").read_bytes()
        self.step = manifest.step

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Result)
        same = self.rows.keys() == other.rows.keys() and all(
            np.asarray(a).tobytes() == np.asarray(b).tobytes()
            for n in self.rows
            for a, b in zip(self.rows[n], other.rows[n], strict=True)
        )
        return same and (self.step, self.dense, self.predictions) == (
            other.step,
            other.dense,
            other.predictions,
        )

    @property
    def count(self) -> int:
        return sum(len(keys) for keys, _ in self.rows.values())


def train(source: str, checkpoint: Path, *flags: str, world: int = 1) -> subprocess.Popen[bytes]:
    torchrun = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world > 1 else []
    )
    command = [sys.executable, *torchrun, "-m", "livectr", "train", "--pipeline", str(PIPELINE)]
    command += ["--source", source, "--checkpoint", str(checkpoint), "--set", "batch_size=64"]
    command += [
        "--set",
        "batch_ramp=0",
        "--until-end",
        "--set",
        "publish_interval_s=0.2",
        "threads=1",
        *flags,
    ]
    begin = subprocess.Popen if torchrun else Command
    return begin(command, start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> str:
    reported, error = process.communicate(timeout=left_s())
    assert process.returncode == 0, error.decode()
    return reported.decode() + error.decode()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_logs(tmp_path_factory.mktemp("logs"))


def test_a_tenth_of_the_memory_learns_and_publishes_the_same_model(
    tmp_path: Path, source: str, redis_url: str
) -> None:
    pipeline = load_pipeline(PIPELINE)
    finish(train(source, tmp_path / "whole"))
    whole = Result(tmp_path / "whole", pipeline)
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    flags = ["--set", f"dram_bytes={whole.count // 10 * ROW_BYTES}", f"spill={tmp_path / 'ssd'}"]
    flags += [f"--publish={redis_url}"]
    # killed once, after it has committed and while rows are below
    running = train(source, tmp_path / "tiered", *flags)
    until(lambda: (m := newest_manifest(tmp_path / "tiered")) is not None and m.step >= 20, process=running)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    assert (tmp_path / "ssd" / "livectr-spill-0" / "rows").exists()
    finish(train(source, tmp_path / "tiered", *flags))
    assert Result(tmp_path / "tiered", pipeline) == whole
    assert not (tmp_path / "ssd" / "livectr-spill-0").exists()
    # servers read the same model
    version = manifest_in(client)
    assert version.step == whole.step and version.tables == {n: len(k) for n, (k, _) in whole.rows.items()}
    for name, (keys, rows) in whole.rows.items():
        held = values(client, Keyspace().rows(version.row_set, name, keys))
        served, status = decode_rows(held, version.version, version.dim)
        assert not status.any()
        assert served.tobytes() == np.ascontiguousarray(rows[:, : version.dim]).tobytes()


@pytest.mark.full
def test_two_ranks_each_with_a_tenth_learn_the_same_model(tmp_path: Path, source: str) -> None:
    pipeline = load_pipeline(PIPELINE)
    finish(train(source, tmp_path / "whole", world=2))
    whole = Result(tmp_path / "whole", pipeline)
    flags = ["--set", f"dram_bytes={whole.count // 20 * ROW_BYTES}", f"spill={tmp_path / 'ssd'}"]
    finish(train(source, tmp_path / "tiered", *flags, world=2))
    assert Result(tmp_path / "tiered", pipeline) == whole


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--set", "dram_bytes=1GiB"], "dram_bytes needs spill: name a folder on an SSD"),
        (["--set", "spill=ssd"], "spill needs dram_bytes"),
        (["--set", "dram_bytes=100", "spill={tmp}"], "dram_bytes is 100, less than"),
        (
            ["--set", "dram_bytes=1MiB", "spill=/proc/nothing"],
            "rows cannot be kept in /proc/nothing",
        ),
    ],
)
def test_what_cannot_work_is_told_at_the_start(
    tmp_path: Path, source: str, flags: list[str], says: str
) -> None:
    process = train(source, tmp_path / "none", *(flag.replace("{tmp}", str(tmp_path)) for flag in flags))
    _, error = process.communicate(timeout=left_s())
    assert process.returncode == 2 and says in error.decode()
