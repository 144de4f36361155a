"""File source: order, exact positions, growing files, and broken or incomplete files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from livectr.ingest.chunks import Position
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.limits import RecordLimits
from livectr.ingest.sources import files
from livectr.ingest.sources import part_file as parts
from livectr.ingest.sources.source import Source, open_source
from livectr.system.errors import ConfigError, MismatchError, UserError
from tests.ingest.reading import assign, event, poll_until, rows, stream, to_end

TOPIC = "impressions"
PLACE = (TOPIC, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / TOPIC).mkdir()
    return tmp_path


@pytest.fixture
def read(folder: Path) -> Iterator[Callable[..., Source]]:
    """Opens sources of the folder; closes them at the end."""
    opened: list[Source] = []

    def start(*, until_end: bool = True, letters: DeadLetters | None = None, **options: Any) -> Source:
        source = open_source(
            f"file:{folder}",
            [stream(TOPIC)],
            until_end=until_end,
            dead_letters=letters or DeadLetters(None),
            **options,
        )
        opened.append(source)
        return source

    yield start
    for source in opened:
        source.close()


def write(path: Path, users: range, end: bytes = b"\n") -> None:
    path.write_bytes(b"\n".join(event(user) for user in users) + end)


def table(users: range) -> pa.Table:
    return pa.table(
        {
            "more": [0] * len(users),
            "page": [f"p{user}" for user in users],
            "ts": [1000 + user for user in users],
            "user_id": list(users),
        },
        schema=pa.schema(
            [("more", pa.int8()), ("page", pa.string()), ("ts", pa.int64()), ("user_id", pa.int64())]
        ),
    )


def write_stream(path: Path, users: range, *, rows: int = 3, close: bool = True) -> None:
    with path.open("wb") as sink:
        writer = pa.ipc.new_stream(sink, table(users).schema)
        writer.write_table(table(users), max_chunksize=rows)
        if close:
            writer.close()


def write_mixed(topic: Path) -> int:
    """Partition 0 in every format, 60 records; returns the number."""
    write(topic / "0-a.jsonl", range(0, 13), end=b"")  # its last line has no line end
    write(topic / "0-b.json", range(13, 20))
    pq.write_table(table(range(20, 35)), topic / "0-c.parquet", row_group_size=4)
    with (
        pa.OSFile(str(topic / "0-d.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table(range(0)).schema) as writer,
    ):
        writer.write_table(table(range(35, 47)), max_chunksize=5)
    write_stream(topic / "0-e.arrows", range(47, 52))
    write_stream(topic / "0-f.arrow", range(52, 60))
    return 60


def test_partitions_and_order(folder: Path, read: Callable[..., Source]) -> None:
    topic = folder / TOPIC
    write(topic / "00001-b.jsonl", range(10, 20))
    write(topic / "00001-a.jsonl", range(0, 10))
    write(topic / "2.jsonl", range(20, 25))
    write(topic / "NOTES.JSONL", range(30, 33))
    write(topic / "_SUCCESS.jsonl", range(99, 100))
    (topic / "00001-c.txt").write_text("not a log")
    source = read()
    assert source.topics() == {TOPIC: [0, 1, 2]}
    places = assign(source)
    source.start()
    chunks = to_end(source, places)
    assert rows(chunks, (TOPIC, 1)) == [(n, 0, n) for n in range(20)]
    assert rows(chunks, (TOPIC, 2)) == [(n, 0, 20 + n) for n in range(5)]
    assert rows(chunks, PLACE) == [(n, 0, 30 + n) for n in range(3)]
    assert source.lag() == dict.fromkeys(places, 0)


def test_every_format_and_every_position(
    folder: Path, read: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resuming at any record gives exactly the remaining records, for any size of pieces."""
    count = write_mixed(folder / TOPIC)
    whole = [(n, 0, n) for n in range(count)]
    for block in (64, 1 << 20):
        monkeypatch.setattr(parts, "_BLOCK_BYTES", block)
        for first in range(0, count + 1):
            source = read()
            places = assign(source, {PLACE: Position(first, 0)})
            source.start()
            chunks = to_end(source, places)
            source.close()
            assert rows(chunks, PLACE) == whole[first:]
            if chunks:
                assert chunks[-1].next == Position(count, 0)


def test_blank_lines_have_a_number_but_no_letter(folder: Path, read: Callable[..., Source]) -> None:
    (folder / TOPIC / "0.jsonl").write_bytes(b"\n" + event(1) + b"\r\n \n\n" + event(2) + b"\n")
    letters = DeadLetters(None)
    source = read(letters=letters)
    places = assign(source)
    source.start()
    assert rows(to_end(source, places), PLACE) == [(1, 0, 1), (4, 0, 2)]
    assert len(letters) == 0


def test_a_position_behind_the_end_belongs_to_another_log(folder: Path, read: Callable[..., Source]) -> None:
    count = write_mixed(folder / TOPIC)
    source = read()
    assign(source, {PLACE: Position(count + 1, 0)})
    with pytest.raises(MismatchError, match="has only 60 records"):
        source.start()


def test_until_end_is_the_end_at_the_start(folder: Path, read: Callable[..., Source]) -> None:
    path = folder / TOPIC / "0-a.jsonl"
    write(path, range(0, 4))
    source = read()
    places = assign(source)
    source.pause(places)
    source.start()
    with path.open("ab") as log:
        log.write(event(4) + b"\n")
    write(folder / TOPIC / "0-b.jsonl", range(5, 9))
    source.pause([])
    assert [user for _, _, user in rows(to_end(source, places), PLACE)] == [0, 1, 2, 3]


def test_following_a_log_as_it_grows(folder: Path, read: Callable[..., Source]) -> None:
    path = folder / TOPIC / "0-a.jsonl"
    path.touch()
    source = read(until_end=False)
    assign(source)
    source.start()
    poll_until(source, lambda _: source.at_end(*PLACE))

    def after(user: int) -> Callable[[list[Any]], bool]:
        return lambda chunks: user in [row[2] for row in rows(chunks, PLACE)] and source.at_end(*PLACE)

    with path.open("ab", buffering=0) as log:
        log.write(event(0) + b"\n" + event(1)[:10])
        assert rows(poll_until(source, after(0)), PLACE) == [(0, 0, 0)]
        log.write(event(1)[10:])
        assert source.poll(0.3) == [], "a line without its end is not a record yet"
        log.write(b"\n")
        assert rows(poll_until(source, after(1)), PLACE) == [(1, 0, 1)]
        log.write(event(2))  # finished by the next file, not by a line end
    write(folder / TOPIC / "0-b.jsonl", range(3, 5))
    assert rows(poll_until(source, after(4)), PLACE) == [(n, 0, n) for n in (2, 3, 4)]
    pq.write_table(table(range(5, 7)), folder / TOPIC / "0-c.parquet")
    assert rows(poll_until(source, after(6)), PLACE) == [(n, 0, n) for n in (5, 6)]


def test_a_look_for_new_files_leaves_out_those_that_are_known(
    folder: Path, read: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of ten thousand files would keep a core, and the lock that training needs, for nothing."""
    for number in range(50):
        write(folder / TOPIC / f"0-{number:03}.jsonl", range(number, number + 1))
    source = read(until_end=False)
    assign(source)
    looks: list[int] = []

    real = files._list_parts

    def counted(*args: Any, **options: Any) -> Any:
        found = real(*args, **options)
        looks.append(sum(map(len, found.values())))
        return found

    monkeypatch.setattr(files, "_list_parts", counted)
    source.start()
    poll_until(source, lambda _: source.at_end(*PLACE))
    poll_until(source, lambda _: len(looks) > 5)
    write(folder / TOPIC / "0-050.jsonl", range(50, 51))
    chunks = poll_until(source, lambda chunks: 50 in [row[2] for row in rows(chunks, PLACE)])
    assert rows(chunks, PLACE)[-1] == (50, 0, 50)
    assert sum(looks) <= 2 * 50 + 1 and looks.count(0) >= 4  # to open the log, and at the first look


def test_following_arrow_and_parquet_that_are_being_written(
    folder: Path, read: Callable[..., Source]
) -> None:
    topic = folder / TOPIC
    write_stream(topic / "whole", range(0, 9))
    content = (topic / "whole").read_bytes()
    path = topic / "0-a.arrows"
    path.write_bytes(b"")
    letters = DeadLetters(None)
    source = read(until_end=False, letters=letters)
    assign(source)
    source.start()
    chunks: list[Any] = []
    for stop in range(0, len(content) + 1, 40):
        path.write_bytes(content[:stop])
        chunks += source.poll(0.01)
    path.write_bytes(content)
    pq.write_table(table(range(9, 12)), topic / "whole")
    parquet = (topic / "whole").read_bytes()
    (topic / "0-b.parquet").write_bytes(parquet[:100])
    chunks += source.poll(0.2)
    (topic / "0-b.parquet").write_bytes(parquet)
    chunks += poll_until(source, lambda more: len(rows(chunks + more, PLACE)) == 12)
    assert rows(chunks, PLACE) == [(n, 0, n) for n in range(12)]
    assert len(letters) == 0


def test_a_broken_file_is_one_letter(folder: Path, read: Callable[..., Source], tmp_path: Path) -> None:
    topic = folder / TOPIC
    write(topic / "0-a.jsonl", range(0, 3))
    (topic / "0-b.parquet").write_bytes(b"PAR1 this is none")
    write_stream(topic / "0-c.arrows", range(3, 9))
    torn = (topic / "0-c.arrows").read_bytes()
    (topic / "0-c.arrows").write_bytes(torn[: len(torn) - 150])
    write(topic / "0-d.jsonl", range(6, 8))
    letters = DeadLetters(tmp_path / "letters")
    source = read(letters=letters)
    places = assign(source)
    source.start()
    assert rows(to_end(source, places), PLACE) == [(n, 0, n) for n in range(8)]
    letters.close()
    lines = (tmp_path / "letters" / "00000-letters.jsonl").read_text().splitlines()
    found = [
        (letter["offset"], letter["reason"], Path(letter["value"]).name) for letter in map(json.loads, lines)
    ]
    assert found == [(3, "bad_file", "0-b.parquet"), (6, "bad_file", "0-c.arrows")]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("0-b.arrow", b"ts,user_id\n1,2\n", "is text, not Arrow IPC; name it .csv or .jsonl"),
        ("0-b.arrow", b"PAR1" + bytes(20), "is Parquet, not Arrow IPC; name it .parquet"),
        ("0-b.arrow", b"ARROW1" + bytes(20), "is no whole Arrow IPC ("),
        (
            "0-b.parquet",
            b"PK\x03\x04 and more",
            "is a ZIP archive, as .zip and .xlsx are, not Parquet",
        ),
        ("0-b.parquet", b"PAR1 this is none", "is no whole Parquet ("),
        ("0-b.jsonl", b"\x1f\x8b\x08\n\n\n", "is gzipped, not JSON lines; unpack it: gunzip"),
    ],
)
def test_a_file_of_another_kind_is_named(
    folder: Path, read: Callable[..., Source], tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    write(folder / TOPIC / "0-a.jsonl", range(0, 3))
    (folder / TOPIC / name).write_bytes(content)
    write(folder / TOPIC / "0-d.jsonl", range(3, 5))
    for first in (0, 4):  # a file that cannot be read has no records to skip
        letters = DeadLetters(tmp_path / f"letters-{first}")
        source = read(letters=letters)
        places = assign(source, {PLACE: Position(first, 0)})
        source.start()
        assert rows(to_end(source, places), PLACE) == [(n, 0, n) for n in range(first, 5)]
        letters.close()
        if first == 0:
            (line,) = (tmp_path / "letters-0" / "00000-letters.jsonl").read_text().splitlines()
            assert f"{name} {says}" in json.loads(line)["detail"]
            assert letters.rows.topics()[TOPIC].as_json()["unreadable_files"] == 1


def test_lines_of_another_encoding_are_one_letter_each_file(
    folder: Path, read: Callable[..., Source], tmp_path: Path
) -> None:
    """Nothing tells the rows of such a file; a byte order mark, and a file of no bytes, are no rows."""
    topic = folder / TOPIC
    write(topic / "0-a.jsonl", range(0, 2))
    (topic / "0-a.jsonl").write_bytes(b"\xef\xbb\xbf" + (topic / "0-a.jsonl").read_bytes())
    lines = b"\n".join(event(user) for user in range(9)) + b"\n"
    (topic / "0-b.jsonl").write_bytes(lines.decode().encode("utf-16"))
    (topic / "0-c.jsonl").write_bytes(lines.decode().encode("utf-16-le"))
    (topic / "0-d.jsonl").write_bytes(lines.replace(b"\n", b"\r"))
    (topic / "0-e.arrow").write_bytes(b"")
    (topic / "0-f.parquet").write_bytes(b"")
    write(topic / "0-g.jsonl", range(2, 4), end=b"\r\n")
    letters = DeadLetters(tmp_path / "letters")
    source = read(letters=letters)
    places = assign(source)
    source.start()
    assert rows(to_end(source, places), PLACE) == [(n, 0, n) for n in range(4)]
    letters.close()
    details = [
        json.loads(line)["detail"]
        for line in (tmp_path / "letters" / "00000-letters.jsonl").read_text().splitlines()
    ]
    assert [detail.split(",")[0].split(":")[0] for detail in details] == [
        *("it is UTF-16", "it is UTF-16LE", "its lines end with CR alone"),
    ]


def test_lines_without_end(
    folder: Path, read: Callable[..., Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line over the limit becomes one letter and is never in memory completely."""
    monkeypatch.setattr(parts, "_BLOCK_BYTES", 1000)
    long = b'{"user_id": 1, "page": "' + b"x" * 20_000 + b'"}'
    (folder / TOPIC / "0.jsonl").write_bytes(event(0) + b"\n" + long + b"\n" + event(2) + b"\n" + long)
    for first in range(4):
        letters = DeadLetters(None)
        source = read(letters=letters, limits=RecordLimits(record_bytes=500))
        places = assign(source, {PLACE: Position(first, 0)})
        source.start()
        assert rows(to_end(source, places), PLACE) == [(n, 0, n) for n in (0, 2) if n >= first]
        assert letters.counts == {"oversize": 2 if first < 2 else 1}


def test_a_log_that_shrinks_is_an_error(folder: Path, read: Callable[..., Source]) -> None:
    path = folder / TOPIC / "0.jsonl"
    write(path, range(5))
    source = read(until_end=False)
    places = assign(source)
    source.start()
    to_end(source, places)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="became shorter"):
        poll_until(source, lambda _: False)


def test_back_pressure_keeps_the_queue_small_and_loses_nothing(
    folder: Path, read: Callable[..., Source]
) -> None:
    for partition in range(3):
        write(folder / TOPIC / f"{partition}.jsonl", range(30_000))
    source = read(max_queue_bytes=1)
    places = assign(source)
    source.start()
    chunks = []
    while not all(source.at_end(*place) for place in places):
        fresh = source.poll(5)
        assert len(fresh) <= 1
        chunks += fresh
    for place in places:
        assert rows(chunks, place) == [(n, 0, n) for n in range(30_000)]


def test_held_partitions_wait(folder: Path, read: Callable[..., Source]) -> None:
    for partition in range(2):
        write(folder / TOPIC / f"{partition}.jsonl", range(10))
    source = read()
    places = assign(source)
    source.pause([(TOPIC, 1)])
    source.start()
    assert {chunk.partition for chunk in to_end(source, [PLACE])} == {0}
    assert source.poll(0.2) == []
    assert not source.at_end(TOPIC, 1)
    source.pause([])
    assert {chunk.partition for chunk in to_end(source, places)} == {1}


def test_what_cannot_be_found_is_named(folder: Path, read: Callable[..., Source]) -> None:
    with pytest.raises(ConfigError, match=r"impressions has no log file"):
        read().topics()
    (folder / TOPIC).rename(folder / "views")
    with pytest.raises(ConfigError, match="no folder 'impressions'; its folders are views"):
        read().topics()
    for url, message in [("file:/nowhere", "no folder /nowhere"), ("file:", "not file:DIR")]:
        with pytest.raises(ConfigError, match=message):
            open_source(url, [stream(TOPIC)], until_end=True, dead_letters=DeadLetters(None)).topics()
    with pytest.raises(ConfigError, match="neither kafka"):
        open_source("http://x", [stream(TOPIC)], until_end=True, dead_letters=DeadLetters(None))


WIDE_ROWS, WIDE_COLUMNS = 20_000, 30


def wide(rows: int = WIDE_ROWS) -> pa.Table:
    """The stream's three columns beside 27 others; values that hardly compress."""
    numbers = np.random.default_rng(0).integers(0, 1 << 62, (WIDE_COLUMNS - 3, rows))
    columns = {f"c{i}": column for i, column in enumerate(numbers)}
    return pa.table({**columns, **table(range(rows)).select(["user_id", "ts", "page"]).to_pydict()})


def syscall_bytes() -> int:
    """Bytes that this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_three_of_thirty_columns_cost_three_columns_bytes(
    folder: Path, read: Callable[..., Source], kind: str
) -> None:
    path = folder / TOPIC / f"0.{kind}"
    if kind == "parquet":
        pq.write_table(wide(), path, row_group_size=4096, use_dictionary=False)
    else:
        with pa.ipc.new_file(path, wide().schema) as writer:
            writer.write_table(wide(), max_chunksize=4096)
    source = read()
    places = assign(source)
    before = syscall_bytes()
    source.start()
    chunks = to_end(source, places)
    fetched, counted = syscall_bytes() - before, source.bytes_read()[TOPIC]
    assert sum(map(len, chunks)) == WIDE_ROWS
    assert counted < 0.12 * path.stat().st_size  # 3 of 30 are a tenth
    # Beside them, the file's metadata: less than a tenth of it.
    assert counted <= fetched < counted + 0.1 * path.stat().st_size
    if kind == "parquet":
        group = pq.ParquetFile(path).metadata
        names = ("user_id", "ts", "page")
        chunk = [group.row_group(g).column(c) for g in range(group.num_row_groups) for c in range(30)]
        assert counted == sum(c.total_compressed_size for c in chunk if c.path_in_schema in names)


def test_the_bytes_of_lines_and_streams_are_those_of_their_files(
    folder: Path, read: Callable[..., Source]
) -> None:
    lines, rows_ = folder / TOPIC / "0.jsonl", folder / TOPIC / "1.arrows"
    write(lines, range(5_000))
    with pa.ipc.new_stream(rows_, wide(100).schema) as writer:
        writer.write_table(wide(100))
    source = read()
    places = assign(source)
    source.start()
    to_end(source, places)
    size = lines.stat().st_size + rows_.stat().st_size
    assert size - 64 <= source.bytes_read()[TOPIC] <= size  # but for the stream's end marker


def test_what_is_not_read_is_named(
    folder: Path, read: Callable[..., Source], caplog: pytest.LogCaptureFixture
) -> None:
    """Rows in a gzipped file or in a partition's folder would be missed in silence."""
    write(folder / TOPIC / "0-a.jsonl", range(3))
    (folder / TOPIC / "0-b.jsonl.gz").write_bytes(b"")
    (folder / TOPIC / "dt=2025-11-24").mkdir()
    (folder / TOPIC / "_SUCCESS").write_bytes(b"")
    (folder / TOPIC / "0-c.tmp").write_bytes(b"")
    assert read().topics() == {TOPIC: [0]}
    (said,) = [record.getMessage() for record in caplog.records]
    assert "holds what is not read: 0-b.jsonl.gz, dt=2025-11-24; a topic's files are .jsonl" in said


def test_a_name_that_begins_with_a_date_is_of_no_partition(folder: Path, read: Callable[..., Source]) -> None:
    write(folder / TOPIC / "20251124.jsonl", range(3))
    write(folder / TOPIC / "20251125.jsonl", range(3, 5))
    source = read()
    assert source.topics() == {TOPIC: [0]}


@pytest.mark.parametrize("kind", ["jsonl", "arrow", "arrows", "parquet"])
def test_the_lag_falls_while_a_file_is_read(folder: Path, read: Callable[..., Source], kind: str) -> None:
    """From a restart in the middle on, by the bytes that are left."""
    rows_in, first = 100_000, 40_000
    path = folder / TOPIC / f"0-a.{kind}"
    held = table(range(rows_in))
    match kind:
        case "jsonl":
            write(path, range(rows_in))
        case "parquet":
            pq.write_table(held, path, row_group_size=25_000)
        case "arrow":
            with pa.ipc.new_file(path, held.schema) as writer:
                writer.write_table(held, max_chunksize=25_000)
        case _:
            with pa.ipc.new_stream(path, held.schema) as writer:
                writer.write_table(held, max_chunksize=25_000)
    source = read(until_end=False, max_queue_bytes=1)
    assign(source, {PLACE: Position(first, 0)})
    source.start()
    lags, position = [source.lag()[PLACE]], first
    while position < rows_in:
        for chunk in source.poll(5, rows=1):
            position = chunk.next.offset
        lags.append(source.lag()[PLACE])
        assert lags[-1] == pytest.approx(rows_in - position, abs=0.15 * rows_in)
    assert lags[0] == pytest.approx(rows_in - first, abs=0.15 * rows_in), "before anything is read"
    assert len(set(lags)) > 3 and lags == sorted(lags, reverse=True)


def test_a_poll_leaves_what_is_beyond_its_rows(folder: Path, read: Callable[..., Source]) -> None:
    write(folder / TOPIC / "0.jsonl", range(90_000))
    source = read()
    assign(source)
    source.start()
    chunks = []
    while not source.at_end(*PLACE):
        fresh = source.poll(5, rows=1000)
        assert sum(map(len, fresh[:-1])) < 1000 and all(len(chunk) <= 8192 for chunk in fresh)
        chunks += fresh
    assert rows(chunks, PLACE) == [(n, 0, n) for n in range(90_000)]
