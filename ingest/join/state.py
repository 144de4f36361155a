"""State of an example source, by partition: a restart may assign partitions to other ranks."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from livectr.kernels.errors import CheckpointError
from livectr.kernels.stream.join import JoinIndex
from livectr.kernels.stream.known import COLUMNS, Columns, Places, joined

TABLES = "tables"
"""Folder of saved look-up rows, beside those of partitions."""
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


class KnownKeys:
    """Keys that the joins of some partitions remember, as a log.

    Args:
        indices: partition → its join; None: it remembers no key.
    """

    def __init__(self, indices: Mapping[int, JoinIndex | None]) -> None:
        self._indices = {number: index for number, index in indices.items() if index is not None}

    @property
    def places(self) -> dict[int, Places]:
        """Partition → present places in its log."""
        return {number: index.places for number, index in self._indices.items()}

    def since(self, places: Mapping[int, Places]) -> dict[str, npt.NDArray[Any]]:
        """Rows that came or changed after some places: "PARTITION/COLUMN" → values, of partitions with any.

        Args:
            places: of an earlier moment; a partition without places: all of its rows.
        """
        rows = {number: index.known(places.get(number)) for number, index in self._indices.items()}
        return {
            f"{number}/{name}": values
            for number, columns in rows.items()
            if len(columns["key"])
            for name, values in columns.items()
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
    def from_parts(parts: Mapping[str, bytes], known: Iterable[Columns] = ()) -> SourceState:
        """Deserialize what `parts` returned.

        Args:
            known: parts of the log, in order, each from `KnownKeys.since`.
        """
        tables: dict[str, dict[str, pa.Table]] = {}
        for name, data in parts.items():
            partition, _, table = name.removesuffix(".arrow").partition("/")
            if table:
                with pa.ipc.open_file(data) as reader:
                    tables.setdefault(partition, {})[table] = reader.read_all()
        log: dict[str, list[Columns]] = {}
        for columns in known:
            for p in {name.partition("/")[0] for name in columns}:
                log.setdefault(p, []).append({name: columns[f"{p}/{name}"] for name in COLUMNS})
        values = json.loads(bytes(parts["partitions.json"]))
        partitions = {}
        for p, saved in values.items():
            own = tables.get(p, {})
            rows = [{name: own[KNOWN][name].to_numpy() for name in COLUMNS}] if KNOWN in own else []
            others = {name: table for name, table in own.items() if name != KNOWN}
            partitions[int(p)] = PartitionState(saved, others, joined([*rows, *log.get(p, [])]))
        return SourceState(partitions, tables.get(TABLES, {}))


def _written(table: pa.Table) -> bytes:
    """Arrow IPC file of a table."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
