"""Kafka's default partitioner (murmur2 of the text key).

Events of the simulator and of `livectr logs replay` are co-partitioned with events of any other Kafka
producer, and a folder of files holds the same partitions as a broker.
"""

import numpy as np
from numpy.typing import NDArray

_M = np.uint32(0x5BD1E995)
_SEED = 0x9747B28C
_PLACES = np.array([1, 1 << 8, 1 << 16, 1 << 24], np.uint32)


def partitions_of(keys: list[bytes], partitions: int) -> NDArray[np.int32]:
    """Partition i32[n] of every key, as `murmur2(key) & 0x7fffffff % partitions`."""
    return ((murmur2(keys) & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)


def integer_keys(ids: NDArray[np.int64]) -> list[bytes]:
    """Message keys of integer ids: their decimal digits."""
    return [b"%d" % i for i in ids.tolist()]


def murmur2(keys: list[bytes]) -> NDArray[np.uint32]:
    """MurmurHash2 (Kafka's 32-bit variant) of every key: uint32[n]. Works on keys of one length at a time."""
    out = np.empty(len(keys), np.uint32)
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    for length in np.unique(lengths).tolist():
        which = np.flatnonzero(lengths == length)
        data = np.frombuffer(b"".join([keys[i] for i in which.tolist()]), np.uint8).reshape(
            len(which), length
        )
        out[which] = _same_length(data.astype(np.uint32))
    return out


def _same_length(data: NDArray[np.uint32]) -> NDArray[np.uint32]:
    n, length = data.shape
    h = np.full(n, _SEED ^ length, np.uint32)
    words = length // 4
    for i in range(words):
        b = data[:, 4 * i : 4 * i + 4]
        k = (b @ _PLACES) * _M
        h = h * _M ^ (k ^ k >> np.uint32(24)) * _M
    if length % 4:
        tail = data[:, 4 * words :]
        h = (h ^ tail @ _PLACES[: tail.shape[1]]) * _M
    h = (h ^ h >> np.uint32(13)) * _M
    return h ^ h >> np.uint32(15)
