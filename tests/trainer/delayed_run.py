"""Runs that learn before labels are final."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from livectr.analysis.score_log import Scoring, score_log
from livectr.ingest.language.delays import Delayed
from livectr.trainer.quality.predictions import Records, read_predictions
from livectr.trainer.report import Report
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import ad_pipeline

IMPRESSIONS = 1_000


@dataclass(frozen=True)
class Run:
    root: Path
    report: Report

    @property
    def predictions(self) -> Records:
        return read_predictions(self.root / "predictions")


def run(source: str, root: Path, delayed: Delayed, **options: object) -> Run:
    fixed = dict(until_end=True, batch_size=32, batch_ramp=0, threads=1, checkpoint=str(root))
    settings = TrainOptions(source, **{**fixed, **options})  # type: ignore[arg-type]
    return Run(root, train(ad_pipeline(delayed=delayed), settings))


def by_instance(run: Run) -> Records:
    return np.sort(run.predictions, order="instance")


def scores_of_what_was_not_learned_have_final_labels(
    source: str, stopped: Run, waits: Run, delayed: Delayed
) -> None:
    file = stopped.root / "pipeline.py"
    file.write_text(
        f"from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline(delayed={delayed!r})\n"
    )
    path = score_log(Scoring(str(file), stopped.root, source, stopped.root / "scored"))
    assert path is not None
    scored, want = np.sort(read_predictions(path), order="instance"), by_instance(waits)
    assert len(scored) == IMPRESSIONS - stopped.report.examples_trained
    want = want[np.isin(want["instance"], scored["instance"])]
    assert np.array_equal(scored["instance"], want["instance"])
    assert np.array_equal(scored["label"], want["label"])
