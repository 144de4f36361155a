"""`livectr init` on raw impressions and clicks: what joins them, the clicks' delay, and the keys of both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

import livectr
from livectr.cli import main
from livectr.guess import raw
from livectr.guess.delays import nice_s, seconds, written
from livectr.ingest.addresses import kafka_servers
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.local.kafka import create_topics
from tests.livectr.feed import Row, feed, write_lines, write_table

VIEWS = 1_500


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*words: str) -> int:
    return main(["init", "--out", "made", *words])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Sentence of a refusal; nothing is left behind."""
    assert init(*words) in (2, 4)
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1 and not Path("made").exists()
    return said.err


def learned(pipeline: Pipeline | Path, source: str, views: int, clicks: int, dead: int = 0) -> None:
    """Training learns every impression but the dead letters, and every click is a label."""
    report = livectr.train(pipeline, source=source, batch_size=512).report
    assert (report.examples_trained, report.dead_letters) == (views, dead)
    assert report.stream["clicked"] == clicks


def test_two_files_become_a_label_join(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    views, clicks = feed(VIEWS)
    write_lines(here / "views.jsonl", views)
    write_lines(here / "clicks.jsonl", clicks)
    assert init("--impressions", "views.jsonl", "--clicks", "clicks.jsonl") == 0
    said = capsys.readouterr()
    assert "clicks.jsonl joins views.jsonl on view_id; both are keyed by visitor." in said.out
    assert 'window "30s": examples come when it has passed; to learn sooner, wait "20s"' in said.out
    text = Path("made/pipeline.py").read_text()
    assert 'log = label_join(views, clicks, on="view_id", window="30s")' in text
    assert "(p50)" in text and "(p99)" in text and "(p99.9)" in text
    assert f"views.jsonl: {VIEWS:,} rows read, all kept" in said.err
    learned(Path("made/pipeline.py"), "file:made/logs", VIEWS, len(clicks))


@pytest.mark.parametrize("kind", [int, bool, lambda one: "yes" if one else "NULL"])
def test_rows_that_say_that_they_are_no_clicks_label_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], kind: Callable[[int], Any]
) -> None:
    """A log of feedback has a row for each impression, too."""
    views, clicks = feed(VIEWS)
    of_no_click = [{name: view[name] for name in clicks[0]} | {"is_click": kind(0)} for view in views]
    rows = sorted([*of_no_click, *(one | {"is_click": kind(1)} for one in clicks)], key=lambda one: one["at"])
    write_lines(here / "views.jsonl", views)
    write_lines(here / "feedback.jsonl", rows)
    assert init("--impressions", "views.jsonl", "--clicks", "feedback.jsonl") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{VIEWS:,} of {len(rows):,} rows of feedback.jsonl have no is_click, and are no clicks." in said
    learned(Path("made/pipeline.py"), "file:made/logs", VIEWS, len(clicks))


def test_rows_of_other_events_than_clicks_label_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    views, clicks = feed(VIEWS)
    of_views = [{name: view[name] for name in clicks[0]} | {"event_type": "Ad Viewed"} for view in views]
    rows = [*of_views, *(one | {"event_type": "Ad Clicked"} for one in clicks)]
    write_lines(here / "views.jsonl", views)
    write_lines(here / "events.jsonl", sorted(rows, key=lambda one: one["at"]))
    assert init("--impressions", "views.jsonl", "--clicks", "events.jsonl") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{VIEWS:,} of {len(rows):,} rows of events.jsonl have another event_type than Ad Clicked" in said
    learned(Path("made/pipeline.py"), "file:made/logs", VIEWS, len(clicks))
    twice = [*rows, *(one | {"event_type": "click"} for one in clicks)]
    write_lines(here / "events.jsonl", sorted(twice, key=lambda one: one["at"]))
    assert main(["init", "--impressions", "views.jsonl", "--clicks", "events.jsonl", "--out", "other"]) == 2
    assert "says in several ways by event_type which rows are clicks" in capsys.readouterr().err


def test_times_that_cannot_join_are_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Times of one log are local, shortened by a spreadsheet, or written in a way that is not read."""
    views, clicks = feed(VIEWS)
    write_table(here / "views.csv", [{k: v for k, v in view.items() if k != "context"} for view in views])
    words = ("--impressions", "views.csv", "--clicks", "clicks.csv", "--out")

    def said(name: str, of: Callable[[int], Any]) -> tuple[int, str]:
        write_table(here / "clicks.csv", [click | {"at": of(click["at"])} for click in clicks])
        code = main(["init", *words, name])
        output = capsys.readouterr()
        return code, " ".join((output.out + output.err).replace("│", " ").split())

    code, local = said("local", lambda ms: ms + 7_200_000)
    assert code == 0 and "are the times of one log local, and not UTC? " in local
    code, short = said("short", lambda ms: f"{ms:.3E}")
    assert code == 2 and "clicks.csv: --click-time: column 'at' holds numbers such as 1.764E+12" in short
    code, strange = said("strange", lambda ms: "11/24/2025 16:00")
    assert code == 0 and "clicks are joined without times, since at is 11/24/2025 16:00, which is" in strange


def test_columns_that_name_an_impression_together(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A display shows three ads; clicks have no user; ids are texts in a file and numbers in the other."""
    views, clicks = feed(VIEWS)
    shown = [
        {
            "display_id": i // 3,
            "uuid": f"u{v['visitor']}",
            "ad_id": v["product"] * 3 + i % 3,
            "timestamp": v["at"],
        }
        for i, v in enumerate(views)
    ]
    clicked = [
        {"display_id": f"{shown[i]['display_id']}", "ad_id": shown[i]["ad_id"], "timestamp": click["at"]}
        for click in clicks
        for i in [int(click["view_id"][1:])]
    ]
    write_table(here / "impressions.csv", shown)
    write_lines(here / "clicks.jsonl", clicked)
    assert init("--impressions", "impressions.csv", "--clicks", "clicks.jsonl", "--user", "uuid") == 0
    out = capsys.readouterr().out
    assert "joins impressions.csv on display_id, ad_id; both are keyed by display_id." in out
    assert "Both logs are partitioned by display_id; GAUC is among the impressions of one display_id." in out
    learned(Path("made/pipeline.py"), "file:made/logs", VIEWS, len(clicks))


def test_clicks_of_other_users_than_their_impressions_are_keyed_by_the_join(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accounts in a log and cookies in the other; where few clicks differ, they are counted."""
    views, clicks = feed(VIEWS)
    write_lines(here / "views.jsonl", views)
    write_lines(here / "clicks.jsonl", [click | {"visitor": click["visitor"] + 1000} for click in clicks])
    pair = ("--impressions", "views.jsonl", "--clicks", "clicks.jsonl")
    assert init(*pair) == 0
    out = capsys.readouterr().out
    assert "joins views.jsonl on view_id; both are keyed by view_id." in out
    said = f"{len(clicks)} of {len(clicks)} clicks have another visitor than their impression"
    one = clicks[0]["visitor"]
    assert f"{said} ('{one}' and '{one + 1000}', for instance)" in out
    learned(Path("made/pipeline.py"), "file:made/logs", VIEWS, len(clicks))
    Path("made").rename("first")
    few = [*clicks[1:], clicks[0] | {"visitor": 1000}]
    write_lines(here / "clicks.jsonl", few)
    assert init(*pair) == 0
    out = capsys.readouterr().out
    assert "both are keyed by visitor." in out
    assert f"1 of {len(clicks)} clicks have another visitor than their impression" in out
    nobody = [click | {"visitor": None} for click in clicks]
    write_lines(here / "clicks.jsonl", nobody)
    Path("made").rename("second")
    assert init(*pair) == 0
    assert "both are keyed by view_id." in capsys.readouterr().out


@pytest.mark.parametrize("all_rows", [False, True])
def test_clicks_without_times_are_a_label(
    here: Path, capsys: pytest.CaptureFixture[str], all_rows: bool
) -> None:
    """As Outbrain has it: the clicks' file names displays and ads, perhaps also those without a click."""
    views, clicks = feed(VIEWS)
    clicked = {click["view_id"] for click in clicks}
    shown = [
        {
            **{"display_id": i // 3, "ad_id": 3 * view["product"] + i % 3, "uuid": f"u{i // 30}"},
            **{"timestamp": view["at"], "os": view["context"]["device"]["os"]},
        }
        for i, view in enumerate(views)
    ]
    said = [
        {"display_id": row["display_id"], "ad_id": row["ad_id"], "clicked": int(view["view_id"] in clicked)}
        for row, view in zip(shown, views, strict=True)
    ]
    write_table(here / "shown.csv", shown)
    write_table(here / "clicks.csv", said if all_rows else [row for row in said if row["clicked"]])
    assert init("--impressions", "shown.csv", "--clicks", "clicks.csv") == 0
    out = capsys.readouterr().out
    assert "1 where clicks.csv has display_id and ad_id" in out
    assert f"names a request: {VIEWS // 3} different values in {VIEWS:,}" in out
    learned(Path("made/pipeline.py"), "file:made/logs", VIEWS, len(clicks))


def test_clicks_without_times_that_mark_nothing_are_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair, _ = joined_by(here, lambda i: f"{i}.0", lambda i: i, csv=True)
    for name, form in (("strange", "{}x"), ("zeros", "{:05}")):
        write_table(here / f"{name}.csv", [{"imp": form.format(i)} for i in range(0, VIEWS, 9)])
    every = [{"imp": i if i % 2 else f"x{i}"} for i in range(0, VIEWS, 9)]
    write_table(here / "half.csv", every)
    views = (*pair[:2], "--on", "imp", "--clicks")
    assert "none of 167 clicks of strange.csv has an impression" in refused(capsys, *views, "strange.csv")
    assert "imp is in both logs, but 167 of 167 clicks write it" in refused(capsys, *views, "zeros.csv")
    assert init(*views, "half.csv") == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "83 of 1,500 are 1" in out and "for 84 of its 167 has no impression" in out


def test_logs_that_do_not_join_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    views, clicks = feed(VIEWS)
    write_lines(here / "views.jsonl", views)
    write_lines(here / "clicks.jsonl", clicks)
    pair = ("--impressions", "views.jsonl", "--clicks")
    others = [{"click": f"c{i}", "at": click["at"]} for i, click in enumerate(clicks)]
    write_lines(here / "others.jsonl", others)
    assert "no columns of both views.jsonl and others.jsonl name an impression" in refused(
        capsys, *pair, "others.jsonl"
    )
    write_lines(here / "foreign.jsonl", [click | {"view_id": click["view_id"] + "x"} for click in clicks])
    assert "none of " in refused(capsys, *pair, "foreign.jsonl", "--on", "view_id")
    write_lines(here / "before.jsonl", [click | {"at": click["at"] - 60_000} for click in clicks])
    assert "clicks come before their impressions" in refused(capsys, *pair, "before.jsonl")
    assert "--click-time: column 'visitor' is" in refused(
        capsys, *pair, "clicks.jsonl", "--click-time", "visitor"
    )
    assert "did you mean 'view_id'?" in refused(capsys, *pair, "clicks.jsonl", "--on", "viewid")
    assert "say --clicks, too" in refused(capsys, "--impressions", "views.jsonl")
    assert "go with --impressions" in refused(capsys, "--from", "views.jsonl", "--clicks", "clicks.jsonl")
    assert "are the same log" in refused(capsys, *pair, "views.jsonl")
    assert "two topics of the same brokers" in refused(capsys, *pair, "kafka://127.0.0.1:1/clicks")


def joined_by(
    here: Path, of_view: Callable[[int], Any], of_click: Callable[[int], Any], *, csv: bool = False
) -> tuple[list[str], int]:
    """Flags of two files that join by a column `imp`, and the number of clicks."""
    views, clicks = feed(VIEWS)
    names = ("visitor", "product", "at") if csv else (*views[0],)[1:]
    shown = [{"imp": of_view(i), **{name: v[name] for name in names}} for i, v in enumerate(views)]
    clicked = [
        {"imp": of_click(int(c["view_id"][1:])), "visitor": c["visitor"], "at": c["at"]} for c in clicks
    ]
    (write_table if csv else write_lines)(here / f"views.{'csv' if csv else 'jsonl'}", shown)
    write_lines(here / "clicks.jsonl", clicked)
    return ["--impressions", f"views.{'csv' if csv else 'jsonl'}", "--clicks", "clicks.jsonl"], len(clicks)


@pytest.mark.parametrize(
    ("of_view", "of_click", "csv"),
    [
        (lambda i: i, float, False),
        (lambda i: f"{i}.0", lambda i: i, True),
        (lambda i: f"{i}.0", lambda i: f"{i}" if i % 9 else "lost", True),
    ],
)
def test_whole_numbers_join_however_they_are_written(
    here: Path, of_view: Callable[[int], Any], of_click: Callable[[int], Any], csv: bool
) -> None:
    """17.0 is 17, in the sample and in the log."""
    pair, clicks = joined_by(here, of_view, of_click, csv=csv)
    assert init(*pair) == 0
    lost = sum(of_click(int(click["view_id"][1:])) == "lost" for click in feed(VIEWS)[1])
    learned(Path("made/pipeline.py"), "file:made/logs", VIEWS, clicks - lost)


@pytest.mark.parametrize(
    ("of_view", "of_click", "says"),
    [
        (
            lambda i: f"I{i}",
            lambda i: f"i{i}",
            "imp is in both logs, but {0} of {0} clicks write it otherwise: 'I{1}' in views.jsonl is 'i{1}' "
            "in clicks.jsonl; write it alike in both.",
        ),
        (
            lambda i: f"{i:08}",
            lambda i: i,
            "imp is in both logs, but {0} of {0} clicks write it otherwise: '{1:08}' in views.jsonl is '{1}' "
            "in clicks.jsonl; write it alike in both.",
        ),
        (
            lambda i: 1000 + i,
            lambda i: f"E{1000 + i}",
            "imp is in both logs, but {0} of {0} clicks write it otherwise: '{2}' in views.jsonl is 'E{2}' "
            "in clicks.jsonl; write it alike in both.",
        ),
        (
            lambda i: f"i{i}",
            lambda i: f"'i{i}'",
            "imp is in both logs, but {0} of {0} clicks write it otherwise: 'i{1}' in views.jsonl is "
            "\"'i{1}'\" in clicks.jsonl; write it alike in both.",
        ),
        (
            lambda i: f"i{i}" if i % 10 else "none",
            lambda i: f"i{i}",
            "imp names an impression, but 150 of 1,500 rows of views.jsonl have 'none': leave these rows "
            "out, or give each its own.",
        ),
        (
            lambda i: f"i{i}" if i % 10 else "",
            lambda i: f"i{i}" if i % 10 else "",
            "views.jsonl: 150 of 1,500 rows do not fit (line 1: column 'imp' is empty, not string, and",
        ),
    ],
)
@pytest.mark.parametrize("on", [(), ("--on", "imp")])
def test_a_column_that_should_join_is_told_from_one_that_lacks(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    of_view: Callable[[int], Any],
    of_click: Callable[[int], Any],
    says: str,
    on: tuple[str, ...],
) -> None:
    pair, clicks = joined_by(here, of_view, of_click)
    first = int(feed(VIEWS)[1][0]["view_id"][1:])
    assert says.format(clicks, first, 1000 + first) in refused(capsys, *pair, *on)


def test_a_column_of_another_kind_in_clicks_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair, _ = joined_by(here, lambda i: 10**15 + i, lambda i: f"{10**15 + i:.5E}")
    for log in (here / pair[1], here / pair[3]):
        log.write_text(log.read_text().replace('"imp":', '"imp_id":'))
    said = refused(capsys, *pair)
    assert (
        "imp_id is int64 in views.jsonl (such as 1000000000000000) and string in clicks.jsonl (such" in said
    )
    assert said.endswith("write it alike in both logs.\n")


def test_a_column_that_joins_by_another_name_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    views, clicks = feed(VIEWS)
    write_lines(here / "views.jsonl", views)
    renamed = [{("shown" if k == "view_id" else k): v for k, v in click.items()} for click in clicks]
    write_lines(here / "clicks.jsonl", renamed)
    said = refused(capsys, "--impressions", "views.jsonl", "--clicks", "clicks.jsonl")
    first = clicks[0]["view_id"]
    assert f"shown of clicks.jsonl has values of view_id of views.jsonl ({first!r}, for instance): if" in said
    assert said.endswith("if it names the impression, call it view_id in both logs.\n")


def test_some_clicks_that_are_written_otherwise_are_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be lost; clicks of impressions that the log lacks are none of them."""
    pair, clicks = joined_by(here, lambda i: f"I{i}", lambda i: f"I{i}" if i % 4 else f"i{i}")
    few = sum(int(click["view_id"][1:]) % 4 == 0 for click in feed(VIEWS)[1])
    assert f"imp is in both logs, but {few} of {clicks} clicks write it otherwise" in refused(capsys, *pair)
    pair, clicks = joined_by(here, lambda i: f"I{i}", lambda i: f"I{i}" if i % 4 else f"x{i}")
    assert init(*pair) == 0


def test_impressions_that_are_there_twice_count_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Delivery at least once: rows that are equal; with another time they are called so."""
    views, clicks = feed(VIEWS)
    write_lines(here / "clicks.jsonl", clicks)
    write_lines(here / "views.jsonl", [view for view in views for _ in range(2)])
    pair = ("--impressions", "views.jsonl", "--clicks", "clicks.jsonl")
    assert init(*pair) == 0
    assert f"{VIEWS:,} of {2 * VIEWS:,} rows of views.jsonl repeat another and count once." in (
        capsys.readouterr().out
    )
    learned(Path("made/pipeline.py"), "file:made/logs", VIEWS, len(clicks))
    Path("made").rename("first")
    write_lines(here / "views.jsonl", [v | {"at": v["at"] + late} for v in views for late in (0, 5)])
    said = refused(capsys, *pair)
    assert "2 rows of views.jsonl share each view_id and differ in at alone: is each impression" in said
    flat = [{"view_id": v["view_id"], "visitor": v["visitor"]} for v in views for _ in range(2)]
    write_table(here / "views.csv", flat)
    write_table(here / "marks.csv", [{"view_id": click["view_id"]} for click in clicks])
    said = refused(capsys, "--impressions", "views.csv", "--clicks", "marks.csv")
    assert "2 rows of views.csv share each view_id and are equal: is each impression written several" in said


def displays(here: Path) -> None:
    """Files of displays that show three ads each, and of the clicks, with the ads and without."""
    views, clicks = feed(VIEWS)
    names = {view["view_id"]: (i // 3, view["product"] * 3 + i % 3) for i, view in enumerate(views)}
    shown = [
        {"display_id": display, "ad_id": ad, "user_id": display % 90, "ts": 1_764_000_000 + 60 * display}
        for display, ad in names.values()
    ]
    clicked = [
        {"display_id": names[one["view_id"]][0], "ad_id": names[one["view_id"]][1], "ts": one["at"]}
        for one in clicks
    ]
    pairs = {(one["display_id"], one["ad_id"]) for one in clicked}
    every = [(one["display_id"], one["ad_id"]) for one in shown]
    write_table(here / "shown.csv", shown)
    write_table(here / "clicked.csv", clicked)
    write_table(here / "displays.csv", [{k: v for k, v in one.items() if k != "ad_id"} for one in clicked])
    events = [{k: v for k, v in one.items() if k != "ad_id"} for one in shown[::3]]
    write_table(here / "events.csv", events)
    rows = [{"display_id": one[0], "ad_id": one[1], "clicked": int(one in pairs)} for one in every]
    write_table(here / "ads.csv", rows)


def test_a_key_of_the_request_names_no_impression(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A display shows three ads: a label join would take the first alone."""
    displays(here)
    said = refused(capsys, "--impressions", "shown.csv", "--clicks", "clicked.csv", "--on", "display_id")
    assert "3 impressions of shown.csv share each display_id, so no click says which it is of" in said
    assert said.endswith("say --on display_id,ad_id.\n")
    said = refused(capsys, "--impressions", "shown.csv", "--clicks", "displays.csv")
    assert "3 impressions of shown.csv share each display_id, so no click says which it is of" in said
    assert "displays.csv lacks a column that tells them apart, such as ad_id" in said


def test_rows_for_each_item_of_an_event_are_the_impressions(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Outbrain's own files: a row for each display, and one for each of its ads, clicked or not."""
    displays(here)
    (here / "other").mkdir()
    (here / "events.csv").rename(here / "other" / "events.csv")
    said = refused(capsys, "--impressions", "other/events.csv", "--clicks", "ads.csv")
    assert "ads.csv has 3 rows for each display_id of events.csv, clicked and not: its rows are" in said
    command = said[said.index("python -c") : said.index("; then")]
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, check=True)
    assert "then: livectr init --from joined.csv --label clicked" in said
    assert init("--from", "joined.csv", "--label", "clicked") == 0
    assert f"made/logs has {VIEWS:,} rows" in capsys.readouterr().out
    assert load_pipeline(Path("made/pipeline.py")).log.label_column == "clicked"


def test_a_log_without_a_label_names_the_other_form(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    views, _ = feed(300)
    write_lines(here / "views.jsonl", views)
    said = refused(capsys, "--from", "views.jsonl")
    assert "views.jsonl has no column of 0 and 1, so it does not say what was clicked" in said
    assert "livectr init --impressions FILE --clicks FILE" in said
    write_lines(here / "views.jsonl", [view | {"buy": i % 9 == 0} for i, view in enumerate(views)])
    said = refused(capsys, "--from", "views.jsonl")
    assert "say --label COLUMN, too: the column that is 1 after a click, else 0 (buy)" in said


def test_clicks_long_before_their_impression_are_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    views, clicks = feed(VIEWS)
    write_lines(here / "views.jsonl", views)
    some = [click | {"at": click["at"] - (0 if i % 3 else 600_000)} for i, click in enumerate(clicks)]
    write_lines(here / "clicks.jsonl", some)
    assert init("--impressions", "views.jsonl", "--clicks", "clicks.jsonl") == 0
    out = " ".join(capsys.readouterr().out.split())
    lost = -(-len(clicks) // 3)
    assert f"{lost} of {len(clicks)} clicks come more than 30s before their impression" in out
    assert "clocks of the two logs differ" not in out


def test_clocks_that_differ_are_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    views, clicks = feed(VIEWS)
    write_lines(here / "views.jsonl", views)
    early = [click | {"at": click["at"] - 4_500} for click in clicks]
    lost = [click | {"view_id": "lost"} for click in clicks[::10]]
    write_lines(here / "clicks.jsonl", [*early, *lost])
    assert init("--impressions", "views.jsonl", "--clicks", "clicks.jsonl") == 0
    out = capsys.readouterr().out
    assert "clicks come before their impression, by up to" in out and "clocks of the two logs differ" in out
    assert "of the clicks have no impression by view_id." in out
    assert 'window="20s", clock_slack="5s")' in Path("made/pipeline.py").read_text()
    learned(Path("made/pipeline.py"), "file:made/logs", VIEWS, len(clicks))


def send(url: str, path: Path, rows: list[Row], topic: str, key: str) -> str:
    write_lines(path, rows)
    words = [str(path), "--format", "jsonl", "--events", "json", "--to", url, "--topic", topic, "--key", key]
    assert main(["logs", "replay", *words]) == 0
    return f"{url}/{topic}"


def sent_as_arrow(url: str, path: Path, topic: str) -> str:
    """Send a CSV, many rows a message and without message keys, by visitor."""
    words = [str(path), "--format", "csv", "--to", url, "--topic", topic, "--key", "visitor"]
    assert main(["logs", "replay", *words]) == 0
    return f"{url}/{topic}"


def test_two_topics_become_a_label_join(
    here: Path, kafka_url: str, topic_name: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    views, clicks = feed(VIEWS)
    broken = {"view_id": "broken", "visitor": 3, "at": "yesterday"}
    shown = send(kafka_url, here / "views.jsonl", [*views, broken], topic_name("views"), "visitor")
    clicked = send(kafka_url, here / "clicks.jsonl", clicks, topic_name("clicks"), "visitor")
    other = send(kafka_url, here / "clicks.jsonl", clicks, topic_name("other"), "view_id")
    capsys.readouterr()
    assert init("--impressions", shown, "--clicks", clicked) == 0
    out = capsys.readouterr().out
    assert (
        "both are keyed by visitor." in out
        and f"livectr check --pipeline made/pipeline.py --source {kafka_url}" in out
    )
    assert 'window "30s"' in out and not Path("made/logs").exists()
    pipeline = load_pipeline(Path("made/pipeline.py"))
    assert pipeline.log.on == ("view_id",) and pipeline.log.impressions.key == "visitor"
    assert '"context_device_os": "context.device.os"' in Path("made/pipeline.py").read_text()
    assert main(["check", "--pipeline", "made/pipeline.py", "--source", kafka_url]) == 0
    learned(pipeline, kafka_url, VIEWS, len(clicks), dead=1)
    Path("made").rename("first")
    capsys.readouterr()
    said = refused(capsys, "--impressions", shown, "--clicks", other)
    assert "of the clicks are in another partition than their impression (joined on view_id)" in said
    assert "is keyed by visitor; " in said and "is keyed by view_id; write both topics with the same" in said
    cookies = [click | {"visitor": click["visitor"] + 1000} for click in clicks]
    cookie = send(kafka_url, here / "cookies.jsonl", cookies, topic_name("cookies"), "visitor")
    moved = topic_name("moved")
    create_topics(kafka_url, {moved: 4})
    producer = KafkaProducer(bootstrap_servers=kafka_servers(kafka_url))
    for click in clicks:
        key = str(click["visitor"]).encode()
        producer.send(moved, json.dumps(click).encode(), key=key, partition=click["visitor"] % 4)
    producer.close()
    capsys.readouterr()
    said = refused(capsys, "--impressions", shown, "--clicks", cookie)
    assert "both are keyed by visitor, but clicks have another visitor than their impression; write" in said
    assert "with a message key that they share, such as view_id." in said
    said = refused(capsys, "--impressions", shown, "--clicks", f"{kafka_url}/{moved}")
    assert "both are keyed by visitor, but by different partitioners; write both topics with the" in said
    nameless = [view | {"view_id": view["view_id"] if i % 10 else ""} for i, view in enumerate(views)]
    empty = send(kafka_url, here / "empty.jsonl", nameless, topic_name("empty"), "visitor")
    capsys.readouterr()
    said = refused(capsys, "--impressions", empty, "--clicks", clicked)
    assert (
        f"view_id names an impression, but {VIEWS // 10} of {VIEWS:,} rows of" in said and "have ''" in said
    )
    flat = [{name: value for name, value in view.items() if name != "context"} for view in views]
    topics = [
        sent_as_arrow(kafka_url, write_table(here / f"{name}.csv", rows), topic_name(name))
        for name, rows in (("arrow-views", flat), ("arrow-clicks", clicks))
    ]
    assert init("--impressions", topics[0], "--clicks", topics[1]) == 0
    assert "both are keyed by visitor." in capsys.readouterr().out
    learned(Path("made/pipeline.py"), kafka_url, VIEWS, len(clicks))
    Path("made").rename("second")
    assert "there is no topic nowhere" in refused(
        capsys, "--impressions", shown, "--clicks", f"{kafka_url}/nowhere"
    )


@pytest.mark.parametrize(("every", "declared"), [(2, ""), (400, "object"), (-400, "plain")])
def test_a_column_of_objects_and_numbers_makes_a_pipeline_that_loads(
    here: Path,
    kafka_url: str,
    topic_name: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    every: int,
    declared: str,
) -> None:
    """Half of each: left out, with the reason; of a rare kind the other one is declared."""
    views, clicks = feed(VIEWS)
    for number, view in enumerate(views):
        rare = number % abs(every) == 0
        view["shelf"] = {"row": number % 3, "side": "left"} if rare == (every < 0) else number % 7
    shown, clicked = topic_name("views"), topic_name("clicks")
    create_topics(kafka_url, dict.fromkeys((shown, clicked), 2))
    producer = KafkaProducer(bootstrap_servers=kafka_servers(kafka_url))
    for topic, rows in ((shown, views), (clicked, clicks)):
        for row in rows:
            producer.send(topic, json.dumps(row).encode(), key=str(row["visitor"]).encode())
    producer.close()
    assert init("--impressions", f"{kafka_url}/{shown}", "--clicks", f"{kafka_url}/{clicked}") == 0
    assert ("is an object in" in capsys.readouterr().out) == (not declared)
    made = Path("made/pipeline.py").read_text()
    assert ("shelf_row" in made, '"shelf": "int64"' in made) == (declared == "object", declared == "plain")
    load_pipeline(Path("made/pipeline.py"))


def test_topics_are_read_from_where_both_have_messages(
    here: Path,
    kafka_url: str,
    topic_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Clicks are kept for longer than impressions, by more messages than are looked at."""
    views, clicks = feed(VIEWS)
    old = [
        click | {"view_id": f"old{i}", "at": click["at"] - 86_400_000} for i, click in enumerate(clicks * 5)
    ]
    names = topic_name("late-views"), topic_name("long-clicks")
    create_topics(kafka_url, dict.fromkeys(names, 2))
    producer = KafkaProducer(bootstrap_servers=kafka_servers(kafka_url))
    for name, rows in zip(names, (views, [*old, *clicks]), strict=True):
        for row in rows:
            value, partition = json.dumps(row).encode(), row["visitor"] % 2
            producer.send(name, value, partition=partition, timestamp_ms=row["at"])
    producer.close()
    monkeypatch.setattr(raw, "TOPIC_ROWS", 600)
    monkeypatch.setattr(raw, "LEAST_LATER", 100)
    assert len(old) > 600
    assert init("--impressions", *(f"{kafka_url}/{names[0]}", "--clicks", f"{kafka_url}/{names[1]}")) == 0
    assert "on view_id; both are keyed by visitor." in capsys.readouterr().out


def test_topics_that_cannot_be_looked_at_are_a_sentence(
    here: Path, kafka_url: str, topic_name: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    views, clicks = feed(300)
    shown = send(kafka_url, here / "views.jsonl", views, topic_name("seen"), "visitor")
    names = {name: topic_name(name) for name in ("none", "registered", "half", "iso")}
    create_topics(kafka_url, dict.fromkeys(names.values(), 2))
    producer = KafkaProducer(bootstrap_servers=kafka_servers(kafka_url))
    for click in clicks:
        key = f"{click['visitor']}".encode()
        producer.send(names["registered"], b"\0\0\0\0\1" + key, key)
        producer.send(names["half"], json.dumps(click).encode(), key)
        producer.send(names["iso"], json.dumps(click | {"at": "2026-01-05T08:00:00Z"}).encode(), key)
    producer.close()

    def says(name: str) -> str:
        return refused(capsys, "--impressions", shown, "--clicks", f"{kafka_url}/{names[name]}")

    capsys.readouterr()
    assert f"topic {names['none']} has no message yet" in says("none")
    assert "are Avro or Protobuf of a schema registry" in says("registered")
    assert f"has 4 partitions, {names['half']} 2: a click must be in the partition" in says("half")
    assert "the times of at are ISO 8601 texts; a topic must hold whole numbers" in says("iso")
    assert f"joined by --impressions {shown} --clicks kafka:" in refused(capsys, "--from", shown)


def test_durations_are_those_that_people_write() -> None:
    assert [written(nice_s(ms)) for ms in (0, 1_000, 1_001, 61_000, 3_600_001, 40 * 86_400_000)] == [
        *("1s", "1s", "2s", "2m", "2h", "40d"),
    ]
    assert [seconds(ms) for ms in (12, 1_500, 119_000, 150_000, 7_200_000)] == [
        *("12 ms", "1.5 s", "119.0 s", "2.5 min", "2.0 h"),
    ]


def test_other_events_become_labels(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    views, clicks = feed(VIEWS)
    orders = [{**click, "at": click["at"] + 60_000 + 1_000 * n} for n, click in enumerate(clicks)][::3]
    (here / "raw").mkdir()
    names = [
        str(write_lines(here / "raw" / f"{name}.jsonl", rows).relative_to(here))
        for name, rows in (("views", views), ("clicks", clicks), ("orders", orders))
    ]
    pair = "--impressions", names[0], "--clicks", names[1]
    assert init(*pair, "--labels", names[2]) == 0
    assert "orders.jsonl joins as a label of its own: they come after" in capsys.readouterr().out
    pipeline = load_pipeline(Path("made/pipeline.py"))
    (label,) = pipeline.log.more_labels
    assert label.name == "order" and 60_000 < label.window_ms <= 1_800_000
    report = livectr.train(pipeline, source="file:made/logs", batch_size=512).report
    assert report.stream["labels"]["order"]["matched"] == len(orders)
    assert report.targets["order"]["examples"] == VIEWS
    write_lines(here / "raw" / "ads.jsonl", [{"ad": 1, "price": 2}])  # no events: it is left out
    assert main(["init", "--out", "found", "--from", "raw"]) == 0
    assert "The log raw/ads.jsonl is left out: ads.jsonl has no column" in capsys.readouterr().out
    assert load_pipeline(Path("found/pipeline.py")).fingerprint == pipeline.fingerprint
    (here / "made").rename("before")
    said = refused(capsys, *pair, "--labels", "raw/ads.jsonl")
    assert "ads.jsonl has no column 'view_id', by which impressions and clicks are joined" in said
    assert "names a log twice" in refused(capsys, *pair, "--labels", names[1])
