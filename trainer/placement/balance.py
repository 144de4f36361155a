"""Placement of fields that balances measured keys per rank, then bytes per rank.

Keys are the work of a step, and the slowest rank sets its pace. Bytes matter only where memory ends. So keys
are balanced first, and bytes among ranks whose keys are nearly equal:

    1  assign tables in descending order of keys (LPT rule, Graham 1969) to the rank with fewest keys. Among
       ranks within SLACK · mean of it, choose fewest bytes, then keys, then tables. Among tables within
       SLACK · mean of each other, most bytes come first
    2  with a limit of bytes per rank, consider only ranks with room. If that fails, assign tables in
       descending order of bytes, each to the rank with fewest bytes
    3  split a table by key over all ranks if it is larger than a rank may hold, or the largest table if 2
       fails; then repeat from 1

Without a limit no rank has more than mean + (1 − 1/N) · (keys of the largest table) + SLACK · mean: at its
turn, the chosen rank has at most the mean of the tables before, up to SLACK · mean. Fields that share a table
stay together. The result depends on the numbers alone, not on the order of fields; ties are broken by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from livectr.system.byte_units import show_bytes
from livectr.system.errors import ConfigError
from livectr.trainer.placement.placement import FieldPlacement

SLACK = 0.01
"""Share of a rank's mean keys by which keys may differ, so that bytes are balanced."""


@dataclass(frozen=True)
class FieldStats:
    """Measured size of a field.

    Attributes:
        table: its embedding table
        keys: in a batch, or in any number of batches that is the same for all fields
        bytes: of its table; if fields of a table differ, the largest counts
    """

    table: str
    keys: float
    bytes: float = 0


@dataclass(frozen=True)
class Load:
    """Load of a rank: its fields, keys and bytes. Fields of a split table count for their owner."""

    fields: int
    keys: float
    bytes: float


@dataclass(frozen=True)
class _Item:
    table: str
    keys: float
    bytes: float


@dataclass
class _Rank:
    keys: float
    bytes: float
    tables: int = 0

    def add(self, item: _Item) -> None:
        self.keys += item.keys
        self.bytes += item.bytes
        self.tables += 1


def balance(stats: Sequence[FieldStats], world: int, *, rank_bytes: float | None = None) -> FieldPlacement:
    """Place fields on ranks.

    Args:
        stats: of every field.
        world: N ranks.
        rank_bytes: limit of a rank; None: no limit.

    Raises:
        ConfigError: the ranks cannot hold the tables, or a rank would hold nothing.
    """
    items = {item.table: item for item in _items(stats)}
    total = sum(item.bytes for item in items.values())
    if rank_bytes is not None and total > world * rank_bytes:
        raise ConfigError(
            f"The tables take {show_bytes(math.ceil(total))}, more than {world} ranks of "
            f"{show_bytes(math.floor(rank_bytes))} can hold; start more ranks, or raise rank_memory."
        )
    split = {t for t, item in items.items() if rank_bytes is not None and item.bytes > rank_bytes}
    while True:
        whole = [item for item in items.values() if item.table not in split]
        if len(whole) < world and not split:
            raise ConfigError(
                f"The pipeline has {len(items)} embedding tables, which {world} ranks cannot share, and none "
                f"is so large that it is split by key; start at most {len(items)} ranks, or set rank_memory "
                "below the largest table."
            )
        shared = [items[t] for t in sorted(split)]
        owner = _assign(whole, shared, world, rank_bytes)
        if owner is not None:
            break
        split.add(max(whole, key=lambda item: (item.bytes, item.table)).table)
    ranks = _filled(items, owner, split, world)
    for item in shared:  # the rest of its fields, such as weights in a network
        home = min(range(world), key=lambda r: (ranks[r].tables, ranks[r].keys, r))
        owner[item.table] = home
        ranks[home].tables += 1
    dense_owner = min(range(world), key=lambda r: (ranks[r].keys, ranks[r].tables, r))
    return FieldPlacement(tuple(owner[field.table] for field in stats), dense_owner, world, frozenset(split))


def loads(placement: FieldPlacement, stats: Sequence[FieldStats]) -> list[Load]:
    """Load of each rank under a placement; a split table counts equally on all ranks."""
    items = {item.table: item for item in _items(stats)}
    owner = {field.table: rank for field, rank in zip(stats, placement.owner, strict=True)}
    ranks = _filled(items, owner, placement.split, placement.world)
    return [Load(len(placement.fields_of(r)), rank.keys, rank.bytes) for r, rank in enumerate(ranks)]


def _items(stats: Sequence[FieldStats]) -> list[_Item]:
    """Tables with the keys of all their fields, by name."""
    keys: dict[str, float] = {}
    size: dict[str, float] = {}
    for field in stats:
        if not (field.keys >= 0 and field.bytes >= 0):
            raise ValueError(f"keys and bytes of {field.table} must not be negative")
        keys[field.table] = keys.get(field.table, 0) + field.keys
        size[field.table] = max(size.get(field.table, 0), field.bytes)
    return [_Item(table, keys[table], size[table]) for table in sorted(keys)]


def _filled(
    items: Mapping[str, _Item], owner: Mapping[str, int], split: set[str] | frozenset[str], world: int
) -> list[_Rank]:
    ranks = _empty([items[t] for t in sorted(split)], world)
    for table, rank in owner.items():
        if table not in split:
            ranks[rank].add(items[table])
    return ranks


def _empty(shared: Sequence[_Item], world: int) -> list[_Rank]:
    """Ranks that have only their parts of the split tables."""
    keys, size = sum(item.keys for item in shared), sum(item.bytes for item in shared)
    return [_Rank(keys / world, size / world) for _ in range(world)]


def _assign(
    whole: Sequence[_Item], shared: Sequence[_Item], world: int, room: float | None
) -> dict[str, int] | None:
    """Table → rank, by keys or else by bytes; None if both run out of room."""
    slack = SLACK * (sum(item.keys for item in whole) + sum(item.keys for item in shared)) / world
    for by_bytes in (False, True):
        ranks = _empty(shared, world)
        owner: dict[str, int] = {}
        for item in _by_bytes(whole) if by_bytes else _by_keys(whole, slack):
            open_ = [r for r in range(world) if room is None or ranks[r].bytes + item.bytes <= room]
            if not open_:
                break
            if not by_bytes:
                fewest = min(ranks[r].keys for r in open_)
                open_ = [r for r in open_ if ranks[r].keys <= fewest + slack]
            best = min(open_, key=lambda r: (ranks[r].bytes, ranks[r].keys, ranks[r].tables, r))
            ranks[best].add(item)
            owner[item.table] = best
        else:
            return owner
    return None


def _by_bytes(items: Sequence[_Item]) -> list[_Item]:
    return sorted(items, key=lambda item: (-item.bytes, -item.keys, item.table))


def _by_keys(items: Sequence[_Item], slack: float) -> list[_Item]:
    """Descending by keys; items within `slack` of the first of their run are sorted by bytes, descending."""
    runs: list[list[_Item]] = []
    for item in sorted(items, key=lambda item: (-item.keys, item.table)):
        if not runs or item.keys < runs[-1][0].keys - slack:
            runs.append([])
        runs[-1].append(item)
    return [item for run in runs for item in _by_bytes(run)]
