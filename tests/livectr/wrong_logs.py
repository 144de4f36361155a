"""Small logs that do not fit a pipeline, and the messages of `livectr train` about them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from livectr.cli import main

START_MS = 1_700_000_000_000
LABELLED = """
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.language.streams import Stream, labelled
from livectr.ingest.language.tables import Table
from livectr.models import LR

shown = Stream("shown", key="user", time="ts", columns={
    "user": "int64", "campaign": "int64", "price": "float64", "ts": "int64", "click": "int32"})
log = labelled(shown, label="click")
sparse = {"user": log.user, "campaign": log.campaign}
pipeline = Pipeline(log, sparse=sparse, dense={"price": log.price}, rank=LR())
"""
JOINED = """
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.language.streams import Stream, label_join
from livectr.ingest.language.tables import Table
from livectr.models import LR

ids = {"request": "int64", "user": "int64", "ad": "int64", "ts": "int64"}
shown = Stream("shown", key="user", time="ts", columns=ids)
clicks = Stream("clicks", key="user", time="ts", columns=ids)
ads = Table("ads", key="ad", columns={"ad": "int64", "category": "string"})
log = label_join(shown, clicks, on="request", window="1s").lookup(ads)
pipeline = Pipeline(log, sparse={"user": log.user, "category": ads.category}, rank=LR())
"""


def row(number: int, **changes: Any) -> dict[str, Any]:
    """One row of the log of LABELLED; a change to None leaves the column null."""
    rng = random.Random(number)
    usual = {
        "user": rng.randrange(50),
        "campaign": rng.randrange(20),
        "price": rng.random(),
        "ts": START_MS + number * 10,
        "click": int(rng.random() < 0.3),
    }
    return {**usual, **changes}


def request(number: int, **changes: Any) -> dict[str, Any]:
    """One row of the logs of JOINED."""
    return {
        "request": number, "user": number % 50, "ad": number % 20, "ts": START_MS + number * 10, **changes
    }  # fmt: skip


def write_json(root: Path, topic: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """One partition of JSON lines."""
    (root / topic).mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(one) + "\n" for one in rows)
    (root / topic / "00000-log.jsonl").write_text(lines)


def write_partitions(
    root: Path, topic: str, rows: Iterable[Mapping[str, Any]], partition: Callable[[Mapping[str, Any]], int]
) -> None:
    """JSON lines, each in the partition that a function of the row gives."""
    (root / topic).mkdir(parents=True, exist_ok=True)
    parts: dict[int, list[str]] = {}
    for one in rows:
        parts.setdefault(partition(one), []).append(json.dumps(one) + "\n")
    for number, lines in parts.items():
        (root / topic / f"{number:05d}-log.jsonl").write_text("".join(lines))


def write_arrow(root: Path, topic: str, rows: list[dict[str, Any]], partitions: int = 1) -> None:
    """An Arrow file per partition."""
    (root / topic).mkdir(parents=True, exist_ok=True)
    for partition in range(partitions):
        batch = pa.RecordBatch.from_pylist(rows[partition::partitions])
        path = root / topic / f"{partition:05d}-log.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)


class Learner:
    """Runs `livectr train` in this process, on the logs in folder/logs unless a source is given."""

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        self.folder, self._capsys, self._caplog = folder, capsys, caplog

    def __call__(
        self, pipeline: str, *flags: str, source: str | None = None
    ) -> tuple[int, dict[str, Any], str]:
        """(exit code, report, standard error)."""
        file = self.folder / "pipeline.py"
        file.write_text(pipeline)
        self._capsys.readouterr()
        self._caplog.clear()
        self._caplog.set_level("INFO")
        source = source or f"file:{self.folder / 'logs'}"
        usual = ["--until-end", "--set", "batch_size=512", "--json"]
        code = main(["train", "--pipeline", str(file), "--source", source, *usual, *flags])
        reported = self._capsys.readouterr()
        return code, json.loads(reported.out) if reported.out else {}, self._caplog.text + reported.err


def letters(folder: Path) -> list[dict[str, Any]]:
    """The dead letters of logs in folder/logs."""
    files = sorted((folder / "logs" / "livectr.dead_letters").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
