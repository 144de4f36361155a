"""`livectr experiment ablate`: trainings of each table, a run on a tiny log, numbers of the tables."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bench.dicm_page
from bench.ablation import jobs
from bench.ablation.ablate import AblateOptions, ablate, grids_named, write_tables
from bench.ablation.child import run as run_job
from bench.ablation.grids import GRIDS, runs_of
from bench.ablation.jobs import Job
from bench.ablation.span import Span, only, span_of
from bench.ablation.student import gain, mean_and_spread, t_quantile
from bench.ablation.tables import Row, Table, markdown, tables_of
from livectr import EventTime, Pipeline, Stream, labelled
from livectr.cli import main
from livectr.ingest.content.store import ContentStore
from livectr.ingest.pipeline import load_pipeline
from livectr.models.dicm import DICM
from livectr.models.dnn import DNN
from livectr.simulator.simulate import SimulateOptions, simulate
from livectr.simulator.traffic import TrafficOptions
from livectr.simulator.truth import World
from livectr.system.errors import ConfigError, UserError
from livectr.trainer.options import TrainOptions

ROOT = Path(__file__).parent.parent.parent
PIPELINE = ROOT / "examples" / "images" / "pipeline.py"
WIDTH = 128


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with logs, ledger and features: a thousand impressions, new ads all the time."""
    folder = tmp_path_factory.mktemp("ablate")
    options = SimulateOptions(
        f"file:{folder / 'logs'}",
        World(users=15, ads=40, ad_interval_s=3600, ad_life=8),
        TrafficOptions(rate=0.02, seconds=60_000, label_window_ms=600_000, tick_ms=60_000),
        partitions=1,
        real_time=False,
        ledger=str(folder / "ledger.arrows"),
    )
    simulate(options)
    ids = np.arange(1_000_001, 1_000_300)
    features = np.random.default_rng(1).normal(size=(len(ids), WIDTH)).astype(np.float32)
    ContentStore.create(folder / "features", width=WIDTH, encoder="random").append(ids, features)
    return folder


def options(log: Path, out: Path, *grids: str, **more: object) -> AblateOptions:
    values: dict[str, object] = dict(
        pipeline=str(PIPELINE),
        source=f"file:{log / 'logs'}",
        content=f"images={log / 'features'}",
        grids=grids,
        out=out,
        seeds=2,
        at_once=2,
    )
    return AblateOptions(**{**values, **more})  # type: ignore[arg-type]


class Here:
    """Training in this process, which has ended when it is returned; a child would import PyTorch again."""

    exit_code = 0

    def __init__(self, job: Job) -> None:
        job.work().mkdir(parents=True, exist_ok=True)
        run_job(job)


def test_two_variants_and_two_seeds_end_to_end(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_start", Here)
    requested = options(log, tmp_path, "prerank", ledger=str(log / "ledger.arrows"))
    ended: list[str] = []
    text = ablate(requested, progress=lambda name, done, total: ended.append(name))
    assert sorted(ended) == ["", "ids-1", "ids-2", "towers-1", "towers-2"]
    report = json.loads((tmp_path / "ablation.json").read_text())
    assert set(report["variants"]) == {"towers_ids", "towers", "truth"}
    for variant, seeds in report["variants"].items():
        assert set(seeds) == {"1", "2"}
        tests = [one["test"] for one in seeds.values()]
        assert tests[0]["examples"] == tests[1]["examples"] > 150
        assert 0 < tests[0]["cold_examples"] < tests[0]["examples"]
        assert (tests[0]["gauc"] == tests[1]["gauc"]) is (variant == "truth"), "a seed changes a model"
    assert not (tmp_path / "work").exists()
    assert (tmp_path / "table8.svg").stat().st_size > 1000
    assert text == (tmp_path / "tables.md").read_text()
    # the table shows the numbers of the report
    for variant, label in (("towers_ids", "baseline"), ("towers", "DICM")):
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {label} |"))
        mean = sum(one["test"]["gauc"] for one in report["variants"][variant].values()) / 2
        assert f"| {mean:.4f}(" in line
    # results are not trained again; another setting has other results
    ended.clear()
    assert ablate(requested, progress=lambda name, done, total: ended.append(f"{name} {total}")) == text
    assert ended == [" 0"]


def test_a_warm_start_takes_the_earlier_parts_checkpoint(log: Path, tmp_path: Path) -> None:
    given = load_pipeline(PIPELINE)
    source = f"file:{log / 'logs'}"
    span = span_of(given, source, divided=True)
    runs = {run.name: run for run in runs_of(given, ("warm_up",))}
    assert list(runs) == ["ids", "earlier", "joint", "partial", "full"]

    def job(name: str) -> Job:
        run = runs[name]
        content = f"images={log / 'features'}"
        return Job(
            str(PIPELINE), ("warm_up",), name, 1, source, content, None, span, str(tmp_path), name,
            needs=run.needs, keeps=run.keeps,
        )  # fmt: skip

    (tmp_path / "results").mkdir()
    for name in ("earlier", "joint", "full"):
        job(name).work().mkdir(parents=True)
        run_job(job(name))
    results = {name: job(name).result() for name in ("joint", "full")}
    curves = {name: found["variants"][name]["curve"] for name, found in results.items() if found}
    assert len(curves) == 2 and curves["joint"] != curves["full"], "the same seed, log and model otherwise"
    other = job("partial")
    other.work().mkdir(parents=True)
    (tmp_path / "work" / "earlier-1").rename(tmp_path / "work" / "moved")
    with pytest.raises(ConfigError, match="checkpoint"):
        run_job(other)


def test_the_parts_of_a_log_make_up_the_whole(log: Path) -> None:
    given, source = load_pipeline(PIPELINE), f"file:{log / 'logs'}"
    span = span_of(given, source, divided=True)
    assert span.divided and span.start_ms < span.split_ms < span.test_ms < span.end_ms
    parts = [
        span_of(only(given, part, span.split_ms), source, divided=False) for part in ("earlier", "later")
    ]
    assert sum(part.examples for part in parts) == span.examples
    assert parts[0].end_ms < span.split_ms <= parts[1].start_ms
    assert not parts[0].divided


def test_a_part_of_a_log_keeps_its_event_time() -> None:
    columns = {"user_id": "int64", "ts": "int64", "label": "int32"}
    time = EventTime("ts", unit="s", max_ahead="10s", max_disorder="5s")
    log = labelled(Stream("shown", key="user_id", time=time, columns=columns), label="label")
    whole = Pipeline(log, sparse=dict(user=log.user_id), rank=None)
    shown = only(whole, "earlier", 7).log.impressions
    assert (shown.time, shown.time_unit, shown.max_ahead_ms, shown.max_disorder_ms) == (
        "ts", "s", 10_000, 5_000,
    )  # fmt: skip


@pytest.mark.parametrize("grid", GRIDS)
def test_every_variant_of_a_table_is_trained_once(grid: str) -> None:
    given = load_pipeline(PIPELINE)
    runs = runs_of(given, (grid,))
    trained = [variant for run in runs for variant, _ in run.models.values()]
    assert len(trained) == len(set(trained))
    rows = {row.variant for table in tables_of((grid,)) for row in table.rows}
    assert rows <= set(trained)
    assert set(trained) - rows <= {"earlier", "ids"}
    span = Span(0, 100, 40 if grid == "warm_up" else 0, 80, 10)
    prints = {run.pipeline(given, span).fingerprint for run in runs}
    assert len(prints) == len(runs) - (2 if grid == "warm_up" else 0), "warm variants start otherwise"


def test_all_grids_share_their_variants() -> None:
    runs = runs_of(load_pipeline(PIPELINE), GRIDS)
    names = [run.name for run in runs]
    assert len(names) == len(set(names)) == 15
    (ids,) = (run for run in runs if not run.images)
    assert set(ids.models) == {"rank", "lr_ids", "din_ids", "towers_ids"}
    assert grids_named("all") == GRIDS and grids_named("images, prerank") == ("images", "prerank")


def test_a_pipeline_without_such_models_is_refused() -> None:
    given = load_pipeline(PIPELINE)
    no_dicm = replace(given, rank=DNN(), content={}, prerank=None)
    with pytest.raises(ConfigError, match=r"rank is DNN; say rank=DICM"):
        runs_of(no_dicm, ("images",))
    with pytest.raises(ConfigError, match=r"prerank=TwoTower"):
        runs_of(no_dicm, ("prerank",))
    assert isinstance(given.rank, DICM)
    no_pairs = replace(given, rank=replace(given.rank, target=(), behaviors=()))
    with pytest.raises(ConfigError, match="DIN needs pairs"):
        runs_of(no_pairs, ("basic_net",))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--grid", "colour"], "there is no grid 'colour'; --grid takes images, aggregator"),
        (["--grid", "images"], "say --content images=DIR"),
        (["--grid", "images", "--seeds", "0"], "whole number of at least 1"),
        (["--grid", "images", "--content", "images=nowhere", "--source", "file:nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = [
        "experiment",
        "ablate",
        "--pipeline",
        str(PIPELINE),
        "--source",
        f"file:{tmp_path}",
        "--out",
        str(tmp_path / "o"),
    ]
    assert main([*start, *flags]) == 2
    output = capsys.readouterr().err
    assert said in output and output.count("\n") == 1


@pytest.mark.full
def test_a_training_that_fails_says_why(log: Path, tmp_path: Path) -> None:
    requested = options(log, tmp_path, "prerank", content=f"images={tmp_path / 'none'}", seeds=1, at_once=1)
    ended: list[str] = []
    with pytest.raises(ConfigError, match="none"):
        ablate(requested, progress=lambda name, done, total: ended.append(name))
    assert ended == ["", "ids-1"], "what needs no content was trained before"
    assert (tmp_path / "results" / "ids-1.json").exists()


def test_a_training_that_a_signal_ended_leaves_no_result(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result of half a log would be kept for later ablations."""
    check_files = TrainOptions.check_files

    def interrupted(self: TrainOptions) -> None:
        check_files(self)
        signal.raise_signal(signal.SIGTERM)  # as soon as the training has its handler

    monkeypatch.setattr(TrainOptions, "check_files", interrupted)
    source = f"file:{log / 'logs'}"
    span = span_of(load_pipeline(PIPELINE), source, divided=False)
    job = Job(str(PIPELINE), ("prerank",), "ids", 1, source, None, None, span, str(tmp_path), "key")
    job.work().mkdir(parents=True)
    job.result_file.parent.mkdir()
    with pytest.raises(UserError, match="a signal ended the training before the log's end"):
        run_job(job)
    assert not list(job.result_file.parent.iterdir())


# Student's t and the tables


@pytest.mark.parametrize(
    ("degrees", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_quantiles_of_students_t(degrees: int, t: float) -> None:
    assert t_quantile(degrees) == pytest.approx(t, abs=5e-5)


def test_a_gain_is_paired() -> None:
    a, b = [0.60, 0.62, 0.61, 0.65], [0.61, 0.64, 0.62, 0.66]
    found = gain(a, b)
    d = np.subtract(b, a)
    assert found.mean == pytest.approx(d.mean())
    assert found.half_width == pytest.approx(3.1824 * d.std(ddof=1) / 2, rel=1e-4)
    assert found.sure and not gain(a, [0.5, 0.7, 0.6, 0.7]).sure
    assert math.isnan(gain([0.6], [0.7]).half_width) and not gain([0.6], [0.7]).sure
    with pytest.raises(ValueError, match="2 and 1 seeds"):
        gain([0.1, 0.2], [0.1])
    assert mean_and_spread([0.5])[0] == 0.5 and math.isnan(mean_and_spread([0.5])[1])


def test_cells_of_a_table() -> None:
    table = Table("t", "A title", (Row("one", "a"), Row("two", "b", "a", 0.0055)), ("gauc",))
    results = {
        "a": {"1": {"gauc": 0.6}, "2": {"gauc": 0.61}},
        "b": {"1": {"gauc": 0.65}, "2": {"gauc": 0.6601}},
    }
    assert markdown(table, results).splitlines() == [
        "**A title**",
        "",
        "| variant | GAUC | GAUC gain | GAUC gain in the paper |",
        "| --- | ---: | ---: | ---: |",
        "| one | 0.6050(0.0071) |  |  |",
        "| two | 0.6551(0.0071) | +0.0501 ± 0.0006 * | +0.0055 |",
    ]


def test_the_page_shows_the_committed_numbers(tmp_path: Path) -> None:
    report = json.loads((bench.dicm_page.FOLDER / "ablation.json").read_text())
    text = write_tables(report, tmp_path)
    assert text == (bench.dicm_page.FOLDER / "tables.md").read_text(), "run `python -m bench.dicm_page`"
    shown = bench.dicm_page.PAGE.read_text()
    assert bench.dicm_page.page(shown) == shown, "run `python -m bench.dicm_page`"
    for table in tables_of(report["grids"]):
        assert (bench.dicm_page.FOLDER / f"{table.name}.svg").read_bytes() == (
            tmp_path / f"{table.name}.svg"
        ).read_bytes()
