"""`livectr.train`: training from tables in memory or from a log, in this process."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from livectr.config.parsing import parse
from livectr.config.settings import SETTINGS, Settings, commands_of
from livectr.config.sources import resolve
from livectr.ingest.dead_letters.letters import TOPIC
from livectr.ingest.decode.arrow_rows import no_rows
from livectr.ingest.join.label_join import used_columns
from livectr.ingest.language.streams import Stream
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from livectr.library.tables import check_columns, to_pipeline, to_table
from livectr.simulator.sinks import open_sink
from livectr.system.errors import ConfigError, DataError
from livectr.system.object_store import is_object_address
from livectr.system.scratch import scratch, scratch_folder
from livectr.trainer.checkpoint.stored import placed
from livectr.trainer.options import TrainOptions
from livectr.trainer.report import Report
from livectr.trainer.run import train as run

FILE_ROWS = 200_000


@dataclass(frozen=True)
class Trained:
    """Result of a training.

    Attributes:
        report: quality (test-then-train), counts and seconds of the run.
        checkpoint: folder or s3:// address of the model, for `livectr.score` and `livectr.read_embeddings`.
    """

    report: Report
    checkpoint: Path | str


def train(
    pipeline: Pipeline | str | Path,
    data: Any = None,
    *,
    source: str | None = None,
    checkpoint: str | Path | None = None,
    logs: str | Path | None = None,
    **settings: Any,
) -> Trained:
    """Train the models of a pipeline on one rank, in this process.

    Give `data` or `source`. Data is written as a log of files, which is then read like any other: the same
    joins, features and steps as of `livectr train`.

    SIGTERM and SIGINT let it commit what was learned. Then the program gets the signal: SIGINT is a
    KeyboardInterrupt, and SIGTERM ends it, unless it has handlers of its own.

    Args:
        pipeline: a pipeline, or the path of its file.
        data: topic → rows, for every stream and look-up table of the pipeline; rows are pandas or Polars
            DataFrames, Arrow tables, lists of dicts, dicts of columns, or paths of Parquet files. Where the
            pipeline reads a single stream, its rows alone will do. Rows of a stream are ordered by its time
            column.
        source: a log instead: "file:DIR" or "kafka://HOST:PORT", read to the end that it has now.
        checkpoint: folder or s3://BUCKET/PREFIX for the model; with `data` one without a checkpoint. None: a
            new temporary folder, which is removed at the end of the program.
        logs: folder in which the log of `data` is kept. None: it is removed after training.
        settings: the settings of `livectr train` (docs/configuration.md), such as batch_size=512, seed=7,
            predictions="predictions.bin", warm_start=FOLDER.

    Returns:
        The report, and the checkpoint's folder or address.

    Raises:
        ConfigError: what is given does not fit the pipeline, more rows of `data` than `max_bad` are unusable,
            or a setting is wrong.
        DataError: more rows of `source` than `max_bad` are unusable. What fits was learned.

    Example:
        >>> trained = livectr.train(pipeline, {"impressions": shown, "ads": ads}, batch_size=512)
        >>> trained.report.auc
    """
    heard: list[int] = []
    try:
        return _train(to_pipeline(pipeline), data, source, checkpoint, logs, settings, heard.append)
    finally:
        for number in heard[:1]:  # the program's own handlers are back, and nothing is open
            signal.raise_signal(number)


def _train(
    pipeline: Pipeline,
    data: Any,
    source: str | None,
    checkpoint: str | Path | None,
    logs: str | Path | None,
    settings: Mapping[str, Any],
    heard: Callable[[int], None],
) -> Trained:
    if (data is None) == (source is None):
        raise ConfigError("give the rows as data, or the address of a log as source: one of the two")
    if logs is not None and data is None:
        raise ConfigError("logs is the folder for the log of data; a source is a log already")
    place = scratch_folder("checkpoint") if checkpoint is None else checkpoint
    place = place if is_object_address(place) else Path(place)
    if data is None:
        assert source is not None
        options = _options(pipeline, source, place, settings, goes_on=checkpoint is not None)
        return _run(pipeline, options, heard, place)
    tables = _tables_of(pipeline, data)
    if placed(place).generations():
        raise ConfigError(
            f"{place} holds a checkpoint of other data; name an empty folder, and begin with the old model "
            "by warm_start="
        )
    with _log_folder(logs) as root:
        options = _options(pipeline, f"file:{root}", place, settings, goes_on=False)
        _write(root, tables)
        try:
            return _run(pipeline, options, heard, place)
        except DataError as error:
            raise ConfigError(_with_letters(str(error), root, kept=logs is not None)) from None


def _run(
    pipeline: Pipeline, options: TrainOptions, heard: Callable[[int], None], place: Path | str
) -> Trained:
    """Train. Raises DataError if too many rows of a whole input were set aside, as the command does."""
    report = run(pipeline, options, heard)
    if options.until_end and report.complete and (bad := report.too_many_bad(options.max_bad)):
        letters = f" Dead letters: {report.dead_letter_place}" if report.dead_letter_place else ""
        raise DataError(
            f"{bad}; what fits was learned, and is in {place}. Mend the rows, or say max_bad with the share "
            f"that may be left out.{letters}"
        )
    return Trained(report, place)


def train_options(pipeline: Pipeline | str | Path, source: str, **settings: Any) -> TrainOptions:
    """Options of a run, resolved as `livectr train` resolves them.

    A `TrainOptions` of your own has the shipped defaults alone. These have, the later over the earlier:
    defaults, the pipeline's `settings`, LIVECTR_<NAME> variables, and `settings`.

    Args:
        pipeline: a pipeline, or the path of its file.
        source: "file:DIR" or "kafka://HOST:PORT".
        settings: the settings of `livectr train` (docs/configuration.md).

    Returns:
        Options for `livectr.trainer.run.train`, which trains as a rank under torchrun.

    Raises:
        ConfigError: there is no such setting, or its value is wrong.

    Example:
        >>> options = livectr.train_options(pipeline, "file:logs", until_end=True, batch_size=512)
    """
    resolved = _resolved(to_pipeline(pipeline), {**settings, "source": source})
    return TrainOptions(
        **{field.name: getattr(resolved, field.name) for field in dataclasses.fields(TrainOptions)}
    )


def _resolved(pipeline: Pipeline, given: Mapping[str, Any]) -> Settings:
    checked = {name: parse(name, value, "livectr.train") for name, value in given.items()}
    if other := [name for name in given if "train" not in commands_of(SETTINGS[name])]:
        raise ConfigError(f"livectr.train: {', '.join(other)} is no setting of training")
    return resolve(checked, pipeline=pipeline.settings)


def _options(
    pipeline: Pipeline, source: str, checkpoint: Path | str, settings: Mapping[str, Any], *, goes_on: bool
) -> TrainOptions:
    """Options of a run of one rank. Raises ConfigError for a setting that cannot be.

    Args:
        pipeline: that is trained.
        source: address of the log.
        checkpoint: folder or address of the model.
        settings: as given.
        goes_on: a later run may read on from the checkpoint, so that impressions may wait there.
    """
    given = {"until_end": True, **({} if goes_on else {"at_end": "learn"}), **settings}
    given["checkpoint"] = str(checkpoint)
    resolved = _resolved(pipeline, given)
    if resolved.ranks * resolved.nodes > 1 or resolved.restarts:
        raise ConfigError("livectr.train is one rank; for ranks, nodes and restarts run `livectr train`")
    return train_options(pipeline, source, **given)


def _topics(pipeline: Pipeline) -> dict[str, Stream | Table]:
    """Topic → stream or table that training reads."""
    contents = [content.topic for content in pipeline.content.values() if content.topic is not None]
    read: list[Stream | Table] = [*pipeline.streams, *pipeline.tables, *contents]
    return {one.topic: one for one in read}


def _tables_of(pipeline: Pipeline, data: Any) -> dict[str, pa.Table]:
    """Topic → its rows. Raises ConfigError for topics and columns that are missing."""
    topics = _topics(pipeline)
    if isinstance(data, Mapping) and (
        wrong := [t for t, rows in data.items() if t not in topics and _are_rows(rows)]
    ):
        raise ConfigError(f"data has {', '.join(map(repr, wrong))}; the pipeline reads {', '.join(topics)}")
    by_topic = isinstance(data, Mapping) and bool(data) and data.keys() <= topics.keys()
    if not by_topic:
        if len(topics) > 1:
            raise ConfigError(
                f"the pipeline reads {', '.join(topics)}; give data as a dict of these names and their rows"
            )
        data = {next(iter(topics)): data}
    if missing := [topic for topic in topics if topic not in data]:
        raise ConfigError(f"data has no {', '.join(missing)}; the pipeline reads {', '.join(topics)}")
    tables = {topic: to_table(data[topic], topic) for topic in topics}
    for topic, columns in _needed(pipeline, topics).items():
        check_columns(tables[topic], columns, topic)
        if not tables[topic].num_rows and topic == pipeline.log.impressions.topic:
            raise ConfigError(f"{topic} has no rows; there is nothing to learn")
    return {topic: _in_order(read, tables[topic]) for topic, read in topics.items()}


def _are_rows(given: Any) -> bool:
    """True for what is rows of a topic, and no column's values."""
    return isinstance(given, pa.Table | pa.RecordBatch | Mapping) or hasattr(given, "columns")


def _needed(pipeline: Pipeline, topics: Mapping[str, Stream | Table]) -> dict[str, list[str]]:
    """Topic → columns that its rows must have, those without a fill; JSON fields are in their text."""
    used: dict[str, Any] = {table.topic: table.columns for table in pipeline.learned.narrow_tables}
    used |= used_columns(pipeline.learned)
    needed = {}
    for topic, columns in used.items():
        paths = getattr(topics[topic], "json_fields", {})
        texts = {name: path.split(".")[0] for name, path in paths.items()}
        filled = getattr(topics[topic], "fill", {})
        needed[topic] = list(dict.fromkeys(texts.get(name, name) for name in columns if name not in filled))
    return needed


def _in_order(read: Stream | Table, table: pa.Table) -> pa.Table:
    """Rows of a stream in the order of their time; equal times stay in their order."""
    time = read.time if isinstance(read, Stream) else None
    if time is None or time not in table.column_names:
        return table
    kind = table.schema.field(time).type
    if not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
        return table  # decoding says what is wrong with it
    return table.take(pc.sort_indices(table, sort_keys=[(time, "ascending")]))


@contextmanager
def _log_folder(logs: str | Path | None) -> Iterator[Path]:
    """Folder of the log: the given folder, which must be empty, or a temporary folder."""
    if logs is None:
        with scratch("logs") as folder:
            yield folder
        return
    root = Path(logs)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"logs: {root} is not an empty folder; name another one")
    yield root


def _with_letters(message: str, root: Path, *, kept: bool) -> str:
    """Message of rows that do not fit; their dead letters are moved where they stay, and it says where."""
    letters = root / TOPIC
    if kept or not letters.exists():
        return message
    place = Path(tempfile.mkdtemp(prefix="livectr-dead-letters-"))
    shutil.move(letters, place / TOPIC)
    return message.replace(str(letters), str(place / TOPIC))


def _write(root: Path, tables: Mapping[str, pa.Table]) -> None:
    """A log of one partition, so that examples come in the order of the rows."""
    sink = open_sink(f"file:{root}", dict.fromkeys(tables, 1))
    try:
        for topic, table in tables.items():
            for start in range(0, table.num_rows, FILE_ROWS):
                for batch in table.slice(start, FILE_ROWS).combine_chunks().to_batches():
                    sink.write_batch(topic, 0, batch)
            if not table.num_rows:
                sink.write_batch(topic, 0, no_rows(table.schema))
    finally:
        sink.close()
