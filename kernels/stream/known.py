"""Keys that a label join remembers after their impression has left: saved as a log of changes.

They are nearly all of a join's memory, leave in the order in which they came, and change only by a late
click. So a checkpoint writes those that came or changed since the one before, and a restart reads these parts
in order: the last row of a key counts, and keys before the oldest that was left are gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Columns = Mapping[str, npt.NDArray[Any]]

COLUMNS = {
    "key": np.int64,
    "ts": np.int64,
    "deadline": np.int64,
    "click_ts": np.int64,
    "serial": np.int64,
    "clicked": np.uint8,
}
"""Columns of n keys, [n] each: `serial` is a number of its own for each impression."""
RELEASED = 2
"""State of these keys (`kernels.stream.join`)."""


class Places(NamedTuple):
    """Places in the queue of keys, counted from the start of a process.

    Args:
        first: of the oldest key that is remembered.
        end: behind the newest.
        touch: number of the next change of a key in the queue.
    """

    first: int = 0
    end: int = 0
    touch: int = 0


def joined(parts: Sequence[Columns]) -> dict[str, npt.NDArray[Any]]:
    """Rows of several parts, one after the other."""
    return {
        name: np.concatenate([np.empty(0, kind), *(part[name] for part in parts)])
        for name, kind in COLUMNS.items()
    }


def with_known(state: Columns, known: Columns) -> dict[str, npt.NDArray[Any]]:
    """State of a join with the keys of its log.

    Args:
        state: of `JoinIndex.export`.
        known: rows of COLUMNS, of one or several parts in order.

    Returns:
        The state of all keys, as `JoinIndex` restores it.
    """
    oldest = tuple(state["counters"][6:8].tolist())
    deadline, serial = known["deadline"], known["serial"]
    left = (deadline > oldest[0]) | ((deadline == oldest[0]) & (serial >= oldest[1]))
    rows = np.flatnonzero(left)[::-1]
    rows = rows[np.unique(serial[rows], return_index=True)[1]]  # the last row of each serial
    fill: dict[str, Any] = {"slot": -1, "bytes": 0, "state": RELEASED, "clicks": 0}
    found = {
        name: np.concatenate(
            [values, known[name][rows] if name in COLUMNS else np.full(len(rows), fill[name], values.dtype)]
        )
        for name, values in state.items()
        if name not in ("waiting", "counters")
    }
    return {**found, "waiting": state["waiting"], "counters": state["counters"]}
