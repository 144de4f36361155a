"""Unusable rows: counted by topic, checked by their share, reported with the most frequent complaint."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from livectr.ingest.dead_letters.complaints import missing_column
from livectr.ingest.dead_letters.letters import DeadLetters, Reason
from livectr.ingest.dead_letters.usable import JUDGED_ROWS, RowCounts, TopicRows, complaint, judge, merged
from livectr.ingest.decode.decoder import Decoder
from livectr.ingest.decode.messages import MessageList
from livectr.ingest.language.streams import Stream
from livectr.system.errors import DataError

STREAM = Stream("shown", key="user", columns={"user": "int64", "n": "int32", "x": "float64", "ok": "bool"})


def decode(values: list[bytes], label: str | None = None) -> tuple[list[dict[str, Any]], DeadLetters]:
    letters = DeadLetters(None)
    chunk = Decoder(STREAM, letters, label=label).messages(0, MessageList.of(range(len(values)), values))
    return chunk.batch.to_pylist(), letters


def as_json(**columns: Any) -> bytes:
    return json.dumps({"user": 1, "n": 2, "x": 0.5, "ok": True, **columns}).encode()


def as_arrow(**columns: Any) -> bytes:
    size = len(next(iter(columns.values())))
    usual = {"user": [1] * size, "n": [2] * size, "x": [0.5] * size, "ok": [True] * size}
    batch = pa.RecordBatch.from_pydict({name: v for name, v in {**usual, **columns}.items() if v is not None})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def test_rows_are_counted_and_not_letters() -> None:
    messages = [as_json(), as_json(n="a"), as_arrow(n=["a"] * 7), as_arrow(n=[1, 2, 1 << 40]), b"{"]
    rows, letters = decode(messages)
    counted = letters.rows.topics()["shown"]
    assert (counted.rows, counted.unusable, len(rows)) == (1 + 1 + 7 + 3 + 1, 10, 3)
    assert len(letters) == letters.counts.total() == 10 and letters.counts[Reason.WRONG_TYPE] == 9
    assert counted.commonest.startswith(
        "column `n` is text in the log, the pipeline says int32; declare string"
    )


def test_numbers_and_bools_convert_alike_in_json_and_arrow() -> None:
    """In a mixed block each value is converted by its own text."""
    cases: list[tuple[dict[str, Any], object, str]] = [
        (dict(n=True), 1, "n"), (dict(n=False), 0, "n"), (dict(x=True), 1.0, "x"), (dict(ok=1), True, "ok"),
        (dict(ok=0), False, "ok"), (dict(ok=1.0), True, "ok"), (dict(n=None), None, "n"), (dict(), 2, "n"),
    ]  # fmt: skip
    values = [as_json(**change) for change, _, _ in cases] * 40
    rows, letters = decode(values)
    assert not letters.counts
    assert [row[cases[i % len(cases)][2]] for i, row in enumerate(rows)] == [case[1] for case in cases] * 40
    assert rows == [decode([value])[0][0] for value in values[: len(cases)]] * 40
    rows, letters = decode([as_arrow(n=[True, False, None], ok=[1, 0, None], x=[False, True, False])])
    assert [(row["n"], row["ok"], row["x"]) for row in rows] == [(1, True, 0), (0, False, 1), (None, None, 0)]
    assert not letters.counts


def test_other_numbers_are_no_bools() -> None:
    for values in ([as_json(ok=2), as_json(ok=1), as_json(ok=0.5)], [as_arrow(ok=[2, 1, 0.5])]):
        rows, letters = decode(values)
        assert [row["ok"] for row in rows] == [True]
        assert letters.counts == {Reason.WRONG_TYPE: 2}
        assert (
            "column `ok` is 0.5, the pipeline says bool; write true, false, 0 or 1" in letters.rows.commonest
        )


@pytest.mark.parametrize("column", ["n", "x"])
def test_labels_are_0_or_1(column: str) -> None:
    labels = [0, 1, -1, 5, True, False]
    for values in (
        [as_json(**{column: label}) for label in labels],
        [as_arrow(**{column: [0, 1, -1, 5, 1, 0]})],
    ):
        rows, letters = decode(values, label=column)
        assert [row[column] for row in rows] == [0, 1, 1, 0]
        assert letters.counts == {Reason.BAD_LABEL: 2}
        assert f"label `{column}` is -1" in letters.rows.commonest.replace("-1.0", "-1")


@pytest.mark.parametrize(
    ("name", "seen", "reported"),
    [
        ("campain", ["user", "campaign"], "; did you mean `campaign`?"),
        ("userId", ["USERID", "b"], "; did you mean `USERID`?"),
        ("price", ["b", "a"], "; its columns are a, b"),
        ("price", [], "; it has no columns"),
        ("price", [f"c{i:02d}" for i in range(30)], "c19 and 10 more"),
    ],
)
def test_a_missing_column(name: str, seen: list[str], reported: str) -> None:
    found = missing_column(name, seen)
    assert found.startswith(f"column `{name}` is not in the log; ") and found.endswith(reported)


def test_what_is_judged() -> None:
    def reported(rows: int, unusable: int, *, final: bool = False, least: float = 0.5) -> bool:
        topics = {"a": TopicRows(JUDGED_ROWS, 0), "b": TopicRows(rows, unusable, Counter(x=unusable))}
        return complaint(topics, None, min_usable=least, final=final) is not None

    assert reported(JUDGED_ROWS, JUDGED_ROWS // 2 + 1) and not reported(JUDGED_ROWS, JUDGED_ROWS // 2)
    assert not reported(JUDGED_ROWS - 1, JUDGED_ROWS - 1)
    assert reported(1, 1, final=True) and not reported(3, 2, final=True) and not reported(0, 0, final=True)
    assert reported(JUDGED_ROWS, 200, least=0.99) and not reported(
        JUDGED_ROWS, JUDGED_ROWS, least=0, final=True
    )


def test_shares_of_ranks_make_one_sentence() -> None:
    first, second = RowCounts(), RowCounts()
    first.add("log", 9_000, {"column `a` is null": 4_000, "other": 10})
    second.add("log", 6_000, {"column `a` is null": 6_000})
    with pytest.raises(DataError):
        judge(second, None, final=True)
    topics = merged([first.as_json(), json.loads(json.dumps(second.as_json()))])
    assert complaint(topics, "there", min_usable=0.5, final=False) == (
        "log: 10,010 of 15,000 rows unusable: column `a` is null (and 1 other complaint). Dead letters: there"
    )


def test_complaints_that_all_differ_take_bounded_memory() -> None:
    counts = RowCounts()
    for number in range(1_000):
        counts.add("log", 1, {f"complaint {number}": 1})
    found = counts.topics()["log"]
    assert found.unusable == found.complaints.total() == 1_000 and len(found.complaints) < 100
    assert found.commonest == "different reasons, such as: complaint 0"
