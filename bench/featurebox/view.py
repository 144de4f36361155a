"""Writes the benchmark's log and tables as Parquet: `python -m bench.featurebox.view --rows N --out DIR`.

A function of (seed, rows): ids follow Zipf's law (s = 1), texts are 2 to 8 words of a Zipf vocabulary with
some non-ASCII letters, a few values are null, a few users are unknown to their table, event time rises.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.featurebox.schema import LOG, LOG_COLUMNS, TABLES
from bench.zipf import zipf_ids
from livectr.ingest.language.dtypes import arrow_type

FILE_ROWS = 1 << 20
GROUP_ROWS = 1 << 17
UNKNOWN_USERS = 0.02
"""Share of rows whose user the table does not know."""
START_MS = 1_767_225_600_000
DAY_MS = 86_400_000
KEYS = dict(users=200_000, ads=40_000, advertisers=4_000, campaigns=10_000, pages=50_000)
"""Rows of each table when the log has a million rows or more; fewer with a shorter log."""
_ASCII = "an ber co da el fi gra ho in ka lo mi no or pe qui ra su ta un ve wo xi zu"
SYLLABLES = (4 * f"{_ASCII} " + "ä é ö ß ñ ł ż ço жи на ко").split(" ")

I64 = npt.NDArray[np.int64]


class Pools:
    """Texts that rows draw from."""

    def __init__(self, rng: np.random.Generator, share: float) -> None:
        def words(count: int, least: int, most: int) -> list[str]:
            return [
                "".join(rng.choice(SYLLABLES, size)).capitalize()
                for size in rng.integers(least, most + 1, count)
            ]

        vocabulary = np.array(words(20_000, 1, 4), object)

        def texts(count: int) -> list[str]:
            return [
                " ".join(vocabulary[zipf_ids(rng, len(vocabulary), n)]) for n in rng.integers(2, 9, count)
            ]

        def scaled(count: int) -> int:
            return max(200, int(count * share))

        padding = rng.choice(["", "", "", "", " ", "  "], scaled(100_000))
        self.query = [pad + text + pad for pad, text in zip(padding, texts(scaled(100_000)), strict=True)]
        self.title = texts(scaled(100_000))
        self.name = texts(scaled(KEYS["ads"]))
        self.tags = words(2_000, 1, 3)
        self.site = [f"www.{word.lower()}.example" for word in words(scaled(5_000), 2, 4)]
        self.referrer = [
            f"https://{site}/{path.lower()}/{number}"
            for site, path, number in zip(
                rng.choice(self.site, scaled(30_000)),
                words(scaled(30_000), 1, 3),
                rng.integers(0, 10_000, scaled(30_000)),
                strict=True,
            )
        ]
        self.device, self.os, self.browser = words(500, 2, 3), words(12, 1, 2), words(40, 2, 3)
        self.language, self.city, self.brand = words(30, 1, 1), words(3_000, 2, 4), words(5_000, 1, 3)
        self.country, self.topic = words(60, 2, 3), words(400, 1, 3)

    def draw(self, rng: np.random.Generator, name: str, rows: int) -> pa.Array:
        pool = getattr(self, name)
        return pa.array(pool, pa.string()).take(pa.array(zipf_ids(rng, len(pool), rows)))


def with_nulls(rng: np.random.Generator, values: pa.Array, share: float) -> pa.Array:
    keep = pa.array(rng.random(len(values)) >= share)
    return pc.if_else(keep, values, pa.scalar(None, values.type))


def ids(numbers: I64, table: str) -> I64:
    """Real-looking ids: large, apart, other ranges for other tables."""
    return (1 + list(TABLES).index(table)) * 10**11 + numbers * 37


def table_rows(rng: np.random.Generator, pools: Pools, table: str, rows: int) -> pa.RecordBatch:
    """All rows of a table."""
    key, columns = TABLES[table]
    values: dict[str, object] = {key: ids(np.arange(rows), table)}
    for name, low, high in (
        ("gender", 0, 3), ("interest", 0, 64), ("category", 0, 300), ("industry", 0, 40),
        ("objective", 0, 6), ("pricing", 0, 4), ("section", 0, 25), ("words", 50, 5_000),
    ):  # fmt: skip
        values[name] = rng.integers(low, high, rows)
    values["age"] = with_nulls(rng, pa.array(rng.integers(13, 90, rows), pa.int32()), 0.05)
    values["income"] = with_nulls(rng, pa.array(rng.lognormal(10, 0.6, rows), pa.float32()), 0.1)
    for name in ("price", "budget"):
        values[name] = rng.lognormal(3, 1.5, rows)
    for name in ("quality", "rating", "ctr"):
        values[name] = rng.random(rows)
    for name in ("registered", "created", "started"):
        values[name] = START_MS - rng.integers(0, 900 * DAY_MS, rows)
    for name, dtype in columns.items():
        if dtype == "string":
            values[name] = pools.draw(rng, name, rows)
    return batch(values, columns)


def log_rows(
    rng: np.random.Generator, pools: Pools, counts: dict[str, int], first: int, rows: int
) -> pa.Table:
    """Rows `first` to `first + rows` of the log."""
    number = np.arange(first, first + rows)
    values: dict[str, object] = {"request_id": number, "ts": START_MS + 8 * number}
    for table, count in counts.items():
        known = rng.random(rows) >= (UNKNOWN_USERS if table == "users" else 0)
        values[TABLES[table][0]] = ids(zipf_ids(rng, count, rows), table) * known
    values["dwell_ms"] = rng.lognormal(8, 1.5, rows).astype(np.int64)
    for name, n in (
        ("position", 10),
        ("depth", 40),
        ("seen_today", 60),
        ("clicked_today", 8),
        ("connection", 6),
    ):
        values[name] = zipf_ids(rng, n, rows)
    values["width"], values["height"] = (
        rng.choice([120, 300, 728, 970], rows),
        rng.choice([50, 90, 250, 600], rows),
    )
    values["bid"], values["floor"] = rng.lognormal(0, 1, rows), rng.lognormal(-1, 1, rows)
    values["scroll"] = with_nulls(rng, pa.array(rng.random(rows), pa.float32()), 0.02)
    values["mobile"] = rng.random(rows) < 0.7
    values["click"] = rng.random(rows) < 0.05 + 0.1 * (np.asarray(values["position"]) == 0)
    for name, dtype in LOG_COLUMNS.items():
        if dtype == "string":
            values[name] = pools.draw(rng, name, rows)
    values["query"] = with_nulls(rng, values["query"], 0.03)
    for name, most in (("recent_ads", 8), ("tags", 4)):
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, most + 1, rows))]).astype(np.int32)
        items = pa.array(ids(zipf_ids(rng, counts["ads"], offsets[-1]), "ads"))
        items = pools.draw(rng, name, int(offsets[-1])) if name == "tags" else items
        values[name] = pa.ListArray.from_arrays(pa.array(offsets), items)
    return pa.Table.from_batches([batch(values, LOG_COLUMNS)])


def batch(values: dict[str, object], columns: object) -> pa.RecordBatch:
    """The columns of a declaration, cast to their types."""
    arrays = []
    for name, dtype in dict(columns).items():  # type: ignore[call-overload]
        value = values[name]
        array = value if isinstance(value, pa.Array) else pa.array(value)
        arrays.append(array.cast(arrow_type(dtype)))
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))  # type: ignore[call-overload]


def write(folder: Path, rows: int, seed: int = 1) -> None:
    """Log and tables under `folder`; nothing when they are there already."""
    done = folder / f"{rows}-{seed}.done"
    if done.exists():
        return
    share = min(1.0, rows / 1_000_000)
    rng = np.random.default_rng(seed)
    pools = Pools(rng, share)
    counts = {table: max(100, int(count * share)) for table, count in KEYS.items()}
    for table, count in counts.items():
        _write(folder / table / "0-0.parquet", pa.Table.from_batches([table_rows(rng, pools, table, count)]))
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        rng = np.random.default_rng([seed, number])
        part = log_rows(rng, pools, counts, first, min(FILE_ROWS, rows - first))
        _write(folder / LOG / f"0-{number:05}.parquet", part)
    done.touch()


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=GROUP_ROWS, compression="zstd", compression_level=1)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    write(arguments.out, arguments.rows, arguments.seed)


if __name__ == "__main__":
    main()
