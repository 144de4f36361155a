"""Counters of a log: as of each impression, of what was known then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from livectr import Stream, Table, counts, labelled
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.join.example_columns import Examples
from livectr.ingest.language.delays import Delayed
from livectr.ingest.operators.counts import Counts
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR
from livectr.system.errors import ConfigError
from tests.ingest.counted_log import SHOWN, log_of, log_of_orders, pipeline_of, read, write_log


def dense(pipeline: Pipeline, batches: Sequence[Examples]) -> np.ndarray:
    extract = Extractor(pipeline.plan)
    return np.concatenate([extract(batch.columns).dense for batch in batches])


def expected(pipeline: Pipeline, of: Counts, keys: Sequence[object], all_: Sequence[Examples]) -> np.ndarray:
    """Impressions, clicks and smoothed rate of each window, by a loop over all examples before."""
    order, ts, label, late = (
        np.concatenate([getattr(batch, name) for batch in all_])
        for name in ("order", "time_ms", "label", "late")
    )
    grain, rows = of.counted.grain_ms, []
    final = label >= 2
    for i in range(len(order)):
        row: list[float] = []
        for over, span in zip(of.counted.over_ms, of.counted.spans, strict=True):
            begin, end = (ts[i] - over) // grain // span * span * grain, ts[i] // grain * grain
            seen = [j for j in range(i) if keys[j] == keys[i] and begin <= order[j] < end and not final[j]]
            n = sum(1 for j in seen if not late[j])
            clicks = sum(1 for j in seen if late[j] or label[j] > 0)
            row += [n, clicks, (clicks + 1.0) / (n + 20.0)]
        rows.append(row)
    return np.array(rows, np.float32)


@pytest.mark.parametrize("delayed", ["wait", "fnw", "vanilla", None])
def test_windows_are_those_of_a_loop_over_what_was_known(tmp_path: Path, delayed: Delayed | None) -> None:
    """Whatever the batches are; a label that is not known at an impression's time is in no window."""
    log = labelled(SHOWN, label="clicked") if delayed is None else log_of(delayed)
    pipeline, by_ad, by_both = pipeline_of(log)
    url = write_log(tmp_path)
    batches = read(pipeline, url, [7, 1, 64])
    found = dense(pipeline, batches)
    slots = np.concatenate([batch.columns.column("shown.slot").to_numpy() for batch in batches])
    wide, *_ = pipeline_of(log)
    plain = Pipeline(log, sparse={"ad": log.ad}, rank=LR())
    ads = [ad for batch in read(plain, url, [50]) for ad in batch.columns.column("shown.ad").to_pylist()]
    want = expected(pipeline, by_ad, ads, batches)
    assert (found[:, : want.shape[1]] == want).all()
    assert (
        found[:, want.shape[1] :] == expected(pipeline, by_both, list(zip(ads, slots, strict=True)), batches)
    ).all()
    assert want[:, -2].max() > 20, "windows have clicks"
    assert (dense(wide, read(wide, url, [1000])) == found).all()


def test_features_of_counts_have_names_and_one_scale() -> None:
    made = counts(log_of(), by="ad", over=("1m", "1h")).features("ad", prior=0.02)
    assert list(made) == [
        f"ad_{what}_{w}" for w in ("1m", "1h") for what in ("clicks", "impressions", "rate")
    ]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: counts(log_of(), by="aid", over="1m"), "shown has no column 'aid'"),
        (lambda: counts(log_of(), by=(), over="1m"), "by must name at least one column"),
        (lambda: counts(log_of(), by="ad", over=("1h", "1m")), "windows that get longer, not 1h, 1m"),
        (lambda: counts(log_of(), by="ad", over="0.5s"), "leave out the windows that are so short"),
        (lambda: counts(log_of(), by=Table("ads", key="a", columns={"a": "int64"}).a, over="1m"),
         "by names ads.a; it must name columns of shown"),
        (lambda: counts(labelled(SHOWN, label="clicked"), by="clicked", over="1m"), "is the label"),
        (lambda: counts(labelled(Stream("s", key="u", columns={"u": "int64", "l": "int64"}), label="l"),
                        by="u", over="1m"), "s has no time"),
        (lambda: counts(log_of(), by="ad", over="1m").rate("1h"), "no window '1h'; the windows are 1m"),
        (lambda: counts(log_of(), by="ad", over="1m").rate("1m", prior=0), "prior=0 must be between 0 and 1"),
        (lambda: Pipeline(labelled(SHOWN, label="clicked"), sparse={"slot": SHOWN.slot},
                          dense=counts(log_of(), by="ad", over="1m").features("ad"), rank=LR()),
         "counts by ad are of another log"),
    ],
)  # fmt: skip
def test_wrong_counts_are_refused_by_a_sentence(make: object, sentence: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=sentence):
        make()


def test_each_label_is_learned_of_the_windows_of_its_impression(tmp_path: Path) -> None:
    """An impression leaves for its cart, its click, and for its order up to three times."""
    pipeline, *_ = pipeline_of(log_of_orders())
    batches = read(pipeline, write_log(tmp_path), [7, 64])
    found, instance = dense(pipeline, batches), np.concatenate([batch.instance for batch in batches])
    counted = np.concatenate([~batch.final for batch in batches])
    assert counted.sum() == 400 and len(found) > 4 * 400
    of_click = dict(zip(instance[counted].tolist(), found[counted], strict=True))
    assert (found == np.stack([of_click[i] for i in instance.tolist()])).all()
    plain, *_ = pipeline_of(log_of())
    alone = read(plain, write_log(tmp_path / "again"), [64])
    assert (dense(plain, alone) == found[counted]).all(), "other labels change no counts"
