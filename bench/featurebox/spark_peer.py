"""The benchmark's features in PySpark's DataFrame functions: extraction alone, and a staged pipeline.

As an experienced user writes it: broadcast joins, few partitions, code generation for wide rows, higher-order
functions in place of explode, a key is `xxhash64` of the values.

    python -m bench.featurebox.spark_peer FOLDER [--rows N] (--values OUT | --stages OUT)
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.featurebox.features import DAY_MS, features
from bench.featurebox.schema import LABEL, LOG, LOG_COLUMNS, TABLES
from bench.featurebox.staged import Staged, Term, is_list, kind_of

WARM_UP_ROWS = 100_000
"""Enough rounds for the JVM to compile hot code."""
SETTINGS = {
    "spark.driver.memory": "6g",
    "spark.driver.extraJavaOptions": "-XX:-DontCompileHugeMethods",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.autoBroadcastJoinThreshold": str(256 << 20),
    "spark.sql.codegen.maxFields": "1000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


class Spark(Staged):
    """`Language` in Spark's columns."""

    def __init__(self) -> None:
        super().__init__()
        self._keep: list[Term] = []

    def reference(self, name: str) -> Column:
        return f.col(name)

    def column(self, name: str) -> Term:
        known = name.removeprefix(f"{LOG}.").replace(".", "__")
        return Term(f.col(known), kind_of(name), 0)

    def floor_divide(self, x: Term, by: int) -> Term:
        return Term(f.floor(x.expr / by), x.kind, x.depth)

    def bucketize(self, x: Term, bounds: Sequence[float]) -> Term:
        compared = [(x.expr >= bound).cast("int") for bound in bounds]
        return self.share(Term(sum(compared[1:], compared[0]), "int32", x.depth))

    def log1p(self, x: Term) -> Term:
        return Term(f.log1p(x.expr).cast("float"), "float32", x.depth)

    def normalise(self, x: Term, mean: float, std: float) -> Term:
        return Term(((x.expr.cast("double") - mean) / std).cast("float"), "float32", x.depth)

    def clip(self, x: Term, lo: float | None, hi: float | None) -> Term:
        expr, kind = x.expr, {"int64": "long", "int32": "int", "float32": "float"}[x.kind]
        if lo is not None:
            expr = f.greatest(expr, f.lit(lo).cast(kind))
        if hi is not None:
            expr = f.least(expr, f.lit(hi).cast(kind))
        return Term(expr, x.kind, x.depth)

    def where(self, condition: Term, a: Any, b: Any) -> Term:
        depth = max(term.depth for term in (condition, a, b) if isinstance(term, Term))
        left, right = (term.expr if isinstance(term, Term) else f.lit(term) for term in (a, b))
        return Term(f.when(condition.expr, left).otherwise(right), "float32", depth)

    def hour(self, ts_ms: Term) -> Term:
        expr = f.floor(ts_ms.expr / 3_600_000) % 24
        return self.share(Term(expr.cast("int"), "int32", ts_ms.depth))

    def weekday(self, ts_ms: Term) -> Term:
        expr = (f.floor(ts_ms.expr / DAY_MS) + 3) % 7
        return self.share(Term(expr.cast("int"), "int32", ts_ms.depth))

    def lower(self, text: Term) -> Term:
        return self.share(Term(f.lower(text.expr), "string", text.depth))

    def trim(self, text: Term) -> Term:
        return Term(f.trim(text.expr), "string", text.depth)

    def substring(self, text: Term, size: int) -> Term:
        return self.share(Term(f.substring(text.expr, 1, size), "string", text.depth))

    def contains(self, text: Term, part: str) -> Term:
        return Term(f.contains(text.expr, f.lit(part)), "float32", text.depth)

    def head(self, items: Term, n: int) -> Term:
        return self.share(Term(f.slice(items.expr, 1, n), items.kind, items.depth))

    def unique(self, items: Term) -> Term:
        return self.share(Term(f.array_distinct(items.expr), items.kind, items.depth))

    def words(self, text: Term) -> Term:
        pieces = f.when(text.expr != "", f.split(text.expr, " ")).otherwise(f.array().cast("array<string>"))
        return self.share(Term(pieces, "list<string>", text.depth))

    def bigrams(self, words: Term) -> Term:
        key = self.key(words)
        count = f.greatest(f.size(key.expr) - 1, f.lit(0))
        pairs = f.zip_with(
            f.slice(key.expr, f.lit(1), count),
            f.slice(key.expr, f.lit(2), count),
            lambda a, b: f.xxhash64(a, b),
        )
        return Term(pairs, "list<int64>", key.depth)

    def trigrams(self, text: Term) -> Term:
        starts = f.when(f.length(text.expr) >= 3, f.sequence(f.lit(1), f.length(text.expr) - 2))
        starts = starts.otherwise(f.array().cast("array<int>"))
        grams = f.transform(starts, lambda i: f.xxhash64(f.substring(text.expr, i, f.lit(3))))
        return self.share(Term(grams, "list<int64>", text.depth))

    def length(self, x: Term) -> Term:
        expr = f.size(x.expr) if is_list(x.kind) else f.length(x.expr)
        return Term(expr.cast("float"), "float32", x.depth)

    def key(self, x: Term) -> Term:
        """64-bit integers of a scalar or a list; texts are hashed once per term."""
        if id(x) not in self._keys:
            self._keys[id(x)] = self._key(x)
            self._keep.append(x)
        return self._keys[id(x)]

    def _key(self, x: Term) -> Term:
        if x.kind == "list<string>":
            return self.share(
                Term(f.transform(x.expr, lambda item: f.xxhash64(item)), "list<int64>", x.depth)
            )
        if x.kind == "string":
            return self.share(Term(f.xxhash64(x.expr), "int64", x.depth))
        return x if is_list(x.kind) else Term(x.expr.cast("long"), "int64", x.depth)

    def cross(self, *inputs: Term) -> Term:
        keys = [self.key(x) for x in inputs]

        def combine(done: list[Column], left: list[Term]) -> Column:
            if not left:
                return f.xxhash64(*done)
            head, rest = left[0], left[1:]
            if not is_list(head.kind):
                return combine([*done, head.expr], rest)
            many = f.transform(head.expr, lambda item: combine([*done, item], rest))
            return f.flatten(many) if any(is_list(key.kind) for key in rest) else many

        lists = any(is_list(key.kind) for key in keys)
        return Term(combine([], keys), "list<int64>" if lists else "int64", max(key.depth for key in keys))


def session(cores: int) -> SparkSession:
    """A session on this machine."""
    builder = SparkSession.builder.master(f"local[{cores}]").appName("featurebox")
    for name, value in {**SETTINGS, "spark.sql.shuffle.partitions": str(cores)}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def cleaned(spark: SparkSession, folder: str, rows: int | None) -> DataFrame:
    """The log without nulls."""
    log = spark.read.parquet(f"{folder}/{LOG}")
    log = log if rows is None else log.where(f.col("request_id") < rows)
    return _filled(log, LOG_COLUMNS)


def joined(spark: SparkSession, folder: str, log: DataFrame) -> DataFrame:
    """The log beside its tables; a table's columns are table__column, null where a key is unknown."""
    for table, (key, columns) in TABLES.items():
        side = spark.read.parquet(f"{folder}/{table}")
        side = side.select(key, *(f.col(name).alias(f"{table}__{name}") for name in columns if name != key))
        log = log.join(f.broadcast(side), key, "left")
        log = _filled(log, {f"{table}__{name}": kind for name, kind in columns.items() if name != key})
    return log


def _filled(frame: DataFrame, columns: Any) -> DataFrame:
    numbers = [name for name, kind in columns.items() if kind not in ("string", "bool") and not is_list(kind)]
    texts = [name for name, kind in columns.items() if kind == "string"]
    return frame.fillna(0, numbers).fillna("", texts)


def extracted(log: DataFrame, *also: str, keys: bool = False) -> DataFrame:
    """All features, and other columns. keys: texts as 64-bit keys and integers as longs, for a trainer."""
    language = Spark()
    sparse, dense = features(language)
    if keys:
        sparse = {name: language.key(term) for name, term in sparse.items()}
    for stage in language.stages:
        log = log.withColumns(stage)
    dense_columns = [term.expr.cast("float").alias(name) for name, term in dense.items()]
    return log.select(*also, *(term.expr.alias(name) for name, term in sparse.items()), *dense_columns)


def staged(spark: SparkSession, folder: str, rows: int | None, out: str) -> dict[str, float]:
    """Clean → Parquet, join → Parquet, extract → Parquet; seconds of each stage."""
    seconds = {}

    def write(name: str, frame: DataFrame) -> DataFrame:
        start = time.perf_counter()
        frame.write.mode("overwrite").parquet(f"{out}/{name}")
        seconds[name] = time.perf_counter() - start
        return spark.read.parquet(f"{out}/{name}")

    clean = write("clean", cleaned(spark, folder, rows))
    beside = write("joined", joined(spark, folder, clean))
    write("extracted", extracted(beside, "request_id", LABEL, keys=True))
    return seconds


def main() -> None:
    """Prints JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--values")
    parser.add_argument("--stages")
    arguments = parser.parse_args()
    spark = session(arguments.cores)
    folder, rows = arguments.folder, arguments.rows
    found: dict[str, Any] = dict(version=pyspark.__version__)
    if arguments.values:
        frame = extracted(joined(spark, folder, cleaned(spark, folder, rows)), "request_id")
        frame.coalesce(1).write.mode("overwrite").parquet(arguments.values)
    elif arguments.stages:
        found["stages"] = staged(spark, folder, rows, arguments.stages)
    else:

        def run(rows: int | None) -> float:
            frame = extracted(joined(spark, folder, cleaned(spark, folder, rows)))
            start = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            return time.perf_counter() - start

        run(WARM_UP_ROWS)
        found["seconds"] = run(rows)
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
