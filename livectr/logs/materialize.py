"""Materialized features with a progress bar and a summary, for `livectr features materialize`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.materialized.parts import Part, merge
from livectr.ingest.materialized.store import MANIFEST, Manifest
from livectr.ingest.materialized.writer import Materialization, choose
from livectr.ingest.materialized.writer import Progress as Done
from livectr.ingest.materialized.writer import materialize as write
from livectr.ingest.pipeline import Pipeline, load_pipeline


def materialize(
    pipeline_file: str, *, source: str, out: Path, names: Sequence[str] | None, part: Part
) -> int:
    """Write the features, then a summary: a table on standard error and a JSON line on standard output.

    Args:
        pipeline_file: path of the pipeline file.
        source: URL of the logs.
        out: folder that does not exist yet.
        names: features to compute; None: all that do not depend on running statistics.
        part: share of the partitions. A part that is there is kept; the last one makes `out` of all parts.

    Raises:
        ConfigError: pipeline, features or folder cannot be used.
        DataError: the log does not fit the pipeline.
    """
    part.check_count(out)
    pipeline = load_pipeline(pipeline_file)
    job = Materialization(source, part.folder(out), choose(pipeline, names), pipeline_file, part)
    if part.count > 1 and (out.exists() or (job.target / MANIFEST).exists()):
        print(f"part {part.index} of {part.count} is there already", file=sys.stderr)
    else:
        _write(pipeline, job)
    whole = Manifest.read(out) if out.exists() else merge(out, part.count)
    if whole is None:
        print(f"{job.target} is written; {out} waits for other parts", file=sys.stderr)
        return 0
    sizes = column_bytes(out, whole)
    console = Console(stderr=True)
    console.print(table_of(out, whole, sizes))
    console.print(
        f"train with: livectr train --pipeline {pipeline_file} --set materialized={out}", soft_wrap=True
    )
    print(json.dumps(_summary(out, whole, sizes)))
    sys.stdout.flush()
    return 0


def _write(pipeline: Pipeline, job: Materialization) -> None:
    """Write a store, with a progress bar."""
    letters = DeadLetters.for_source(job.source, writer=job.part.index, writers=job.part.count)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("reading the logs", total=None)

        def show(done: Done) -> None:
            bar.update(
                task,
                description=f"{job.target.name} {done.rows:,} rows",
                completed=done.events,
                total=done.events + done.behind,
            )

        try:
            write(pipeline, job, letters, show)
        finally:
            letters.close()


def column_bytes(root: Path, manifest: Manifest) -> dict[str, int]:
    """Compressed bytes by column, in all files."""
    sizes: dict[str, int] = {}
    for file in manifest.files:
        metadata = pq.read_metadata(root / file.path)
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for place in range(group.num_columns):
                chunk = group.column(place)
                name = chunk.path_in_schema.removesuffix(".list.element")
                sizes[name] = sizes.get(name, 0) + chunk.total_compressed_size
    return sizes


def table_of(root: Path, manifest: Manifest, sizes: dict[str, int]) -> Table:
    """Table of the folder, a line per feature."""
    total = sum(file.bytes for file in manifest.files)
    title = f"{root}: {manifest.rows:,} rows, {total:,} bytes, {len(manifest.features)} features"
    if manifest.unreadable:
        title += f"; {manifest.unreadable:,} records could not be read"
    table = Table(title=title, title_justify="left")
    table.add_column("feature")
    table.add_column("kind")
    table.add_column("bytes", justify="right")
    table.add_column("a row", justify="right")
    table.add_column("expression", overflow="fold")
    for feature in manifest.features:
        size = sizes.get(feature.name, 0)
        each = f"{size / manifest.rows:.1f}" if manifest.rows else ""
        table.add_row(feature.name, feature.kind, f"{size:,}", each, feature.expression)
    return table


def _summary(root: Path, manifest: Manifest, sizes: dict[str, int]) -> dict[str, Any]:
    return {
        "folder": str(root),
        "rows": manifest.rows,
        "bytes": sum(file.bytes for file in manifest.files),
        "unreadable": manifest.unreadable,
        "features": {feature.name: sizes.get(feature.name, 0) for feature in manifest.features},
    }
