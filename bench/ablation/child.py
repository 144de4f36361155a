"""Training of an ablation, a process of its own: `python -m bench.ablation.child JOB.json`."""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

if __name__ == "__main__":
    from livectr.trainer.process import share_cores

    share_cores()  # before torch is imported

from bench.ablation.grids import Run, runs_of
from bench.ablation.jobs import MISTAKE, Job
from bench.ablation.measures import TRUTH, measure
from livectr.config.sources import resolve
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.simulator.ledger import read_ledger
from livectr.system.errors import UserError
from livectr.trainer.options import TrainOptions
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.run import train


def run(job: Job) -> None:
    """Train, measure, and leave the result."""
    began = time.monotonic()
    given = load_pipeline(job.pipeline)
    (what,) = (one for one in runs_of(given, job.grids) if one.name == job.run)
    pipeline = what.pipeline(given, job.span)
    work = job.work()
    predictions = work / "predictions"
    predictions.unlink(missing_ok=True)
    train(pipeline, _options(job, what, pipeline, predictions)).whole()
    held = read_predictions(predictions)
    logits = {variant: held[role] for role, (variant, _) in what.models.items()}
    if job.ledger is not None and not what.images:
        logits[TRUTH] = true_logits(Path(job.ledger), held["instance"])
    result = {
        "key": job.key,
        "seconds": round(time.monotonic() - began, 1),
        "variants": {name: measure(held, logit, job.span) for name, logit in logits.items()},
    }
    unfinished = job.result_file.with_suffix(".tmp")
    unfinished.write_text(json.dumps(result) + "\n")
    unfinished.rename(job.result_file)
    predictions.unlink()


def _options(job: Job, what: Run, pipeline: Pipeline, predictions: Path) -> TrainOptions:
    """Settings of the pipeline, of the environment, and of the job."""
    settings = resolve({}, pipeline=pipeline.settings)
    values: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(TrainOptions)}
    own = dict(
        source=job.source,
        until_end=True,
        seed=job.seed,
        content=job.content,
        predictions=str(predictions),
        dead_letters=str(job.work() / "dead_letters"),
        checkpoint=str(job.work() / "checkpoint") if job.keeps else None,
        publish=None,
        report=None,
        materialized=None,
        metrics_port=0,
        threads=job.threads,
    )
    if what.needs is not None:
        own |= dict(warm_start=str(job.work(what.needs) / "checkpoint"), warm_parts=what.parts)
    return TrainOptions(**values | own)


def true_logits(ledger: Path, instance: NDArray[np.int64]) -> NDArray[np.float32]:
    """Log odds f32[n] of the planted click probabilities of examples by instance id int64[n]."""
    table = read_ledger(ledger)
    request = table["request_id"].to_numpy()  # rising
    at = np.searchsorted(request, instance).clip(max=len(request) - 1)
    if not len(request) or (request[at] != instance).any():
        raise UserError(f"{ledger} is the ledger of another log.")
    probability = table["probability"].to_numpy()[at]
    return np.asarray(np.log(probability / (1 - probability)), np.float32)


def main() -> int:
    """Run the job. Exit codes: 0 done; MISTAKE a user's mistake, with a sentence on the last line."""
    logging.basicConfig(level=logging.WARNING)
    try:
        run(Job.read(Path(sys.argv[1])))
    except UserError as error:
        print(f"livectr: {error}", file=sys.stderr, flush=True)
        return MISTAKE
    return 0


if __name__ == "__main__":
    sys.exit(main())
