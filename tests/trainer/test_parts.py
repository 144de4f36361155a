"""Parts of a run: a checkpoint keeps their states under names that older and newer programs share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from livectr.models import LR
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.checkpoint_run import Run, reopen

PARTS = ("items", "scores", "contest", "gate", "record")
"""Kinds of files, in the order of the manifest; a checkpoint of LiveCTR 0.1 has the same."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), 600)


@pytest.mark.usefixtures("client")
def test_files_of_parts_keep_their_kinds_and_order(tmp_path: Path, source: str, redis_url: str) -> None:
    """A run with every part; then another process resumes from what all of them have saved."""
    pipeline = replace(ad_pipeline(delayed="fnw"), challengers={"plain": LR()})
    root = tmp_path / "checkpoint"
    options = TrainOptions(
        source, until_end=True, batch_size=64, batch_ramp=0, threads=1, checkpoint=str(root),
        publish=redis_url, run_log=str(tmp_path / "run.log"),
    )  # fmt: skip
    report = train(pipeline, options)
    manifest = newest_manifest(root)
    assert manifest is not None
    assert tuple(file.kind for file in manifest.files if file.kind in PARTS) == PARTS
    for file in manifest.files:
        assert file.kind not in PARTS or file.path.endswith(f"/{file.kind}.safetensors")
    restored = Restored(root, manifest)
    states = {kind: restored.state(kind) for kind in PARTS}
    assert states["items"]["counts"].sum() == report.examples_trained
    assert report.contest == {"champion": "rank", "since_step": 0, "changes": 0}

    assert train(pipeline, options).steps == report.steps, "the log holds nothing new"
    manifest = newest_manifest(root)
    assert manifest is not None and manifest.generation > restored.manifest.generation
    for kind in PARTS:
        again = Restored(root, manifest).state(kind)
        assert again.keys() == states[kind].keys()
        for name, array in states[kind].items():
            if (kind, name) != ("record", "length"):  # the second process has added lines
                assert again[name].tobytes() == array.tobytes(), (kind, name)


def test_the_state_of_a_part_that_no_program_knows_is_kept_by_its_kind(tmp_path: Path) -> None:
    run = Run(tmp_path)
    state = {"numbers": np.arange(3)}
    run.checkpoint.commit(replace(run.state(), parts={"mine": state}))
    restored = reopen(run)
    assert restored is not None
    assert restored.state("mine")["numbers"].tolist() == [0, 1, 2] and restored.state("other") == {}
