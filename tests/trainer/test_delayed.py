"""Runs that learn before labels are final: what is learned, counted and measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from livectr.ingest.language.delays import Delayed
from tests.trainer.ad_logs import write_files
from tests.trainer.delayed_run import (
    IMPRESSIONS,
    Run,
    by_instance,
    run,
    scores_of_what_was_not_learned_have_final_labels,
)
from tests.trainer.run_result import Result, assert_same
from tests.trainer.short_logs import constants


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), IMPRESSIONS)


@pytest.fixture(scope="module")
def fnw(tmp_path_factory: pytest.TempPathFactory, source: str) -> Run:
    return run(source, tmp_path_factory.mktemp("fnw"), "fnw")


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory, source: str) -> Run:
    return run(source, tmp_path_factory.mktemp("wait"), "wait")


def test_quality_is_measured_on_final_labels_and_each_impression_once(waits: Run, fnw: Run) -> None:
    want, got = by_instance(waits), by_instance(fnw)
    for name in ("instance", "user", "item", "time_ms", "label"):
        assert np.array_equal(got[name], want[name]), name
    late, stream = fnw.report.stream["late_positives"], fnw.report.stream
    assert waits.report.stream["late_positives"] == 0 < late < stream["clicked"]
    for report in (waits.report, fnw.report):
        assert report.examples_trained == report.stream["examples"] == IMPRESSIONS
        assert report.stream["clicked"] == want["label"].sum()
    # late positives take places in batches, which are learned; finals do not, but are looked up
    assert -(-(IMPRESSIONS + late) // 32) <= fnw.report.steps < -(-(2 * IMPRESSIONS + late) // 32)
    assert stream["lookups"]["ads"]["found"] == 2 * IMPRESSIONS + late


def test_a_score_is_of_the_time_of_the_impression(source: str, tmp_path: Path) -> None:
    """The first impressions are scored before anything is learned, as in a run that waits. These scores stay,
    although clicks of these impressions come many batches later."""
    kinds: list[Delayed] = ["fnw", "wait"]
    with constants(online=0):
        first, other = (by_instance(run(source, tmp_path / kind, kind))[:16] for kind in kinds)
    assert first["label"].sum() > 0
    for role in ("rank", "prerank"):
        np.testing.assert_allclose(first[role], other[role], atol=1e-5)


def test_windows_that_are_open_at_the_end_of_a_run_are_not_measured(
    source: str, waits: Run, fnw: Run, tmp_path: Path
) -> None:
    """They wait in the checkpoint, and the run that resumes ends as if it had never stopped."""
    stopped = run(source, tmp_path, "fnw", max_steps=15)
    assert 0 < len(stopped.predictions) < stopped.report.examples_trained
    end = stopped.predictions["time_ms"].max()
    scores_of_what_was_not_learned_have_final_labels(source, stopped, waits, "fnw")
    again = run(source, tmp_path, "fnw")
    assert again.predictions["time_ms"].max() > end
    assert_same(Result(tmp_path), Result(fnw.root))
    assert again.report.examples_trained == IMPRESSIONS
