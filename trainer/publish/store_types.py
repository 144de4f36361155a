"""Errors of the store of versions, and values that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import redis

from livectr.store.layout import by_bucket
from livectr.store.redis_errors import OUTCOMES, is_forbidden
from livectr.system.errors import InternalError, UserError

T = TypeVar("T")
I64 = npt.NDArray[np.int64]

CHUNK_ROWS = 1000
"""Rows of a script call: enough to amortise it, few enough not to hold up readers (≈ 1 ms)."""
STORE_ERRORS: tuple[type[BaseException], ...] = (*OUTCOMES, OSError)
"""Errors of redis-py; after each of them it is unknown if a command was carried out."""


class FencedError(UserError):
    """Another trainer has claimed this namespace."""


class LostError(InternalError):
    """Redis no longer holds what was published: it was emptied, or another run's version stands there."""


class GivenUpError(InternalError):
    """Another rank could not begin its share of the version, so that none writes it."""


class HeldError(InternalError):
    """The namespace is held (store.hold): Redis has refused a flip, or a new epoch."""


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


def row_set_name(epoch: int, number: int) -> str:
    """The row_set of the number-th complete publish of a trainer."""
    return f"{epoch}-{number}"


def chunked(keys: I64) -> Iterator[tuple[int, I64]]:
    """Bucket and positions of at most CHUNK_ROWS keys, over all keys i64[n]; buckets take turns.

    So the nodes of a cluster are written to side by side.
    """
    buckets = by_bucket(keys)
    for start in range(0, max((len(at) for _, at in buckets), default=0), CHUNK_ROWS):
        for bucket, at in buckets:
            if start < len(at):
                yield bucket, at[start : start + CHUNK_ROWS]


def unless_refused(ask: Callable[[], T], otherwise: T) -> T:
    """Answer of INFO; `otherwise` where it is refused."""
    try:
        return ask()
    except redis.ResponseError as error:
        if not is_forbidden(error):
            raise
        return otherwise
