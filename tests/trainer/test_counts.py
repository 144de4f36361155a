"""Counters in runs, and counts of their features: the same on any number of ranks, and after kills."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

import livectr
from livectr.analysis.score_log import Scoring, score_log
from livectr.ingest.language.targets import Target
from livectr.ingest.materialized.writer import choose
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.run import TrainOptions, train
from tests.ingest.counted_log import OVER, START_MS, log_of, pipeline_of, read, write_log
from tests.ranks import Processes
from tests.trainer.ad_logs import write_files
from tests.trainer.counts_once import counting_ads
from tests.trainer.kills import OPTIONS, kill_group, kill_one_rank, kill_somewhere
from tests.trainer.processes import finish
from tests.trainer.run_result import Result, assert_close, assert_same


def counters(root: Path, kind: str = "counters") -> dict[str, bytes]:
    """Counters of the newest checkpoint, or the distributions of features ("drift")."""
    manifest = newest_manifest(root)
    assert manifest is not None
    return {name: array.tobytes() for name, array in Restored(root, manifest).state(kind).items()}


def test_ranks_that_are_killed_end_as_one_that_was_not(tmp_path: Path) -> None:
    source = write_files(tmp_path / "logs", 1_500)

    def begin(world: int, name: str) -> Processes:
        options = {**OPTIONS, "source": source, "checkpoint": str(tmp_path / name), "drift_window_s": 10}
        return Processes(world, "tests.trainer.counts_once", [json.dumps(options)])

    finish(begin(1, "unbroken"))
    for world, name, kill in ((1, "one", kill_group), (2, "two", kill_one_rank)):
        kill_somewhere(begin(world, name), tmp_path / name, random.Random(), kill)
        finish(begin(world, name))
    one, two, unbroken = (Result(tmp_path / name, counting_ads()) for name in ("one", "two", "unbroken"))
    assert_same(one, unbroken)
    assert_close(two, unbroken)
    want = counters(tmp_path / "unbroken")
    assert len(want) == 15 and all(want.values())
    assert counters(tmp_path / "one") == want and counters(tmp_path / "two") == want
    drift = counters(tmp_path / "unbroken", "drift")
    assert drift["reference_counts"] and drift["counts"]
    assert counters(tmp_path / "one", "drift") == drift and counters(tmp_path / "two", "drift") == drift


def test_a_checkpoint_scores_a_log_and_rows_with_its_counters(tmp_path: Path) -> None:
    """A log that is scored from the checkpoint on has the windows that it has from its start."""
    pipeline, by_ad, _ = pipeline_of(log_of())
    url, root = write_log(tmp_path / "logs"), tmp_path / "checkpoint"
    options = TrainOptions(url, until_end=True, threads=1, batch_size=64, checkpoint=str(root), max_steps=8)
    train(pipeline, options)
    (tmp_path / "p.py").write_text(
        "from tests.ingest.counted_log import log_of, pipeline_of\n\npipeline, *_ = pipeline_of(log_of())\n"
    )
    found = {}
    for name, from_start in (("all", True), ("rest", False)):
        asked = Scoring(str(tmp_path / "p.py"), root, url, tmp_path / name, from_start=from_start)
        path = score_log(asked)
        assert path is not None
        scores = read_predictions(path)
        found[name] = dict(zip(scores["instance"].tolist(), scores["rank"].tolist(), strict=True))
    assert 0 < len(found["rest"]) < len(found["all"]) == 400
    again = {instance: found["all"][instance] for instance in found["rest"]}
    assert found["rest"] == pytest.approx(again, abs=1e-6)  # rows of other batches: sums in another order

    (whole,) = read(pipeline, url, [10_000])
    manifest = newest_manifest(root)
    assert manifest is not None
    known = whole.order[: manifest.examples]
    shown = np.array(whole.columns.column("shown.ad").to_pylist()[: manifest.examples])
    ts, grain = int(known[-1]) + by_ad.counted.grain_ms, by_ad.counted.grain_ms
    row = {"user": 1, "ad": "ad1", "slot": 0, "ts": ts}
    made = livectr.features(pipeline, [row], checkpoint=root).to_pylist()[0]
    for window, over, span in zip(OVER, by_ad.counted.over_ms, by_ad.counted.spans, strict=True):
        begin, end = (ts - over) // grain // span * span * grain, ts // grain * grain
        assert made[f"ad_{window}_shown"] == ((shown == "ad1") & (known >= begin) & (known < end)).sum()
    assert livectr.features(pipeline, [row]).to_pylist()[0]["ad_5m_shown"] == 0
    assert (
        livectr.score(pipeline, root, [row])[0] != livectr.score(pipeline, root, [{**row, "ts": START_MS}])[0]
    )


def test_counters_are_refused_where_they_cannot_be(tmp_path: Path) -> None:
    pipeline, by_ad, _ = pipeline_of(log_of())
    with pytest.raises(ConfigError, match="'ad_6s_shown' depends on counters, which training keeps"):
        choose(pipeline, ["ad_6s_shown"])
    assert {feature.name for feature in choose(pipeline, None)} == {"slot", "ad"}
    with pytest.raises(ConfigError, match=r"Target 'many': .* depends on counters"):
        Target("many", by_ad.clicks["6s"] > 3)
