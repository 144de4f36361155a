"""`livectr experiment ablate`: variants of a pipeline's models on the same log, and the tables of DICM §7."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.ablation.figures import draw_curve, draw_table
from bench.ablation.grids import GRIDS, Run, runs_of
from bench.ablation.jobs import Job, run_jobs
from bench.ablation.measures import TRUTH
from bench.ablation.span import TEST, Span, span_of
from bench.ablation.tables import NAMES, Results, markdown, tables_of, values
from bench.machine import commit, hardware
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.system.errors import ConfigError
from livectr.trainer.quality.seen import COLD

SEED = "{seed}"


@dataclass(frozen=True)
class AblateOptions:
    """Options of an ablation. Settings of training, as batch_size, are the pipeline's.

    Args:
        pipeline: path of the pipeline file.
        source, content, ledger: may hold {seed}, so that every seed has a log of its own.
        grids: names in GRIDS.
        out: folder of results.
        seeds: number of seeds, from 1.
        at_once: trainings at a time.
        threads: of a training.
    """

    pipeline: str
    source: str
    grids: tuple[str, ...]
    out: Path
    content: str | None = None
    ledger: str | None = None
    seeds: int = 5
    at_once: int = 1
    threads: int = 1


Progress = Callable[[str, int, int], None]


def ablate(options: AblateOptions, *, progress: Progress = lambda *_: None) -> str:
    """Train, measure and write; returns the tables as Markdown, like DIR/tables.md.

    Raises ConfigError for a pipeline without the variants, missing content, or an empty log.
    """
    pipeline = load_pipeline(options.pipeline)
    runs = runs_of(pipeline, options.grids)
    if options.content is None and any(run.images for run in runs):
        raise ConfigError("variants with images need features: say --content images=DIR.")
    try:
        (options.out / "results").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {options.out} cannot be made: {error.strerror}.") from None
    seeds = range(1, options.seeds + 1)
    spans = _spans(pipeline, options, seeds)
    jobs = [
        _job(pipeline, options, run, spans[_of(options.source, seed)], seed) for seed in seeds for run in runs
    ]
    found = run_jobs(jobs, at_once=options.at_once, progress=progress)
    shutil.rmtree(options.out / "work", ignore_errors=True)
    report = _report(options, jobs, found)
    (options.out / "ablation.json").write_text(json.dumps(report, indent=1) + "\n")
    return write_tables(report, options.out)


def write_tables(report: dict[str, Any], folder: Path) -> str:
    """Tables and figures of a report (DIR/ablation.json) into a folder; returns the tables as Markdown."""
    results = results_of(report)
    tables = tables_of(report["grids"])
    for table in tables:
        draw_table(folder, table, results)
    text = "\n".join([*(markdown(table, results) for table in tables), caption(report)])
    (folder / "tables.md").write_text(text)
    best = next((table for table in tables if table.name == "table6"), None)
    if best is not None:
        variants = {row.label: row.variant for row in best.rows}
        curves = {
            v: {seed: one["curve"] for seed, one in report["variants"][v].items()} for v in variants.values()
        }
        first = next(iter(report["spans"].values()))
        draw_curve(folder, variants, curves, start_ms=first["split_ms"], end_ms=first["end_ms"])
    return text


def results_of(report: dict[str, Any]) -> Results:
    """Variant → seed → measure → value over the test part."""
    return {
        variant: {
            seed: {name: float("nan") if one["test"][name] is None else one["test"][name] for name in NAMES}
            for seed, one in seeds.items()
        }
        for variant, seeds in report["variants"].items()
    }


def caption(report: dict[str, Any]) -> str:
    """Caption of the numbers."""
    tested = next(iter(report["variants"].values()))
    counts = [(one["test"]["examples"], one["test"]["cold_examples"]) for one in tested.values()]
    examples, cold = (sum(column) / len(counts) for column in zip(*counts, strict=True))
    logs = "each on a log of its own" if len(report["spans"]) > 1 else "all on one log"
    return (
        f"{report['seeds']} seeds, {logs}; each example of the last {TEST:.0%} of the event time "
        f"({examples:,.0f} of them) scored before it was learned. Cold: {cold:,.0f} whose ad had been "
        f"learned fewer than {COLD} times. mean(standard deviation over seeds); gains are paired by seed, ± "
        f"half of the 95 % interval (Student's t), * where it leaves out 0.{_truth(report)}\n"
    )


def _truth(report: dict[str, Any]) -> str:
    """Sentence on the measures of the true click probabilities, where they are known."""
    if TRUTH not in report["variants"]:
        return ""
    of = {TRUTH: results_of(report)[TRUTH]}
    means = (f"{NAMES[name]} {fmean(values(of, TRUTH, name)):.4f}" for name in NAMES)
    return f" The true click probabilities, which nothing can beat, have {', '.join(means)}."


def _spans(pipeline: Pipeline, options: AblateOptions, seeds: Sequence[int]) -> dict[str, Span]:
    """Source → its span, of every source that the seeds read."""
    divided = "warm_up" in options.grids
    sources = dict.fromkeys(_of(options.source, seed) for seed in seeds)
    return {source: span_of(pipeline, source, divided=divided) for source in sources}


def _of(text: str, seed: int) -> str:
    return text.replace(SEED, str(seed))


def _job(pipeline: Pipeline, options: AblateOptions, run: Run, span: Span, seed: int) -> Job:
    source = _of(options.source, seed)
    content = None if options.content is None or not run.images else _of(options.content, seed)
    ledger = None if options.ledger is None else _of(options.ledger, seed)
    made_of = (run.pipeline(pipeline, span).fingerprint, run, pipeline.settings, source, content, ledger)
    return Job(
        pipeline=options.pipeline,
        grids=options.grids,
        run=run.name,
        seed=seed,
        source=source,
        content=content,
        ledger=ledger,
        span=span,
        folder=str(options.out),
        key=sha256(repr((*made_of, seed, span)).encode()).hexdigest(),
        needs=run.needs,
        keeps=run.keeps,
        threads=options.threads,
    )


def _report(options: AblateOptions, jobs: Sequence[Job], found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    variants: dict[str, dict[str, Any]] = {}
    for job in jobs:
        for variant, measured in found[job.name]["variants"].items():
            variants.setdefault(variant, {})[str(job.seed)] = measured
    return {
        "grids": list(options.grids),
        "seeds": options.seeds,
        "pipeline": options.pipeline,
        "commit": commit(),
        "hardware": hardware(),
        "seconds": {job.name: found[job.name]["seconds"] for job in jobs},
        "spans": {job.source: asdict(job.span) for job in jobs},
        "variants": variants,
    }


def grids_named(text: str) -> tuple[str, ...]:
    """Grids from "images,warm_up" or "all". Raises ConfigError for an unknown grid."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in (*GRIDS, "all"):
            raise ConfigError(f"there is no grid {name!r}; --grid takes {', '.join(GRIDS)}, all.")
    return GRIDS if "all" in names else names
