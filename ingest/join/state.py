"""State of an example source, by partition: a restart may assign partitions to other ranks."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from livectr.kernels.errors import CheckpointError

TABLES = "tables"
"""Folder of saved look-up rows, beside those of partitions."""


@dataclass(frozen=True)
class PartitionState:
    """State of one partition: values of JSON types and Arrow tables, by name."""

    values: Mapping[str, Any]
    tables: Mapping[str, pa.Table]


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
        for topic, rows in self.tables.items():
            parts[f"{TABLES}/{topic}.arrow"] = _written(rows)
        return parts

    @staticmethod
    def from_parts(parts: Mapping[str, bytes]) -> SourceState:
        """Deserialize what `parts` returned."""
        tables: dict[str, dict[str, pa.Table]] = {}
        for name, data in parts.items():
            partition, _, table = name.removesuffix(".arrow").partition("/")
            if table:
                with pa.ipc.open_file(data) as reader:
                    tables.setdefault(partition, {})[table] = reader.read_all()
        values = json.loads(bytes(parts["partitions.json"]))
        partitions = {int(p): PartitionState(v, tables.get(p, {})) for p, v in values.items()}
        return SourceState(partitions, tables.get(TABLES, {}))


def _written(table: pa.Table) -> bytes:
    """Arrow IPC file of a table."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
