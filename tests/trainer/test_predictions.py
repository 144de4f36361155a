"""The prediction log: what is appended is read back, and a resumed run logs nothing twice."""

import logging
from pathlib import Path

import numpy as np
import pytest

from livectr.system.errors import ConfigError
from livectr.trainer.quality.predictions import (
    PredictionLog,
    layout,
    read_predictions,
    records,
    wrong_predictions,
)


def batch(start: int, n: int) -> np.ndarray:
    number = np.arange(start, start + n)
    logit = np.sin(number).astype(np.float32)
    return records(
        instance=number,
        user=number % 3,
        item=number % 2,
        time_ms=number * 10,
        seen=(number // 2).astype(np.uint32),
        logits={"rank": logit},
        label=(logit > 0).astype(np.float32),
    )


def test_records_are_packed() -> None:
    assert layout(["rank", "ids"]).itemsize == 45
    assert batch(0, 2).dtype == layout(["rank"])
    with pytest.raises(ConfigError, match="cannot be named 'seen'"):
        layout(["rank", "seen"])


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "predictions"
    with PredictionLog(path) as log:
        log.append(batch(0, 5))
    assert read_predictions(path).tobytes() == batch(0, 5).tobytes()
    with path.open("ab") as file:
        file.write(b"a part of a record")
    assert len(read_predictions(path)) == 5, "as a run that is under way leaves it"
    with PredictionLog(path, ["rank", "ids"]) as log:
        assert len(log) == 0, "of other models: it begins again"
        with pytest.raises(ValueError, match="in a log of"):
            log.append(batch(0, 5))
    names = read_predictions(path).dtype.names
    assert names is not None and names[-2:] == ("rank", "ids")


@pytest.mark.parametrize(
    "held", [b"hello", b'{"format": "livectr predictions"}\n', b"{}\n" + bytes(300), b"[]"]
)
def test_another_file_is_not_written_over(held: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(held)
    with pytest.raises(ConfigError, match="is no prediction log, and is not written over"):
        PredictionLog(path)
    with pytest.raises(ConfigError, match="is no log of predictions of livectr train"):
        read_predictions(path)
    assert path.read_bytes() == held


def test_it_reads_back_what_was_appended() -> None:
    with PredictionLog() as log:
        assert len(log.read()) == 0
        log.append(batch(0, 5))
        log.append(batch(5, 3))
        assert len(log) == 8
        assert log.read().tobytes() == batch(0, 8).tobytes()
        assert log.report("rank")["all"].auc == 1.0
        assert log.report("rank")["last"].examples == 2


def test_a_resumed_log_is_cut_back_and_continues(tmp_path: Path) -> None:
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
    with PredictionLog(path) as log:
        log.append(batch(0, 3))
    with path.open("ab") as file:
        file.write(b"torn")
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


def test_a_bounded_log_drops_its_oldest_records(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is as long for a checkpoint as one that keeps all, and resumes at any length."""
    path = tmp_path / "predictions"
    with PredictionLog(path, keep=10) as log:
        for start in range(0, 100, 7):
            log.append(batch(start, 7))
            held = read_predictions(path)
            assert len(held) <= 20 and held.tobytes() == log.read().tobytes()
            assert held[-7:].tobytes() == batch(start, 7).tobytes()
        assert (len(log), log.sync(), log.sha256) == (105, 105, "")
        first = int(held["instance"][0])
        assert held.tobytes() == batch(first, 105 - first).tobytes()
        assert log.report("rank")["all"].examples == len(held) >= 10
    assert wrong_predictions(path, 105, "of before it was bounded") == ""
    with PredictionLog(path, keep=10) as log:
        log.truncate(100)
        assert len(log) == 100 and log.read()["instance"].max() == 99
        log.truncate(first - 5)  # of an older checkpoint
        assert len(log) == first - 5 and not len(log.read())
        log.append(batch(first - 5, 3))
    assert not caplog.messages and [p.name for p in tmp_path.iterdir()] == ["predictions"]
    with PredictionLog(path) as log:  # it may grow again
        assert len(log) == first - 2 and log.read().tobytes() == batch(first - 5, 3).tobytes()
    with PredictionLog(keep=10) as log:  # a temporary one
        for start in range(0, 100, 5):
            log.append(batch(start, 5))
        assert log.read()["instance"][-1] == 99 and 10 <= len(log.read()) <= 20
