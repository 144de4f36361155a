"""Metrics of a run with two ranks: complete from the start, and rank 0 alone speaks for the run."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import livectr.trainer.build  # noqa: F401 - declares the metrics of rank 0
from livectr.local.ports import free_ports
from livectr.local.scrape import Samples, scrape, value
from livectr.trainer import telemetry
from tests.trainer.ad_logs import write_files
from tests.trainer.processes import start
from tests.waiting import left_s, until

IMPRESSIONS = 3_000


def names(samples: Samples) -> set[str]:
    return {name for name, _ in samples}


def test_rank_0_alone_speaks_for_the_run(tmp_path: Path, redis_url: str) -> None:
    port = free_ports(2)
    options = dict(
        source=write_files(tmp_path / "logs", IMPRESSIONS),
        batch_size=128,
        batch_ramp=0,
        batch_interval_ms=1_000,
        idle_partition_s=0.2,
        metrics_port=port,
        publish=redis_url,
        namespace="endpoint",
        publish_interval_s=0.2,
        checkpoint=str(tmp_path / "checkpoint"),
        threads=1,
    )
    before_s = time.time()
    process = start(2, options)
    try:

        def learned() -> Samples | None:
            page = scrape(port)
            told = value(page, "livectr_published_version") and value(page, "livectr_auc", model="rank")
            return page if told else None

        first = until(learned, process=process, turn=lambda: time.sleep(0.2))
        second = scrape(port + 1)
        assert first is not None and second is not None
    finally:
        process.send_signal(signal.SIGTERM)  # torchrun passes it on and ends with an error of its own
        process.communicate(timeout=left_s())

    # what rank 0 alone knows
    assert len(telemetry.OF_RANK_0) > 20
    for metric in telemetry.OF_RANK_0:
        for family in metric.collect():
            own = {sample.name for sample in family.samples} - {f"{family.name}_created"}
            assert own <= names(first), f"rank 0 lacks {family.name}"
            assert not own & names(second), f"rank 1 has {family.name}"
    assert value(first, "livectr_auc", model="rank") and "livectr_auc" not in names(second)
    now_s = time.time()
    for name in ("livectr_published_timestamp_seconds", "livectr_checkpoint_timestamp_seconds"):
        assert before_s < (value(first, name) or 0) < now_s
    assert (value(first, "livectr_publish_seconds_count") or 0) >= 1
    for samples in (first, second):  # every rank copies its rows
        assert (value(samples, "livectr_publish_copy_seconds_count") or 0) >= 1
        assert (value(samples, "livectr_publish_copy_seconds_sum") or 0) > 0
    examples, clicks = (value(first, f"livectr_window_{name}") for name in ("examples", "clicks"))
    observed, predicted = (
        value(first, "livectr_observed_ctr"),
        value(first, "livectr_predicted_ctr", model="rank"),
    )
    assert examples and clicks and observed == clicks / examples and predicted
    ratio = value(first, "livectr_calibration_ratio", model="rank")
    assert ratio == pytest.approx(predicted / observed)

    # what every rank knows, from the start
    for samples in (first, second):
        assert "livectr_build_info" in names(samples)
        assert value(samples, "livectr_dead_letters_total", reason="bad_json") == 0
        assert value(samples, "livectr_redis_errors_total", client="publish", outcome="degraded") == 0
        assert (value(samples, "livectr_redis_seconds_count", client="publish") or 0) > 0
        free, size = (value(samples, f"livectr_disk{n}_bytes", folder="checkpoint") for n in ("_free", ""))
        assert free and size and 0 < free <= size
        assert value(samples, "livectr_unmatched_clicks_total") is not None
        tables = {dict(labels)["table"] for name, labels in samples if name == "livectr_table_rows"}
        assert tables
        for table in tables:
            assert value(samples, "livectr_table_bytes", table=table)
            assert value(samples, "livectr_evicted_rows_total", table=table) == 0
