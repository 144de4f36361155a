"""Placement of fields on ranks, round-robin (DES §5): field f on rank f mod N.

Fields that share a table must be on its rank. So tables are assigned round-robin, in the order of their first
field; without shared tables that is the paper's f mod N. The dense features count as the last field.
`trainer.placement.balance` places by measured keys and bytes instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from livectr.system.errors import ConfigError


@dataclass(frozen=True)
class FieldPlacement:
    """Rank of every field.

    Attributes:
        owner: rank of each field
        dense_owner: rank of the dense features
        world: N ranks
        split: tables whose rows are on all ranks, by `owners_by_key`. The owner of their fields holds the
            rest of these, such as weights in a network
    """

    owner: tuple[int, ...]
    dense_owner: int
    world: int
    split: frozenset[str] = frozenset()

    def fields_of(self, rank: int) -> tuple[int, ...]:
        """Fields of a rank, ascending."""
        return tuple(f for f, r in enumerate(self.owner) if r == rank)

    def split_fields(self, tables: Sequence[str]) -> tuple[int, ...]:
        """Fields of tables that are split by key, ascending; `tables`: table of each field."""
        return tuple(f for f, table in enumerate(tables) if table in self.split)

    def held(self, tables: Sequence[str], rank: int) -> tuple[int, ...]:
        """Fields of which a rank has rows, ascending; `tables`: table of each field."""
        return tuple(sorted({*self.fields_of(rank), *self.split_fields(tables)}))


def place(tables: Sequence[str], world: int) -> FieldPlacement:
    """Assign fields to ranks round-robin, by table.

    Args:
        tables: table of each field.
        world: N ranks.

    Raises:
        ConfigError: a rank would hold no field.
    """
    order = {table: i for i, table in enumerate(dict.fromkeys(tables))}
    if world > len(order):
        raise ConfigError(
            f"The pipeline has {len(order)} embedding tables, which {world} ranks cannot share; "
            f"start at most {len(order)} ranks."
        )
    return FieldPlacement(tuple(order[table] % world for table in tables), len(order) % world, world)


def owners_by_key(keys: NDArray[np.int64], world: int) -> NDArray[np.int64]:
    """Rank of each key i64[n] of a table that is split by key: hash of the key modulo N."""
    mixed = keys.view(np.uint64).copy()
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    return (mixed % np.uint64(world)).astype(np.int64)
