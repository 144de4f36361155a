"""A placement of fields that balances what was measured: keys per rank, and bytes per rank.

Keys are the work of a step, and the slowest rank sets its pace; bytes only matter where memory ends. So keys
are balanced first, and bytes among ranks whose keys are as good as equal:

    1  tables, those with most keys first (Graham's LPT rule, 1969), go one by one to the rank with fewest
       keys; of ranks within SLACK · mean of that, to the one with fewest bytes, then keys, then tables.
       Tables within as much of each other count as equal: the one with most bytes first;
    2  under a limit of bytes per rank only to ranks with room; if that fails, tables with most bytes first,
       each to the rank with fewest bytes;
    3  a table larger than a rank may hold, and the largest one where 2 fails too, is split by key over all
       ranks; then again from 1.

Without a limit no rank has more than mean + (1 − 1/N) · (the table with most keys) + SLACK · mean: a table
goes to a rank that has, up to SLACK · mean, at most the mean of what was placed before it. Fields that share
a table stay together. The result depends on the numbers alone, not on the order of fields; equal tables are
taken by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from livectr.ingest.language.byte_units import show_bytes
from livectr.kernels.errors import ConfigError
from livectr.trainer.placement.placement import FieldPlacement

SLACK = 0.01
"""Of the mean keys of a rank: what keys may differ for the sake of bytes."""


@dataclass(frozen=True)
class FieldStats:
    """What was measured of a field.

    table: its embedding table. keys: in a batch, or in any number of them that is the same for all fields.
    bytes: of its table; where fields of a table tell different numbers, the largest counts.
    """

    table: str
    keys: float
    bytes: float = 0


@dataclass(frozen=True)
class Load:
    """A rank's fields (a split table's are where their owner is), and its keys and bytes."""

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
    """Places the fields of `stats` on `world` ranks, of which each may hold `rank_bytes` (None: no limit).

    Raises ConfigError when the ranks cannot hold the tables, or a rank would hold nothing.
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
        owner = _deal(whole, shared, world, rank_bytes)
        if owner is not None:
            break
        split.add(max(whole, key=lambda item: (item.bytes, item.table)).table)
    ranks = _filled(items, owner, split, world)
    for item in shared:  # what its fields have besides rows
        home = min(range(world), key=lambda r: (ranks[r].tables, ranks[r].keys, r))
        owner[item.table] = home
        ranks[home].tables += 1
    dense_owner = min(range(world), key=lambda r: (ranks[r].keys, ranks[r].tables, r))
    return FieldPlacement(tuple(owner[field.table] for field in stats), dense_owner, world, frozenset(split))


def loads(placement: FieldPlacement, stats: Sequence[FieldStats]) -> list[Load]:
    """What each rank has under a placement of these fields; a split table counts on all ranks alike."""
    items = {item.table: item for item in _items(stats)}
    owner = {field.table: rank for field, rank in zip(stats, placement.owner, strict=True)}
    ranks = _filled(items, owner, placement.split, placement.world)
    return [Load(len(placement.fields_of(r)), rank.keys, rank.bytes) for r, rank in enumerate(ranks)]


def _items(stats: Sequence[FieldStats]) -> list[_Item]:
    """Tables with the keys of all their fields, most keys first."""
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
    """Ranks with their parts of the tables that are split."""
    keys, size = sum(item.keys for item in shared), sum(item.bytes for item in shared)
    return [_Rank(keys / world, size / world) for _ in range(world)]


def _deal(
    whole: Sequence[_Item], shared: Sequence[_Item], world: int, room: float | None
) -> dict[str, int] | None:
    """Table → rank, by keys or else by bytes; None where neither finds room."""
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
    """Most keys first; in a run of items within `slack` of its first, most bytes first."""
    runs: list[list[_Item]] = []
    for item in sorted(items, key=lambda item: (-item.keys, item.table)):
        if not runs or item.keys < runs[-1][0].keys - slack:
            runs.append([])
        runs[-1].append(item)
    return [item for run in runs for item in _by_bytes(run)]
