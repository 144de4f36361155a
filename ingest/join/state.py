"""State of an example source, by partition: a restart may assign partitions to other ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.chunks import Position, TopicPartition
from livectr.ingest.join.histories import BehaviorHistories, as_table
from livectr.ingest.join.label_join import HISTORY
from livectr.ingest.join.lookup import LookupTable
from livectr.ingest.join.saved_rows import SavedRows, kept_rows
from livectr.kernels.stream.history import Histories, last_of
from livectr.kernels.stream.join import JoinIndex
from livectr.kernels.stream.known import COLUMNS, Columns, Places, joined
from livectr.system.errors import CheckpointError

TABLES = "tables"
"""Folder of saved look-up rows, beside those of partitions."""
BOUNDS = "tables.json"
"""Name of the bounds of saved look-up rows."""
Array = npt.NDArray[Any]
KNOWN = "known"
"""Name of the keys that a join remembers, where they are saved with the rest."""


@dataclass(frozen=True)
class PartitionState:
    """State of one partition: values of JSON types and Arrow tables, by name.

    Args:
        known: keys that the join remembers (`kernels.stream.known`); empty where they are saved as a log.
    """

    values: Mapping[str, Any]
    tables: Mapping[str, pa.Table]
    known: Columns = field(default_factory=lambda: joined([]))


class Remembers(Protocol):
    """Joiner, as far as its state is saved as changes."""

    @property
    def index(self) -> JoinIndex | None:
        """Remembered keys, which are saved as a log; None: the join remembers no keys."""

    @property
    def behaviors(self) -> BehaviorHistories:
        """Behavior histories of the partition's users."""


class Changes:
    """State of a source that grows with the log and changes little: it is saved as changes.

    Args:
        joiners: by partition.
        tables: topic → versioned look-up table.
        share: (rank, ranks): the keys of tables that the rank saves.
    """

    def __init__(
        self,
        joiners: Mapping[int, Remembers],
        tables: Mapping[str, LookupTable] = MappingProxyType({}),
        share: tuple[int, int] = (0, 1),
    ) -> None:
        self._joiners, self._share = joiners, share
        self._tables = {topic: SavedRows(table) for topic, table in tables.items()}
        self._indices = {number: of.index for number, of in joiners.items() if of.index is not None}

    @property
    def places(self) -> dict[int, Places]:
        """Partition → present places in the log of the keys that its join remembers."""
        return {number: index.places for number, index in self._indices.items()}

    def known(self, places: Mapping[int, Places]) -> dict[str, Array]:
        """Keys that joins remember and that came or changed after some places.

        Returns:
            "PARTITION/COLUMN" → values, of partitions with any.

        Args:
            places: of an earlier moment; a partition without places: all of its keys.
        """
        rows = {number: index.known(places.get(number)) for number, index in self._indices.items()}
        return {
            f"{number}/{name}": values
            for number, columns in rows.items()
            if len(columns["key"])
            for name, values in columns.items()
        }

    def histories(self, since: int) -> dict[str, Array]:
        """Users with a click after generation `since` (0: all), and with length 0 the expired users.

        Returns:
            "PARTITION/HISTORY/COLUMN" → values, of histories with any.
        """
        return {
            f"{number}/{name}/{column}": values
            for number, joiner in self._joiners.items()
            for name, histories in joiner.behaviors.changes(since).items()
            if len(histories.users)
            for column, values in histories._asdict().items()
        }

    @property
    def row_places(self) -> dict[str, tuple[int, int]]:
        """Topic of a table → places since which changes of its rows are known, and of its next row."""
        return {topic: table.places for topic, table in self._tables.items()}

    def count_rows(self, since: Mapping[str, int]) -> int:
        """Rows and keys in `rows`."""
        return sum(table.count(since.get(topic, 0), self._share) for topic, table in self._tables.items())

    def rows(self, since: Mapping[str, int]) -> tuple[dict[str, Array], int]:
        """Rows of tables that came at some places or later, with the keys that left before them.

        Args:
            since: topic → place; a table without a place: all of its rows.

        Returns:
            "TOPIC/rows.arrow" and "TOPIC/left" → values, of tables with any; number of rows and keys.
        """
        tensors: dict[str, Array] = {}
        count = 0
        for topic, table in self._tables.items():
            rows, left = table.changes(since.get(topic, 0), self._share)
            count += len(rows) + len(left)
            if len(rows):
                tensors[f"{topic}/rows.arrow"] = np.frombuffer(_written(rows), np.uint8)
            if len(left):
                tensors[f"{topic}/left"] = left
        return tensors, count


@dataclass(frozen=True)
class SourceState:
    """State of some partitions: positions, clocks, pending joins, histories and ready examples.

    Args:
        partitions: by number.
        tables: topic → rows of a look-up table that examples may still look up as of their time, of some of
            its keys; the log may lack them when it is read again.
        bounds: topic → `SavedRows.bounds` when they were saved.
    """

    partitions: Mapping[int, PartitionState] = field(default_factory=dict)
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    bounds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @staticmethod
    def merge(states: Iterable[SourceState]) -> SourceState:
        """Combine the states of several ranks.

        Raises:
            CheckpointError: two ranks hold the same partition.
        """
        merged: dict[int, PartitionState] = {}
        tables: dict[str, list[pa.Table]] = {}
        bounds: dict[str, Mapping[str, Any]] = {}
        for state in states:
            for topic, own in state.bounds.items():
                bounds[topic] = min(own, bounds.get(topic, own), key=lambda each: int(each["horizon"]))
            for topic, rows in state.tables.items():
                tables.setdefault(topic, []).append(rows)
            if twice := merged.keys() & state.partitions.keys():
                raise CheckpointError(f"two ranks saved the state of partitions {sorted(twice)}")
            merged |= state.partitions
        joined_tables = {topic: pa.concat_tables(parts) for topic, parts in tables.items()}
        return SourceState(merged, joined_tables, bounds)

    def positions(self) -> dict[TopicPartition, Position]:
        """Position of each topic partition at which a run from this state starts to read."""
        return {
            (topic, number): Position(*of["position"])
            for number, state in self.partitions.items()
            for topic, of in state.values["merge"]["topics"].items()
        }

    def parts(self) -> dict[str, bytes]:
        """Serialize: a JSON document, and an Arrow IPC file for each table, by name."""
        values = {str(p): dict(state.values) for p, state in self.partitions.items()}
        parts = {"partitions.json": json.dumps(values).encode()}
        if self.bounds:
            parts[BOUNDS] = json.dumps(dict(self.bounds)).encode()
        for p, state in self.partitions.items():
            for name, table in state.tables.items():
                parts[f"{p}/{name}.arrow"] = _written(table)
            if len(state.known["key"]):
                parts[f"{p}/{KNOWN}.arrow"] = _written(pa.table(dict(state.known)))
        for topic, rows in self.tables.items():
            parts[f"{TABLES}/{topic}.arrow"] = _written(rows)
        return parts

    @staticmethod
    def from_parts(
        parts: Mapping[str, bytes],
        known: Iterable[Columns] = (),
        histories: Iterable[Columns] = (),
        table_rows: Iterable[Columns] = (),
    ) -> SourceState:
        """Deserialize what `parts` returned.

        Args:
            parts: name → bytes.
            known: keys from `Changes`, of successive moments.
            histories: from `Changes`, of successive moments.
            table_rows: from `Changes`, of successive moments.
        """
        tables: dict[str, dict[str, pa.Table]] = {}
        for name, data in parts.items():
            partition, _, table = name.removesuffix(".arrow").partition("/")
            if table:
                with pa.ipc.open_file(data) as reader:
                    tables.setdefault(partition, {})[table] = reader.read_all()
        log = _by_place(known)
        for place, found in _by_place(histories).items():
            p, _, name = place.partition("/")
            last = last_of([Histories(**columns) for columns in found])
            tables.setdefault(p, {})[HISTORY + name] = as_table(last)
        values = json.loads(bytes(parts["partitions.json"]))
        partitions = {}
        for p, saved in values.items():
            own = dict(tables.get(p, {}))
            rows = own.pop(KNOWN, None)
            whole = [] if rows is None else [{name: rows[name].to_numpy() for name in COLUMNS}]
            partitions[int(p)] = PartitionState(saved, own, joined([*whole, *log.get(p, [])]))
        bounds = json.loads(bytes(parts.get(BOUNDS, b"{}")))
        changed = {topic: kept_rows(found, bounds[topic]) for topic, found in _by_place(table_rows).items()}
        return SourceState(partitions, {**tables.get(TABLES, {}), **changed}, bounds)


def _by_place(parts: Iterable[Columns]) -> dict[str, list[dict[str, Array]]]:
    """Name before the last "/" → columns of each part that has any."""
    found: dict[str, list[dict[str, Array]]] = {}
    for part in parts:
        split: dict[str, dict[str, Array]] = {}
        for name, values in part.items():
            place, _, column = name.rpartition("/")
            split.setdefault(place, {})[column] = values
        for place, columns in split.items():
            found.setdefault(place, []).append(columns)
    return found


def _written(table: pa.Table) -> bytes:
    """Arrow IPC file of a table."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
