"""Data that looks wrong but may be right: a warning and a sentence in the report, and the run continues."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from livectr.ingest.hints import remembered
from tests.livectr.wrong_logs import JOINED, LABELLED, Learner, request, row, write_json, write_partitions
from tests.metrics_page import metric_value

SHOWN = 400


@pytest.fixture
def train(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Learner:
    return Learner(tmp_path, capsys, caplog)


def write(root: Path, *, shown: list[dict[str, Any]], clicks: list[dict[str, Any]], ads: int = 20) -> None:
    write_json(root / "logs", "shown", shown)
    write_json(root / "logs", "clicks", clicks)
    write_json(root / "logs", "ads", [{"ad": number, "category": f"c{number % 3}"} for number in range(ads)])


def lookups(outcome: str) -> float:
    return metric_value("livectr_lookups_total", table="ads", outcome=outcome)


USUAL = [request(number) for number in range(SHOWN)]
CLICKS = [request(number, ts=request(number)["ts"] + 100) for number in range(0, SHOWN, 3)]


def test_a_log_as_it_should_be_has_no_hints(tmp_path: Path, train: Learner) -> None:
    write(tmp_path, shown=USUAL, clicks=CLICKS)
    code, report, said = train(JOINED)
    assert (code, report["hints"]) == (0, []) and "WARNING" not in said
    stream = report["stream"]
    assert (stream["examples"], stream["clicked"]) == (SHOWN, len(CLICKS))
    assert stream["lookups"] == {"ads": {"found": SHOWN, "missing": 0}}
    assert report["rows"]["ads"] == {"rows": 20, "unusable": 0, "commonest": None}


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        (
            dict(shown=[request(number, ad=1_000 + number) for number in range(SHOWN)]),
            f"table ads has a row for 0 of {SHOWN} look-ups (0%), the others are read as null: "
            "are shown.ad and ads.ad the same ids, written alike?",
        ),
        (
            dict(clicks=[]),
            f"clicks has no rows, while shown has {SHOWN}: every label is 0. Are clicks written to topic "
            "clicks?",
        ),
        (
            dict(clicks=[dict(one, request=10_000 + one["request"]) for one in CLICKS]),
            f"{len(CLICKS)} of {len(CLICKS)} clicks (100%) have no row of shown with their request: are "
            "these the same ids, is window=1000 ms long enough, and do the clocks agree? `livectr check` "
            "looks closer",
        ),
        (
            dict(shown=[request(number, request=number // 2) for number in range(SHOWN)]),
            f"{SHOWN // 2} of {SHOWN} shown repeat the request of an earlier row and were left out: was the "
            "log written twice, or does request not name one impression?",
        ),
    ],
)
def test_what_looks_wrong_is_said_once(
    tmp_path: Path, train: Learner, changes: dict[str, Any], hint: str
) -> None:
    before = lookups("hit"), lookups("miss")
    write(tmp_path, **{"shown": USUAL, "clicks": CLICKS, **changes})
    code, report, said = train(JOINED)
    none_labels = report["stream"]["matched_clicks"] == 0 and report["stream"]["events"]["clicks"] > 0
    assert code == (4 if none_labels else 0) and hint in report["hints"]
    assert said.count(hint) == 1
    assert ("no row of clicks labels an impression" in said) == none_labels
    reported = report["stream"]["lookups"]["ads"]
    assert (lookups("hit") - before[0], lookups("miss") - before[1]) == (
        reported["found"],
        reported["missing"],
    )


def test_a_run_that_resumes_with_rows_of_its_checkpoint_misses_no_clicks(
    tmp_path: Path, train: Learner
) -> None:
    """The logs were read before the checkpoint, and their examples are learned after it."""
    write(tmp_path, shown=USUAL, clicks=CLICKS)
    options = ("--set", "batch_size=64", "batch_ramp=0", "--checkpoint", str(tmp_path / "checkpoint"))
    train(JOINED, *options, "--set", "max_steps=1")
    code, report, said = train(JOINED, *options)
    assert code == 0 and report["stream"]["examples"] > 100
    assert report["hints"] == [] and "has no rows" not in said


def test_labels_that_are_never_1(tmp_path: Path, train: Learner) -> None:
    write_json(tmp_path / "logs", "shown", [row(number, click=0) for number in range(SHOWN)])
    code, report, said = train(LABELLED)
    assert code == 0
    hint = f"none of {SHOWN} examples has label 1: is the label column `click` right?"
    assert report["hints"] == [hint] and said.count(hint) == 1


def test_a_look_up_table_that_misses_is_said_while_training(
    tmp_path: Path, train: Learner, monkeypatch: Any
) -> None:
    """Not only in the report, which a live run does not write for days."""
    from livectr.trainer.stream import data_watch

    monkeypatch.setattr(data_watch, "LOOK_EVERY_S", 0.0)
    write(tmp_path, shown=[request(number) for number in range(30_000)], clicks=CLICKS, ads=5)
    code, _, said = train(JOINED, "--set", "batch_size=4096", "batch_ramp=256")  # few steps
    assert code == 0
    reported = re.search(r"table ads has a row for [\d,]+ of ([\d,]+) look-ups \(25%\)", said)
    assert reported is not None and 10_000 <= int(reported[1].replace(",", "")) < 30_000


def test_clicks_that_are_apart_are_no_clicks_without_a_row() -> None:
    """They seem so while the partition of their impressions is not read."""
    early = remembered({}, {"unmatched": "15,000 of 15,000"})
    assert remembered(early, {"apart": "all"}) == {"apart": "all"}
    assert remembered(early, {"apart": "some", "unmatched": "the others"}).keys() == {"apart", "unmatched"}
    assert remembered(early, {"duplicates": "rows"}).keys() == {"unmatched", "duplicates"}


def test_clicks_in_another_partition_are_said_while_training(
    tmp_path: Path, train: Learner, monkeypatch: Any
) -> None:
    from livectr.trainer.stream import data_watch

    monkeypatch.setattr(data_watch, "LOOK_EVERY_S", 0.0)
    write(tmp_path, shown=[], clicks=[])
    rows = [request(number) for number in range(30_000)]
    write_partitions(tmp_path / "logs", "shown", rows, lambda one: one["user"] % 2)
    write_partitions(tmp_path / "logs", "clicks", rows, lambda one: (one["user"] + 1) % 2)
    flags = ("--set", "batch_size=4096", "batch_ramp=256", "--max-bad", "1")  # few steps
    code, report, said = train(JOINED, *flags)
    words = (
        r"clicks(?: that were looked at)? \(\d+%\) are in another partition than their impression, so they"
    )
    assert code == 0 and re.search(words, report["hints"][0]) and "(100%)" in report["hints"][0]
    (found,) = re.findall(rf"WARNING.* of ([\d,]+) {words}", said)
    assert int(found.replace(",", "")) < 30_000
