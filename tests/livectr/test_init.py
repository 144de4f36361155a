"""`livectr init`: a log file that nobody prepared becomes a log and a pipeline that trains."""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import livectr
from livectr.cli import build_parser, main
from livectr.guess import facts
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.ingest.materialized.writer import until_end
from livectr.ingest.pipeline import load_pipeline
from livectr.logs import json_rows
from tests.livectr.shop_rows import ROWS, START_S, shop_rows, write_csv


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(file: Path | str, *more: str, label: str = "clicked") -> int:
    return main(["init", "--from", str(file), "--label", label, *more])


def says(capsys: pytest.CaptureFixture[str], file: Path, *more: str, label: str = "clicked") -> str:
    """Sentence of a refusal; nothing is left behind."""
    before = sorted(file.parent.iterdir())
    assert init(file, *more, label=label) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("livectr: ")
    assert sorted(file.parent.iterdir()) == before
    return output.err


def examples(folder: Path) -> pa.Table:
    """Labels, times and order of the examples that the pipeline reads from its log."""
    pipeline = load_pipeline(folder / "pipeline.py")
    source = ExampleSource(
        pipeline,
        f"file:{folder / 'logs'}",
        ReadOptions(until_end=True),
        rank=0,
        world=1,
        dead_letters=DeadLetters(None),
    )
    try:
        batches = list(until_end(source))
    finally:
        source.close()
    return pa.table(
        {
            "label": np.concatenate([batch.label for batch in batches]),
            "time_ms": np.concatenate([batch.time_ms for batch in batches]),
        }
    )


def test_a_csv_becomes_a_pipeline_that_trains(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = shop_rows()
    assert init(write_csv(here / "shop.csv", rows)) == 0
    out = capsys.readouterr().out
    for column, kind, role, why in (
        ("seen_at", "int64", "time", "2025-11-24 16:00 to 2025-11-25 01:59, epoch seconds"),
        ("user_id", "int64", "user", "named like a user, 40 different"),
        ("ad_id", "int64", "item", "named like what is shown, 20 different"),
        ("category", "string", "id of the item", "4 different texts"),
        ("price", "float64", "number of the item", "a fraction"),
        ("age", "int64", "number", "different numbers"),
        ("tags", "string", "list", "several values in a text, separated by '|'"),
        ("query", "string", "words", "texts of 4 words: one key a word"),
        ("impression", "", "left out", "names the row: 600 different values in 600"),
        ("country", "", "left out", "every value is de"),
        ("nothing", "", "left out", "every value is empty"),
        ("clicked_at", "", "left out", "known only after the click"),
    ):
        line = next(line for line in out.splitlines() if line.startswith(f"│ {column} "))
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        assert cells[1:3] == [kind, role] and why in cells[3], line
    assert "clicked" in out and "a click rate of" in out
    assert "Left out: impression, country, nothing, clicked_at." in out
    text = (here / "shop" / "pipeline.py").read_text()
    for written in (
        'time=EventTime("seen_at", unit="s"),',
        '"tags": ops.split(log.tags, "|"),',
        '"query": ops.split(ops.lower(log.query), " "),',
        '"age": -1,',
        '"age": [0, ',
        '"age": ops.normalise(ops.clip(ops.where(log.age > -1, log.age, ',
        '"price": ops.normalise(ops.clip(log.price, ',
        '"hour": ops.hour(log.seen_at),',
    ):
        assert written in text
    trained = livectr.train(here / "shop" / "pipeline.py", source=f"file:{here / 'shop' / 'logs'}")
    assert trained.report.examples_trained == ROWS and trained.report.dead_letters == 0
    assert trained.report.stream["clicked"] == sum(row["clicked"] for row in rows)
    assert trained.report.auc is not None and trained.report.auc > 0.6


def test_rows_without_a_number_have_a_bin_of_their_own(here: Path) -> None:
    """Nulls do, in a column with negative numbers too. A request that leaves the column out is such a row."""
    rows = [
        {
            "seen_at": START_S + i,
            "user_id": i % 40,
            "ad_id": i % 20,
            "profit": "" if i % 3 == 0 else (i * 37 % 500 - 250) / 10,
            "depth": "" if i % 4 == 0 else i * 37 % 500,
            "clicked": int(i % 7 == 0),
        }
        for i in range(600)
    ]
    assert init(write_csv(here / "log.csv", rows)) == 0
    typed = [{name: None if value == "" else value for name, value in row.items()} for row in rows]
    found = livectr.features(here / "log" / "pipeline.py", typed)
    for name in ("profit", "depth"):
        keys = [key for (key,) in found.column(f"{name}_bin").to_pylist()]
        without = {key for key, row in zip(keys, typed, strict=True) if row[name] is None}
        given = {key for key, row in zip(keys, typed, strict=True) if row[name] is not None}
        assert len(without) == 1 and len(given) == 10 and not without & given


def test_no_number_of_a_request_is_beyond_those_of_the_file(here: Path) -> None:
    """One price of 1e30 in a request would get a probability of 1, and win each auction."""
    rows = [
        {
            "seen_at": START_S + i,
            "user_id": i % 40,
            "ad_id": i % 20,
            "price": 1 + i * 37 % 500 / 10,
            "clicked": i % 2,
        }
        for i in range(600)
    ]
    assert init(write_csv(here / "log.csv", rows)) == 0
    text = (here / "log" / "pipeline.py").read_text()
    assert '"price": ops.normalise(ops.clip(log.price, 1.0, 50.9), 25.9, 14.47),' in text
    asked = [{**rows[0], "price": price} for price in (50.9, 1e30, 1.0, -1e30)]
    found = livectr.features(here / "log" / "pipeline.py", asked)
    (most,), (above,), (least,), (below,) = found.column("price_bin").to_pylist()
    assert above == most and below == least


def test_the_commands_to_continue_with_are_commands(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(write_csv(here / "shop.csv", shop_rows())) == 0
    _, _, after = capsys.readouterr().out.partition("Continue with:\n")
    lines = [line.strip().removesuffix(" &") for line in after.strip().splitlines()]
    assert [shlex.split(line)[1] for line in lines] == ["check", "up", "query", "down"]
    for line in lines:
        build_parser().parse_args(shlex.split(line)[1:])
    query = build_parser().parse_args(shlex.split(lines[2])[1:])
    named = {pair.split("=")[0] for pair in (*query.context, *query.candidates)}
    pipeline = load_pipeline(here / "shop" / "pipeline.py")
    needed = {root.params[0].column for root in pipeline.request_roots}
    assert needed - {"seen_at"} - set(pipeline.log.impressions.fill) <= named
    assert query.candidates[0].startswith("ad_id=") and len(query.candidates[0].split(",")) == 3


def iso(second: int, shape: str) -> str:
    return np.datetime_as_string(np.datetime64(second, "s")).replace("T", shape[10])[:19] + shape[19:]


@pytest.mark.parametrize(
    ("form", "written"),
    [
        (lambda s: s, 'EventTime("seen_at", unit="s")'),
        (lambda s: s * 1000, '"seen_at"'),
        (lambda s: s * 1_000_000, 'EventTime("seen_at", unit="us")'),
        (lambda s: s * 1_000_000_000, 'EventTime("seen_at", unit="ns")'),
        (lambda s: f"{s}.0", 'EventTime("seen_at", unit="s")'),
        (lambda s: f"{s}.25", '"seen_at"'),
        (lambda s: iso(s, "2026-01-01T00:00:00Z"), '"seen_at"'),
        (lambda s: iso(s, "2026-01-01 00:00:00 UTC"), '"seen_at"'),
        (lambda s: iso(s, "2026-01-01 00:00:00+00:00"), '"seen_at"'),
    ],
)
def test_times_are_read_in_their_unit(here: Path, form: Callable[[int], object], written: str) -> None:
    rows = [row | {"seen_at": form(row["seen_at"])} for row in shop_rows()]
    assert init(write_csv(here / "shop.csv", rows)) == 0
    assert f"time={written}," in (here / "shop" / "pipeline.py").read_text()
    fraction = 250 if str(rows[0]["seen_at"]).endswith(".25") else 0
    expected = [1000 * (START_S + 60 * i) + fraction for i in range(ROWS)]
    assert examples(here / "shop").column("time_ms").to_pylist() == expected


def test_rows_are_sorted_by_time(here: Path) -> None:
    rows = shop_rows()
    by_user = sorted(rows, key=lambda row: row["user_id"])
    assert by_user != rows
    assert init(write_csv(here / "shop.csv", by_user)) == 0
    found = examples(here / "shop")
    assert found.column("time_ms").to_pylist() == [1000 * row["seen_at"] for row in rows]
    assert found.column("label").to_pylist() == [row["clicked"] for row in rows]


def test_json_lines_with_objects_and_lists(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"device": {"os": "ios" if i % 3 else "android"}, "seen": [i % 5, i % 7], **row}
        for i, row in enumerate(shop_rows())
    ]
    file = here / "log.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    assert init(file) == 0
    output = capsys.readouterr()
    assert "│ device_os " in output.out and "2 different texts" in output.out
    assert "│ seen " in output.out and "lists of whole numbers" in output.out
    assert "601 rows read: 600 kept, 1 set aside (line 601:" in output.err
    trained = livectr.train(here / "log" / "pipeline.py", source=f"file:{here / 'log' / 'logs'}")
    assert trained.report.examples_trained == ROWS and trained.report.dead_letters == 0


@pytest.mark.parametrize("first", [None, np.nan], ids=["null", "NaN"])
def test_a_column_of_nan_alone_is_empty(
    here: Path, capsys: pytest.CaptureFixture[str], first: float | None
) -> None:
    rows = 40
    columns = {
        "ts": pa.array(range(START_S, START_S + rows)),
        "user_id": pa.array([i % 7 for i in range(rows)]),
        "temperature": pa.array([first, *[np.nan] * (rows - 1)], pa.float64()),
        "clicked": pa.array([i % 3 // 2 for i in range(rows)]),
    }
    pq.write_table(pa.table(columns), here / "log.parquet")
    assert init(here / "log.parquet", "--out", "made") == 0
    assert "every value is empty" in capsys.readouterr().out


def test_what_dataframes_write_beside_the_rows(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The number of a row is left out, shuffled or not; a label is 1.0 or NaN."""
    rows = [
        row | {"Unnamed: 0": i * 7 % 600, "clicked": 1.0 if row["clicked"] else math.nan}
        for i, row in enumerate(shop_rows())
    ]
    table = pa.Table.from_pylist([row | {"__index_level_0__": i * 7 % 600} for i, row in enumerate(rows)])
    pq.write_table(table, here / "shop.parquet")
    assert init(here / "shop.parquet") == 0
    out = capsys.readouterr().out
    for name in ("Unnamed: 0", "__index_level_0__"):
        assert cells(out, name)[1:] == ["left out", "the number of a row, as dataframes write it"]
    assert examples(here / "shop").column("label").to_pylist() == [row["clicked"] for row in shop_rows()]


def test_parquet_with_its_own_types(here: Path) -> None:
    table = pa.Table.from_pylist(shop_rows()).drop_columns(["nothing"])
    times = pa.array(table.column("seen_at").to_numpy() * 1_000_000, pa.timestamp("us", "UTC"))
    table = table.set_column(1, "seen_at", times)
    clicked = table.column_names.index("clicked")
    table = table.set_column(clicked, "clicked", table.column("clicked").cast(pa.bool_()))
    table = table.append_column("kind", pa.array(["x", "y"] * (ROWS // 2)).dictionary_encode())
    pq.write_table(table, here / "log.parquet")
    assert init(here / "log.parquet", "--out", "made") == 0
    trained = livectr.train(here / "made" / "pipeline.py", source=f"file:{here / 'made' / 'logs'}")
    assert trained.report.examples_trained == ROWS and trained.report.dead_letters == 0
    assert examples(here / "made").column("time_ms").to_pylist()[0] == START_S * 1000


def test_separators_and_gzip(here: Path) -> None:
    assert init(write_csv(here / "shop.csv.gz", shop_rows(), separator=";")) == 0
    assert examples(here / "shop").num_rows == ROWS


def test_a_log_without_users_and_times(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{name: row[name] for name in ("ad_id", "price", "clicked")} for row in shop_rows()]
    assert init(write_csv(here / "shop.csv", rows), "--user", "none", "--time", "row") == 0
    assert "number of the row: nobody is known, so there is no GAUC" in capsys.readouterr().out
    trained = livectr.train(here / "shop" / "pipeline.py", source=f"file:{here / 'shop' / 'logs'}")
    assert trained.report.examples_trained == ROWS


def test_a_user_of_several_columns(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"os": "ios" if i % 3 else "android"} for i, row in enumerate(shop_rows())]
    assert init(write_csv(here / "shop.csv", rows), "--user", "os,age") == 0
    assert "made of os, age" in capsys.readouterr().out
    assert 'key="user",' in (here / "shop" / "pipeline.py").read_text()


def test_stray_values_and_marks_for_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = shop_rows()
    for row in rows[::7]:
        row["price"] = "NULL"
    rows[50]["price"], rows[60]["seen_at"], rows[70]["age"] = "cheap", "yesterday", "NA"
    assert init(write_csv(here / "shop.csv", rows)) == 0
    output = capsys.readouterr()
    assert "│ price      │ float64 │ number" in output.out and "│ age        │ int64   │ number" in output.out
    assert "600 rows read: 598 kept, 2 set aside (line " in output.err
    assert "line 52: column 'price' is 'cheap', not float64" in output.err  # the header is line 1
    assert "line 62: column 'seen_at' is 'yesterday', not a time" in output.err
    assert examples(here / "shop").num_rows == ROWS - 2


def test_numbers_among_other_texts_are_left_out_and_said(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    amounts = [round(100 + 1.37 * i, 2) for i in range(ROWS)]
    rows = [
        row
        | {"paid": f"({amount})" if i % 9 == 0 else amount, "cost": f"EUR {amount}", "fee": amount}
        | {"rate": f"${i % 97}" if i % 2 else i % 97, "gift": f"${amount}" if i % 9 else "free"}
        | {"size": f'"{amount} KB"', "tax": f'"({amount})"'.replace(".", ","), "print": f"{2**64 + i}"}
        | {
            "fee": "-" if i % 9 == 0 else amount,
            "key": f"{{{i % 7:08x}-0000}}",
            "postal": f"0{100 + i % 97}" if i % 3 else f"K{i % 9}",
            "path": f'"{{{i % 7},{i % 3}}}"',
        }
        | {"slot_id": f"1.{i % 7:05d}E+15"}
        for i, (row, amount) in enumerate(zip(shop_rows(), amounts, strict=True))
    ]
    file = write_csv(here / "shop.csv", rows)
    assert init(file) == 0
    out = capsys.readouterr().out
    assert cells(out, "fee")[:2] == cells(out, "cost")[:2] == ["float64", "number"], cells(out, "fee")
    assert cells(out, "key")[:2] == cells(out, "postal")[:2] == ["string", "id"]
    for name, why in (
        ("paid", "numbers in 533 of 600 rows, and texts such as (100.0): write numbers alone, or"),
        ("size", "names the row: 600 different values in 600, such as 100.0 KB"),
        ("rate", "numbers with several signs, or with one in some rows alone: write them in one way"),
        (
            "gift",
            "numbers in 533 of 600 rows, and texts such as free: write numbers alone, or name it gift_code",
        ),
        ("tax", "numbers with other marks, such as (100,0): write 1.37"),
        ("print", "names the row: 600 different values in 600"),
        ("path", "lists that are not written as [1, 2], such as {0,0}"),
        ("slot_id", "ids such as 1.00001E+15, which have lost digits: write whole numbers or texts"),
    ):
        assert cells(out, name)[1] == "left out" and cells(out, name)[2].startswith(why), cells(out, name)
    lost = "'slot_id' holds ids such as 1.00001E+15, which have lost digits"
    assert lost in says(capsys, file, "--user", "slot_id", "--out", "other")


@pytest.mark.parametrize(
    ("yes", "no", "label"),
    [("True", "nan", "clicked"), (" yes ", " no ", "clicked"), ("click  ", "view   ", "clicked=click")],
)
def test_a_label_is_true_or_a_text_for_nothing_with_blanks_around(
    here: Path, yes: str, no: str, label: str
) -> None:
    rows = [row | {"clicked": yes if row["clicked"] else no} for row in shop_rows()]
    assert init(write_csv(here / "shop.csv", rows), label=label) == 0
    clicks = sum(row["clicked"] for row in shop_rows())
    assert sum(examples(here / "shop")["label"].to_pylist()) == clicks


def test_brackets_and_braces_that_no_column_can_be_say_what_they_are(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = "lists that are not written as [1, 2], such as "
    held: dict[str, tuple[Callable[[int], object], str]] = {
        "json": (
            lambda i: {"os": i % 3},
            "holds JSON: name what you need with json_fields, or ops.json_field",
        ),
        "python": (lambda i: str({"os": i % 3}), "objects that are no JSON, such as {'os': 0}: write JSON"),
        "hive": (lambda i: f"{{os={i % 3}}}", "objects that are no JSON, such as {os=0}: write JSON"),
        "postgres": (lambda i: f"{{a{i % 3},b}}" if i else "{}", lists + "{}"),
        "numpy": (lambda i: f"['a{i % 3}' 'b']", lists + "['a0' 'b']"),
        "wrapped": (lambda i: f"[{i % 3}\n 2]", lists + "[0\\n 2]"),
        "java": (lambda i: f"[a{i % 3}, b]", lists + "[a0, b]"),
        "null": (lambda i: f'["a{i % 3}", null]', "a null is inside of lists: write lists without it"),
        "half": (
            lambda i: f"[{i % 3}.5, 2]",
            "lists of other values than ids or texts, which alone can be keys",
        ),
        "space": (lambda i: f"['a{i % 3}', ' ', 'b']", "lists of texts"),
        "tag": (lambda i: f"[a{i % 3}] x", "3 different texts"),
        "uuid": (lambda i: f"{{{i % 3:08x}-0000}}", "3 different texts"),
    }
    rows = [row | {name: of(i) for name, (of, _) in held.items()} for i, row in enumerate(shop_rows())]
    with (here / "shop.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(row | {"json": json.dumps(row["json"])} for row in rows)
    assert init(here / "shop.csv") == 0
    out = capsys.readouterr().out
    assert {name: cells(out, name)[2] for name in held} == {name: why for name, (_, why) in held.items()}


def test_users_that_are_nobody_are_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"user_id": f"u{row['user_id']}" if i % 3 else "None"} for i, row in enumerate(shop_rows())]
    assert init(write_csv(here / "shop.csv", rows)) == 0
    why = "of which 'None' has 200 rows: leave it empty if it is nobody"
    assert cells(capsys.readouterr().out, "user_id")[2].endswith(why)
    # By as many rows as no other user has.
    zeros = "00000000-0000-0000-0000-000000000000"
    for number, (nobody, words) in enumerate(((0, "0"), (-1, "-1"), (zeros, repr(f"{zeros[:29]}…")))):
        rows = [row | ({} if i % 3 else {"user_id": nobody}) for i, row in enumerate(shop_rows())]
        assert init(write_csv(here / f"of{number}.csv", rows)) == 0
        assert f"of which {words} has 200 rows: leave it" in cells(capsys.readouterr().out, "user_id")[2]


def test_times_of_two_types_in_a_folder_are_a_sentence(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "shop").mkdir()
    for name, of in (("a", int), ("b", lambda s: datetime.fromtimestamp(s, UTC))):
        rows = [row | {"seen_at": of(row["seen_at"])} for row in shop_rows()]
        pq.write_table(pa.Table.from_pylist(rows), here / "shop" / f"{name}.parquet")
    refused = says(capsys, here / "shop", "--out", "made")
    assert "seen_at has 600 numbers, such as 1764000000, among 1,200 values: write ISO 8601 or num" in refused


def test_a_column_that_few_rows_have_is_not_the_items(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        row | {"coupon": "x" if i % 9 == 0 else None, "brand": f"b{row['ad_id'] % 5}" if i % 9 else None}
        for i, row in enumerate(shop_rows())
    ]
    assert init(write_csv(here / "shop.csv", rows)) == 0
    out = capsys.readouterr().out
    assert cells(out, "coupon")[1] == "id" and cells(out, "brand")[1] == "id of the item"


def test_blanks_before_quotes_are_a_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "shop.csv").write_text('"at", "clicked"\n1764000000, "1"\n')
    why = """has blanks between ',' and quotes; write none: sed 's/, *"/,"/g'"""
    assert why in says(capsys, here / "shop.csv")


def test_lines_before_the_header_are_a_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_csv(here / "shop.csv", shop_rows())
    text = file.read_text()
    for title in ("Views of November\n\n", "Views" + "," * 12 + "\n"):
        file.write_text(title + text)
        why = "line 1 names one column, and most rows have 13: delete the lines before the one that names the"
        assert why in says(capsys, file)


def test_times_that_a_spreadsheet_has_shortened_are_an_error(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"seen_at": f"{row['seen_at'] * 1000:.4E}"} for row in shop_rows()]
    file = write_csv(here / "shop.csv", rows)
    assert "'seen_at' holds numbers such as 1.764E+12, which have lost digits" in says(capsys, file)


def test_a_rule_about_nothing_says_nothing_about_the_label(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN is neither above a number nor another value: its row has no label."""
    rows = [
        row | {"stars": math.nan if i == 7 else 5.0 * row["clicked"]} for i, row in enumerate(shop_rows())
    ]
    pq.write_table(pa.Table.from_pylist(rows), here / "shop.parquet")
    for rule in ("stars>=4", "stars!=0"):
        assert init(here / "shop.parquet", "--out", rule, label=rule) == 0
        output = capsys.readouterr()
        assert "599 kept, 1 set aside (row 8: column 'stars' is nan, not a value)" in output.err
        clicks = sum(row["clicked"] for i, row in enumerate(shop_rows()) if i != 7)
        assert sum(examples(here / rule)["label"].to_pylist()) == clicks


def test_a_label_of_lists_or_bytes_is_a_sentence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        row | {"lists": [row["clicked"]], "bytes": b"1", "yes": bool(row["clicked"])} for row in shop_rows()
    ]
    pq.write_table(pa.Table.from_pylist(rows), here / "shop.parquet")
    for column, has in (("lists", "[0], [1]"), ("bytes", "b'1'")):
        refused = says(capsys, here / "shop.parquet", label=column)
        assert f"column {column!r} must be 0 or 1 (or false and true), but has {has}" in refused
        refused = says(capsys, here / "shop.parquet", label=f"{column}=1")
        assert f"column {column!r} holds " in refused and "name one of texts or numbers" in refused
    assert init(here / "shop.parquet", label="yes=True") == 0


def test_a_list_with_a_null_inside_is_in_no_log(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"seen": [i % 5, i % 7], "often": ["a", None if i % 3 else "b"], "never": [], **row}
        for i, row in enumerate(shop_rows())
    ]
    rows[70]["seen"] = [3, None]
    file = here / "shop.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert init(file) == 0
    output = capsys.readouterr()
    assert cells(output.out, "seen")[:2] == ["list<int64>", "list"]
    assert cells(output.out, "often")[1:] == [
        "left out",
        "a null is inside of 400 of 600 lists: write lists without it",
    ]
    assert cells(output.out, "never")[1:] == ["left out", "every list is empty"]
    assert "599 kept, 1 set aside (line 71: column 'seen' is [3, None], not list<int64>)" in output.err
    assert examples(here / "shop").num_rows == ROWS - 1


def test_a_query_without_items_has_candidates(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{name: row[name] for name in ("user_id", "seen_at", "price", "clicked")} for row in shop_rows()]
    assert init(write_csv(here / "shop.csv", rows)) == 0
    out = capsys.readouterr().out
    assert "No column is known to be the item that is shown; say --item COLUMN" in out
    assert "--candidates price=" in out.splitlines()[-2]


def cells(out: str, column: str) -> list[str]:
    """Type, use and reason of a column in the printed table."""
    line = next(line for line in out.splitlines() if line.startswith(f"│ {column} "))
    return [cell.strip() for cell in line.strip("│").split("│")][1:]


def requests(count: int) -> list[dict[str, Any]]:
    """Rows of requests that show three keywords each; a keyword has a theme."""
    rng = np.random.default_rng(6)
    rows = []
    for number in range(count):
        user = int(rng.integers(40))
        for slot, keyword in enumerate(rng.choice(25, 3, replace=False).tolist()):
            rows.append(
                {
                    "trace": int(rng.integers(1 << 60)),
                    "ts": START_S + 60 * number,
                    "user_id": user,
                    "city_id": user % 5,
                    "keyword": f"k{keyword}",
                    "theme": f"t{keyword % 4}",
                    "slot": slot,
                    "clicked": int(rng.random() < (0.4 if keyword % 4 == 3 else 0.05)),
                }
            )
    return rows


def test_the_item_is_what_a_request_varies(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request is a user and a time, or an id of its own; a row's own id is left out."""
    assert init(write_csv(here / "shown.csv", requests(200))) == 0
    out = capsys.readouterr().out
    assert cells(out, "keyword")[1:] == [
        *("item", "differs in each row of a request (equal user and time), 25 different"),
    ]
    assert cells(out, "theme")[1] == "id of the item"
    assert cells(out, "trace")[1:] == ["left out", "names the row: 600 different values in 600"]
    rows = [row | {"ts": row["ts"] + i, "request_id": i // 3} for i, row in enumerate(requests(200))]
    assert init(write_csv(here / "asked.csv", rows)) == 0
    out = capsys.readouterr().out
    assert "a request (equal request_id)" in cells(out, "keyword")[2]
    assert cells(out, "request_id")[1:] == ["left out", "names a request: 200 different values in 600"]


def test_an_item_without_requests_is_what_others_depend_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row | {"ts": row["ts"] + i} for i, row in enumerate(requests(200))]
    assert init(write_csv(here / "shown.csv", rows)) == 0
    out = capsys.readouterr().out
    assert cells(out, "keyword")[1:] == [
        *("item", "1 other columns have a single value for each of its values, 25 different"),
    ]
    assert "--candidates keyword=" in out.splitlines()[-2]


def test_a_number_is_dense_and_in_bins(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(write_csv(here / "shop.csv", shop_rows())) == 0
    assert "in up to 10 bins of equally many rows" in cells(capsys.readouterr().out, "price")[2]
    pipeline = load_pipeline(here / "shop" / "pipeline.py")
    assert {"price", "age"} <= {*pipeline.dense} and {"price_bin", "age_bin"} <= {*pipeline.sparse}
    rows = [row | {"price_bin": f"b{i % 7}"} for i, row in enumerate(shop_rows())]
    assert init(write_csv(here / "named.csv", rows)) == 0
    assert {"price_bin", "price_bin_"} <= {*load_pipeline(here / "named" / "pipeline.py").sparse}


def test_columns_with_a_running_number_that_are_used_in_several_ways_load(here: Path) -> None:
    """Some of f0, f1, … are ids, some numbers, some left out: each dictionary has gaps of its own."""
    kinds: list[Callable[[int], Any]] = [lambda i: f"t{i % 7}", lambda i: i % 61 + 0.5, lambda i: "same"]
    order = [0, 0, 1, 0, 0, 0, 1, 2, 1, 1, 0, 1, 0, 1, 0, 1, 0]
    rows = [
        row | {f"f{j}": kinds[kind](i * (j + 1)) for j, kind in enumerate(order)}
        for i, row in enumerate(shop_rows())
    ]
    assert init(write_csv(here / "shop.csv", rows)) == 0
    pipeline = load_pipeline(here / "shop" / "pipeline.py")
    ids, numbers = ({f"f{j}" for j, kind in enumerate(order) if kind == of} for of in (0, 1))
    known = {f"f{j}" for j in range(len(order))}
    assert known & {*pipeline.sparse} == ids and known & {*pipeline.dense} == numbers
    assert known & {*pipeline.log.impressions.columns} == ids | numbers


@pytest.mark.parametrize("name", [".", ".price", "[0]", "\N{MODIFIER LETTER CAPITAL A}", "\ufb01x"])
def test_names_that_arrow_or_python_would_read_as_others(here: Path, name: str) -> None:
    """A path into a column for Arrow; for Python, log.\N{MODIFIER LETTER CAPITAL A} is log.A."""
    rows = [row | {name: row["category"], f"{name}2": i % 3} for i, row in enumerate(shop_rows())]
    assert init(write_csv(here / "shop.csv", rows)) == 0
    assert name in load_pipeline(here / "shop" / "pipeline.py").log.impressions.columns


def test_a_number_named_as_a_part_of_the_time(here: Path) -> None:
    rows = [row | {"hour": float(row["price"]), "weekday": row["category"]} for row in shop_rows()]
    assert init(write_csv(here / "shop.csv", rows)) == 0
    pipeline = load_pipeline(here / "shop" / "pipeline.py")
    assert "hour" in pipeline.dense and {"hour_bin", "weekday"} <= {*pipeline.sparse}


@pytest.mark.parametrize("date", ["%Y-%m-%d", "%Y%m%d"])
@pytest.mark.parametrize("time", ["%H:%M:%S", "%H:%M:%S.250", "%-H:%M", "%H%M%S", "%-H%M", "%I:%M %p", "%-H"])
def test_a_date_and_a_time_of_day_are_a_time(here: Path, date: str, time: str) -> None:
    named, exact = ("hour", 3600) if time == "%-H" else ("tod", 1)
    moments = [datetime.fromtimestamp(row["seen_at"] - 36_000, UTC) for row in shop_rows()]
    rows = [
        {"day": moment.strftime(date), named: moment.strftime(time)}
        | {name: value for name, value in row.items() if name not in ("seen_at", "clicked_at")}
        for row, moment in zip(shop_rows(), moments, strict=True)
    ]
    assert init(write_csv(here / "shop.csv", rows)) == 0
    text = (here / "shop" / "pipeline.py").read_text()
    assert 'time="date_time",' in text and '"day":' not in text and '"tod":' not in text
    more = 250 if time.endswith("250") else 0
    assert examples(here / "shop").column("time_ms").to_pylist() == [
        int(moment.timestamp()) // exact * exact * 1000 + more for moment in moments
    ]


def test_an_hour_is_no_time_beside_one(here: Path) -> None:
    rows = [row | {"dt": "2025-11-24", "hour": i % 24} for i, row in enumerate(shop_rows())]
    assert init(write_csv(here / "shop.csv", rows)) == 0
    assert 'EventTime("seen_at"' in (here / "shop" / "pipeline.py").read_text()


def test_the_own_time_of_a_log_is_no_other_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A column named like it is the time, or says why it is not; a date beside it is no stand-in."""
    rows = [
        {"ts": row["seen_at"], "dt": "2025-11-24", "slot": f"{i % 24:02d}:00"} | row
        for i, row in enumerate(shop_rows())
    ]
    for row in rows:
        del row["seen_at"], row["clicked_at"]
    assert init(write_csv(here / "whole.csv", rows)) == 0
    assert 'EventTime("ts", unit="s")' in (here / "whole" / "pipeline.py").read_text()
    for other, words in (
        (lambda ts: 1000 * ts, "column 'ts': the times are of several units: "),
        (lambda ts: datetime.fromtimestamp(ts, UTC).isoformat(), "column 'ts': has 400 numbers, such as"),
    ):
        mixed = [row | ({} if i % 3 else {"ts": other(row["ts"])}) for i, row in enumerate(rows)]
        for row in mixed:
            del row["slot"]
        capsys.readouterr()
        said = says(capsys, write_csv(here / "mixed.csv", mixed))
        assert words in said and said.endswith("Or say --time dt.\n")


def test_a_column_of_lists_and_others_is_left_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text that holds a list would be another id than the list's item."""
    kinds: tuple[Callable[[int], Any], ...] = (lambda i: [i % 3], lambda i: i % 3, lambda i: "[x] y")
    rows = [row | {"mixed": kinds[i % 2](i), "words": kinds[2](i % 5)} for i, row in enumerate(shop_rows())]
    (here / "shop.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert init(here / "shop.jsonl") == 0
    assert cells(capsys.readouterr().out, "mixed")[1:] == [
        "left out",
        "lists in some rows, and none in others: write lists in all",
    ]


def test_a_column_that_is_no_time_says_why(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for value, words in (
        ("", "seen_at is empty in 150 of 600 rows."),
        (0, "seen_at: 150 of 600 values are no times of 2000 to 2100; --time seen_at reads those of 1973 on"),
    ):
        rows = [row | ({} if i % 4 else {"seen_at": value}) for i, row in enumerate(shop_rows())]
        assert words in says(capsys, write_csv(here / "shop.csv", rows))
    texts = [
        row | {"seen_at": "2025-11-24 16:00:00" if i % 20 else "0000-00-00"}
        for i, row in enumerate(shop_rows())
    ]
    words = "has 30 of 600 values, such as 0000-00-00, that are no epoch time"
    file = write_csv(here / "shop.csv", texts)
    assert f"seen_at {words}" in says(capsys, file)
    assert f"column 'seen_at' {words}" in says(capsys, file, "--time", "seen_at")
    mixed = [
        row | {"seen_at": row["seen_at"] if i % 2 else "2025-11-24T16:00:00"}
        for i, row in enumerate(shop_rows())
    ]
    assert "has 300 numbers, such as 17" in says(capsys, write_csv(here / "shop.csv", mixed))
    rows = [row | {"seen_at": 24112025} for row in shop_rows()]
    looks = "24112025 looks like a date written DDMMYYYY; write it as YYYYMMDD"
    assert looks in says(capsys, write_csv(here / "shop.csv", rows), "--time", "seen_at")
    rows = [row | {"seen_at": row["seen_at"] * (1 if i % 2 else 1000)} for i, row in enumerate(shop_rows())]
    assert "of several units: 50% milliseconds" in says(capsys, write_csv(here / "shop.csv", rows))


def test_a_label_by_a_rule(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = shop_rows()
    stars = [{**row, "stars": 5 if row["clicked"] else i % 4, "event": "click" if row["clicked"] else "view"}
             for i, row in enumerate(rows)]  # fmt: skip
    for row in stars:
        del row["clicked"], row["clicked_at"]
    file = write_csv(here / "shop.csv", stars)
    for rule, source in (
        ("stars>=5", "stars"),
        ("event=click", "event"),
        ("stars>4", "stars"),
        ("stars=5.0", "stars"),
        ("event!=view", "event"),
    ):
        made = here / re.sub(r"\W", "_", rule)
        other = "event" if source == "stars" else "stars"
        assert init(file, "--out", str(made), label=rule) == 0
        out = capsys.readouterr().out
        assert cells(out, source)[1:] == ["left out", "the label is made of it"]
        assert cells(out, other)[1] == "left out"  # it tells the label
        assert examples(made).column("label").to_pylist() == [row["clicked"] for row in rows]
    assert "'many' of 'stars>=many' is no number" in says(capsys, file, label="stars>=many")
    never = says(capsys, file, label="event=Click")
    assert "'event=Click' is false in all of the first 600 rows" in never
    assert "its column is click, view" in never or "its column is view, click" in never
    rows_of_stars = [{**row, "stars": "" if i % 50 == 3 else row["stars"]} for i, row in enumerate(stars)]
    file = write_csv(here / "some.csv", rows_of_stars)
    init(file, "--out", str(here / "some"), label="stars>=4")
    assert "column 'stars' is empty, not a value" in capsys.readouterr().err
    assert "holds string, no numbers to compare" in says(capsys, file, label="event>=3")
    assert "there is no column 'star>=5'" in says(capsys, file, label="star>=5")


def test_few_clicks_judge_no_column(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = shop_rows()
    for row in [row for row in rows if row["clicked"]][9:]:
        row["clicked"] = 0
    assert init(write_csv(here / "shop.csv", rows)) == 0
    out = capsys.readouterr().out
    assert "9 clicks in 600 rows are too few to judge whether a column is known only after the click" in out
    assert init(write_csv(here / "more.csv", shop_rows())) == 0
    assert "are too few to judge" not in capsys.readouterr().out


def test_what_is_seen_late_is_read_as_at_first(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types that change behind the sample, in a batch of their own or among others."""
    monkeypatch.setattr(facts, "SAMPLE_ROWS", 600)
    monkeypatch.setattr(json_rows, "BATCH_ROWS", 600)
    rows: list[dict[str, Any]] = [
        row | {"yes": i % 2 == 0, "none": None} for i, row in enumerate(shop_rows())
    ]
    late: list[dict[str, Any]] = [
        *({"age": "007"}, {"age": 1.5}, {"age": [1]}, {"yes": 5}, {"category": 5.0}, {"none": 3}, {"new": 4}),
        *({"yes": 1}, {"age": 17.0}, {"category": ["a"]}, {"ad_id": None}, {"country": "fr"}),
        {"seen_at": datetime.fromtimestamp(START_S, UTC).isoformat()},
    ]
    for mixed in (False, True):  # one value in a batch, or all of them
        file = here / f"shop{mixed}.jsonl"
        found = rows + [row for change in late for row in [rows[0] | change] * (1 if mixed else 600)]
        file.write_text("".join(json.dumps(row) + "\n" for row in found))
        assert init(file, "--max-bad", "1") == 0
        output = capsys.readouterr()
        assert "column 'age' is '007', not int64" in output.err and "column 'yes' is" in output.err
        for name in ("none", "new"):
            assert f"{name!r} first appears in line" in output.err
        assert "'ad_id' is first empty in line" in output.err and "its fill is -1" in output.err
        assert '"ad_id": -1' in (here / f"shop{mixed}" / "pipeline.py").read_text()
        assert "'country' is first another than de in line" in output.err
        assert "column 'category' is " in output.err
        kept = pa.concat_tables(
            pa.ipc.open_file(part).read_all() for part in (here / f"shop{mixed}" / "logs").glob("*/*.arrow")
        )
        aside = 6 * (1 if mixed else 600)  # 007, 1.5, [1], yes: 5, ["a"] and the text of a time
        assert kept.num_rows == len(found) - aside
        ages = {row["age"] for row in rows}
        assert {*kept["age"].to_pylist()} <= {*ages, 17} and "5.0" in kept["category"].to_pylist()
        assert {*kept["yes"].to_pylist()} == {True, False}


def test_types_of_later_files_that_no_value_has_a_place_in(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "SAMPLE_ROWS", ROWS)
    table = pa.Table.from_pylist(shop_rows())
    texts = pa.array(["2025-11-24"] * ROWS)
    (here / "shop").mkdir()
    for name, (column, values) in {
        "a": ("seen_at", table.column("seen_at")),
        "b": ("seen_at", texts),
        "c": ("seen_at", texts.cast(pa.date32())),
        "d": ("category", table.column("category").cast(pa.binary())),
    }.items():
        place = table.column_names.index(column)
        pq.write_table(table.set_column(place, column, values), here / "shop" / f"{name}.parquet")
    assert init(here / "shop", "--max-bad", "1", "--out", "made") == 0
    err = capsys.readouterr().err
    assert f"{4 * ROWS:,} rows read: {ROWS} kept" in err
    assert "b.parquet row 1: column 'seen_at' is '2025-11-24', not a time, and 1,199 more such" in err
    assert "d.parquet row 1: column 'category' is b'c1', not string, and 599 more such" in err


def test_rows_that_do_not_fit_are_set_aside(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = shop_rows()
    rows[100]["clicked"] = None
    rows[200]["seen_at"] = None
    assert init(write_csv(here / "shop.csv", rows)) == 0
    err = capsys.readouterr().err
    assert "598 kept, 2 set aside (" in err and "line 102: column 'clicked' is empty, not 0 or 1" in err
    assert examples(here / "shop").num_rows == ROWS - 2


def test_a_file_of_a_folder_that_lacks_the_label_is_set_aside(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = here / "logs"
    logs.mkdir()
    write_csv(logs / "a.csv", shop_rows())
    write_csv(logs / "c.csv", [{n: v for n, v in row.items() if n != "clicked"} for row in shop_rows()])
    assert init(logs, "--out", str(here / "shop")) == 4
    assert "c.csv line 2: there is no column 'clicked', and 599 more such" in capsys.readouterr().err


def test_ids_that_lost_their_digits_are_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"slot_id": float(2**53 + 2 * (row["age"] or 0))} for row in shop_rows()]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    pq.write_table(pa.table(columns), here / "shop.parquet")
    assert init(here / "shop.parquet") == 0
    assert cells(capsys.readouterr().out, "slot_id")[1:] == [
        "left out",
        "ids beyond 2^53 as floats, which have lost digits: write whole numbers or texts",
    ]
    columns["user_id"] = columns.pop("slot_id")
    pq.write_table(pa.table(columns), here / "users.parquet")
    lost = "holds ids beyond 2^53 as floats, which have lost digits"
    assert f"no column is named like a user. user_id {lost}" in says(capsys, here / "users.parquet")
    assert f"column 'user_id' {lost}" in says(capsys, here / "users.parquet", "--user", "user_id")


def test_ids_and_times_that_lost_their_digits_as_32_bit_floats(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """17,000,001 is 17,000,000 or 17,000,002 there; whole numbers below 2^24 are what they were."""

    def written(name: str, **floats: Callable[[dict[str, Any]], float]) -> Path:
        columns = {column: pa.array([row[column] for row in shop_rows()]) for column in shop_rows()[0]}
        for column, of in floats.items():
            columns[column] = pa.array([np.float32(of(row)) for row in shop_rows()], pa.float32())
        (here / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), here / name)
        return here / name

    def large(row: dict[str, Any]) -> float:
        return float(2**24 * (1 + row["ad_id"]))

    assert init(written("few.parquet", user_id=lambda row: row["user_id"], slot_id=large)) == 0
    why = "ids beyond 2^24 as 32-bit floats, which have lost digits: write whole numbers or texts"
    output = capsys.readouterr().out
    assert cells(output, "user_id")[0] == "int64" and cells(output, "slot_id")[1:] == ["left out", why]
    many = written("many.parquet", user_id=lambda row: 2**24 + row["user_id"])
    assert f"user_id holds {why}" in says(capsys, many)
    times = written("times.parquet", seen_at=lambda row: row["seen_at"])
    assert "column 'seen_at' holds 32-bit floats, in which these times have lost" in says(capsys, times)
    written("folder/a.parquet")
    written("folder/b.parquet", ad_id=lambda row: 2**24 if row["ad_id"] == 3 else row["ad_id"])
    assert init(here / "folder", "--max-bad", "1", "--out", "made") == 0
    assert "column 'ad_id' is 16777216.0, not int64" in capsys.readouterr().err


def test_mistakes_are_sentences(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_csv(here / "shop.csv", shop_rows())
    assert "--label: there is no column 'cliked'; did you mean 'clicked'?" in says(
        capsys, file, label="cliked"
    )
    wrong = says(capsys, file, label="age")
    assert "column 'age' must be 0 or 1 (or false and true), but has" in wrong and "name another one" in wrong
    assert "--time: there is no column 'sen_at'; did you mean 'seen_at'?" in says(
        capsys, file, "--time", "sen_at"
    )
    no_time = says(capsys, file, "--time", "category")
    assert "--time: column 'category' is c" in no_time and "or say --time row" in no_time
    assert "did you mean 'user_id'?" in says(capsys, file, "--user", "userid")
    assert "did you mean 'ad_id'?" in says(capsys, file, "--item", "adid")
    assert "nowhere.csv; --from names the log." in says(capsys, here / "nowhere.csv")


def test_a_column_has_one_role(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_csv(here / "shop.csv", shop_rows())
    for flag, name in (
        ("--user", "clicked"),
        ("--user", "seen_at"),
        ("--item", "clicked"),
        ("--item", "user_id"),
    ):
        assert f"{flag}: column '{name}' is the label, the time or the user" in says(capsys, file, flag, name)
    assert "--user names 'user_id' twice" in says(capsys, file, "--user", "user_id,user_id")


def test_rows_that_are_there_twice_are_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"page": f"p{i}"} for i, row in enumerate(shop_rows())]
    assert init(write_csv(here / "shop.csv", [*rows, *rows])) == 0
    out = capsys.readouterr().out
    assert "600 of 1,200 rows repeat an earlier one" in out and "tells the label" not in cells(out, "page")[2]


def test_what_cannot_be_guessed_names_its_flag(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{n: row[n] for n in ("ad_id", "seen_at", "clicked")} for row in shop_rows()]
    message = says(capsys, write_csv(here / "nobody.csv", rows))
    assert "no column is named like a user. Say --user COLUMN (ad_id)" in message
    assert "--user A,B" in message and "--user none" in message
    rows = [{n: row[n] for n in ("ad_id", "user_id", "clicked")} for row in shop_rows()]
    message = says(capsys, write_csv(here / "never.csv", rows))
    assert "no column is a time. Say --time COLUMN, or --time row" in message
    rows = [row | {"date": "24/11/2025"} for row in rows]
    message = says(capsys, write_csv(here / "odd.csv", rows))
    assert "date is 24/11/2025, which is no epoch time of 2000 to 2100 and no ISO 8601 date." in message
    rows = [row | {"clicked": 0} for row in shop_rows()]
    message = says(capsys, write_csv(here / "zeros.csv", rows))
    assert "column 'clicked' is 0 in all of the first 600 rows" in message


def test_files_that_are_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = here / "array.json"
    array.write_text(json.dumps(shop_rows()))
    assert "is one JSON array; write an object a line: jq -c '.[]'" in says(capsys, array)
    headless = here / "headless.csv"
    headless.write_text("1,2,3\n4,5,6\n")
    assert "the first line must name the columns; it is '1,2,3'" in says(capsys, headless)
    sheet = here / "log.xlsx"
    sheet.write_text("x")
    assert "name it .csv, .tsv, .jsonl or .parquet" in says(capsys, sheet)
    empty = here / "empty.csv"
    empty.write_text("")
    assert "empty.csv is empty" in says(capsys, empty)


def test_a_folder_is_not_written_over(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_csv(here / "shop.csv", shop_rows())
    assert init(file) == 0
    capsys.readouterr()
    assert "shop exists and is not written over; say --out" in says(capsys, file)
