"""Event times in another unit than milliseconds: rejected with advice, or converted as declared."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from livectr.ingest.chunks import Chunk
from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.decode.decoder import Decoder
from livectr.ingest.decode.messages import MessageList
from livectr.ingest.language.event_times import LIKELY, EventTime, milliseconds
from livectr.ingest.language.streams import Stream
from livectr.system.errors import ConfigError

MS = 1_700_000_000_123


def stream(unit: str | None = None) -> Stream:
    columns = {"user": "int64", "ts": "int64"}
    return Stream("shown", key="user", time=EventTime("ts", unit=unit), columns=columns)


def decode(times: list[Any], unit: str | None = None) -> tuple[Chunk, DeadLetters]:
    letters = DeadLetters(None)
    values = [json.dumps({"user": 1, "ts": ts}).encode() for ts in times]
    return Decoder(stream(unit), letters).messages(0, MessageList.of(range(len(values)), values)), letters


@pytest.mark.parametrize(
    ("unit", "ts", "change"),
    [
        ("s", MS // 1000, "is in seconds, the pipeline says milliseconds; multiply it by 1000, or declare "),
        (
            "us",
            MS * 1000,
            "is in microseconds, the pipeline says milliseconds; divide it by 1000, or declare ",
        ),
        (
            "ns",
            MS * 10**6,
            "is in nanoseconds, the pipeline says milliseconds; divide it by 1000000, or declare ",
        ),
    ],
)
def test_another_unit_is_refused_and_can_be_declared(unit: str, ts: int, change: str) -> None:
    chunk, letters = decode([MS, ts, MS + 1])
    assert chunk.batch["ts"].to_pylist() == [MS, MS + 1]
    assert letters.counts == {Reason.BAD_TIME: 1}
    reported = letters.rows.topics()["shown"]
    assert (reported.rows, reported.unusable) == (3, 1)
    assert (
        reported.commonest.startswith(f"time `ts` {change}")
        and f'time=EventTime("ts", unit="{unit}")' in reported.commonest
    )
    chunk, letters = decode([ts], unit)
    assert chunk.batch["ts"].to_pylist() == [MS if unit != "s" else MS // 1000 * 1000]
    assert decode([ts], "ms")[0].batch["ts"].to_pylist() == [ts]
    assert not letters.counts


def test_small_and_odd_times_are_times() -> None:
    """Simulated logs count from 0; a clock that is years off is not a wrong unit."""
    times = [
        0,
        1,
        -5,
        10 * 86_400_000,
        631_152_000_000,
        MS,
        MS + 10**11,
        LIKELY["s"][0] - 1,
        LIKELY["s"][1] + 1,
    ]
    chunk, letters = decode(times)
    assert chunk.batch["ts"].to_pylist() == times
    assert not letters.counts


def test_the_same_rows_are_refused_however_they_come() -> None:
    """A row is judged by itself: alone, in an array, as JSON and as Arrow."""
    rng = np.random.default_rng(5)
    times = np.concatenate(
        [rng.integers(-(2**62), 2**62, 50), rng.integers(0, 5 * 10**9, 50), [2**63 - 1, -(2**63)]]
    )
    _, masks = milliseconds(pa.array(times), None)
    refused = np.logical_or.reduce(list(masks.values()))
    alone = [bool(milliseconds(pa.array([ts]), None)[1]) for ts in times.tolist()]
    assert refused.tolist() == alone and 0 < refused.sum() < len(times)
    chunk, _ = decode(times.tolist())
    assert chunk.offset.tolist() == np.flatnonzero(~refused).tolist()
    batch = pa.RecordBatch.from_pydict({"user": np.zeros(len(times), np.int64), "ts": times})
    rows = Decoder(stream(), DeadLetters(None)).rows(0, 0, batch)
    assert rows.offset.tolist() == chunk.offset.tolist()


def test_timestamps_know_their_unit_and_seconds_that_do_not_fit_are_no_times() -> None:
    stamps = pa.array([MS // 1000 * 1000], pa.timestamp("ms"))
    batch = pa.RecordBatch.from_pydict({"user": [1], "ts": stamps})
    for unit in (None, "ms", "s", "us", "ns"):
        chunk = Decoder(stream(unit), DeadLetters(None)).rows(0, 0, batch)
        assert chunk.batch["ts"].to_pylist() == [MS // 1000 * 1000]
    chunk, letters = decode([2**62, None, 5], "s")
    assert chunk.batch["ts"].to_pylist() == [5000] and letters.counts == {Reason.WRONG_TYPE: 2}


def test_a_unit_is_one_of_four_and_milliseconds_are_the_usual_ones() -> None:
    with pytest.raises(ConfigError, match="event time 'ts': unit is 'sec'; write one of ms, s, us, ns"):
        stream("sec")
    assert repr(stream("ms")) == repr(stream()) != repr(stream("s"))


def test_a_column_alone_is_an_event_time_in_milliseconds() -> None:
    columns = {"user": "int64", "ts": "int64"}
    plain = Stream("shown", key="user", time="ts", columns=columns)
    assert repr(plain) == repr(stream())  # equal fingerprints
    assert (plain.time, plain.time_unit, plain.max_ahead_ms, plain.max_disorder_ms) == ("ts", None, 60_000, 0)
    bounded = EventTime("ts", max_ahead="10s", max_disorder="5s")
    given = Stream("shown", key="user", time=bounded, columns=columns)
    assert (given.time, given.max_ahead_ms, given.max_disorder_ms) == ("ts", 10_000, 5_000)
    with pytest.raises(ConfigError, match="event time 'ts': max_disorder: 'soon' is not a duration"):
        EventTime("ts", max_disorder="soon")
    with pytest.raises(ConfigError, match="event time 'ts': max_ahead: a duration must be positive"):
        EventTime("ts", max_ahead=0)
    with pytest.raises(ConfigError, match="time column 'when' is not declared"):
        Stream("shown", key="user", time=EventTime("when"), columns=columns)
