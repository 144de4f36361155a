"""The benchmark's features in Polars: lazy, streaming engine, no Python function per row.

Texts stay strings; crosses and n-grams are 64-bit hashes that wrap around. As an experienced user writes it:
arithmetic of lists runs over all items at once, so a cross of a list with a scalar is a multiplication and an
addition of lists; `list.eval` hashes items; a product of two lists is gathered by indices, without `explode`.

    python -m bench.featurebox.polars_peer FOLDER (bench | values OUT) --rows N …
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from bench.featurebox.features import DAY_MS, features
from bench.featurebox.schema import LABEL, LOG, TABLES, files
from bench.featurebox.staged import Staged, Term, is_list, kind_of

MULTIPLIER = 0x9E3779B97F4A7C15
ZERO = {"string": "", "bool": False}


class Polars(Staged):
    """`Language` in Polars' expressions."""

    def reference(self, name: str) -> pl.Expr:
        return pl.col(name)

    def column(self, name: str) -> Term:
        kind = kind_of(name)
        known = name.removeprefix(f"{LOG}.")
        expr = pl.col(known) if is_list(kind) else pl.col(known).fill_null(ZERO.get(kind, 0))
        return self.share(Term(expr, kind, 0))

    def floor_divide(self, x: Term, by: int) -> Term:
        return Term(x.expr // by, x.kind, x.depth)

    def bucketize(self, x: Term, bounds: Sequence[float]) -> Term:
        compared = [(x.expr >= bound).cast(pl.Int32) for bound in bounds]
        return self.share(Term(sum(compared[1:], compared[0]), "int32", x.depth))

    def log1p(self, x: Term) -> Term:
        return Term(x.expr.cast(pl.Float64).log1p().cast(pl.Float32), "float32", x.depth)

    def normalise(self, x: Term, mean: float, std: float) -> Term:
        return Term(((x.expr.cast(pl.Float64) - mean) / std).cast(pl.Float32), "float32", x.depth)

    def clip(self, x: Term, lo: float | None, hi: float | None) -> Term:
        return Term(x.expr.clip(lo, hi), x.kind, x.depth)

    def where(self, condition: Term, a: Any, b: Any) -> Term:
        depth = max(term.depth for term in (condition, a, b) if isinstance(term, Term))
        left, right = (term.expr if isinstance(term, Term) else pl.lit(term) for term in (a, b))
        return Term(pl.when(condition.expr).then(left).otherwise(right), "float32", depth)

    def hour(self, ts_ms: Term) -> Term:
        return self.share(Term((ts_ms.expr // 3_600_000 % 24).cast(pl.Int32), "int32", ts_ms.depth))

    def weekday(self, ts_ms: Term) -> Term:
        return self.share(Term(((ts_ms.expr // DAY_MS + 3) % 7).cast(pl.Int32), "int32", ts_ms.depth))

    def lower(self, text: Term) -> Term:
        return self.share(Term(text.expr.str.to_lowercase(), "string", text.depth))

    def trim(self, text: Term) -> Term:
        return Term(text.expr.str.strip_chars(" "), "string", text.depth)

    def substring(self, text: Term, size: int) -> Term:
        return self.share(Term(text.expr.str.head(size), "string", text.depth))

    def contains(self, text: Term, part: str) -> Term:
        return Term(text.expr.str.contains(part, literal=True).cast(pl.Float32), "float32", text.depth)

    def head(self, items: Term, n: int) -> Term:
        return self.share(Term(items.expr.list.head(n), items.kind, items.depth))

    def unique(self, items: Term) -> Term:
        return self.share(Term(items.expr.list.unique(maintain_order=True), items.kind, items.depth))

    def words(self, text: Term) -> Term:
        pieces = pl.when(text.expr != "").then(text.expr.str.split(" "))
        return self.share(Term(pieces, "list<string>", text.depth))

    def bigrams(self, words: Term) -> Term:
        key = self.key(words)
        return self.share(Term(_neighbours(key.expr, 2), "list<int64>", key.depth))

    def trigrams(self, text: Term) -> Term:
        key = self.key(self.share(Term(text.expr.str.split(""), "list<string>", text.depth)))
        return self.share(Term(_neighbours(key.expr, 3), "list<int64>", key.depth))

    def length(self, x: Term) -> Term:
        expr = x.expr.list.len().fill_null(0) if is_list(x.kind) else x.expr.str.len_chars()
        return Term(expr.cast(pl.Float32), "float32", x.depth)

    def key(self, x: Term) -> Term:
        """Unsigned 64-bit integers of a scalar or a list, computed once per term."""
        if id(x) not in self._keys:
            kind = {True: "list<int64>", False: "int64"}[is_list(x.kind)]
            if x.kind == "list<string>":
                expr = x.expr.list.eval(pl.element().hash())
            elif x.kind == "string":
                expr = x.expr.hash()
            else:
                expr = x.expr.cast(pl.List(pl.UInt64) if is_list(x.kind) else pl.UInt64)
            self._keys[id(x)] = self.share(Term(expr, kind, x.depth))
            self._keep.append(x)
        return self._keys[id(x)]

    def __init__(self) -> None:
        super().__init__()
        self._keep: list[Term] = []

    def cross(self, *inputs: Term) -> Term:
        keys = [self.key(x) for x in inputs]
        found, depth = keys[0], max(key.depth for key in keys)
        for key in keys[1:]:
            if is_list(found.kind) and is_list(key.kind):
                expr = _product(found.expr, key.expr)
            else:
                expr = found.expr * pl.lit(MULTIPLIER, pl.UInt64) + key.expr
            kind = "list<int64>" if is_list(found.kind) or is_list(key.kind) else "int64"
            found = Term(expr, kind, depth)
        return found


def _neighbours(key: pl.Expr, n: int) -> pl.Expr:
    """A hash of each run of n neighbours; none where there are fewer than n."""
    count = pl.max_horizontal(key.list.len().cast(pl.Int64) - (n - 1), 0)
    found = key.list.slice(0, count)
    for i in range(1, n):
        found = found * pl.lit(MULTIPLIER, pl.UInt64) + key.list.slice(i, count)
    return found


def _product(a: pl.Expr, b: pl.Expr) -> pl.Expr:
    """A hash of each pair, b running fastest."""
    many = b.list.len().cast(pl.Int64)
    number = pl.int_ranges(0, a.list.len().cast(pl.Int64) * many)
    return a.list.gather(number // many) * pl.lit(MULTIPLIER, pl.UInt64) + b.list.gather(number % many)


def joined(folder: str, rows: int | None) -> pl.LazyFrame:
    """The log beside its tables; a table's columns are "table.column"."""
    log = pl.scan_parquet(files(folder, LOG))
    log = log if rows is None else log.head(rows)
    for table, (key, columns) in TABLES.items():
        side = pl.scan_parquet(files(folder, table))
        side = side.rename({name: f"{table}.{name}" for name in columns if name != key})
        log = log.join(side, on=key, how="left")
    return log


def extracted(log: pl.LazyFrame, *also: str) -> pl.LazyFrame:
    """All features, and other columns."""
    language = Polars()
    sparse, dense = features(language)
    for stage in language.stages:
        log = log.with_columns(**stage)
    return log.select(*also, **{name: term.expr for name, term in {**sparse, **dense}.items()})


def drop(frame: pl.LazyFrame) -> int:
    """Run on the streaming engine and drop the batches. Returns the number of rows.

    This is the cheapest of the sinks (`sink_batches`, `sink_ipc` into memory, `collect`).
    """
    return sum(batch.height for batch in frame.collect_batches(engine="streaming", maintain_order=False))


def main() -> None:
    """Prints JSON: seconds of each round, rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--values", type=Path)
    arguments = parser.parse_args()
    if arguments.values is not None:
        frame = extracted(joined(arguments.folder, arguments.rows), "request_id", LABEL)
        frame.sort("request_id").collect(engine="streaming").write_parquet(arguments.values)
        return
    drop(extracted(joined(arguments.folder, 2_000)))
    start, cpu = time.perf_counter(), time.process_time()
    rows = drop(extracted(joined(arguments.folder, arguments.rows)))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(dict(rows=rows, seconds=seconds, cpu_s=cpu, peak_mib=peak, version=pl.__version__)))


if __name__ == "__main__":
    main()
