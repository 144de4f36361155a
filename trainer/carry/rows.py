"""Rows of a checkpoint for tables of another layout: segments that are the same keep values and state.

A segment is the same if its name, width and optimiser are. Others begin as in a new row of the key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.table import DynamicTable

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


class CarriedRows:
    """Moves rows from one layout to another.

    Args:
        theirs: words of the layout of the rows (`RowLayout.describe`).
        ours: layout of the tables.
        seed: of the tables' initial rows.

    Attributes:
        kept: names of the segments that are the same.
        same: the layouts are equal, so that rows need not be moved.
    """

    def __init__(self, theirs: Sequence[str], ours: RowLayout, seed: int) -> None:
        self._ours, self._seed = ours, seed
        self._theirs = RowLayout.described(theirs)
        self.same = tuple(theirs) == ours.describe()
        alike = {*theirs[1:]} & {*ours.describe()[1:]} if theirs[0] == ours.values else set()
        self.kept = tuple(word.partition(" ")[0] for word in ours.describe()[1:] if word in alike)

    def moved(self, table: str, keys: I64, rows: F32) -> F32:
        """Rows float32[n, our stride] of rows float32[n, their stride].

        Args:
            table: name, which decides initial values.
            keys: int64[n], distinct.
            rows: of the keys.
        """
        fresh = DynamicTable(self._ours, name=table, seed=self._seed)
        moved = fresh.read(fresh.find_or_insert(keys))[1]
        for name in self.kept:
            (at, dim, state, floats), (to, _, to_state, _) = (
                self._theirs.places[name],
                self._ours.places[name],
            )
            moved[:, to : to + dim] = rows[:, at : at + dim]
            begin, end = self._ours.dim + to_state, self._theirs.dim + state
            moved[:, begin : begin + floats] = rows[:, end : end + floats]
        return moved
