"""Files of any schema: each command accounts for every row, or says one sentence.

What init makes of a file is checked, learned, and asked for: by the library, and as a server reads a request.
"""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import livectr
from livectr.cli import main
from livectr.client.pack import column_of
from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.protos import livectr_pb2 as pb
from livectr.serving.errors import RequestError
from livectr.serving.request.parse import RequestSchema
from livectr.system.errors import ConfigError
from tests.serving.parsed import parsed

ROWS = 40
EXAMPLES = int(os.environ.get("ODD_FILES", "0"))
"""Files of each form, for a search over night; 0: few, and with --full more."""
ODD_NAMES = (
    *("ts", "time", "user_id", "uid", "ad_id", "item", "click_pos", "price", "row", "user", "class", "log"),
    *("hour", "a.b", "a_b", "items[0].id", 'q"uote', "back\\slash", "{x}", "ünï", "[/home]", "import"),
    *("C1", "C2", "C3"),
)
NAMES = st.one_of(st.sampled_from(ODD_NAMES), st.text(max_size=8))
ODD_TEXTS = (
    *(
        "",
        "NA",
        "NULL",
        "nan",
        "inf",
        "-inf",
        "17.0",
        "007",
        "1e999",
        "11,0",
        "11,000.00",
        "true",
        "{}",
        "[]",
    ),
    *("20251124", "2025112416", "2025-11-24", "2025-11-24T16:00:00Z", "1764000000", "1764000000000"),
    *("a|b", "a,b", str(2**63), str(-(2**63) - 1), "\x1b[2J", '"', "'", "\\", "\n", "\r", "\t", ";", "#"),
    *("é", "\u2028", "[/x]"),
)
TEXTS = st.one_of(st.sampled_from(ODD_TEXTS), st.text(max_size=6))
WHOLE = st.integers(-(2**63), 2**63 - 1)
TIMES = st.sampled_from([1_764_000_000, 1_764_000_000_000, 20251124, 0, -1, 820_454_400])
FLOATS = st.floats(width=64)
VALUES: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "text": (TEXTS, pa.string()),
    "whole": (st.one_of(WHOLE, st.integers(0, 5)), pa.int64()),
    "time": (TIMES, pa.int64()),
    "huge": (st.integers(0, 2**64 - 1), pa.uint64()),
    "number": (st.one_of(FLOATS, st.sampled_from([17.0, 0.0])), pa.float64()),
    "half": (st.sampled_from([np.float16(1.5), np.float16("inf")]), pa.float16()),
    "yes": (st.booleans(), pa.bool_()),
    "bytes": (st.binary(max_size=4), pa.binary()),
    "fixed": (st.binary(min_size=3, max_size=3), pa.binary(3)),
    "decimal": (st.decimals(-1000, 1000, places=2), pa.decimal128(12, 2)),
    "wide decimal": (st.integers(0, 10**30).map(decimal.Decimal), pa.decimal128(38, 0)),
    "stamp": (st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(9000, 1, 1)), pa.timestamp("us")),
    "date": (st.dates(), pa.date32()),
    "of day": (st.times(), pa.time64("us")),
    "lasting": (st.timedeltas(dt.timedelta(-9), dt.timedelta(9)), pa.duration("us")),
    "list": (st.lists(st.integers(0, 9), max_size=3), pa.list_(pa.int64())),
    "texts": (st.lists(TEXTS, max_size=3), pa.list_(pa.string())),
    "deep": (st.fixed_dictionaries({"b": st.integers(0, 9)}), pa.struct([("b", pa.int64())])),
    "lists of lists": (st.just([[1]]), pa.list_(pa.list_(pa.int64()))),
    "map": (st.just([("k", 1)]), pa.map_(pa.string(), pa.int64())),
    "nothing": (st.none(), pa.null()),
}
IN_JSON = (
    "text",
    "whole",
    "time",
    "huge",
    "number",
    "yes",
    "list",
    "texts",
    "deep",
    "lists of lists",
    "nothing",
)
IN_CSV = ("text", "whole", "time", "huge", "number", "yes", "nothing")


@st.composite
def tables(draw: st.DrawFn, kinds: tuple[str, ...]) -> dict[str, tuple[str, list[Any]]]:
    """Column → its kind and values; a click, a user and a time are among them mostly."""
    found: dict[str, tuple[str, list[Any]]] = {}
    if draw(st.integers(0, 9)):
        found["click"] = "whole", [int(i % 3 == 0) for i in range(ROWS)]
        found["user_id"] = "whole", [i % 7 for i in range(ROWS)]
        found["ts"] = "time", [1_764_000_000 + i for i in range(ROWS)]
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(kinds))
        few = draw(st.lists(VALUES[kind][0], min_size=1, max_size=6))
        rare = draw(st.booleans())  # the odd values are in few rows, or in all
        values = [few[0 if rare and i % 20 else i % len(few)] for i in range(ROWS)]
        if draw(st.booleans()):
            values[draw(st.integers(0, ROWS - 1))] = None
        found[draw(NAMES)] = kind, values
    return found


def written(table: dict[str, tuple[str, list[Any]]], form: str, folder: Path, name: str = "log") -> Path:
    path = folder / f"{name}.{form}"
    columns = {name: values for name, (_, values) in table.items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if form == "parquet":
        arrays = [pa.array(values, VALUES[kind][1]) for kind, values in table.values()]
        parquet.write_table(pa.Table.from_arrays(arrays, list(columns)), path)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), errors="surrogatepass")
    else:
        with path.open("w", newline="", errors="surrogatepass") as file:
            out = csv.writer(file)
            out.writerow(list(columns))
            out.writerows([["" if value is None else value for value in row.values()] for row in rows])
    return path


def tried(form: str, table: dict[str, tuple[str, list[Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    """Try init, check and replay."""
    folder = Path(tempfile.mkdtemp())
    try:
        try:
            path = written(table, form, folder)
        except (pa.ArrowException, UnicodeEncodeError):  # no such file can be
            return
        capsys.readouterr()
        code = main(["init", "--from", str(path), "--label", "click", "--out", str(folder / "made")])
        said = capsys.readouterr()
        assert "\x1b" not in said.out + said.err
        if code == 0:
            account(said.err, folder / "made" / "logs" / "log")
            load_pipeline(folder / "made" / "pipeline.py")
            source = f"file:{folder / 'made' / 'logs'}"
            assert main(
                ["check", "--pipeline", str(folder / "made" / "pipeline.py"), "--source", source]
            ) in (0, 1)
            assert "\x1b" not in capsys.readouterr().out
            learned(folder / "made", capsys)
        else:
            assert code in (2, 4) and len(said.err.splitlines()) == 1 and said.err.startswith("livectr: ")
            assert not (folder / "made").exists()
        for events in ("arrow", "json"):
            to = folder / events
            code = main(
                ["logs", "replay", str(path), "--format", form, "--to", f"file:{to}", "--events", events]
            )
            said = capsys.readouterr()
            if code == 0:
                account(said.err, to / "log")
            else:
                assert code in (2, 4) and said.err.splitlines()[-1].startswith("livectr: "), said
                assert not (to / "log").exists() or not any((to / "log").iterdir())
    finally:
        shutil.rmtree(folder)


def learned(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Learn the log of a folder that init made, and compute its rows' features and scores."""
    pipeline, logs = made / "pipeline.py", made / "logs"
    words = ["train", "--pipeline", str(pipeline), "--source", f"file:{logs}", "--until-end", "--json"]
    words += ["--checkpoint", str(made / "c"), "--set", "threads=1", "min_examples=1", "batch_ramp=8"]
    code = main([*words, "--log-level", "error"])
    said = capsys.readouterr()
    rows = pa.concat_tables([pa.ipc.open_file(path).read_all() for path in (logs / "log").glob("*.arrow")])
    if code == 3:  # too few rows can be used
        assert said.err.startswith("livectr: log: ")
        return
    report = json.loads(said.out)
    counted = report["rows"]["log"]
    assert counted["rows"] == len(rows) == report["events"] + report["dead_letters"]
    assert code == (4 if counted["unusable"] > 0.01 * counted["rows"] else 0), said.err
    loaded = load_pipeline(pipeline)
    by_row: list[Any] = []
    for start in range(len(rows)):
        try:
            by_row.append(livectr.features(loaded, rows.slice(start, 1)))
        except ConfigError:
            by_row.append(None)
    refused = sum(one is None for one in by_row)
    assert refused <= report["dead_letters"], "the library refuses a row that was learned"
    if report["examples_trained"] and not refused:
        assert len(livectr.score(loaded, made / "c", rows)) == len(rows)
    asked(loaded, rows)


def asked(pipeline: Pipeline, rows: pa.Table) -> None:
    """Send the rows as requests, and compute their features as a server does."""
    schema = RequestSchema(pipeline, pipeline.plan.roots)
    for row in rows.to_pylist():
        columns = {name: column_of(name, [row[name]], spec.dtype) for name, spec in schema.columns.items()}
        own = [name for name, spec in schema.columns.items() if spec.placement != pb.PLACEMENT_CONTEXT]
        candidates = [columns.pop(name) for name in own]
        if not candidates:
            return
        try:
            parsed(schema, columns.values(), candidates)
        except RequestError as error:
            assert "is null; send a value" in str(error) or "time" in str(error), error


def tried_pair(
    form: str, table: dict[str, tuple[str, list[Any]]], clicked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Try init on a table as impressions, and on some of its columns in every fifth row as clicks."""
    folder = Path(tempfile.mkdtemp())
    try:
        named: dict[str, tuple[str, list[Any]]] = {"view_id": ("whole", list(range(ROWS))), **table}
        clicks = {
            name: (kind, values[::5])
            for name, (kind, values) in named.items()
            if name in ("view_id", *clicked)
        }
        try:
            paths = [
                written(some, form, folder, name) for some, name in ((named, "shown"), (clicks, "clicks"))
            ]
        except (pa.ArrowException, UnicodeEncodeError):  # no such file can be
            return
        capsys.readouterr()
        words = ["--impressions", str(paths[0]), "--clicks", str(paths[1]), "--out", str(folder / "made")]
        code = main(["init", *words])
        said = capsys.readouterr()
        assert "\x1b" not in said.out + said.err
        if code:
            assert code in (2, 4) and len(said.err.splitlines()) == 1 and said.err.startswith("livectr: ")
            assert not (folder / "made").exists()
            return
        for line, topic in zip(said.err.splitlines()[-2:], ("shown", "clicks"), strict=True):
            if (folder / "made" / "logs" / topic).exists():  # clicks without times are none
                account(line, folder / "made" / "logs" / topic)
        load_pipeline(folder / "made" / "pipeline.py")
        source = f"file:{folder / 'made' / 'logs'}"
        pipeline = str(folder / "made" / "pipeline.py")
        assert main(["check", "--pipeline", pipeline, "--source", source]) in (0, 1)
        assert "\x1b" not in capsys.readouterr().out
    finally:
        shutil.rmtree(folder)


def account(said: str, log: Path) -> None:
    """The account is whole, and the log has the rows that were kept."""
    found = re.search(r"([\d,]+) rows read(?:, all kept|: ([\d,]+) kept, ([\d,]+) set aside)", said)
    assert found is not None, said
    read, kept, aside = (int((text or "0").replace(",", "")) for text in found.groups())
    kept = kept or read
    assert read == kept + aside
    rows = 0
    for path in log.iterdir():
        if path.suffix == ".arrow":
            rows += pa.ipc.open_file(path).read_all().num_rows
        else:
            rows += len(path.read_bytes().splitlines())
    assert rows == kept


FORMS = [("csv", IN_CSV), ("jsonl", IN_JSON), ("parquet", tuple(VALUES))]


@pytest.mark.parametrize(("form", "kinds"), FORMS)
def test_any_file_is_read_or_refused(
    form: str, kinds: tuple[str, ...], pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    @settings(
        max_examples=EXAMPLES or (100 if pytestconfig.getoption("--full") else 8),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(table=tables(kinds))
    def one(table: dict[str, tuple[str, list[Any]]]) -> None:
        tried(form, table, capsys)

    one()


@pytest.mark.parametrize(("form", "kinds"), FORMS)
def test_any_pair_is_joined_or_refused(
    form: str, kinds: tuple[str, ...], pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    @settings(
        max_examples=EXAMPLES or (50 if pytestconfig.getoption("--full") else 5),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(table=tables(kinds), clicked=st.lists(st.sampled_from(("ts", "user_id", *ODD_NAMES)), max_size=4))
    def one(table: dict[str, tuple[str, list[Any]]], clicked: list[str]) -> None:
        tried_pair(form, table, clicked, capsys)

    one()
