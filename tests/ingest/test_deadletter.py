"""Dead letters: each bad record keeps one letter, despite crashes at any point."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from livectr.ingest.chunks import Position
from livectr.ingest.dead_letters.letters import EXAMPLE, MAX_VALUE_BYTES, TOPIC, DeadLetters, Reason
from livectr.system.errors import ConfigError
from tests.metrics_page import metric_value


def put(
    letters: DeadLetters, offset: int, index: int = 0, *, partition: int = 0, value: bytes = b"{"
) -> None:
    letters.write(("clicks", partition, offset, index), Reason.BAD_JSON, "not JSON", value)


def read(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_bytes().splitlines()]


def test_a_letter(tmp_path: Path) -> None:
    counted = metric_value("livectr_dead_letters_total", reason="bad_json")
    with_bytes = b'{"a": "\xff'
    letters = DeadLetters(tmp_path)
    put(letters, 5, 2, partition=3)
    put(letters, 6, value=with_bytes)
    put(letters, 7, value=b"x" * (MAX_VALUE_BYTES + 1))
    assert len(letters) == 3
    assert letters.counts == {"bad_json": 3}
    letters.close()
    letters.close()
    first, second, third = read(tmp_path)
    assert first == {
        "topic": "clicks",
        "partition": 3,
        "offset": 5,
        "index": 2,
        "reason": "bad_json",
        "detail": "not JSON",
        "value": "{",
        "encoding": "text",
        "value_bytes": 1,
        "rows": 1,
    }
    assert (second["encoding"], second["value_bytes"]) == ("base64", len(with_bytes))
    assert (third["value"], third["value_bytes"]) == ("x" * MAX_VALUE_BYTES, MAX_VALUE_BYTES + 1)
    assert metric_value("livectr_dead_letters_total", reason="bad_json") == counted + 3


def test_a_resumed_run_writes_no_letter_twice(tmp_path: Path) -> None:
    """Letters from other writers count too: after an elastic resume a partition may have moved."""
    for writer, partition in ((0, 0), (1, 1)):
        letters = DeadLetters(tmp_path, writer=writer)
        for offset in (3, 5, 9):
            put(letters, offset, partition=partition)
        letters.close()
    letters = DeadLetters(tmp_path)
    letters.resume({("clicks", 0): Position(4, 0), ("clicks", 1): Position(5, 1)})
    for partition, offset in ((0, 5), (0, 7), (0, 9), (1, 9), (1, 11)):
        put(letters, offset, partition=partition)
    letters.close()
    found = sorted((letter["partition"], letter["offset"]) for letter in read(tmp_path))
    assert found == [(0, 3), (0, 5), (0, 7), (0, 9), (1, 3), (1, 5), (1, 9), (1, 11)]


def test_a_letter_about_an_example_is_written_once(tmp_path: Path) -> None:
    """Its place has no offset that a checkpoint could compare."""
    letters = DeadLetters(tmp_path)
    put(letters, EXAMPLE, 7)
    letters.close()
    letters = DeadLetters(tmp_path)
    letters.resume({("clicks", 0): Position(400, 0)})
    put(letters, EXAMPLE, 7)
    put(letters, EXAMPLE, -8)
    letters.close()
    assert [(letter["offset"], letter["index"]) for letter in read(tmp_path)] == [(-1, 7), (-1, -8)]


def test_a_letter_torn_by_a_crash(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path)
    put(letters, 1)
    put(letters, 2)
    letters.close()
    path = tmp_path / "00000-letters.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    letters = DeadLetters(tmp_path)
    letters.resume({("clicks", 0): Position(1, 0)})
    put(letters, 1)
    put(letters, 2)
    letters.close()
    lines = path.read_bytes().splitlines()
    assert len(lines) == 3
    assert [json.loads(line)["offset"] for line in (lines[0], lines[2])] == [1, 2]


def test_the_usual_places(tmp_path: Path) -> None:
    DeadLetters.for_source(f"file:{tmp_path}").close()
    assert (tmp_path / TOPIC / "00000-letters.jsonl").exists()
    DeadLetters.for_source("kafka://127.0.0.1:1", tmp_path / "mine", writer=4).close()
    assert (tmp_path / "mine" / "00004-letters.jsonl").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        DeadLetters(tmp_path / "file" / "letters")


def test_counting_only() -> None:
    letters = DeadLetters(None)
    assert letters  # a sink without letters is still a sink
    put(letters, 1)
    letters.resume({})
    letters.flush()
    assert len(letters) == 1
