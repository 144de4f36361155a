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
from livectr.ingest.materialized.store import Manifest
from livectr.ingest.materialized.writer import Progress as Done
from livectr.ingest.materialized.writer import choose
from livectr.ingest.materialized.writer import materialize as write
from livectr.ingest.pipeline import load_pipeline


def materialize(pipeline_file: str, *, source: str, out: Path, names: Sequence[str] | None) -> int:
    """Write the features, then a summary: a table on standard error and a JSON line on standard output.

    Args:
        pipeline_file: path of the pipeline file.
        source: URL of the logs.
        out: folder that does not exist yet.
        names: features to compute; None: all that do not depend on running statistics.

    Raises:
        ConfigError: pipeline, features or folder cannot be used.
        DataError: the log does not fit the pipeline.
    """
    pipeline = load_pipeline(pipeline_file)
    features = choose(pipeline, names)
    letters = DeadLetters.for_source(source)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("reading the logs", total=None)

        def show(done: Done) -> None:
            bar.update(
                task,
                description=f"{out.name} {done.rows:,} rows",
                completed=done.events,
                total=done.events + done.behind,
            )

        try:
            manifest = write(
                pipeline,
                source=source,
                target=out,
                features=features,
                pipeline_file=pipeline_file,
                dead_letters=letters,
                progress=show,
            )
        finally:
            letters.close()
    sizes = column_bytes(out, manifest)
    console.print(table_of(out, manifest, sizes))
    console.print(
        f"train with: livectr train --pipeline {pipeline_file} --materialized {out}", soft_wrap=True
    )
    print(json.dumps(_summary(out, manifest, sizes)))
    sys.stdout.flush()
    return 0


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
