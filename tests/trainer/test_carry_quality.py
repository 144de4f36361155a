"""A run whose pipeline changes keeps scores that wait for labels, maps of segments and weights of heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from livectr.ingest.language.calibration import Calibration
from livectr.ingest.pipeline import Pipeline
from livectr.models import FM, LR, Hedge
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.part import Part
from livectr.trainer.quality.calibrator import Calibrator
from livectr.trainer.quality.hedger import Hedger
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import ad_pipeline, write_files

IMPRESSIONS = 1_000


def pipeline(*, hour: bool = True, **changes: Any) -> Pipeline:
    whole = ad_pipeline(delayed="fnw")
    fields = {name: field for name, field in whole.sparse.items() if hour or name != "hour"}
    return replace(whole, prerank=None, sparse=fields, **changes)


BY_AGE, HEDGE = Calibration("age"), Hedge((LR(), FM(dim=4)))


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ({}, {"calibration": BY_AGE}, ()),
        ({"calibration": BY_AGE}, {"calibration": Calibration("hour")}, ()),
        ({"calibration": BY_AGE, "hour": False}, {"calibration": BY_AGE}, (Calibrator,)),
        ({"rank": HEDGE, "hour": False}, {"rank": HEDGE, "calibration": BY_AGE}, (Hedger,)),
        ({"rank": HEDGE}, {"rank": LR()}, None),
    ],
    ids=["calibrated", "other segments", "a field", "a field of a hedge", "another model"],
)
def test_what_was_measured_is_carried(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any], kept: tuple[type[Part], ...] | None
) -> None:
    source = write_files(tmp_path / "logs", IMPRESSIONS)
    options: dict[str, Any] = dict(until_end=True, batch_size=32, batch_ramp=0, threads=1)
    first, second = tmp_path / "first", tmp_path / "second"
    before = train(pipeline(**old), TrainOptions(source, checkpoint=str(first), max_steps=12, **options))
    scored = len(read_predictions(first / "predictions"))
    warm: dict[str, Any] = dict(warm_start=str(first), warm_parts="run", checkpoint=str(second))
    train(pipeline(**new), TrainOptions(source, **warm, **options))
    log = read_predictions(second / "predictions")
    # The scores of another model that wait are left out.
    assert len(log) == IMPRESSIONS - (scored if kept is not None else before.examples_trained)
    for part in kept or ():
        states = []
        for root in (first, second):
            manifest = newest_manifest(root)
            assert manifest is not None
            states.append(Restored(root, manifest).state(part.kind))
        if part is Calibrator:
            seen = [int(state["numbers"].sum()) for state in states]
            assert seen == [scored, IMPRESSIONS]
        else:
            assert states[1]["losses"].min() > states[0]["losses"].min() > 0
