"""Which rank holds which field (DES §5): field f on rank f mod N.

Fields that share a table must live with it, so what is dealt out in turn are tables, in the order of their
first field; without sharing that is the paper's f mod N. The dense features are one more field, the last.
`trainer.placement.balance` places by measured keys and bytes instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from livectr.kernels.errors import ConfigError


@dataclass(frozen=True)
class FieldPlacement:
    """`owner[f]` is the rank of field f, `dense_owner` that of the dense features.

    The rows of a table in `split` are on all ranks, that of a key on the one that
    `owners_by_key` says; the owner of its fields holds what else they have, such as weights in a network.
    """

    owner: tuple[int, ...]
    dense_owner: int
    world: int
    split: frozenset[str] = frozenset()

    def fields_of(self, rank: int) -> tuple[int, ...]:
        """The fields of a rank, ascending."""
        return tuple(f for f, r in enumerate(self.owner) if r == rank)

    def split_fields(self, tables: Sequence[str]) -> tuple[int, ...]:
        """The fields of tables that are split, given each field's table, ascending."""
        return tuple(f for f, table in enumerate(tables) if table in self.split)

    def held(self, tables: Sequence[str], rank: int) -> tuple[int, ...]:
        """The fields of which a rank has rows, given each one's table, ascending."""
        return tuple(sorted({*self.fields_of(rank), *self.split_fields(tables)}))


def place(tables: Sequence[str], world: int) -> FieldPlacement:
    """Deals the fields, given each one's table name, to `world` ranks.

    Raises ConfigError when a rank would hold no field.
    """
    order = {table: i for i, table in enumerate(dict.fromkeys(tables))}
    if world > len(order):
        raise ConfigError(
            f"The pipeline has {len(order)} embedding tables, which {world} ranks cannot share; "
            f"start at most {len(order)} ranks."
        )
    return FieldPlacement(tuple(order[table] % world for table in tables), len(order) % world, world)


def owners_by_key(keys: NDArray[np.int64], world: int) -> NDArray[np.int64]:
    """Rank of each key i64[n] of a table that is split by key: its mixed bits modulo N."""
    mixed = keys.view(np.uint64).copy()
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    return (mixed % np.uint64(world)).astype(np.int64)
