"""The prediction log: what is appended is read back, and a resumed run logs nothing twice."""

import logging
from pathlib import Path

import numpy as np
import pytest

from trainer.predictions import RECORD, PredictionLog, records


def batch(start: int, n: int) -> np.ndarray:
    number = np.arange(start, start + n)
    logit = np.sin(number).astype(np.float32)
    return records(
        instance=number,
        user=number % 3,
        time_ms=number * 10,
        logits={"rank": logit},
        label=(logit > 0).astype(np.float32),
    )


def test_records_are_packed() -> None:
    assert RECORD.itemsize == 33
    assert np.isnan(batch(0, 2)["prerank"]).all()


def test_it_reads_back_what_was_appended() -> None:
    with PredictionLog() as log:
        assert len(log.read()) == 0
        log.append(batch(0, 5))
        log.append(batch(5, 3))
        assert len(log) == 8
        assert log.read().tobytes() == batch(0, 8).tobytes()
        assert log.report("rank")["all"].auc == 1.0
        assert log.report("rank")["last"].examples == 2


def test_a_resumed_log_is_cut_back_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "new" / "predictions"
    with PredictionLog(path) as log:
        log.append(batch(0, 5))
        assert log.sync() == 5
        log.append(batch(100, 7))
    with PredictionLog(path) as log:
        assert len(log) == 12
        log.truncate(5)
        log.append(batch(5, 2))
        assert log.read().tobytes() == batch(0, 7).tobytes()


def test_a_torn_last_record_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "predictions"
    path.write_bytes(batch(0, 3).tobytes() + b"torn")
    with PredictionLog(path) as log:
        assert len(log) == 3
        log.truncate(3)
        log.append(batch(3, 1))
        assert log.read().tobytes() == batch(0, 4).tobytes()


def test_a_log_that_lost_records_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with PredictionLog(tmp_path / "predictions") as log, caplog.at_level(logging.WARNING):
        log.append(batch(0, 1))
        log.truncate(9)
        assert len(log) == 1
    assert "leaves 8 out" in caplog.text
