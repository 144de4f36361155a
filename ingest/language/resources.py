"""Data of operators: constant resources (dictionaries, word vectors) and running statistics.

A `Resource` never changes. A `Statistic` is learned from the stream, batch by batch, and is part of
checkpoints and published versions.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Resource:
    """Immutable arrays behind a C++ struct, whose members are pointers to them and then int64 scalars.

    Args:
        ctype: the struct, for example `Dictionary<int64_t>` (kernels/*.cuh).
        arrays: one for each pointer member, in order; C-contiguous.
        scalars: one for each int64_t member after the pointers.
    """

    def __init__(self, ctype: str, arrays: Sequence[Array], scalars: Sequence[int] = ()) -> None:
        self.ctype: Final = ctype
        self.arrays: Final = tuple(np.ascontiguousarray(array) for array in arrays)
        self.scalars: Final = tuple(scalars)
        digest = hashlib.sha256(repr(self.scalars).encode())
        for array in self.arrays:
            array.setflags(write=False)
            digest.update(repr((array.dtype.str, array.shape)).encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        self.data: Final = digest.hexdigest()
        self.digest: Final = hashlib.sha256(f"{ctype} {self.data}".encode()).hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays)

    def __repr__(self) -> str:
        # Part of a node's identity: equal content gives the same node.
        return f"Resource({self.ctype}, {self.digest})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resource) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


class Statistic(ABC):
    """Running statistic of the values that a node's first input had in earlier batches.

    Subclasses are frozen dataclasses, so that their `repr` is part of a node's identity. The state is an
    array of 8-byte values, float64 or int64; device code reads it through a pointer `{state}`.
    """

    @abstractmethod
    def initial(self) -> Array:
        """State before the first batch."""

    @abstractmethod
    def update(self, state: Array, observed: Array) -> Array:
        """State after a batch; equal values give equal bits.

        Args:
            state: before the batch.
            observed: float64[B], or int64[B] when the node's first input is a whole number, bool or key; in
                the global sequence.
        """

    def steady(self, state: Array) -> int:
        """Number of values that may be observed, in batches of any size, until the node's results change.

        One update with all of them equals the updates of the batches.
        """
        return 0
