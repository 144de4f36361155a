"""State of an example source, by partition: a restart may assign partitions to other ranks."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from livectr.kernels.errors import CheckpointError


@dataclass(frozen=True)
class PartitionState:
    """State of one partition: values of JSON types and Arrow tables, by name."""

    values: Mapping[str, Any]
    tables: Mapping[str, pa.Table]


@dataclass(frozen=True)
class SourceState:
    """State of some partitions: positions, clocks, pending joins, histories and ready examples."""

    partitions: Mapping[int, PartitionState] = field(default_factory=dict)

    @staticmethod
    def merge(states: Iterable[SourceState]) -> SourceState:
        """Combine the states of several ranks.

        Raises:
            CheckpointError: two ranks hold the same partition.
        """
        merged: dict[int, PartitionState] = {}
        for state in states:
            if twice := merged.keys() & state.partitions.keys():
                raise CheckpointError(f"two ranks saved the state of partitions {sorted(twice)}")
            merged |= state.partitions
        return SourceState(merged)

    def select(self, partitions: Collection[int]) -> SourceState:
        """State of the given partitions, as far as they are known."""
        return SourceState({p: state for p, state in self.partitions.items() if p in partitions})

    def parts(self) -> dict[str, bytes]:
        """Serialize: a JSON document, and an Arrow IPC file for each table, by name."""
        values = {str(p): dict(state.values) for p, state in self.partitions.items()}
        parts = {"partitions.json": json.dumps(values).encode()}
        for p, state in self.partitions.items():
            for name, table in state.tables.items():
                sink = pa.BufferOutputStream()
                with pa.ipc.new_file(sink, table.schema) as writer:
                    writer.write_table(table)
                parts[f"{p}/{name}.arrow"] = sink.getvalue().to_pybytes()
        return parts

    @staticmethod
    def from_parts(parts: Mapping[str, bytes]) -> SourceState:
        """Deserialize what `parts` returned."""
        tables: dict[int, dict[str, pa.Table]] = {}
        for name, data in parts.items():
            partition, _, table = name.removesuffix(".arrow").partition("/")
            if table:
                with pa.ipc.open_file(data) as reader:
                    tables.setdefault(int(partition), {})[table] = reader.read_all()
        values = json.loads(bytes(parts["partitions.json"]))
        return SourceState({int(p): PartitionState(v, tables.get(int(p), {})) for p, v in values.items()})
