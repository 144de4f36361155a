"""Errors of the store of versions, and values that it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.errors import InternalError, UserError
from livectr.protos.redis_errors import OUTCOMES

I64 = npt.NDArray[np.int64]

STORE_ERRORS: tuple[type[BaseException], ...] = (*OUTCOMES, OSError)
"""Errors of redis-py; after each of them it is unknown if a command was carried out."""


class FencedError(UserError):
    """Another trainer has claimed this namespace."""


class LostError(InternalError):
    """Redis no longer holds what was published: it was emptied, or another run's version stands there."""


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
