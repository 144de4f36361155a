"""Formats of log files: Kaggle's layouts, whose columns are known, and files that name their columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

CRITEO = {
    "label": "int32",
    **{f"I{i}": "int64" for i in range(1, 14)},
    **{f"C{i}": "string" for i in range(1, 27)},
}
AVAZU = {
    **dict(id="string", click="int32", hour="int64", C1="int32", banner_pos="int32"),
    **{f"{of}_{part}": "string" for of in ("site", "app") for part in ("id", "domain", "category")},
    **dict(device_id="string", device_ip="string", device_model="string"),
    **dict(device_type="int32", device_conn_type="int32"),
    **{f"C{i}": "int32" for i in range(14, 22)},
}


@dataclass(frozen=True)
class Layout:
    """Layout of the rows of a format.

    Args:
        columns: name → type, in file order; None: the file names the columns, types are inferred.
        key: column that partitions the log.
        time: column of event time.
        number_rows: add the column `row`, counted from 0, as a key.
    """

    columns: dict[str, str] | None = None
    header: bool = True
    delimiter: str = ","
    key: str | None = None
    time: str | None = None
    number_rows: bool = False


def iso_ms(value: Any) -> int:
    """Epoch milliseconds of an ISO 8601 text (UTC unless it says so), or of a number that is that already."""
    if isinstance(value, str):
        moment = datetime.fromisoformat(value.strip())
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return int(value)


LAYOUTS = {
    "criteo": Layout(CRITEO, header=False, delimiter="\t", key="row", number_rows=True),
    "avazu": Layout(AVAZU, key="device_ip", time="hour"),
    "csv": Layout(),
    "parquet": Layout(),
    "jsonl": Layout(),
}
CRITEO_LINE = re.compile(rb"[01](\t-?\d*){13}(\t[0-9a-f]{0,8}){26}\r?\n?")


def headless(first: bytes) -> Layout | None:
    """Layout of a file without a header, by its first line; None: it is not known.

    Args:
        first: beginning of the file.
    """
    line = first.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0]
    return LAYOUTS["criteo"] if CRITEO_LINE.fullmatch(line) else None
