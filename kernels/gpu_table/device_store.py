"""Memory of tables on a device: index, rows and free list; their growth, and kernel launches.

Rows are allocated in slabs, and nothing moves. The index is rehashed into twice the buckets
when more than 9 of 10 of its slots were used. At 10 million rows that reads 0.2 GB, clears 0.3 GB and writes
10 million slots and digests at random, 0.6 GB in sectors of 32 bytes: 1.1 GB, at half of an H100's 3.35 TB/s
under 1 ms, and a few ms with the allocation. (An estimate by bytes; bench/gpu.py measures it.) Bytes per row:
24, its stored values and state rounded up to 32, and 19 to 38 for the index.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.device import Buffer, CudaDevice, Device
from livectr.kernels.runtime.device_memory import Workspace, blocks_of, plan_struct
from livectr.kernels.table.layout import RowLayout
from livectr.kernels.table.table import Floats, table_seed

MEMBERS = (
    *(("Bucket*", "buckets"), ("uint64_t", "mask"), ("uint64_t", "salt"), ("const Bucket*", "old_buckets")),
    *(
        ("char* const*", "slabs"),
        ("const uint64_t*", "seeds"),
        ("const float*", "hyper"),
        ("int64_t", "hypers"),
    ),
    *(("int64_t", "n"), ("int64_t", "blocks"), ("int64_t", "distinct")),
    *(("const int64_t*", "keys"), ("const uint32_t*", "tables"), ("uint64_t", "table")),
    *(("uint32_t*", "scratch"), ("uint64_t", "scratch_mask"), ("uint32_t*", "slot_of")),
    *(("uint32_t*", "leader"), ("uint32_t*", "id_of"), ("uint32_t*", "rows"), ("uint32_t*", "row_of")),
    *(("int64_t*", "groups"), ("int64_t*", "missing")),
    *(("uint32_t*", "free_rows"), ("int64_t", "free_count"), ("int64_t", "next_row")),
    ("int64_t", "hand"),
    *(("uint64_t", "generation"), ("uint64_t", "step"), ("uint64_t", "since"), ("uint64_t", "all")),
    *(
        ("const float*", "source"),
        ("const float*", "grads"),
        ("const uint32_t*", "cells"),
        ("float*", "sums"),
    ),
    *(("uint64_t*", "order"), ("uint32_t*", "starts"), ("float*", "out")),
    *(("int64_t*", "keys_out"), ("uint32_t*", "tables_out"), ("uint32_t*", "changed_out")),
    *(("const struct FieldPlace*", "places"), ("int64_t", "fields"), ("const int32_t*", "offsets")),
    *(("uint32_t*", "cell_places"), ("uint32_t*", "cells_out")),
)
KERNELS = (
    *("find_rows", "read_values_of", "read_rows", "initial_rows", "read_headers"),
    *("group_claim", "group_count", "group_sums", "group_number", "group_spread"),
    *("find_groups", "missing_sums", "list_distinct", "list_missing", "spread_rows"),
    "insert_missing",
    *("list_occurrences", "find_starts", "sum_gradients", "update_rows", "assign_rows"),
    *("count_found", "list_found", "release_rows", "count_changed", "list_changed"),
    *("list_window", "evict_oldest", "read_evicted", "rehash", "place_cells", "pool_cells"),
)
LOAD = 0.9
"""Maximum load of the index, counted in slots ever used, before it is rehashed."""
REUSE_LOAD = 0.75
"""Load up to which a rehash keeps the number of buckets: it only clears the slots of erased keys."""
BUCKET_SLOTS, BUCKET_BYTES, HEADER_BYTES = 15, 256, 24
LEAST_BUCKETS = 64
LEAST_LISTED = 256
"""Least number of listed keys that are downloaded before the host knows how many there are."""
LEAST_SLAB_BYTES, MOST_SLAB_BYTES = 1 << 16, 1 << 28
SLABS = 8192

Target = Callable[[str, Sequence[str]], Device]


@dataclass(frozen=True)
class Slabs:
    """Slab sizes: 2^low rows in the first slab, at most 2^high in any slab.

    Args:
        pitch: bytes from row to row.
        low: log2 of the first slab's rows.
        high: log2 of the largest slab's rows.
    """

    pitch: int
    low: int
    high: int

    @classmethod
    def of(cls, layout: RowLayout) -> Slabs:
        """Slabs for rows of a layout, each padded to a multiple of 32 bytes."""
        pitch = -(-layout.stored_bytes // 32) * 32
        low, high = (
            ((size // (pitch + HEADER_BYTES)) | 1).bit_length() - 1
            for size in (LEAST_SLAB_BYTES, MOST_SLAB_BYTES)
        )
        return cls(pitch, low, high)

    def rows(self, slab: int) -> int:
        """Number of rows of a slab."""
        return 1 << min(self.low + max(slab - 1, 0), self.high)

    def nbytes(self, slab: int) -> int:
        """Bytes of a slab: its rows, with a header each."""
        return self.rows(slab) * (self.pitch + HEADER_BYTES)


def table_source(layout: RowLayout) -> str:
    """C++ source of the kernels of a layout's tables, for either target."""
    slabs = Slabs.of(layout)
    sizes = f"constexpr int SLAB_LOW = {slabs.low}, SLAB_HIGH = {slabs.high}, ROW_PITCH = {slabs.pitch};\n"
    includes = '#include "gpu_table/bucket_index.cuh"\nstruct FieldPlace;\n'
    return f'{includes}{layout.source()}{sizes}{plan_struct(MEMBERS)}#include "gpu_table/device_fields.cuh"\n'


class DeviceStore:
    """Index, rows and free list of the tables `names` of one layout.

    Args:
        layout: segments of a row.
        names: names of the tables.
        seed: decides, with a table's name, its initial values.
        target: device class.

    Raises:
        ConfigError: there is no GPU.
        MemoryError: its memory is full.
    """

    def __init__(
        self, layout: RowLayout, names: Sequence[str], *, seed: int, target: Target = CudaDevice
    ) -> None:
        seeds = [table_seed(name, seed) for name in names]
        self.layout, self.names = layout, tuple(names)
        self.device = target(table_source(layout), KERNELS)
        self.work = Workspace(self.device, MEMBERS)
        self.sizes = Slabs.of(layout)
        #: number of the running generation of changes, which `mark` closes
        self.generation = 1
        #: number of rehashes of the index so far
        self.rehashes = 0
        self._seeds = self._constant(np.array(seeds, np.uint64))
        self._hyper = self._constant(np.tile(np.array(layout.hyper(), np.float32), len(names)))
        self._salt = int.from_bytes(hashlib.blake2b(f"{seed}".encode(), digest_size=8).digest(), "little")
        self._slab_table = self.device.memory(8 * SLABS)
        self._slabs: list[Buffer] = []
        self._free = self.device.memory(4 * LEAST_BUCKETS)
        self._free_count = self._next_row = self._capacity = 0
        self._hand = 0
        self._rooms = {"missing": LEAST_LISTED, "distinct": LEAST_LISTED}
        self._buckets, self._used = self._new_buckets(LEAST_BUCKETS), 0

    def __len__(self) -> int:
        return self._next_row - self._free_count

    @property
    def slots(self) -> int:
        """Number of slots of the index."""
        return self._buckets.nbytes // BUCKET_BYTES * BUCKET_SLOTS

    def set_hyper(self, table: int, hyper: Floats) -> None:
        """Sets the hyper-parameters of a table's optimisers (DynamicTable.hyper)."""
        self.work.send(self._hyper.address + table * hyper.nbytes, hyper)

    def launch(self, plan: dict[str, int], *kernels: tuple[str, int]) -> None:
        """Queues kernels over items; members of `Plan` not named are the store's own, or 0."""
        own = {
            "buckets": self._buckets.address,
            "mask": self._buckets.nbytes // BUCKET_BYTES - 1,
            "salt": self._salt,
            "slabs": self._slab_table.address,
            "seeds": self._seeds.address,
            "hyper": self._hyper.address,
            "hypers": len(self.layout.hyper()),
            "free_rows": self._free.address,
            "free_count": self._free_count,
            "next_row": self._next_row,
            "generation": self.generation,
        }
        self.work.launch({**own, **plan}, *kernels)

    def select(self, what: str, n: int, plan: dict[str, int]) -> int:
        """Stream compaction: a pair of kernels lists the chosen items. Waits. Returns their number."""
        if n == 0:
            return 0
        groups = self.work.memory("chosen", 8 * (blocks_of(n) + 1))  # apart from a batch's groups
        whole = {**plan, "n": n, "blocks": blocks_of(n), "groups": groups}
        self.launch(whole, (f"count_{what}", n), ("group_sums", 1), (f"list_{what}", n))
        (total,) = self.work.fetch((groups + 8 * blocks_of(n), (), np.int64))
        return int(total)

    def reserve_rows(self, rows: int) -> None:
        """Reserves row numbers below `rows`. Raises MemoryError."""
        while self._capacity < rows:
            slab = len(self._slabs)
            if slab == SLABS or self._capacity + self.sizes.rows(slab) >= 2**32:
                raise MemoryError(f"a device's tables hold at most {self._capacity} rows of this layout")
            self._slabs.append(self.device.memory(self.sizes.nbytes(slab)))
            self._capacity += self.sizes.rows(slab)
            address = np.array([self._slabs[-1].address], np.uint64)
            self.work.send(self._slab_table.address + 8 * slab, address)

    def reserve_slots(self, more: int) -> None:
        """Reserves slots of the index for `more` keys."""
        if self._used + more <= LOAD * self.slots:
            return
        buckets = self._buckets.nbytes // BUCKET_BYTES
        while len(self) + more > REUSE_LOAD * buckets * BUCKET_SLOTS:
            buckets *= 2
        old, self._buckets = self._buckets, self._new_buckets(buckets)
        items = old.nbytes // BUCKET_BYTES * 16
        self.launch({"n": items, "old_buckets": old.address}, ("rehash", items))
        self.work.keep(old)
        self._used = len(self)
        self.rehashes += 1

    def _new_buckets(self, count: int) -> Buffer:
        fresh = self.device.memory(count * BUCKET_BYTES)
        self.device.clear(fresh.address, fresh.nbytes)
        return fresh

    def _constant(self, array: npt.NDArray[np.uint64] | Floats) -> Buffer:
        buffer = self.device.memory(array.nbytes)
        self.work.send(buffer.address, array)
        return buffer

    def release(self, rows: int, n: int) -> None:
        """Erases the keys of rows uint32[n] at an address, all different and in use."""
        if n == 0:
            return
        self.reserve_free(n)
        self.launch({"n": n, "row_of": rows}, ("release_rows", n))
        self._free_count += n

    def reserve_free(self, more: int) -> None:
        """Reserves room in the list of free rows."""
        room = self._free.nbytes // 4
        if self._free_count + more <= room:
            return
        wider = self.device.memory(8 * max(self._free_count + more, room))
        self.device.copy(wider.address, self._free.address, 4 * self._free_count)
        self.work.keep(self._free)
        self._free = wider

    def clear(self) -> None:
        """Erases all keys; memory is kept."""
        self.device.clear(self._buckets.address, self._buckets.nbytes)
        self._free_count = self._next_row = self._used = self._hand = 0

    @property
    def parts(self) -> int:
        """Number of parts of a row's values, Lanes::COUNT of gpu_table/device_rows.cuh."""
        return self.layout.dim // 4 if self.layout.dim % 4 == 0 else self.layout.dim
