"""Every row of a log file has an account, and a value means one thing, whatever the file is."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import gzip
import io
import json
import math
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livectr.guess.leaks import first_rows, tells
from livectr.ingest.limits import LIMITS
from livectr.kernels.stream.csv_records import (
    COLUMNS,
    ENCODING,
    FITS,
    LONG,
    QUOTE,
    RETURN,
    Dialect,
    csv_records,
)
from livectr.logs.account import Account
from livectr.logs.arrow_rows import row_bytes
from livectr.logs.files import log_rows
from livectr.logs.formats import CRITEO
from livectr.logs.names import names_something
from livectr.logs.times import epoch_ms
from livectr.logs.times import form_of as times_of
from livectr.logs.values import form_of, form_of_column, misfits, read, valued
from livectr.system.errors import ConfigError, RowsError
from livectr.system.texts import visible
from tests.livectr.log_samples import criteo

ROWS = 200


def rows_of(path: Path) -> tuple[list[dict[str, Any]], Account]:
    account, found = Account(path), list[dict[str, Any]]()
    for rows in log_rows(account):
        assert len(rows.places) == rows.batch.num_rows
        found += rows.batch.to_pylist()
        account.kept += rows.batch.num_rows
    return found, account


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# Records of CSV

FIELDS = st.text(st.sampled_from('ab ,;"\n\r\\é0'), max_size=6)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(FIELDS, min_size=2, max_size=2), min_size=1, max_size=12), st.integers(1, 40))
def test_whole_rows_are_found_whatever_they_hold(rows: list[list[str]], cut: int) -> None:
    """The records are those of Python's reader, in one piece and in two."""
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    whole = text.getvalue().encode()
    found = csv_records(whole, Dialect(), columns=2, longest=1000, last=True)
    assert (found.verdicts == FITS).all() and len(found) == len(rows)
    read_back = [
        next(csv.reader(io.StringIO(whole[begin:stop].decode(), newline="")))
        for begin, stop in zip(found.begins.tolist(), found.stops.tolist(), strict=True)
    ]
    assert read_back == rows
    first = csv_records(whole[:cut], Dialect(), columns=2, longest=1000, last=False)
    rest = csv_records(whole[first.used :], Dialect(), columns=2, longest=1000, last=True)
    assert len(first) + len(rest) == len(rows)
    assert first.line_count + rest.line_count == whole.count(b"\n")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(1, 30))
def test_no_byte_is_lost(text: bytes, longest: int) -> None:
    """Records follow each other; between them are empty lines alone."""
    found = csv_records(text, Dialect(), columns=2, longest=longest, last=True)
    at = 0
    for begin, stop in zip(found.begins.tolist(), found.stops.tolist(), strict=True):
        assert begin >= at and not text[at:begin].strip(b"\r\n") and stop > begin
        at = stop
    assert not text[at:].strip(b"\r\n") and found.used == len(text)


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (b'1,"open,2', QUOTE),
        (b'1,"closed"x,2', QUOTE),
        (b"1,2,3,4", COLUMNS),
        (b"1,\xff,2", ENCODING),
        (b"1,\xed\xa0\xbd,2", ENCODING),
        (b"1," + b"x" * 3000 + b",2", LONG),
        (b'1,"' + b"x\n" * 999 + b'",2', FITS),
        (b"1,x\ry,2", RETURN),
        (b'1,"x\ry",2', FITS),
        (b"\r1,x,2\r\r", FITS),
    ],
)
def test_a_line_spoils_itself_alone(line: bytes, verdict: int) -> None:
    text = b"a,b,c\n" + line + b"\nd,e,f\n"
    found = csv_records(text, Dialect(), columns=3, longest=2100, last=True)
    assert found.verdicts.tolist() == [FITS, verdict, FITS]
    assert text[found.begins[2] : found.stops[2]] == b"d,e,f\n"


# Files

ZIPPED = b"PK\x03\x04\x14\0\0\0\x08\0"
HEAD = "ts,user,title,click\n"
PLAIN = "".join(f"17640000{i:02d},{i % 9},shoes,{i % 2}\n" for i in range(60))


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (HEAD + PLAIN, 60),
        ("# made by hand\n\n" + HEAD + PLAIN, 60),
        ("\ufeff" + (HEAD + PLAIN).replace("\n", "\r\n"), 60),
        ("sep=;\n" + (HEAD + PLAIN).replace(",", ";"), 60),
        ((HEAD + PLAIN).replace(",", "\t"), 60),
        (HEAD + PLAIN.replace("\n", ",\n"), 60),
        (HEAD + PLAIN.replace("shoes", r'"{\"a\": 1, \"b\": \"x\"}"'), 60),
        (HEAD + PLAIN.replace("shoes", '"two\nlines"'), 60),
        (HEAD + PLAIN + '1764000099,1,"open,0\n' + PLAIN, 120),
        (HEAD + PLAIN + '1764000099,1,"open,0\n' + PLAIN + '1764000099,1,"again,0\n' + PLAIN, 180),
        (HEAD + PLAIN + "1764000099,1,two,fields,0\n", 60),
        ("\ufeff\ufeff" + HEAD + PLAIN + "\ufeff" + HEAD + PLAIN, 120),
        (HEAD + PLAIN + "1764000099,1,ca\rr,0\n" + PLAIN, 120),
        (HEAD + PLAIN.replace("shoes", "a\0b", 2), 60),
        (HEAD + PLAIN + '"ts", "user", "title", "click"\n' + PLAIN, 120),
        ((HEAD + PLAIN).replace(",", "\x01"), 60),
        (HEAD + PLAIN.replace("shoes", "title"), 60),
    ],
    ids=[
        *("plain", "comment", "mark", "sep", "tabs", "separator at the end", "escapes", "line ends"),
        *("open quote", "two open quotes", "one more", "two files", "return", "zeros"),
        *("a quoted header", "Hive", "a value that is a name"),
    ],
)
def test_a_csv_as_people_have_it(tmp_path: Path, content: str, kept: int) -> None:
    found, account = rows_of(written(tmp_path / "log.csv", content))
    assert account.kept == kept and list(found[0]) == ["ts", "user", "title", "click"]
    assert account.rows == kept + account.count
    strange = ('"open', '"again', "two,fields", "ca\rr", "\n\ufeff", '"ts", ')
    assert account.count == sum(map(content.count, strange))


def test_the_line_of_a_row_is_the_files(tmp_path: Path) -> None:
    text = HEAD + PLAIN.replace("shoes", '"two\nlines"') + "1,2\n"
    account = rows_of(written(tmp_path / "log.csv", text))[1]
    assert account.first == ["line 122: 2 columns, not 4"]
    with pytest.raises(
        RowsError, match=r"log\.csv: 1 of 61 rows do not fit .line 122: 2 columns, not 4.; mend"
    ):
        account.judge()
    account.judge(0.02)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("log.csv", HEAD.encode("utf-16"), "is UTF-16, not UTF-8: iconv -f UTF-16 -t UTF-8"),
        ("log.csv", (HEAD + PLAIN).encode("utf-16-le"), "is UTF-16LE, not UTF-8"),
        ("log.csv", (HEAD + PLAIN).encode("utf-16-be"), "is UTF-16BE, not UTF-8"),
        ("log.csv", (HEAD + PLAIN).replace("\n", "\r").encode(), "lines end with CR alone"),
        ("log.csv", b"a,b,a\n1,2,3\n", "names a twice"),
        ("log.csv", b'a,"b\nc"\n1,2\n', r'column 2 is named "b\\nc"; rename it'),
        ("log.csv", b"a,b\0\n1,2\n", "holds zero bytes"),
        ("log.csv", b"u1,8,c,0\nu2,9,d,1\n", "the first line must name the columns; it is 'u1,8,c,0'"),
        (
            "log.csv",
            (HEAD + PLAIN + "ts,title,user,click\n" + PLAIN).encode(),
            "line 62 names the columns once more, and in another way than the first line: 'ts,title,user",
        ),
        (
            "log.csv",
            (HEAD + PLAIN + "ts,user,title,price\n" + PLAIN).encode(),
            "line 62 names the columns once",
        ),
        ("log.csv.zst", b"\x28\xb5\x2f\xfd", "is compressed by zstd; unpack it: unzstd"),
        ("log.xlsx", ZIPPED, "is a ZIP archive, as .zip and .xlsx are; unpack it, or export it as CSV"),
        ("log.csv", (HEAD + PLAIN).replace(",", " ").encode(), "its columns seem to be separated by ' '"),
        ("log.csv", (HEAD + PLAIN).replace(",", "~").encode(), "its columns seem to be separated by '~'"),
        ("log.csv", b"1,2\n3,4\n", "the first line must name the columns; it is '1,2'"),
        (
            "log.csv",
            ZIPPED,
            "is a ZIP archive, as .zip and .xlsx are, not text; unpack it, or",
        ),
        ("log.jsonl", ZIPPED, "is a ZIP archive"),
        ("log.parquet", ZIPPED, "is a ZIP archive, as .zip and .xlsx are, not Parquet; unpack it"),
        ("log.csv", gzip.compress(b"a,b\n1,2\n", mtime=0), "is gzipped, not text; name it .gz"),
        ("log.parquet.gz", gzip.compress(b"PAR1", mtime=0), "is gzipped, not Parquet; unpack it: gunzip"),
        ("log.jsonl", b'{"a": 1},\n{"a": 2},\n', "each line ends with a comma"),
        ("log.csv.gz", b"a,b\n1,2\n", "is not gzipped; name it without .gz"),
        ("log.csv", b"PAR1" + bytes(9), "is Parquet, not text; name it .parquet"),
        ("log.parquet", b"a,b\n1,2\n", "is text, not Parquet; name it .csv or .jsonl"),
        ("log.parquet", b"", "log.parquet is empty"),
        ("log.csv", b'{"a": 1}\n{"a": 2}\n', "holds a JSON object a line; name it .jsonl"),
        (
            "log.jsonl",
            b"a,b\n1,2\n",
            "its first is 'a,b': if it is CSV, name it .csv",
        ),
        ("log.arrow", b"ARROW1", "log.arrow is Arrow IPC, which training reads as it is"),
        ("log.json", b'\n[\n{"a": 1},\n{"a": 2}\n]\n', "is one JSON array"),
        ("log.json", b'{\n "a": 1\n}\n', "has objects over several lines"),
        ("log.jsonl", b'{"a_b": 1, "a": {"b": 2}}\n', "both become the column 'a_b'"),
        ("log.jsonl", b'{"a_b": 1}\n{"a": {"b": 2}}\n', "line 2: 'a_b' and 'b' inside of 'a' both become"),
        ("log.jsonl", b'{"a\\u001b": 1}\n', "without control characters"),
    ],
)
def test_what_is_no_log_is_a_sentence(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        rows_of(written(tmp_path / name, content))


def test_a_row_without_the_last_separator_is_counted_as_the_others(tmp_path: Path) -> None:
    account = rows_of(written(tmp_path / "log.csv", HEAD + PLAIN.replace("\n", ",\n") + PLAIN[:19] + "\n"))[1]
    assert account.first == ["line 62: 4 columns, not 5"]


def test_the_end_of_a_name_may_have_capitals(tmp_path: Path) -> None:
    assert rows_of(written(tmp_path / "log.csv.GZ", gzip.compress((HEAD + PLAIN).encode())))[1].kept == 60


@pytest.mark.parametrize("name", ["movieId", "userid", "ad_id", "ID", "C14", "paId", "uid"])
def test_a_name_says_an_id(name: str) -> None:
    assert names_something(name)


@pytest.mark.parametrize("name", ["bid", "amount_paid", "maxBid", "is_valid", "BID", "grid", "bid_floor"])
def test_a_name_that_ends_like_an_id_says_none(name: str) -> None:
    assert not names_something(name)


def test_latin_1_is_named_with_its_line(tmp_path: Path) -> None:
    text = HEAD + "".join(f"17640000{i:02d},1,{'Zürich' if i % 2 else 'Basel'},0\n" for i in range(60))
    account = rows_of(written(tmp_path / "log.csv", text.encode("latin-1")))[1]
    assert (account.kept, account.count) == (30, 30)
    assert "line 3: not UTF-8: byte 0xfc; as Latin-1 " in account.first[0] and "Zürich" in account.first[0]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_a_header_of_another_encoding_is_named(tmp_path: Path, encoding: str) -> None:
    text = (HEAD + PLAIN).replace("title", "größe")
    with pytest.raises(ConfigError, match=r"log\.csv line 1 is not UTF-8: byte 0xf6; as Latin-1 .*größe"):
        rows_of(written(tmp_path / "log.csv", text.encode(encoding)))


def test_windows_1252_and_an_unknown_encoding_are_named(tmp_path: Path) -> None:
    for text, encoding, words in (
        ("caf\u20ac", "cp1252", "as Windows-1252 '99,1,caf\u20ac,0': iconv -f CP1252 "),
        ("\u5e83\u544a", "shift_jis", "iconv -f ENCODING "),
    ):
        row = f"1764000099,1,{text},0\n".encode(encoding)
        account = rows_of(written(tmp_path / "log.csv", (HEAD + PLAIN).encode() + row))[1]
        assert account.count == 1 and words in account.first[0]


def test_no_column_is_lost_in_silence(tmp_path: Path) -> None:
    found, account = rows_of(written(tmp_path / "log.csv", ",a,,b\n1,2,3,4\n"))
    assert found == [{"a": "2", "b": "4"}]
    assert account.remarks == [f"column {n} has no name in the header: it is not read" for n in (1, 3)]
    (tmp_path / "log").mkdir()
    for name, columns in (("1", {"a_b": [1]}), ("2", {"a": [{"b": 1}]})):
        parquet.write_table(pa.table(columns), tmp_path / "log" / f"{name}.parquet")
    with pytest.raises(ConfigError, match=r"2\.parquet: 'a_b' and 'b' inside of 'a' both become the column"):
        rows_of(tmp_path / "log")


def test_texts_of_parquet_that_are_no_utf_8_are_set_aside(tmp_path: Path) -> None:
    def texts(*values: bytes) -> pa.Array:
        return pa.Array.from_buffers(pa.string(), len(values), pa.array(values).buffers())

    lists = pa.ListArray.from_arrays([0, 1, 2, 3], texts(b"a", b"b", b"\xff"))
    table = pa.table({"n": [1, 2, 3], "t": texts(b"x", b"caf\xe9", b"y"), "l": lists})
    parquet.write_table(table, tmp_path / "log.parquet")
    found, account = rows_of(tmp_path / "log.parquet")
    assert found == [{"n": 1, "t": "x", "l": ["a"]}]
    assert account.first[0].startswith("row 2: column 't': not UTF-8: byte 0xe9; as Latin-1 'caf\u00e9'")
    assert account.count == 2


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"a": "\\ud83d"}', "half of a surrogate pair"),
        ('{"a": NaN}', "NaN is no JSON"),
        ('{"a": 1e999}', "beyond every double"),
        ("[1]", "no JSON object"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_line_that_is_no_row_is_set_aside(tmp_path: Path, line: str, what: str) -> None:
    found, account = rows_of(written(tmp_path / "log.jsonl", f'{{"a": 1}}\n{line}\n{{"a": 2}}\n'))
    assert found == [{"a": 1}, {"a": 2}] and account.count == 1 and what in account.first[0]


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl", "log.parquet"])
def test_a_row_is_too_long_in_every_file_alike(tmp_path: Path, name: str) -> None:
    """The limit is that of a record in training: what a reader keeps is learned."""
    most = LIMITS.record_bytes
    rows = [{"a": "x", "b": 1}, {"a": "x" * (most - 99), "b": 2}, {"a": "x" * (most + 1), "b": 3}]
    rows += [{"a": "y", "b": 4}]
    path = tmp_path / name
    if name == "log.parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif name == "log.jsonl":
        written(path, "".join(json.dumps(row) + "\n" for row in rows))
    else:
        written(path, "a,b\n" + "".join(f"{row['a']},{row['b']}\n" for row in rows))
    found, account = rows_of(path)
    assert [int(row["b"]) for row in found] == [1, 2, 4]
    line = {"log.csv": "line 4", "log.jsonl": "line 3", "log.parquet": "row 3"}[name]
    assert account.first == [f"{line}: longer than 4 MiB"]


def test_the_bytes_of_a_row_are_those_of_its_values() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "text": ["ab", None, "é"],
            "number": [1, 2, None],
            "texts": pa.array([["a", "bc"], [], None], pa.list_(pa.string())),
            "numbers": pa.array([[1, 2], [3], []], pa.list_(pa.int32())),
            "lists": pa.array([[["abc"], []], [], None], pa.list_(pa.list_(pa.string()))),
        }
    )
    assert row_bytes(batch).tolist() == [2 + 8 + 3 + 16 + 3, 8 + 8, 2 + 8]
    assert row_bytes(batch.slice(1)).tolist() == row_bytes(batch)[1:].tolist()


def test_whole_numbers_of_json_stay_whole(tmp_path: Path) -> None:
    lines = [{"u": 2**63 + 5, "m": 2**53 + 1, "f": 1.5}, {"u": 7, "m": 0.5, "f": 2}]
    found, _ = rows_of(written(tmp_path / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines)))
    assert found == [
        {"u": str(2**63 + 5), "m": str(2**53 + 1), "f": 1.5},
        {"u": "7", "m": "0.5", "f": 2.0},
    ]


def test_every_type_of_parquet_is_plain(tmp_path: Path) -> None:
    columns: dict[str, tuple[pa.Array, Any]] = {
        "uint64": (pa.array([2**63 + 1], pa.uint64()), str(2**63 + 1)),
        "uint32": (pa.array([2**32 - 1], pa.uint32()), 2**32 - 1),
        "int8": (pa.array([-5], pa.int8()), -5),
        "decimal": (pa.array([decimal.Decimal("12.25")], pa.decimal128(10, 2)), 12.25),
        "long decimal": (pa.array([decimal.Decimal("1" * 20)], pa.decimal128(20, 0)), "1" * 20),
        "float16": (pa.array(np.array([1.5], np.float16)), 1.5),
        "large": (pa.array(["x"], pa.large_string()), "x"),
        "fixed": (pa.array([b"ab"], pa.binary(2)), b"ab"),
        "time of day": (pa.array([dt.time(8, 30)], pa.time64("us")), "08:30:00"),
        "nanoseconds of day": (pa.array([1], pa.time64("ns")), "00:00:00.000000001"),
        "lists": (pa.array([[1, 2]], pa.large_list(pa.uint8())), [1, 2]),
        "views": (pa.array([["x"]], pa.list_view(pa.string_view())), ["x"]),
        "no items": (pa.array([[]], pa.list_(pa.null())), []),
        "coded": (pa.array(["x"]).dictionary_encode(), "x"),
        "deep": (pa.array([{"a": {"b": 1}}]), None),
        "uuid": (
            pa.array([uuid.UUID(int=5).bytes], pa.binary(16)).cast(pa.uuid()),
            str(uuid.UUID(int=5)),
        ),
    }
    table = pa.table({name: array for name, (array, _) in columns.items()})
    parquet.write_table(table, tmp_path / "log.parquet")
    (found,), _ = rows_of(tmp_path / "log.parquet")
    assert found.pop("deep_a_b") == 1
    assert found == {name: value for name, (_, value) in columns.items() if name != "deep"}


# Folders


def test_a_folder_is_all_files_in_it(tmp_path: Path) -> None:
    root = tmp_path / "shows"
    for day, rows in (("24", "1,a\n2,b\n"), ("25", "3,c\n4\n"), ("__HIVE_DEFAULT_PARTITION__", "5,e\n")):
        (root / f"dt={day}" / "site=a%2Fb").mkdir(parents=True)
        written(root / f"dt={day}" / "site=a%2Fb" / "part-0.csv", "n,name\n" + rows)
    written(root / "dt=25" / "part-1.jsonl", '{"n": 6, "dt": "own"}\n')
    for other in ("_SUCCESS", ".part-0.csv.crc", "notes.md"):
        written(root / other, "x")
    found, account = rows_of(root)
    assert [(row["n"], row["dt"], row.get("site")) for row in found] == [
        *(("1", "24", "a/b"), ("2", "24", "a/b"), (6, "own", None), ("3", "25", "a/b"), ("5", None, "a/b")),
    ]
    assert account.remarks == [f"1 files of {root} are not read: notes.md"]
    assert account.line() == (
        "6 rows read: 5 kept, 1 set aside (dt=25/site=a%2Fb/part-0.csv line 3: 1 columns, not 2)"
    )
    written(root / "dt=26.csv", "")
    written(root / "dt=27.csv.gz", gzip.compress(b""))
    written(root / "dt=28.parquet", "")
    again = rows_of(root)[1]
    assert (again.kept, again.remarks[1:]) == (
        5,
        [f"dt={day} is empty" for day in ("26.csv", "27.csv.gz", "28.parquet")],
    )
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"none has no file that ends in \.csv"):
        rows_of(tmp_path / "none")
    written(root / "dt=26.csv", "n,name\n1,2\n").write_bytes(b"\xff\xfea\0")
    with pytest.raises(ConfigError, match=r"dt=26\.csv is UTF-16"):
        rows_of(root)


def test_numbers_in_the_names_of_files_are_in_their_order(tmp_path: Path) -> None:
    for number in (1, 2, 10, 11):
        written(tmp_path / f"part-{number}.csv", f"user,item\nu,{number}\n")
    assert [row["item"] for row in rows_of(tmp_path)[0]] == ["1", "2", "10", "11"]


def test_links_are_followed_and_lead_somewhere(tmp_path: Path) -> None:
    logs, other = tmp_path / "logs", tmp_path / "other"
    logs.mkdir()
    other.mkdir()
    written(other / "a.csv", HEAD + PLAIN)
    (logs / "linked").symlink_to(other)
    assert rows_of(logs)[1].kept == 60
    (other / "around").symlink_to(logs)
    with pytest.raises(ConfigError, match="around links to a folder that it is in"):
        rows_of(logs)
    (other / "around").unlink()
    (logs / "b.csv").symlink_to(tmp_path / "nowhere.csv")
    with pytest.raises(ConfigError, match=r"b\.csv links to nothing"):
        rows_of(logs)


def test_a_log_of_criteo_has_names(tmp_path: Path) -> None:
    criteo(tmp_path / "train.tsv", 3)
    found, _ = rows_of(tmp_path / "train.tsv")
    assert list(found[0]) == list(CRITEO) and len(found) == 3


# Values


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "-2", ""], "int64", [1, -2, None]),
        (["17.0", "", "3."], "float64", [17.0, None, 3.0]),
        (["1", "2.5"], "float64", [1.0, 2.5]),
        (["1e3", "NA"], "float64", [1000.0, None]),
        (["007", "1"], "string", ["007", "1"]),
        ([str(2**63), "1"], "string", [str(2**63), "1"]),
        ([str(-(2**63)), "+1"], "int64", [-(2**63), 1]),
        (["11,0", "7,25"], "float64", [11.0, 7.25]),
        (["1.234,5", "2,0"], "float64", [1234.5, 2.0]),
        (["11,000.00", "1.5"], "float64", [11000.0, 1.5]),
        (["1,2", "3,4,5"], "string", ["1,2", "3,4,5"]),
        (["123,456", "789,112"], "string", ["123,456", "789,112"]),
        (["100,000", "789,112"], "float64", [100000.0, 789112.0]),
        (["0,125", "1,500"], "float64", [0.125, 1.5]),
        (["$3.50", "$1,200.00", "-$2"], "float64", [3.5, 1200.0, -2.0]),
        (["3,50 €", "12,00€"], "float64", [3.5, 12.0]),
        (["5%", "12.5 %", ""], "float64", [5.0, 12.5, None]),
        (["$3", "€4"], "string", ["$3", "€4"]),
        (["1 234,50", "900,00", "1\u202f000"], "float64", [1234.5, 900.0, 1000.0]),
        (["1'234.50", "900.25"], "float64", [1234.5, 900.25]),
        ([f"{2**60 + 1}.0", "3.0"], "int64", [2**60 + 1, 3]),
        (["inf", "1"], "float64", [math.inf, 1.0]),
        (["1e400", "-Infinity"], "float64", [math.inf, -math.inf]),
        (["<NA>", "#N/A", "5"], "int64", [None, None, 5]),
        (["-", "2.5", "n.a."], "float64", [None, 2.5, None]),
        (["?", "Null", "5", "#DIV/0!"], "int64", [None, None, 5, None]),
        (["3,36E+02", "1,5"], "float64", [336.0, 1.5]),
        (["  ", "\u00a0", " - ", "\u2014", "No data", "Missing", "2.5"], "float64", [None] * 6 + [2.5]),
        (["EUR 1.5", "EUR 12"], "float64", [1.5, 12.0]),
        (["R$ 1.234,50", "-R$\u00a03,5"], "float64", [1234.5, -3.5]),
        (["1,5 z\u0142", "12 z\u0142"], "float64", [1.5, 12.0]),
        (["US$1", "CA$2"], "string", ["US$1", "CA$2"]),
        (["$2.50", "0", "0.00"], "float64", [2.5, 0.0, 0.0]),
        ([" $ 1,250.00 ", " $ -   ", " -   \u20ac "], "float64", [1250.0, None, None]),
        (["1.234.567", "2.500", "7"], "float64", [1_234_567.0, 2500.0, 7.0]),
        (["1.200", "999", "12.345"], "float64", [1200.0, 999.0, 12_345.0]),
        (["1.200", "999.000", "0.345"], "float64", [1.2, 999.0, 0.345]),
        (["1.234", "999", "1.5"], "float64", [1.234, 999.0, 1.5]),
        (["1,23,456.50", "12,345", "7"], "float64", [123_456.5, 12_345.0, 7.0]),
        (["NA", "FR"], "string", ["NA", "FR"]),
        (["-", "unknown", "x"], "string", ["-", "unknown", "x"]),
        (["NULL", "x"], "string", [None, "x"]),
        (["[1, 2]", "[]", ""], "list<int64>", [[1, 2], [], None]),
        (["['a', \"b\"]", '["c"]', "[]"], "list<string>", [["a", "b"], ["c"], []]),
        (["[1.5]", "[2]"], "string", ["[1.5]", "[2]"]),
        (["[]", "[]"], "string", ["[]", "[]"]),
        (['["\\ud83d"]', '["x"]'], "string", ['["\\ud83d"]', '["x"]']),
        (["[" * 9000 + "]"] * 2, "string", ["[" * 9000 + "]"] * 2),
    ],
)
def test_a_columns_texts_have_one_form(texts: list[str], kind: str, values: list[Any]) -> None:
    column = pa.array(texts)
    form = form_of(column)
    assert (form.kind, read(column, form).to_pylist()) == (kind, values)


def test_an_id_with_a_plus_is_a_text() -> None:
    column = pa.array(["+4917", "+33"])
    assert form_of(column, is_id=True).kind == "string" and form_of(column).kind == "int64"


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["12,5", "7,8"], "string", ["12,5", "7,8"]),
        (["17,0", "3,0"], "int64", [17, 3]),
        (["1e5", "12e3"], "string", ["1e5", "12e3"]),
        (["1.764E+12", "1.8E+12"], "string", ["1.764E+12", "1.8E+12"]),
        (["12,345", "9,876"], "string", ["12,345", "9,876"]),
        (["1,764E+12", "1,8E+12"], "string", ["1,764E+12", "1,8E+12"]),
        (["1234567890.1764000000", "7.5"], "string", ["1234567890.1764000000", "7.5"]),
        (["12.5", "7.25"], "float64", [12.5, 7.25]),
        (["1.9", "1.10", "2"], "string", ["1.9", "1.10", "2"]),
        (["1.50", "2.25"], "float64", [1.5, 2.25]),
    ],
)
def test_an_id_is_no_number_with_marks(texts: list[str], kind: str, values: list[Any]) -> None:
    column = pa.array(texts)
    form = form_of(column, is_id=True)
    assert (form.kind, read(column, form).to_pylist()) == (kind, values)


@pytest.mark.parametrize(
    ("usual", "stray"), [("1,234.50", "1,5"), ("11,50", "1.5"), ("1'234.50", "1'2"), ("1.50", "1,500")]
)
def test_a_stray_mark_makes_no_other_number(usual: str, stray: str) -> None:
    column = pa.array([usual] * 200 + [stray])
    found = read(column, form_of(column))
    assert found.type == pa.float64() and found.null_count == 1 and found[200].as_py() is None


def test_one_fraction_makes_no_ids_floats() -> None:
    column = pa.array([*map(str, range(300)), "1.5"])
    assert form_of(column, is_id=True).kind == "int64" and form_of(column).kind == "float64"


def test_an_id_has_no_fraction() -> None:
    for column in (pa.array(["17.0", "", "3.0"]), pa.array([17.0, None, 3.0])):
        form = form_of_column(column, is_id=True)
        assert valued(column, form).to_pylist() == [17, None, 3]
    halves = pa.array([1.5, 2.0])
    assert valued(halves, form_of_column(halves, is_id=True)).to_pylist() == [1.5, 2.0]


def test_a_stray_text_does_not_change_the_form() -> None:
    column = pa.array([*map(str, range(300)), str(2**63), "x"])
    form = form_of(column.slice(0, 300))
    assert form == form_of(pa.array([*map(str, range(300)), "x"])) and form.kind == "int64"
    assert misfits(column, read(column, form)).tolist() == [False] * 300 + [True] * 2


MS = 1_764_000_000_000


@pytest.mark.parametrize(
    ("column", "ms"),
    [
        (pa.array([MS // 1000, MS // 1000 + 1]), MS),
        (pa.array([MS // 1000 + 0.5, MS / 1000]), MS + 500),
        (pa.array([MS, MS + 1]), MS),
        (pa.array([MS * 1000]), MS),
        (pa.array([MS * 1_000_000]), MS),
        (pa.array([20251124, 20251125]), 1_763_942_400_000),
        (pa.array([2025112416, 2025112500]), MS),
        (pa.array([20251124160000, 20251124170500]), MS),
        (pa.array([202511241600, 202511241705]), MS),
        (pa.array([251124160000, 251124160500]), MS),
        (pa.array([20251124160000123, 20251124170500456]), MS + 123),
        (pa.array([14102100, 14102123]), 1_413_849_600_000),
        (pa.array([820_454_400, 825_000_000]), 820_454_400_000),  # 1996
        (pa.array([dt.date(2025, 11, 24)]), 1_763_942_400_000),
        (pa.array([2**60, MS // 1000], pa.timestamp("s")).slice(1), MS),
        (pa.array(["2025-11-24T16:00:00", "2025-11-24 16:00:01+00:00"]), MS),
    ],
)
def test_a_time_is_told_by_its_form(column: pa.Array, ms: int) -> None:
    form = times_of(column, named=True)
    assert form is not None and epoch_ms(column, form)[0].as_py() == ms


def test_one_bad_time_is_one_row() -> None:
    good = [float(MS // 1000 + i) for i in range(299)]
    for bad in (0.0, float("nan"), float("inf"), 1e300, -5.0):
        column = pa.array([*good, bad])
        form = times_of(column, named=True)
        assert form is not None and epoch_ms(column, form).is_null().to_pylist() == [False] * 299 + [True]
    years = pa.array([*[MS] * 299, 253_402_214_400_000], pa.timestamp("ms"))
    form = times_of(years)
    assert form is not None and epoch_ms(years, form).null_count == 1


@pytest.mark.parametrize(("number", "form"), [(24112025, "DDMMYYYY"), (11242025, "MMDDYYYY")])
def test_a_date_whose_year_is_last_is_refused(number: int, form: str) -> None:
    with pytest.raises(ConfigError, match=f"{number:08d} looks like a date written {form}"):
        times_of(pa.array([number] * 9), named=True)


@pytest.mark.parametrize("ms", [MS, 820_454_400_000])
def test_two_units_in_a_column_are_refused(ms: int) -> None:
    with pytest.raises(ConfigError, match="of several units: 50% milliseconds, 50% seconds"):
        times_of(pa.array([ms, ms // 1000] * 100), named=True)
    strange = pa.array([ms // 1000] * 299 + [ms])
    form = times_of(strange, named=True)
    assert form is not None and epoch_ms(strange, form).is_null().to_pylist() == [False] * 299 + [True]


def test_no_time_is_one_that_a_default_made() -> None:
    """Times of 2025 of which a tenth are 0, or 1970: rows without a time, however many."""
    for column in (
        pa.array([0, *[MS // 1000] * 9] * 30),
        pa.array(["1970-01-01T00:00:00Z", *["2025-11-24T16:00:00"] * 9] * 30),
        pa.array([0, *[MS] * 9] * 30, pa.timestamp("ms")),
    ):
        form = times_of(column, named=True)
        assert form is not None and epoch_ms(column, form).null_count == 30
    ages = pa.array([-1_764_000_000, 820_454_400])  # 1914 and 1996
    form = times_of(ages, named=True)
    assert form is not None and epoch_ms(ages, form).null_count == 0


# Leaks


@pytest.mark.parametrize(
    ("clicked", "other", "says"),
    [
        ([3, 4, 5], -1, "is -1 wherever there is no click"),
        ([10.0, 20.0, 30.0], 0.0, "is 0.0 wherever there is no click"),
        (["top", "side", "foot"], None, "is empty wherever there is no click"),
        ([1, 1, 1], 0, "is 0 wherever there is no click"),
        ([7, 8, 9], 7, "is 7 wherever there is no click: "),
        ([False, False, True], False, "is False wherever there is no click: "),
    ],
)
def test_a_column_that_tells_the_label_is_named(clicked: list[Any], other: Any, says: str) -> None:
    label = np.arange(ROWS) % 5 == 0
    values = pa.array([clicked[i // 5 % 3] if label[i] else other for i in range(ROWS)])
    assert tells(values, label).startswith(says) and bool(tells(values, label)) == bool(says)


def test_a_rare_value_is_named_if_chance_does_not_make_it() -> None:
    """A flag of clicked rows alone tells the label; one that some rows without a click have, does not."""
    label = np.arange(ROWS) % 5 == 0
    ordered = label & (np.arange(ROWS) % 3 == 0)
    assert f"{ordered.sum()} of {ordered.sum()} rows with another value" in tells(pa.array(ordered), label)
    assert tells(pa.array(ordered & (np.arange(ROWS) < 105)), label) == ""  # 7 rows
    assert tells(pa.array(ordered & (np.arange(ROWS) < 300)), ~label) == ""
    some = ordered | (np.arange(ROWS) % 100 == 1)
    assert tells(pa.array(some), label) == ""


def test_a_number_that_orders_the_clicks_is_named_and_noise_is_not() -> None:
    rng = np.random.default_rng(1)
    label = np.arange(ROWS) % 5 == 0
    assert "alone it has AUC 1.000" in tells(pa.array(rng.random(ROWS) + label), label)
    assert tells(pa.array(rng.random(ROWS)), label) == ""
    words = [f"{'seen' if clicked else 'shown'} {i % 7}" for i, clicked in enumerate(label)]
    assert "click rates alone it has AUC 1.000" in tells(pa.array(words), label)
    states = [[3, 5][i % 2] if clicked else [1, 4, 9][i % 3] for i, clicked in enumerate(label)]
    assert "click rates alone it has AUC 1.000" in tells(pa.array(states), label)
    assert tells(pa.array([f"{i} {word}" for i, word in enumerate(words)]), label) == ""
    assert tells(pa.array(rng.integers(1 << 62, size=ROWS)), label) == ""
    assert tells(pa.array(rng.integers(0, ROWS, ROWS)), label) == ""
    assert tells(pa.array(rng.integers(0, ROWS, ROWS) + 2**62), label) == ""


def test_a_row_that_is_there_twice_tells_nothing() -> None:
    clicked = np.arange(400) % 200 % 3 == 0
    twice = pa.table({"row": np.arange(400) % 200, "click": clicked})
    firsts = first_rows(twice.columns, 400)
    assert firsts.tolist() == [True] * 200 + [False] * 200
    assert tells(twice["row"], clicked) and not tells(twice["row"].filter(pa.array(firsts)), clicked[firsts])
    assert first_rows([pa.array([1, 2] * 50)], 100).all()  # equal by chance


def test_no_text_of_data_commands_a_terminal() -> None:
    assert visible("a\x1b[2J\u202e\x00é\n") == "a\\x1b[2J\\u202e\\x00é\\n"
    assert visible("x" * 50, 10) == "x" * 9 + "…"
