"""The state of an example source, by partition, so that a restart may spread partitions over other ranks."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from livectr.kernels.errors import CheckpointError


@dataclass(frozen=True)
class PartitionState:
    """One partition: values are JSON's types, tables Arrow's."""

    values: Mapping[str, Any]
    tables: Mapping[str, pa.Table]


@dataclass(frozen=True)
class SourceState:
    """Positions, clocks, pending joins, histories and ready examples of some partitions."""

    partitions: Mapping[int, PartitionState] = field(default_factory=dict)

    @staticmethod
    def merge(states: Iterable[SourceState]) -> SourceState:
        """The states of several ranks as one. Raises CheckpointError when two hold the same partition."""
        merged: dict[int, PartitionState] = {}
        for state in states:
            if twice := merged.keys() & state.partitions.keys():
                raise CheckpointError(f"two ranks saved the state of partitions {sorted(twice)}")
            merged |= state.partitions
        return SourceState(merged)

    def select(self, partitions: Collection[int]) -> SourceState:
        """The state of the given partitions, as far as they are known."""
        return SourceState({p: state for p, state in self.partitions.items() if p in partitions})

    def parts(self) -> dict[str, bytes]:
        """Named bytes: one JSON document, and an Arrow IPC file per table."""
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
        """The inverse of `parts`."""
        tables: dict[int, dict[str, pa.Table]] = {}
        for name, data in parts.items():
            partition, _, table = name.removesuffix(".arrow").partition("/")
            if table:
                with pa.ipc.open_file(data) as reader:
                    tables.setdefault(int(partition), {})[table] = reader.read_all()
        values = json.loads(bytes(parts["partitions.json"]))
        return SourceState({int(p): PartitionState(v, tables.get(int(p), {})) for p, v in values.items()})
