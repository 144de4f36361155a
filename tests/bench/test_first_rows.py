"""The rows of bench.first_rows, from made-up runs, and what both sides read."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from bench.first_rows import (
    BESIDE,
    MODELS,
    RIVER,
    TORCHREC,
    VOWPAL,
    Run,
    lines_of,
    median,
    pipeline_file,
    write,
)
from bench.learning.logs import planted
from livectr.ingest.pipeline import load_pipeline
from livectr.trainer.des.step import DesStep


def test_goals_stand_apart_from_peers() -> None:
    runs = {"DeepFM": Run(5.0, 12_000.0), "LR": Run(2.0, 100_000.0), VOWPAL: Run(0.5, 400_000.0)}
    runs |= {RIVER: Run(4.0, 5_000.0), TORCHREC: Run(20.0, 2_000.0)}
    made = lines_of(10_000, runs)
    found = {(line["figure"], line["workload"]): line for line in made if line["peer"] is None}
    seconds = found["seconds to the report", "DeepFM, 10,000 rows"]
    assert (seconds["ours"], seconds["goal"], seconds["met"], seconds["peer"]) == (5.0, 4.0, False, None)
    speed = found["examples learned a second", "DeepFM, 10,000 rows"]
    assert (speed["ours"], speed["goal"], speed["met"]) == (12_000.0, 10_000.0, True)
    beside = {(str(line["workload"])[:2], line["peer_name"]): line for line in made if line["unit"] == "s"}
    assert {(model, peer) for model, peer in beside if peer} == {
        (m[:2], p) for m in MODELS for p in BESIDE[m]
    }
    ratio = [beside["LR", peer]["ratio"] for peer in (VOWPAL, RIVER)]
    assert ratio == [0.25, 2.0] and beside["De", TORCHREC]["ratio"] == 4.0
    assert len(made) == len(MODELS) * 2 + 2 * sum(map(len, BESIDE.values()))
    assert all(line["goal"] is None for line in lines_of(1_000, runs))


def test_the_median_is_of_each_figure() -> None:
    assert median([Run(1.0, 9.0), Run(2.0, 5.0), Run(9.0, 7.0)]) == Run(2.0, 7.0)


def test_all_sides_read_the_same_rows(tmp_path: Path) -> None:
    """Examples of ours are learned by compiled calls: the model has no other parts."""
    log = planted(1, 50)
    write(log, tmp_path)
    labels = pq.read_table(tmp_path / "planted")["label"].to_pylist()
    arrays = np.load(tmp_path / "log.npz")
    assert arrays["ids"].shape == (50, len(log.fields)) and arrays["label"].tolist() == labels
    texts = (tmp_path / "examples").read_text().splitlines()
    assert [1.0 if text.startswith("1 ") else 0.0 for text in texts] == labels == log.label.tolist()
    for model in MODELS:
        loaded = load_pipeline(str(pipeline_file(model, tmp_path)))
        assert len(loaded.sparse) == len(log.fields) and len(loaded.dense) == log.dense.shape[1]
        assert DesStep(loaded, seed=1).small is not None
