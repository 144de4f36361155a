"""Hash table of a dictionary operator (kernels/operators/dictionary.cuh), built for all keys at once."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.library import kernel_library

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Places:
    """Slots of n distinct keys in an open-addressing table.

    The table has a power of two ≥ 2n home slots, and a tail behind it.

    The slots depend on the set of keys alone: equal content gives equal bytes, in any order of arrival.

    Args:
        order: int64[n], indices of the keys in slot order.
        keys: int64[n], in slot order.
        at: int64[n], their slots, increasing.
        shift: 64 - log2 of the home slots.
        empty: key of an empty slot, which is none of the keys.
    """

    order: I64
    keys: I64
    at: I64
    shift: int
    empty: int

    def slots(self, words: U64, default: int) -> U64:
        """Table uint64[slots, 2] of key and word.

        Args:
            words: uint64[n], in slot order.
            default: word of an empty slot.
        """
        last = int(self.at[-1]) if len(self.at) else 0
        slots = np.empty((max(1 << (64 - self.shift), last + 1) + 1, 2), np.uint64)
        slots[:] = np.array([self.empty & (2**64 - 1), default], np.uint64)
        slots[self.at, 0] = self.keys.view(np.uint64)
        slots[self.at, 1] = words
        return slots


def place(keys: I64) -> Places:
    """Computes the slots of keys int64[n]. Raises EqualKeysError when two keys are equal."""
    hashes = _mix(keys)
    order = np.argsort(hashes)
    hashes = hashes[order]
    equal = np.flatnonzero(hashes[1:] == hashes[:-1])  # mix64 is a bijection: equal hashes are equal keys
    if len(equal):
        raise EqualKeysError(int(order[equal[0]]), int(order[equal[0] + 1]))
    bits = max(1, (2 * len(keys) - 1).bit_length())
    home = (hashes >> np.uint64(64 - bits)).astype(np.int64)
    # In hash order every key is at its home slot or right behind the key before it.
    steps = np.arange(len(keys))
    at = steps + np.maximum.accumulate(home - steps)
    return Places(order, keys[order], at, 64 - bits, _unused(hashes))


class EqualKeysError(ValueError):
    """Two keys are equal, at the indices `first` and `second`."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"keys {first} and {second} are equal")
        self.first, self.second = sorted((first, second))


def _unused(hashes: U64) -> int:
    """Finds a key that is not among the keys of the sorted hashes."""
    for key in range(-(2**63), 2**63):
        wanted = _mix(np.array([key], np.int64))[0]
        at = int(np.searchsorted(hashes, wanted))
        if at == len(hashes) or hashes[at] != wanted:
            return key
    raise AssertionError("2⁶⁴ keys do not fit memory")


def _mix(keys: I64) -> U64:
    hashes = np.empty(len(keys), np.uint64)
    _library().mix(np.ascontiguousarray(keys), len(keys), hashes)
    return hashes


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    array = functools.partial(np.ctypeslib.ndpointer, flags="C")
    library.mix.argtypes = [array(np.int64), ctypes.c_int64, array(np.uint64)]
    library.mix.restype = None
    return library
