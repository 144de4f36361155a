"""Values without versions: look-up rows and behavior histories, and copies of their changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from livectr.ingest.join.counters import CounterRows
from livectr.ingest.join.examples import ExampleSource
from livectr.ingest.join.lookup import LookupTable
from livectr.kernels.stream.history import Histories
from livectr.store.layout import HISTORY, LOOKUP, Keyspace, buckets_of, encode_history, encode_lookup_row
from livectr.system.tensors import packed
from livectr.trainer.comm.control import Control
from livectr.trainer.publish.boundary import Boundary

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Values:
    """Unversioned values.

    Attributes:
        keys: int64[n], for the choice of buckets.
        names: n names in Redis.
        values: n texts to set; None removes a key.
        listed: name under which the version lists the keys as changed; empty: it does not.
    """

    keys: I64
    names: list[bytes]
    values: list[bytes | None]
    listed: str = ""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class CopiedValues:
    """Values of a version, of one rank.

    Attributes:
        changed: look-up rows and histories.
        kept: of a complete version on rank 0, the keys of all of them, for trainer.publish.sweep; None:
            nothing is swept.
    """

    changed: Sequence[Values]
    kept: Mapping[str, I64] | None


@dataclass(frozen=True)
class ValueCopier:
    """Copies a rank's share of look-up rows and histories.

    Args:
        space: names of keys in Redis.
    """

    source: ExampleSource
    control: Control
    space: Keyspace

    def take(self, since: Boundary | None) -> CopiedValues:
        """Copy changes after `since`, or everything (None). Collective."""
        histories = self.source.history_changes(since.histories if since else 0)
        whole = histories if since is None else None  # whom to sweep; also by the first version of a process
        if since is not None and not since.lookup_rows and self._any:
            whole = self.source.history_changes(0)
        lookup_rows = since.lookup_rows if since else 0
        changed = [*self._lookup_rows(lookup_rows), *self._histories(histories)]
        return CopiedValues(changed, self._kept(whole) if whole is not None else None)

    @property
    def _any(self) -> bool:
        """Tell if versions have look-up rows or histories."""
        return bool(self._tables or self.source.pipeline.history_roots)

    @property
    def _tables(self) -> dict[str, LookupTable | CounterRows]:
        """Look-up tables and counters, by the names of their rows."""
        return {**self.source.tables, **self.source.counters.rows}

    def _lookup_rows(self, since: int) -> Iterator[Values]:
        """Changed look-up rows; every rank knows all of them and takes its share of the buckets."""
        for topic, table in self._tables.items():
            keys, rows = table.changed(since)
            own = np.flatnonzero(buckets_of(keys) % self.control.world == self.control.rank)
            values = [encode_lookup_row(row) if (row := rows[i]) is not None else None for i in own.tolist()]
            yield Values(keys[own], self.space.lookup_rows(topic, keys[own]), values, LOOKUP + topic)

    def _histories(self, changes: Mapping[str, Histories]) -> Iterator[Values]:
        """Changed behavior histories of this rank's users; those of expired users are removed."""
        for name, (users, lengths, items, times) in changes.items():
            ends = np.cumsum(lengths).tolist()
            values: list[bytes | None] = [
                encode_history(items[end - n : end], times[end - n : end]) if n else None  # the user has left
                for end, n in zip(ends, lengths.tolist(), strict=True)
            ]
            yield Values(users, self.space.histories(name, users), values, HISTORY + name)

    def _kept(self, histories: Mapping[str, Histories]) -> dict[str, I64] | None:
        """Keys of all look-up rows and histories, on rank 0. Collective."""
        users = {name: changed.users for name, changed in histories.items()}
        parts = [safetensors.numpy.load(part) for part in self.control.gather_bytes(packed(users))]
        if self.control.rank != 0:
            return None
        kept = {LOOKUP + topic: np.sort(table.keys) for topic, table in self._tables.items()}
        names = {name for part in parts for name in part}
        return kept | {
            HISTORY + name: np.unique(np.concatenate([part[name] for part in parts if name in part]))
            for name in names
        }
