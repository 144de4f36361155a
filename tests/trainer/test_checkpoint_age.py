"""A checkpoint that is older than allowed is refused with a sentence, before anything is touched."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest

from livectr.cli import main
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.age import check_age, in_words
from livectr.trainer.checkpoint.manifest import MANIFEST, Manifest, newest_manifest
from tests.trainer.ad_logs import write_files

PIPELINE = "from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def train(tmp_path: Path) -> list[str]:
    """`livectr train` over a small log, with a checkpoint."""
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    flags = ["--pipeline", str(tmp_path / "pipeline.py"), "--source", write_files(tmp_path / "logs", 200)]
    flags += ["--checkpoint", str(tmp_path / "checkpoint"), "--until-end", "--set", "threads=1"]
    return ["train", *flags, "--set", "batch_size=64"]


def aged(root: Path, days: float) -> Manifest:
    """Make the newest generation older by rewriting when it was written."""
    manifest = newest_manifest(root)
    assert manifest is not None
    older = dataclasses.replace(manifest, created_ms=manifest.created_ms - round(days * 86_400_000))
    path = root / f"gen-{manifest.generation:08d}" / MANIFEST
    path.write_bytes(older.to_json())
    os.utime(path)  # the age does not come from the file's time, which a copy changes
    return older


def test_an_old_checkpoint_is_refused_unless_told(
    train: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "checkpoint"
    assert main([*train, "--set", "max_checkpoint_age_s=1d"]) == 0  # there is none yet
    assert main([*train, "--set", "max_checkpoint_age_s=1d"]) == 0
    written = aged(root, 3)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main([*train, "--set", "max_checkpoint_age_s=1d"]) == 2
    said = capsys.readouterr().err
    assert "is 3 days old; max_checkpoint_age_s allows 24 hours" in said and "accept_stale" in said
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert main([*train, "--set", "max_checkpoint_age_s=1d", "accept_stale=true"]) == 0
    assert main(train) == 0
    manifest = newest_manifest(root)
    assert manifest is not None and manifest.step == written.step


def test_a_checkpoint_of_an_earlier_program_has_no_age(train: list[str], tmp_path: Path) -> None:
    assert main(train) == 0
    root = tmp_path / "checkpoint"
    manifest = newest_manifest(root)
    assert manifest is not None
    check_age(root, 3600, now_s=manifest.created_ms / 1000 + 3599)
    outer = json.loads(manifest.to_json())
    values = json.loads(outer["body"])
    del values["created_ms"]
    body = json.dumps(values, sort_keys=True)
    text = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body})
    (root / f"gen-{manifest.generation:08d}" / MANIFEST).write_text(text)
    with pytest.raises(ConfigError, match="does not say when it was written"):
        check_age(root, 3600)
    assert main(train) == 0  # it is restored all the same


def test_durations_are_said_in_the_unit_that_fits() -> None:
    said = [in_words(s) for s in (1, 119, 120, 7199, 7200, 172_799, 172_800, 1e7)]
    assert said == [
        "1 seconds",
        "119 seconds",
        "2 minutes",
        "120 minutes",
        "2 hours",
        "48 hours",
        "2 days",
        "116 days",
    ]
