"""State of an example source, by partition: a restart may assign partitions to other ranks."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.join.histories import BehaviorHistories, as_table
from livectr.ingest.join.label_join import HISTORY
from livectr.kernels.errors import CheckpointError
from livectr.kernels.stream.history import Histories, last_of
from livectr.kernels.stream.join import JoinIndex
from livectr.kernels.stream.known import COLUMNS, Columns, Places, joined

TABLES = "tables"
"""Folder of saved look-up rows, beside those of partitions."""
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
    def index(self) -> JoinIndex | None: ...

    @property
    def behaviors(self) -> BehaviorHistories: ...


class Changes:
    """State of some partitions that grows with the log and changes little: it is saved as changes.

    Args:
        joiners: by partition.
    """

    def __init__(self, joiners: Mapping[int, Remembers]) -> None:
        self._joiners = joiners
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
        """Users with a click after generation `since` (0: all), and with length 0 those that left:
        "PARTITION/HISTORY/COLUMN" → values, of histories with any."""
        return {
            f"{number}/{name}/{column}": values
            for number, joiner in self._joiners.items()
            for name, histories in joiner.behaviors.changes(since).items()
            if len(histories.users)
            for column, values in histories._asdict().items()
        }


@dataclass(frozen=True)
class SourceState:
    """State of some partitions: positions, clocks, pending joins, histories and ready examples.

    Args:
        partitions: by number.
        tables: topic → rows of a look-up table that examples may still look up as of their time, of some of
            its keys; the log may lack them when it is read again.
    """

    partitions: Mapping[int, PartitionState] = field(default_factory=dict)
    tables: Mapping[str, pa.Table] = field(default_factory=dict)

    @staticmethod
    def merge(states: Iterable[SourceState]) -> SourceState:
        """Combine the states of several ranks.

        Raises:
            CheckpointError: two ranks hold the same partition.
        """
        merged: dict[int, PartitionState] = {}
        tables: dict[str, list[pa.Table]] = {}
        for state in states:
            for topic, rows in state.tables.items():
                tables.setdefault(topic, []).append(rows)
            if twice := merged.keys() & state.partitions.keys():
                raise CheckpointError(f"two ranks saved the state of partitions {sorted(twice)}")
            merged |= state.partitions
        return SourceState(merged, {topic: pa.concat_tables(parts) for topic, parts in tables.items()})

    def select(self, partitions: Collection[int]) -> SourceState:
        """State of the given partitions, as far as they are known."""
        own = {p: state for p, state in self.partitions.items() if p in partitions}
        return SourceState(own, self.tables)

    def parts(self) -> dict[str, bytes]:
        """Serialize: a JSON document, and an Arrow IPC file for each table, by name."""
        values = {str(p): dict(state.values) for p, state in self.partitions.items()}
        parts = {"partitions.json": json.dumps(values).encode()}
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
        parts: Mapping[str, bytes], known: Iterable[Columns] = (), histories: Iterable[Columns] = ()
    ) -> SourceState:
        """Deserialize what `parts` returned.

        Args:
            known, histories: from `Changes`, of successive moments.
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
        return SourceState(partitions, tables.get(TABLES, {}))


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
