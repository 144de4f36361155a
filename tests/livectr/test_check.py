"""`livectr check`: a thousand rows through everything, and a sentence for each mistake."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka import KafkaConsumer, TopicPartition

from livectr.check.rules import WRONG, findings
from livectr.check.sample import read_sample
from livectr.cli import main
from livectr.ingest.addresses import kafka_options
from livectr.ingest.pipeline import load_pipeline
from livectr.kernels.stream.join import KEPT_AHEAD
from livectr.simulator.sinks import open_sink
from tests.livectr.wrong_logs import JOINED, LABELLED, request, row, write_json, write_partitions

ROWS = 1_200
Checks = dict[str, tuple[str, str, str]]


class Checker:
    """Runs `livectr check` in this process, on the logs in folder/logs."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, pipeline: str, *flags: str, source: str | None = None) -> tuple[int, str]:
        """(exit code, what is printed)."""
        (self.folder / "p.py").write_text(pipeline)
        self._capsys.readouterr()
        place = source or f"file:{self.folder / 'logs'}"
        code = main(["check", "--pipeline", str(self.folder / "p.py"), "--source", place, *flags])
        return code, self._capsys.readouterr().out

    def json(
        self, pipeline: str, *flags: str, source: str | None = None
    ) -> tuple[int, Checks, dict[str, Any]]:
        """(exit code, checks by what they are about, the whole object)."""
        code, out = self(pipeline, "--json", *flags, source=source)
        whole = json.loads(out)
        return code, {c["what"]: (c["is"], c["found"], c["advice"]) for c in whole["checks"]}, whole


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checker:
    return Checker(tmp_path, capsys)


def shown(check: Checker, rows: list[dict[str, Any]]) -> None:
    write_json(check.folder / "logs", "shown", rows)


def joined(check: Checker, *, clicks: list[dict[str, Any]], ads: int = 20, **changes: Any) -> None:
    root = check.folder / "logs"
    write_json(root, "shown", [request(number, **changes) for number in range(ROWS)])
    write_json(root, "clicks", clicks)
    write_json(root, "ads", [{"ad": number, "category": f"c{number % 3}"} for number in range(ads)])


CLICKS = [request(number, ts=request(number)["ts"] + 100) for number in range(0, ROWS, 3)]


def test_a_right_log_has_a_table_of_ticks(check: Checker) -> None:
    shown(check, [row(number) for number in range(ROWS)])
    before = sorted((check.folder / "logs").rglob("*"))
    code, out = check(LABELLED)
    assert code == 0 and "✗" not in out and "!" not in out
    for line in (
        "│ ✓ │ dead letters          │ none",
        "│ ✓ │ column shown.price    │ double, such as 0.",
        "│ ✓ │ time ts               │ 2023-11-14 22:13 to 2023-11-14 22:13 UTC",
        "│ ✓ │ order of times        │ no row comes behind a later row",
        "of 1,000: a click rate of ",
        "│ ✓ │ field user            │ 50 different keys",
        "│ ✓ │ dense price           │ 0.0004259 to 0.997, mean 0.5065",
        "All 11 checks are right: continue with `livectr train`.",
    ):
        assert line in out, out
    assert sorted((check.folder / "logs").rglob("*")) == before  # no dead letters, no positions


def test_json_has_the_same(check: Checker) -> None:
    shown(check, [row(number) for number in range(ROWS)])
    code, checks, whole = check.json(LABELLED, "--rows", "50")
    assert code == 0 and whole["ok"] and whole["rows"] == 50
    assert checks["field campaign"][0] == "right"


@pytest.mark.parametrize(
    ("change", "what", "found", "advice"),
    [
        (
            {"price": "12,50"},
            "dead letters, wrong_type",
            "1,200 rows (100.00%), such as shown partition 0, offset 0: {",
            "column `price` is text in the log, the pipeline says float64; declare string, or write float64",
        ),
        ({"click": 7}, "dead letters, bad_label", "1,200 rows", "label"),
        ({"price": None}, "column shown.price", "double, 100.0% null", "is the column written as 'price'"),
        (
            {"click": 1},
            "labels",
            "1,000 of 1,000",
            "every row has a click: is the label column 'click' right?",
        ),
    ],
)
def test_a_wrong_log_is_an_error_with_a_sentence(
    check: Checker, change: dict[str, Any], what: str, found: str, advice: str
) -> None:
    shown(check, [row(number, **change) for number in range(ROWS)])
    code, checks, whole = check.json(LABELLED)
    assert code == 1 and not whole["ok"]
    mark, numbers, sentence = checks[what]
    assert mark == "wrong" and found in numbers and advice in sentence
    _, out = check(LABELLED)
    assert "│ ✗ │" in out and "wrong (✗)" in out


def test_files_that_are_not_read_and_columns_that_tell_the_label(check: Checker) -> None:
    rows = [{**row(number), "dwell": 7 * row(number)["click"]} for number in range(ROWS)]
    shown(check, rows)
    (check.folder / "logs" / "shown" / "1-more.jsonl.gz").write_bytes(b"")
    pipeline = LABELLED.replace('"click"', '"dwell": "int64", "click"', 1).replace(
        "sparse = {", 'sparse = {"dwell": log.dwell, ', 1
    )
    code, checks, _ = check.json(pipeline)
    assert code == 0
    assert checks["files of shown"][:2] == ("doubtful", "1 not read")
    assert checks["column shown.dwell"][1] == "is 0 wherever there is no click, and nowhere else"


def test_a_few_bad_rows_are_doubtful(check: Checker) -> None:
    shown(check, [row(number, **({"click": -1} if number == 500 else {})) for number in range(ROWS)])
    code, checks, _ = check.json(LABELLED)
    assert code == 0 and checks["dead letters, bad_label"][:2] == (
        "doubtful",
        checks["dead letters, bad_label"][1],
    )
    assert "1 row (0.08%), such as shown partition 0, offset 500" in checks["dead letters, bad_label"][1]


def test_times_in_the_future_in_1970_and_out_of_order(check: Checker) -> None:
    later = (time.time_ns() // 1_000_000) + 90 * 86_400_000
    shown(check, [row(number, ts=later + number) for number in range(ROWS)])
    code, checks, _ = check.json(LABELLED)
    mark, found, advice = checks["time ts"]
    assert (code, mark) == (1, "wrong") and "1,000 of 1,000 rows lie in the future" in found
    assert "is ts in another unit or time zone? Say EventTime('ts', unit=…)." in advice
    shown(check, [row(number, ts=number * 1000) for number in range(ROWS)])
    code, checks, _ = check.json(LABELLED)
    mark, found, advice = checks["time ts"]
    assert (code, mark) == (0, "doubtful") and found.startswith("1970-01-01") and 'unit="s"' in advice
    shown(
        check,
        [row(number, ts=row(number)["ts"] - (30_000 if number % 4 == 0 else 0)) for number in range(ROWS)],
    )
    code, checks, _ = check.json(LABELLED)
    mark, found, advice = checks["order of times"]
    assert (code, mark) == (
        0,
        "doubtful",
    ) and "24.9% of rows come behind later rows, by at most 29.99 s" in found
    assert "sort the log by time, or say EventTime('ts', max_disorder=…)" in advice


def test_rare_clicks_are_doubtful_until_the_sample_is_large(check: Checker) -> None:
    shown(check, [row(number, click=0) for number in range(12_000)])
    code, checks, _ = check.json(LABELLED)
    assert (code, checks["labels"][0]) == (0, "doubtful")
    assert checks["labels"][2].endswith("Clicks may be rare: try --rows 10000.")
    code, checks, _ = check.json(LABELLED, "--rows", "10000")
    assert (code, checks["labels"][0]) == (1, "wrong")
    assert checks["labels"][2] == "no row has a click: is the label column 'click' right?"


def test_fields_that_teach_nothing(check: Checker) -> None:
    shown(check, [row(number, user=number, campaign=3) for number in range(ROWS)])
    code, checks, _ = check.json(LABELLED)
    assert code == 0
    assert checks["field campaign"][0] == "doubtful" and checks["field campaign"][1] == "1 different key"
    assert "never seen again: leave it out, or bucketize" in checks["field user"][2]


@pytest.mark.parametrize(
    ("hour", "click", "says"),
    [
        (2, 0, "no row has a click in 1 of 4 hours, such as 2023-11-15 00:"),
        (2, 1, "every row has a click in 1 of 4 hours, such as 2023-11-15 00:"),
        (None, 0, ""),
    ],
)
def test_an_hour_whose_labels_are_the_same_is_doubted(
    check: Checker, hour: int | None, click: int, says: str
) -> None:
    start = row(0)["ts"] // 3_600_000 * 3_600_000
    rows = [row(number, ts=start + number * 14_000) for number in range(1_000)]  # 257 an hour
    rows = [one | {"click": click} if (one["ts"] - start) // 3_600_000 == hour else one for one in rows]
    shown(check, rows)
    code, checks, _ = check.json(LABELLED)
    assert code == 0 and checks.get("labels by hour", ("", "", ""))[1].startswith(says)
    assert bool(says) == ("labels by hour" in checks)


def test_joins_and_tables(check: Checker) -> None:
    joined(check, clicks=CLICKS)
    code, checks, _ = check.json(JOINED)
    assert code == 0
    assert checks["table ads"] == ("right", "1,000 of 1,000 rows have one of its 20 rows (100%)", "")
    assert checks["label join"][0] == "right" and checks["label join"][1].startswith("0 of ")
    assert checks["labels"][1] == "334 of 1,000: a click rate of 33.40%"
    joined(check, clicks=[one | {"request": one["request"] + 10_000} for one in CLICKS])
    code, checks, _ = check.json(JOINED)
    assert code == 1 and "are request the same ids in both topics" in checks["label join"][2]
    assert "are both clocks in one time zone" in checks["label join"][2]
    joined(check, clicks=[*CLICKS, *(one | {"request": one["request"] + 10_000} for one in CLICKS[::4])])
    code, checks, _ = check.json(JOINED)
    assert code == 0 and checks["label join"][0] == "doubtful"
    joined(check, clicks=CLICKS, ads=8)
    code, checks, _ = check.json(JOINED)
    assert code == 1 and checks["table ads"][2] == "are shown.ad and ads.ad the same ids, written alike?"
    assert "40%" in checks["table ads"][1]


@pytest.mark.parametrize(
    ("place", "change", "advice"),
    [
        (
            lambda one: one["request"] // 3 % 4,
            {},
            "clicks is not keyed by user: 50 of 50 with several rows are in several partitions; write it "
            "again with user as the message key.",
        ),
        (
            lambda one: one["user"] % 3,
            {},
            "shown has rows in 4 partitions, clicks in 3; write one of them again with as many partitions as "
            "the other.",
        ),
        (
            lambda one: (one["user"] + 1) % 4,
            {},
            "their message keys are written otherwise (0017 is not 17), or by another partitioner; write "
            "both topics with the same key, user, and the same partitioner.",
        ),
        (
            lambda one: one["user"] % 4,
            {"user": 7},
            "clicks.user is not the user of the impression; write it alike in both topics, or declare "
            "another column as the key of both, such as request, and write both with it as the message key.",
        ),
    ],
)
def test_clicks_in_another_partition_than_their_impression_are_told(
    check: Checker, place: Callable[[Any], int], change: dict[str, Any], advice: str
) -> None:
    clicks = [one | change for one in CLICKS]
    joined(check, clicks=clicks)
    for topic, rows, by in (
        ("shown", [request(number) for number in range(ROWS)], lambda one: one["user"] % 4),
        ("clicks", clicks, place),
    ):
        (check.folder / "logs" / topic / "00000-log.jsonl").unlink()
        write_partitions(check.folder / "logs", topic, rows, by)
    apart = sum(place(one) != first["user"] % 4 for one, first in zip(clicks, CLICKS, strict=True))
    code, checks, _ = check.json(JOINED)
    assert code == 1
    words = "are in another partition than their impression, so they label nothing"
    assert checks["partitions"] == (
        "wrong",
        f"{apart} of {len(clicks)} clicks ({apart / len(clicks):.0%}) {words}",
        advice,
    )
    assert checks["label join"][:2] == (
        "right",
        f"0 of {len(clicks)} clicks have no impression in any partition",
    )


def test_users_in_several_partitions_have_no_whole_history(check: Checker) -> None:
    """Both topics are keyed by the request: every click has its impression, and no user all its clicks."""
    joined(check, clicks=CLICKS)
    for topic, rows in (("shown", [request(number) for number in range(ROWS)]), ("clicks", CLICKS)):
        (check.folder / "logs" / topic / "00000-log.jsonl").unlink()
        write_partitions(check.folder / "logs", topic, rows, lambda one: int(one["request"]) // 3 % 4)
    code, checks, _ = check.json(JOINED)
    assert code == 0 and checks["label join"][0] == "right" and "partitions" not in checks
    past = JOINED.replace("import Stream, label_join", "import Stream, label_join, recent")
    past = past.replace('sparse={"user"', 'sparse={"past": recent(clicks.ad, n=5, within="1d"), "user"')
    code, checks, _ = check.json(past)
    mark, _, advice = checks["partitions"]
    assert (code, mark) == (1, "wrong") and checks["label join"][0] == "right"
    assert advice == (
        "shown is not keyed by user: 50 of 50 with several rows are in several partitions; write it again "
        "with user as the message key, for a history has only the clicks of its partition."
    )


@pytest.mark.parametrize("rows", [300, 1_000])
def test_clicks_before_their_impressions_are_called_so(check: Checker, rows: int) -> None:
    """The verdict is that of a longer sample: a click that met nothing in it counts, though it may wait."""
    behind = [one | {"ts": one["ts"] - 1_500} for one in CLICKS]
    joined(check, clicks=behind)
    code, checks, _ = check.json(JOINED, "--rows", str(rows))
    assert code == 0 and checks["label join"][0] == "right"
    assert "400 are before theirs, but inside clock_slack: they label it" in checks["label join"][1]
    joined(check, clicks=[one | {"ts": one["ts"] - 5_000 - one["request"] % 2 * 2_000} for one in CLICKS])
    code, checks, _ = check.json(JOINED, "--rows", str(rows))
    mark, found, advice = checks["label join"]
    assert (code, mark) == (1, "wrong")
    assert "clicks are before theirs, by " in found and "(p50) and 6,900 ms (p99)" in found
    assert (
        advice == 'the clock that writes clicks is behind: set it right, or give label_join clock_slack="7s".'
    )


def test_clicks_of_another_time_zone_are_measured_and_their_slack_labels_them(check: Checker) -> None:
    """They are earlier than a join remembers keys: their distance is known all the same."""
    hours = 2 * 3_600_000
    joined(check, clicks=[one | {"ts": one["ts"] - hours} for one in CLICKS])
    code, checks, _ = check.json(JOINED)
    mark, found, advice = checks["label join"]
    assert (code, mark) == (1, "wrong")
    assert found.startswith("400 of 400 clicks have no impression; clicks are before theirs, by 7,199,900 ms")
    assert "(p50) and 7,199,900 ms (p99)" in found
    assert advice.endswith('write both in UTC, or give label_join clock_slack="7200s".')
    slack = JOINED.replace('window="1s"', 'window="1s", clock_slack="7200s"')
    code, checks, _ = check.json(slack)
    assert code == 0 and checks["label join"][0] == "right"
    assert checks["labels"][1] == "334 of 1,000: a click rate of 33.40%"


def test_clicks_after_the_window_are_told(check: Checker) -> None:
    """With a clock that is ahead by hours they come when their impressions are forgotten."""
    for shift in (5_000, 2 * 3_600_000):
        joined(check, clicks=[one | {"ts": one["ts"] + shift} for one in CLICKS])
        code, checks, _ = check.json(JOINED)
        mark, found, advice = checks["label join"]
        assert (code, mark) == (1, "wrong") and "400 come after the window of 1 s" in found
        assert "is the window long enough" in advice


def test_weights_that_cannot_be_used_are_told(check: Checker) -> None:
    """The column of the weight, which may know the click, is not judged as a feature."""
    shown(check, [row(i) | {"value": 5.0 * row(i)["click"] - 6.0 * (i % 10 == 0)} for i in range(1_000)])
    weighted = LABELLED.replace('"click": "int32"', '"click": "int32", "value": "float64"')
    weighted = weighted.replace("rank=LR()", "rank=LR(), weight=log.value")
    code, checks, _ = check.json(weighted)
    mark, found, advice = checks["dead letters, bad_weight"]
    assert (code, mark) == (1, "wrong") and found.startswith("100 rows (10.00%)")
    assert advice == "the weight shown.value is out of range or no number; a weight is from 0 to 1e+09."
    assert "column shown.value" not in checks


def test_weights_are_judged_by_the_rows_that_were_weighed(check: Checker) -> None:
    """A file has more rows than are looked at; a row with a bad weight and a bad rate is one row."""
    shown(check, [row(i) | {"value": -1.0 * (i % 60 == 0)} for i in range(3_000)])
    weighted = LABELLED.replace('"click": "int32"', '"click": "int32", "value": "float64"')
    weighted = weighted.replace("rank=LR()", "rank=LR(), weight=log.value + 1, sampling=log.value + 1")
    code, checks, _ = check.json(weighted)
    mark, found, _ = checks["dead letters, bad_weight"]
    assert (code, mark) == (1, "wrong") and found.startswith("17 rows (1.70%)")


def test_sampling_rates_of_clicked_rows_are_those_without_the_click(check: Checker) -> None:
    """A sampler writes the probability that a row was kept: 1 where it has a click."""
    code = LABELLED.replace('"click": "int32"', '"click": "int32", "rate": "float32"')
    code = code.replace("rank=LR()", "rank=LR(), sampling=log.rate")
    for clicked, mark in ((1.0, "doubtful"), (0.1, "right")):
        shown(check, [row(i) | {"rate": clicked if row(i)["click"] else 0.1} for i in range(1_000)])
        assert check.json(code)[1]["labels"][0] == mark


@pytest.mark.parametrize(
    ("ordered", "mark", "words"),
    [
        (lambda i, click: click and i % 8 == 0, "right", "125 of 1,000 rows: 12.50%"),
        (lambda i, click: i % 8 == 1, "doubtful", "125 of 1,000 rows: 12.50%, 125 of them without a click"),
        (lambda i, click: False, "wrong", "0 of 1,000 rows"),
        (lambda i, click: click, "doubtful", "the same rows as the click"),
    ],
    ids=["after", "without", "none", "same"],
)
def test_targets_have_a_line_each(check: Checker, ordered: Any, mark: str, words: str) -> None:
    rows = [row(i) | {"click": int(i % 2 == 0)} for i in range(1_000)]
    shown(check, [one | {"ordered": int(ordered(i, one["click"]))} for i, one in enumerate(rows)])
    code = LABELLED.replace('"click": "int32"', '"click": "int32", "ordered": "int32"')
    target = 'targets=[livectr.Target("order", log.ordered, after="click")]'
    code = "import livectr\n" + code.replace("rank=LR()", f"rank=LR(), {target}")
    found = check.json(code)[1]["target order"]
    assert found[0] == mark and words in found[1]
    assert bool(found[2]) == (mark != "right")


@pytest.mark.parametrize(
    ("bid", "mark", "words"),
    [
        (lambda i: 1.0 + i % 3, "right", "1,000 of 1,000 rows have one, half of these at most 2"),
        (lambda i: 1.0 if i % 4 == 0 else -1.0, "doubtful", "250 of 1,000 rows have one"),
        (lambda i: 0.0, "wrong", "0 of 1,000 rows have one"),
    ],
    ids=["all", "some", "none"],
)
def test_a_value_has_a_line_for_each_worth(check: Checker, bid: Any, mark: str, words: str) -> None:
    shown(check, [row(i) | {"click": int(i % 2 == 0), "bid": bid(i)} for i in range(1_000)])
    code = LABELLED.replace('"click": "int32"', '"click": "int32", "bid": "float64"')
    code = code.replace("rank=LR()", "rank=LR(), value=log.bid * livectr.probability('click')")
    found = check.json("import livectr\n" + code)[1]["worth of click"]
    assert found[0] == mark and words in found[1] and bool(found[2]) == (mark != "right")


def test_a_verdict_on_clocks_does_not_hang_on_the_number_of_clicks(check: Checker) -> None:
    """The join keeps the distances of its last clicks alone."""
    joined(check, clicks=[one | {"ts": one["ts"] - 7_000} for one in CLICKS])
    (check.folder / "p.py").write_text(JOINED)
    pipeline = load_pipeline(check.folder / "p.py")
    sample = read_sample(pipeline, f"file:{check.folder / 'logs'}", 1000)
    stats = replace(sample.stats, events={"shown": 300_000, "clicks": 100_000}, unmatched_clicks=100_000)
    many = replace(sample, stats=stats, ahead_ms=np.full(KEPT_AHEAD, 7_000))
    for one in (sample, many):
        (found,) = [one for one in findings(pipeline, one) if one.what == "label join"]
        assert found.mark == WRONG and 'clock_slack="7s"' in found.advice


@pytest.mark.parametrize("delayed", ["vanilla", "fnw", "es_dfm"])
def test_a_log_is_judged_alike_whatever_way_its_labels_are_learned_in(check: Checker, delayed: str) -> None:
    """Late positives and finals are no rows of their own: disorder, click rate and look-ups are the log's."""
    late = [request(number, ts=request(number)["ts"] + 100 * (number % 10)) for number in range(0, ROWS, 3)]
    joined(check, clicks=sorted(late, key=lambda one: int(one["ts"])))
    _, wanted, _ = check.json(JOINED)
    assert wanted["order of times"][1] == "no row comes behind a later row"
    ways = JOINED.replace('window="1s"', f'window="1s", wait="200ms", delayed="{delayed}"')
    _, found, _ = check.json(ways)
    assert found == wanted


def test_repeats_are_counted(check: Checker) -> None:
    shown(check, [row(number // 2) for number in range(ROWS)])
    pipeline = LABELLED.replace('label="click")', 'label="click", dedup=("user", "campaign"), window="5ms")')
    code, checks, whole = check.json(pipeline, "--rows", "100000")
    assert (code, whole["rows"]) == (0, ROWS // 2)
    mark, found, advice = checks["repeated shown"]
    assert (mark, found) == ("doubtful", "600 of 1,200 rows repeat an earlier one and count once")
    assert "was the log written twice" in advice


def test_rows_of_another_time_are_no_repeats(check: Checker) -> None:
    """Columns that the pipeline does not use, such as the request's id, tell them apart, too."""
    less = LABELLED.replace(', dense={"price": log.price}', "").replace('"price": "float64", ', "")
    rows = [row(number) for number in range(ROWS)]
    shown(check, rows)
    assert "repeated rows" not in check.json(less)[1]
    shown(check, [one for one in rows for _ in range(2)])
    mark, found, _ = check.json(less)[1]["repeated rows"]
    assert (mark, found) == ("doubtful", "500 of 1,000 examples repeat an earlier one in every column")


def test_histories_have_lengths(check: Checker) -> None:
    joined(check, clicks=CLICKS)
    pipeline = JOINED.replace("import Stream, label_join", "import Stream, label_join, recent")
    pipeline = pipeline.replace(
        'sparse={"user"', 'sparse={"past": recent(clicks.ad, n=5, within="1d"), "user"'
    )
    code, checks, _ = check.json(pipeline)
    assert code == 0
    mark, found, _ = checks["history recent(clicks.ad,5,86400000)"]
    assert mark == "right" and "long on average, at most 5" in found
    assert "of rows have none" in checks["field past"][1]


def test_an_empty_topic_is_an_error(check: Checker) -> None:
    joined(check, clicks=[])
    code, checks, _ = check.json(JOINED)
    assert code == 1
    assert checks["rows of clicks"] == (
        "wrong",
        "none",
        "the log holds no row of clicks; write to it, or name another.",
    )


def test_a_topic_of_kafka_is_read_and_nothing_is_written(
    check: Checker, kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    topic = topic_name("shown")
    sink = open_sink(kafka_url, {topic: 2})
    values = [
        json.dumps(row(number, **({"click": 9} if number == 3 else {}))).encode() for number in range(ROWS)
    ]
    sink.write(topic, np.arange(ROWS, dtype=np.int32) % 2, [None] * ROWS, values)
    sink.close()
    consumer = KafkaConsumer(**kafka_options(kafka_url))
    before = consumer.topics()
    code, checks, whole = check.json(LABELLED.replace('"shown"', f'"{topic}"'), source=kafka_url)
    assert code == 0 and whole["rows"] == 1000, whole
    assert checks["dead letters, bad_label"][0] == "doubtful"
    assert consumer.topics() == before  # no topic of dead letters, no offsets of a group
    assert sum(consumer.end_offsets([TopicPartition(topic, p) for p in (0, 1)]).values()) == ROWS
    consumer.close()


def test_mistakes_before_the_first_row(check: Checker, capsys: pytest.CaptureFixture[str]) -> None:
    shown(check, [row(0)])
    file = check.folder / "p.py"
    assert main(["check", "--pipeline", str(file), "--source", "file:nowhere"]) == 2
    assert f"pipeline file {file} does not exist" in capsys.readouterr().err
    file.write_text(LABELLED)
    assert main(["check", "--pipeline", str(file), "--source", "file:nowhere"]) == 2
    assert "there is no folder nowhere" in capsys.readouterr().err
    file.write_text(LABELLED.replace("rank=LR()", 'rank=LR(), settings={"batch_sise": 3}'))
    assert main(["check", "--pipeline", str(file), "--source", f"file:{check.folder / 'logs'}"]) == 2
    assert "did you mean 'batch_size'" in capsys.readouterr().err
