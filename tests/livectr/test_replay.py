"""Log files become event streams: every row once, in order within its partition, bad rows set aside."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from livectr.logs.json_events import json_events, message_keys
from livectr.logs.replay import ReplayOptions, replay
from livectr.simulator.sinks import holds
from livectr.system.errors import ConfigError, ConnectError, RowsError
from tests.livectr.log_samples import AVAZU_HEADER, avazu, criteo


def rows_of(folder: Path, topic: str) -> dict[int, list[dict[str, Any]]]:
    """Partition → its rows, in order."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in sorted((folder / topic).iterdir()):
        if path.suffix == ".arrow":
            rows = pa.ipc.open_file(path).read_all().to_pylist()
        else:
            rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        found.setdefault(int(path.name[:5]), []).extend(rows)
    return found


def send(file: Path, kind: str, target: Path, **more: Any) -> dict[str, Any]:
    return replay(ReplayOptions(file=file, format=kind, to=f"file:{target}", **more))


@pytest.mark.parametrize("events", ["arrow", "json"])
def test_criteo_rows_come_typed_and_numbered(tmp_path: Path, events: str) -> None:
    criteo(tmp_path / "train.txt", 500)
    counts = send(tmp_path / "train.txt", "criteo", tmp_path / "out", events=events)
    rows = [row for part in rows_of(tmp_path / "out", "criteo").values() for row in part]
    rows.sort(key=lambda row: row["row"])
    assert (counts["topic"], counts["rows"], counts["bad_rows"]) == ("criteo", 500, 0)
    for number, (row, line) in enumerate(
        zip(rows, (tmp_path / "train.txt").read_text().splitlines(), strict=True)
    ):
        label, *values = line.split("\t")
        assert (row["row"], row["label"]) == (number, int(label))
        assert [row[f"I{i}"] for i in range(1, 14)] == [int(v) if v else None for v in values[:13]]
        assert [row[f"C{i}"] for i in range(1, 27)] == [v or None for v in values[13:]]


def test_avazu_hours_become_times_and_ids_stay_whole(tmp_path: Path) -> None:
    avazu(tmp_path / "train.csv", 200)
    send(tmp_path / "train.csv", "avazu", tmp_path / "out")
    parts = rows_of(tmp_path / "out", "avazu")
    first = min((row for rows in parts.values() for row in rows), key=lambda row: row["id"])
    assert (first["id"], first["hour"]) == ("10000000000000000000", 1413849600000)  # 2014-10-21 00:00 UTC
    where = {row["device_ip"]: p for p, rows in parts.items() for row in rows}
    assert all(where[row["device_ip"]] == p for p, rows in parts.items() for row in rows)


def test_gzip_is_read_as_it_is(tmp_path: Path) -> None:
    avazu(tmp_path / "train.csv", 50)
    (tmp_path / "train.gz").write_bytes(gzip.compress((tmp_path / "train.csv").read_bytes()))
    assert send(tmp_path / "train.gz", "avazu", tmp_path / "out")["rows"] == 50


def test_bad_rows_are_set_aside_with_row_and_reason(tmp_path: Path) -> None:
    criteo(tmp_path / "train.txt", 20)
    lines = (tmp_path / "train.txt").read_bytes().splitlines()
    lines[3:3] = [b"1\t2\t3"]  # row 4
    lines[9:9] = [b"x" + lines[8][1:]]  # row 10
    lines[15:15] = [lines[14][:-8] + b"\xff\xfe345678"]  # row 16
    lines.append(lines[0].replace(b"\t", b"\t99999999999999999999", 1))  # row 24
    (tmp_path / "train.txt").write_bytes(b"\n".join(lines) + b"\n")
    counts = send(
        tmp_path / "train.txt",
        "criteo",
        tmp_path / "out",
        bad_rows=tmp_path / "bad.jsonl",
        most_set_aside=1.0,
    )
    bad = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert (counts["rows"], counts["bad_rows"]) == (20, 4)
    assert sorted((row["row"], row["reason"].split(" is ")[0]) for row in bad) == [
        (4, "3 columns, not 40"),
        (10, "column 'label'"),
        (16, "not UTF-8: byte 0xff; as Latin-1 '0000015\\tÿþ345678': iconv -f LATIN1 -t UTF-8"),
        (24, "column 'I1'"),
    ]


def test_csv_types_are_inferred_or_said(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        ',user,price,when,"a ""b"""\n0,7,1.5,2024-01-01 00:00:01.250000+00:00,x\n1,8,2,2024-01-01T00:00:02,\n'
    )
    send(tmp_path / "log.csv", "csv", tmp_path / "out", time="when", key="user", types={"user": "string"})
    rows = [row for part in rows_of(tmp_path / "out", "log").values() for row in part]
    assert sorted(rows, key=lambda row: str(row["user"])) == [
        {"user": "7", "price": 1.5, "when": 1704067201250, 'a "b"': "x"},
        {"user": "8", "price": 2.0, "when": 1704067202000, 'a "b"': None},
    ]


def test_a_time_that_cannot_be_read_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("t,x\n2024-01-01,1\nyesterday,2\n")
    counts = send(tmp_path / "log.csv", "csv", tmp_path / "out", time="t", most_set_aside=0.5)
    assert (counts["rows"], counts["bad_rows"]) == (1, 1)


def test_json_lines_go_out_as_they_are(tmp_path: Path) -> None:
    good = ['{"user": 1, "x": {"deep": [1, 2]}}', '{"user":2,"y":"Hà Nội"}']
    (tmp_path / "log.jsonl").write_text(
        "\ufeff" + "\n".join([good[0], "{broken", "[1]", '{"x": 1}', "", good[1]])
    )
    counts = send(tmp_path / "log.jsonl", "jsonl", tmp_path / "out", key="user", most_set_aside=0.6)
    assert (counts["rows"], counts["bad_rows"]) == (2, 3)
    out = [p.read_bytes().decode() for p in sorted((tmp_path / "out" / "log").iterdir())]
    assert sorted("".join(out).splitlines()) == sorted(good)


def test_a_key_of_json_is_that_of_a_table(tmp_path: Path) -> None:
    """17 and 17.0 are one user, and null is none."""
    values = ["17", "17.0", "true", "null", '"x"', "17.5"]
    (tmp_path / "log.jsonl").write_text("".join(f'{{"u": {value}}}\n' for value in values))
    send(tmp_path / "log.jsonl", "jsonl", tmp_path / "out", key="u", partitions=4)
    parts = [p.read_text().splitlines() for p in sorted((tmp_path / "out" / "log").iterdir())]
    assert any({'{"u": 17}', '{"u": 17.0}'} <= {*lines} for lines in parts)
    assert message_keys(pa.array([17.0, None, 17.5, 1e300])) == [b"17", None, b"17.5", b"1e+300"]
    assert message_keys(pa.array([True, None])) == [b"true", None]
    (tmp_path / "deep.jsonl").write_text('{"u": [1]}\n')
    with pytest.raises(ConfigError, match="--key: 'u' holds a list"):
        send(tmp_path / "deep.jsonl", "jsonl", tmp_path / "out", key="u")


def test_a_time_of_which_no_value_is_one_says_why(tmp_path: Path) -> None:
    seconds = [1_764_000_000 + i if i % 4 else "soon" for i in range(300)]
    (tmp_path / "log.csv").write_text("ts,x\n" + "".join(f"{one},1\n" for one in seconds))
    with pytest.raises(ConfigError, match="'ts' has 75 of 300 values, such as soon, that are no epoch time"):
        send(tmp_path / "log.csv", "csv", tmp_path / "out", time="ts")
    (tmp_path / "log.csv").write_text("ts,x\n" + "1.764E+12,1\n" * 9)
    with pytest.raises(ConfigError, match="'ts' holds numbers such as"):
        send(tmp_path / "log.csv", "csv", tmp_path / "out", time="ts")
    mixed = [i if i % 4 else '"soon"' for i in range(300)]
    (tmp_path / "log.jsonl").write_text("".join(f'{{"ts": {one}}}\n' for one in mixed))
    with pytest.raises(ConfigError, match="'ts' has 75 of 300 values, such as soon"):
        send(tmp_path / "log.jsonl", "jsonl", tmp_path / "out", time="ts")


def test_a_folder_of_json_lines_is_sent_whole_or_not_at_all(tmp_path: Path) -> None:
    """Folders of partitions are columns, times have the form of the first, and each row has an account."""
    log, times = tmp_path / "log", "2026-11-24T10:00:0%d"
    (log / "dt=2026-11-24").mkdir(parents=True)
    (log / "a.jsonl").write_text("".join(f'{{"u": {n}, "t": "{times % n}"}}\n' for n in range(3)))
    with gzip.open(log / "dt=2026-11-24" / "b.jsonl.gz", "wt") as file:
        file.write('{"u": 3, "t": "2026-11-24T10:00:03"}\nbroken\n{"u": 4, "t": "never"}\n{"t": 1}\n')
    (log / "notes.csv").write_text("a,b\n")
    to, bad = tmp_path / "out", tmp_path / "bad"
    more: dict[str, Any] = {"key": "u", "time": "t", "topic": "shows", "partitions": 1, "bad_rows": bad}
    with pytest.raises(RowsError, match="3 of 7 rows do not fit"):
        send(log, "jsonl", to, **more)
    assert not list(to.rglob("*"))
    counts = send(log, "jsonl", to, most_set_aside=0.5, **more)
    assert (counts["rows"], counts["bad_rows"]) == (4, 3)
    first = 1_763_978_400_000 + 365 * 86_400_000
    assert rows_of(to, "shows")[0] == [
        *({"u": n, "t": first + n * 1000} for n in range(3)),
        {"u": 3, "t": first + 3000, "dt": "2026-11-24"},
    ]
    places = [(Path(one["file"]).name, one["row"]) for one in map(json.loads, bad.open())]
    assert sorted(places) == [("b.jsonl.gz", 2), ("b.jsonl.gz", 3), ("b.jsonl.gz", 4)]
    assert "dt=2026-11-24/b.jsonl.gz line 2" in counts["account"]
    assert any("notes.csv" in remark for remark in counts["remarks"])


def test_json_events_equal_those_of_json_dumps() -> None:
    columns: dict[str, list[Any]] = {
        'a "b"': [1, None, -(2**63), 7],
        "text": ["plain ~ text", None, 'quote " \\ \n \x7f \x1e', "Hà Nội"],
        "ascii": ["a", None, "", "b c"],
        "price": [1.5, None, 1e300, -0.0],
        "yes": [True, None, False, True],
        "many": [[1, 2], None, [], [3]],
        "deep": [{"x": "}, {"}, None, {"x": "y"}, {"x": ""}],
        "site": ["a", "b", "a", None],
    }
    batch = pa.RecordBatch.from_pydict(columns)
    batch = batch.set_column(7, "site", batch["site"].dictionary_encode())
    wanted = [json.dumps(row).encode() for row in batch.to_pylist()]
    assert list(json_events(batch)) == wanted
    assert list(json_events(batch.slice(1, 2))) == wanted[1:3]
    long = pa.RecordBatch.from_pydict({"n": range(25_000)})
    assert list(json_events(long)) == [b'{"n": %d}' % n for n in range(25_000)]
    for name in batch.schema.names[:6]:
        if not (pa.types.is_floating(batch[name].type) or pa.types.is_boolean(batch[name].type)):
            assert message_keys(batch[name]) == [
                None if value is None else str(value).encode() for value in batch[name].to_pylist()
            ]


def test_lists_that_no_column_can_be_are_left_out_and_said(tmp_path: Path) -> None:
    moments = pa.array([[0]], pa.list_(pa.timestamp("us")))
    table = pa.table({"n": [1], "seen": moments, "raw": [[b"a"]], "tags": [["a"]]})
    parquet.write_table(table, tmp_path / "log.parquet")
    for events in ("arrow", "json"):
        counts = send(tmp_path / "log.parquet", "parquet", tmp_path / events, events=events, partitions=1)
        assert rows_of(tmp_path / events, "log")[0] == [{"n": 1, "tags": ["a"]}]
        assert [remark.split(" is left out")[0] for remark in counts["remarks"]] == ["seen", "raw"]
    with pytest.raises(ConfigError, match="--key: column 'tags' holds list<item: string>; name a column"):
        send(tmp_path / "log.parquet", "parquet", tmp_path / "keyed", key="tags")


def test_a_table_has_no_row_without_a_key(tmp_path: Path) -> None:
    """Compaction keeps the latest row of a key: of all rows without one, a single one."""
    (tmp_path / "ads.csv").write_text("ad,price\n" + "".join(f"{i},2\n" for i in range(300)) + ",3\n")
    counts = send(tmp_path / "ads.csv", "csv", tmp_path / "out", key="ad", table=True)
    assert (counts["rows"], counts["bad_rows"]) == (300, 1)
    assert "line 302: column 'ad' is empty" in counts["account"]


def test_parquet_with_timestamps_and_dictionaries(tmp_path: Path) -> None:
    table = pa.table(
        {
            "at": pa.array([1_700_000_000_123_456, 1_700_000_001_000_000], pa.timestamp("us", "UTC")),
            "site": pa.array(["a", "b"]).dictionary_encode(),
            "slot_id": pa.array([float(2**24), float(2**25)], pa.float32()),
        }
    )
    parquet.write_table(table, tmp_path / "log.parquet")
    sent = send(tmp_path / "log.parquet", "parquet", tmp_path / "out", time="at", partitions=1)
    assert rows_of(tmp_path / "out", "log")[0] == [
        {"at": 1_700_000_000_123, "site": "a", "slot_id": 2.0**24},
        {"at": 1_700_000_001_000, "site": "b", "slot_id": 2.0**25},
    ]
    assert "slot_id holds ids beyond 2^24 as 32-bit floats, which have lost digits" in sent["remarks"][0]


def test_a_rate_paces_the_rows(tmp_path: Path) -> None:
    criteo(tmp_path / "train.txt", 60)
    counts = send(tmp_path / "train.txt", "criteo", tmp_path / "out", rate=100.0, events="json")
    assert counts["rows"] == 60
    assert counts["seconds"] >= 0.5


@pytest.mark.parametrize(
    ("content", "kind", "more", "says"),
    [
        ("", "csv", {}, "log is empty"),
        ("a,a\n1,2\n", "csv", {}, "names a twice"),
        ("a,b\n", "csv", {}, "no row of .* fits the format 'csv' .it is empty"),
        ("a,b\n1,2\n", "avazu", {}, "no column 'id'"),
        ("a,b\n1,2\n", "csv", {"key": "user"}, "no column 'user'; its columns are a, b"),
        ("a,b\n1,2\n", "csv", {"time": "ts"}, "no column 'ts'"),
        ("a,b\n1,2\n", "csv", {"types": {"c": "string"}}, "no column 'c'"),
        ("x\n", "jsonl", {}, "log holds no JSON object a line; its first is 'x'"),
        ("x\n", "parquet", {}, "log is text, not Parquet"),
        ("1\t2\n", "criteo", {}, "no row of .* fits the format 'criteo'"),
        ("a\n1\n", "csv", {"table": True}, "needs --key"),
        ('{"a": 1}\n', "jsonl", {"types": {"a": "string"}}, "--types is for CSV and Parquet"),
    ],
)
def test_a_file_that_cannot_work_is_a_sentence(
    tmp_path: Path, content: str, kind: str, more: dict[str, Any], says: str
) -> None:
    (tmp_path / "log").write_text(content)
    with pytest.raises(ConfigError, match=says):
        send(tmp_path / "log", kind, tmp_path / "out", **more)


def test_missing_file_target_and_broker(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        send(tmp_path / "nothing.csv", "csv", tmp_path / "out")
    (tmp_path / "log.csv").write_text(AVAZU_HEADER + "\n" + ",".join("1" * 24) + "\n")
    with pytest.raises(ConfigError, match="neither kafka://HOST:PORT nor file:DIR"):
        replay(ReplayOptions(tmp_path / "log.csv", "csv", "s3://bucket"))
    with pytest.raises(ConnectError):
        replay(ReplayOptions(tmp_path / "log.csv", "csv", "kafka://127.0.0.1:9"))


@pytest.mark.parametrize("target", ["file", "kafka"])
def test_a_topic_that_holds_rows_needs_append(
    tmp_path: Path, target: str, kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    criteo(tmp_path / "train.txt", 50)
    to = f"file:{tmp_path / 'out'}" if target == "file" else kafka_url
    options = ReplayOptions(tmp_path / "train.txt", "criteo", to, topic=topic_name("criteo"), events="json")
    assert holds(to, options.topic or "") is None
    assert replay(options)["rows"] == 50
    held = holds(to, options.topic or "")
    assert held == ("4 log files" if target == "file" else "50 messages")
    with pytest.raises(
        ConfigError, match=f"holds {held} already, and rows that are sent twice are learned twice"
    ):
        replay(options)
    assert holds(to, options.topic or "") == held
    assert replay(replace(options, append=True))["rows"] == 50
    assert holds(to, options.topic or "") == ("8 log files" if target == "file" else "100 messages")


@pytest.mark.parametrize("target", ["file", "kafka"])
def test_too_many_bad_rows_say_what_was_sent(
    tmp_path: Path, target: str, kafka_url: str, topic_name: Callable[[str], str]
) -> None:
    """A folder has nothing, and a topic the rows that fit, as the sentence says."""
    (tmp_path / "log.csv").write_text("n,x\n" + "1,2\n" * 40 + "1,2,3\n" + "1,2\n" * 10)
    to = f"file:{tmp_path / 'out'}" if target == "file" else kafka_url
    options = ReplayOptions(tmp_path / "log.csv", "csv", to, topic=topic_name("log"), events="json")
    with pytest.raises(RowsError, match="1 of 51 rows do not fit") as refused:
        replay(options)
    sent = f"The 50 rows that fit were sent to topic {options.topic!r} of {to} before: delete it"
    assert (sent in str(refused.value)) == (target == "kafka")
    assert holds(to, options.topic or "") == ("50 messages" if target == "kafka" else None)


def test_a_table_may_be_sent_again_and_an_emptied_topic_filled(tmp_path: Path) -> None:
    criteo(tmp_path / "train.txt", 5)
    for _ in range(2):
        send(tmp_path / "train.txt", "criteo", tmp_path / "out", key="row", table=True)
    for path in (tmp_path / "out" / "criteo").iterdir():
        path.unlink()
    (tmp_path / "out" / "criteo" / "README").write_text("no log file")
    assert send(tmp_path / "train.txt", "criteo", tmp_path / "out")["rows"] == 5
