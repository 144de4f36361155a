"""Best rows of a matrix by their inner product with a vector, in one compiled call without the GIL.

Greatest score first, NaN last, equal scores by position.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.keys.keys import MISSING, KeyNumbers
from livectr.kernels.runtime.arrays import address, contiguous
from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Selection:
    """Best of some scores, best first.

    Args:
        positions: i64[m].
        scores: f32[m].
        values: f32[m], by which they are ordered; None: by their scores.
    """

    positions: I64
    scores: F32
    values: F32 | None = None

    @staticmethod
    def empty(size: int, *, valued: bool = False) -> Selection:
        """Memory for `size` results."""
        values = np.empty(size, np.float32) if valued else None
        return Selection(np.empty(size, np.int64), np.empty(size, np.float32), values)

    def first(self, count: int) -> Selection:
        """The best `count`."""
        values = None if self.values is None else self.values[:count]
        return Selection(self.positions[:count], self.scores[:count], values)


@dataclass(frozen=True)
class Query:
    """Query for the best rows.

    Args:
        vector: f32[dim].
        bias: number that is added to every score.
        k: number of results, at least 1; there are fewer of fewer rows.

    Raises:
        ValueError: no result is asked for.
    """

    vector: F32
    bias: float
    k: int

    def __post_init__(self) -> None:
        _check(self.k)


def best_rows(vectors: F32, query: Query, excluded: U32, worths: F32 | None = None) -> Selection:
    """Scan a matrix f32[n, dim] for the best rows; LIVECTR_THREADS share them.

    Args:
        vectors: f32[n, dim].
        query: vector, bias and number of rows that are wanted.
        excluded: u32[m], ascending: rows that are not wanted.
        worths: f32[n], of the rows: the best are those of the largest worth times logistic score. None: of
            the largest score.

    Raises:
        ValueError: arrays that do not fit.
        MemoryError: no memory.
    """
    vectors, vector = _checked(vectors, query)
    excluded = contiguous(excluded, np.uint32, (None,))
    found = Selection.empty(min(query.k, len(vectors)), valued=worths is not None)
    worth = None if worths is None else contiguous(worths, np.float32, (len(vectors),))
    count = _library().retrieval_scan(
        *(address(vectors), *vectors.shape, address(vector), query.bias, address(excluded), len(excluded)),
        *(None if worth is None else address(worth), query.k),
        *(address(found.positions), address(found.scores), _at(found.values)),
    )
    return found.first(_counted(count))


def best_of_keys(
    numbers: KeyNumbers,
    keys: I64,
    vectors: F32,
    query: Query,
    cold: F32 | None = None,
    bids: F64 | None = None,
) -> tuple[F32, npt.NDArray[np.bool_], Selection | None]:
    """Score the rows of keys.

    Args:
        numbers: key → row.
        keys: i64[n].
        vectors: f32[rows, dim].
        query: vector, bias and number of rows that are wanted.
        cold: f32[m, dim], vectors of the m unknown keys; None: they are not known.
        bids: f64[n], worths of the keys; None: the best are those of the largest score.

    Returns:
        Scores f32[n], NaN for an unknown key without a vector; unknown bool[n]; the best positions in `keys`,
        or None if a vector is missing.

    Raises:
        ValueError: arrays that do not fit.
        MemoryError: no memory.
    """
    vectors, vector = _checked(vectors, query)
    if len(vectors) < len(numbers):
        raise ValueError(f"{len(numbers)} keys have numbers, but there are {len(vectors)} rows")
    keys = contiguous(keys, np.int64, (None,))
    n = len(keys)
    rows, scores = np.empty(n, np.uint32), np.empty(n, np.float32)
    found = Selection.empty(min(query.k, n), valued=bids is not None)
    given = None if bids is None else contiguous(bids, np.float64, (n,))
    worths = RetrievalWorths(None if given is None else address(given))
    unknown = _library().retrieval_find(
        *(numbers.handle, address(keys), n, address(vectors), None if cold is None else address(cold)),
        *(vectors.shape[1], address(vector)),
        *(query.bias, ctypes.byref(worths), query.k, address(rows), address(scores)),
        *(address(found.positions), address(found.scores), _at(found.values)),
    )
    missing = _counted(unknown) > 0 and cold is None
    return scores, rows == MISSING, None if missing else found


class RetrievalWorths(ctypes.Structure):
    """`RetrievalWorths` of network/retrieval.hpp."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("bids", "rows", "cold"))


def _at(values: F32 | None) -> int | None:
    return None if values is None else address(values)


def _checked(vectors: F32, query: Query) -> tuple[F32, F32]:
    vectors = contiguous(vectors, np.float32, (None, None))
    return vectors, contiguous(query.vector, np.float32, (vectors.shape[1],))


def _check(k: int) -> None:
    if k < 1:
        raise ValueError(f"k is {k}, but must be at least 1")


def _counted(count: int) -> int:
    if count < 0:
        raise MemoryError("no memory for a selection")
    return count


@functools.cache
def _library() -> ctypes.CDLL:
    # Fused multiply-adds: as BLAS's products.
    library = kernel_library()
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    library.retrieval_scan.restype = library.retrieval_find.restype = number
    library.retrieval_scan.argtypes = [
        *(pointer, number, number, pointer, real, pointer, number),
        *(pointer, number, pointer, pointer, pointer),
    ]
    library.retrieval_find.argtypes = [
        *(pointer, pointer, number, pointer, pointer, number, pointer),
        *(real, pointer, number, pointer, pointer),
        *(pointer, pointer, pointer),
    ]
    return library
