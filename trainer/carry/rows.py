"""Rows of a checkpoint for tables of another layout: segments that are the same keep values and state.

A segment is the same if its name, width and optimiser are. Segments of a model that the run had not begin as
those of its champion, where width and optimiser are the same: rows that are learned are better than new ones.
Others begin as in a new row of the key.
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
        champion: role from whose segments those of new roles begin.

    Attributes:
        kept: segment → segment of theirs whose values it keeps.
        same: the layouts are equal, so that rows need not be moved.
    """

    def __init__(self, theirs: Sequence[str], ours: RowLayout, seed: int, champion: str = "rank") -> None:
        self._ours, self._seed = ours, seed
        self._theirs = RowLayout.described(theirs)
        self.same = tuple(theirs) == ours.describe()
        rules = dict(word.split(" ", 1) for word in theirs[1:]) if theirs[0] == ours.values else {}
        roles = {name.partition(".")[0] for name in rules}
        self.kept: dict[str, str] = {}
        for name, rule in (word.split(" ", 1) for word in ours.describe()[1:]):
            role, _, part = name.partition(".")
            was = name if role in roles else f"{champion}.{part}"
            if rules.get(was) == rule:
                self.kept[name] = was

    def moved(self, table: str, keys: I64, rows: F32) -> F32:
        """Rows float32[n, our stride] of rows float32[n, their stride].

        Args:
            table: name, which decides initial values.
            keys: int64[n], distinct.
            rows: of the keys.
        """
        fresh = DynamicTable(self._ours, name=table, seed=self._seed)
        moved = fresh.read(fresh.find_or_insert(keys))[1]
        for name, was in self.kept.items():
            (at, dim, state, floats), (to, _, to_state, _) = (
                self._theirs.places[was],
                self._ours.places[name],
            )
            moved[:, to : to + dim] = rows[:, at : at + dim]
            begin, end = self._ours.dim + to_state, self._theirs.dim + state
            moved[:, begin : begin + floats] = rows[:, end : end + floats]
        return moved
