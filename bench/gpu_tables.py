"""The dynamic tables on a device: keys a second at loads of the index of 0.5 to 0.9, bytes a second, the
pause of growing, rows that are evicted, and a training step's tables against all cores of the host.

The index grows when 0.9 of its slots are taken: that is the load of a full table, HierarchicalKV's 1.0.

HierarchicalKV (NVIDIA-Merlin/HierarchicalKV) publishes 3.9 billion finds a second on an H100 NVL, for batches
of a million keys.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench.gpu_timing import Rows, Target, once, seconds, traffic
from bench.rows import bounded, row
from livectr.kernels.gpu_table.device_store import BUCKET_SLOTS, LOAD
from livectr.kernels.gpu_table.device_table import DeviceTable
from livectr.kernels.gpu_table.gpu_cache import CachedFields, GpuCache
from livectr.kernels.runtime.device import Buffer, CudaDevice
from livectr.kernels.table.field_tables import FieldTables
from livectr.kernels.table.layout import AdaGrad, RowLayout, Segment
from livectr.kernels.table.table import DynamicTable

HIERARCHICAL_KV = 3.9e9
FIND = 2e9
"""Keys a second that are the goal on a GPU."""
LOADS = (0.5, 0.75, LOAD)
PAUSE_MS = 50.0
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
LAYOUT = RowLayout((Segment("v", 4, AdaGrad()),))
WIDE = RowLayout((Segment("v", 16, AdaGrad(), 0.01),))
FIELDS = 26


def keys_of(first: int, end: int) -> npt.NDArray[np.int64]:
    """The keys number `first` to `end` - 1: all different."""
    return (np.arange(first, end, dtype=np.uint64) * GOLDEN).view(np.int64)


def index(target: Target, batch: int, repeats: int) -> Rows:
    """At each load find of keys that are there, and find_or_insert of keys half new; the pause of growing."""
    filled = _Filled(target, batch, min(repeats, 5))
    found: Rows = []
    for load in LOADS:
        filled.to(load)
        first = filled.load
        inserting = filled.find_or_insert()
        loads = f"{filled.slots:,} slots, load {first:.2f} to {filled.load:.2f}"
        found += [
            _against_hkv("device table, find", filled.workload, batch / filled.find(), FIND),
            row(
                "device table, find_or_insert",
                f"{batch:,} keys, half new, {loads}",
                "keys/s",
                batch / inserting,
            ),
            row(
                "device table, update",
                f"{filled.workload}, keys and gradients copied",
                "keys/s",
                batch / filled.update(),
            ),
        ]
    absent = f"{filled.workload}, no key is there"
    found.append(_against_hkv("device table, find", absent, batch / filled.find(there=False), FIND))
    workload = f"{filled.known:,} rows, index into twice the buckets"
    pause = filled.grow() * 1e3
    return [*found, row("device table, pause of growing", workload, "ms", pause, peer_name="allowed",
                        peer=PAUSE_MS, better="less", goal=1)]  # fmt: skip


class _Filled:
    """A table that holds the first `known` keys, in an index of `slots` slots."""

    def __init__(self, target: Target, batch: int, repeats: int) -> None:
        self.batch, self.repeats, self.new = batch, repeats, batch // 2
        self.slots = BUCKET_SLOTS << (-(-32 * batch // BUCKET_SLOTS) - 1).bit_length()
        self.table = DeviceTable(LAYOUT, ["t"], seed=1, target=target)
        self.known = 0
        self._rng = np.random.default_rng(1)
        self._out = self.table.device.memory(4 * batch)

    @property
    def load(self) -> float:
        return self.known / self.slots

    @property
    def workload(self) -> str:
        return f"{self.batch:,} keys, {self.slots:,} slots, load {self.load:.2f}"

    def to(self, load: float) -> None:
        """Insert keys up to a load, fewer where `find_or_insert` will insert the rest."""
        most = int(LOAD * self.slots) - (self.repeats + 1) * self.new
        goal = min(int(load * self.slots), most)
        while self.known < goal:
            more = min(self.batch, goal - self.known)
            keys = self._uploaded(keys_of(self.known, self.known + more))
            self.table.find_or_insert_at(keys.address, more, self._out.address)
            self.known += more
            self.table.work.synchronize()

    def find_or_insert(self) -> float:
        """Seconds of a batch of which half are new keys."""
        batches = []
        for _ in range(self.repeats + 1):
            old = sampled(self._rng, self.known, self.batch - self.new)
            fresh = keys_of(self.known, self.known + self.new)
            batches.append(self._uploaded(self._rng.permutation(np.concatenate([old, fresh]))))
            self.known += self.new
        waiting = iter(batches)
        call_s = seconds(
            self.table.device,
            lambda: self.table.find_or_insert_at(next(waiting).address, self.batch, self._out.address),
            self.repeats,
        )
        assert len(self.table) == self.known and self.table.slots == self.slots, "as full as the row says"
        return call_s

    def find(self, *, there: bool = True) -> float:
        """Seconds of a batch of keys that are there, or of ones that are not."""
        if there:
            requested = self._uploaded(sampled(self._rng, self.known, self.batch))
        else:
            requested = self._uploaded(keys_of(self.known, self.known + self.batch))
        return seconds(
            self.table.device,
            lambda: self.table.find_at(requested.address, self.batch, self._out.address),
            self.repeats,
        )

    def update(self) -> float:
        """Seconds of an optimiser's step of keys that are there, out of host arrays."""
        keys = sampled(self._rng, self.known, self.batch)
        grads = self._rng.normal(size=(self.batch, LAYOUT.dim)).astype(np.float32)
        return seconds(self.table.device, lambda: self.table.update(keys, grads), self.repeats)

    def grow(self) -> float:
        """Seconds in which the index gets twice the buckets."""

        def reserve() -> None:
            self.table.reserve_slots(self.batch)
            self.table.work.synchronize()

        call_s = once(reserve)
        assert self.table.slots == 2 * self.slots
        return call_s

    def _uploaded(self, keys: npt.NDArray[np.int64]) -> Buffer:
        buffer = self.table.device.memory(keys.nbytes)
        self.table.device.upload(buffer.address, keys.view(np.uint8))
        self.table.work.synchronize()
        return buffer


def gather(target: Target, batch: int, repeats: int) -> Rows:
    """Lookup of values, K = 16: the bytes of keys and values that are read and written, against a copy."""
    table = DeviceTable(WIDE, ["t"], seed=1, target=target)
    rng, device = np.random.default_rng(2), table.device
    rows = 8 * batch
    for first in range(0, rows, batch):
        table.find_or_insert(keys_of(first, first + batch))
    keys = sampled(rng, rows, batch)
    requested, numbers = device.memory(keys.nbytes), device.memory(4 * batch)
    out = device.memory(4 * WIDE.dim * batch)
    device.upload(requested.address, keys.view(np.uint8))
    call_s = seconds(
        device,
        lambda: table.lookup_at(requested.address, batch, numbers.address, out.address, missing="zeros"),
        repeats,
    )
    size = 4 * WIDE.dim * batch
    a, b = device.memory(size), device.memory(size)
    copied = 2 * size / seconds(device, lambda: device.copy(a.address, b.address, size), repeats)
    moved = batch * (8 + 2 * 4 * WIDE.dim)
    workload = f"{batch:,} of {rows:,} keys, K = {WIDE.dim}"
    return [
        row("device table, lookup and gather", workload, "GB/s", moved / call_s / 1e9,
            peer_name="device copy",
            peer=copied / 1e9)
    ]  # fmt: skip


def step(target: Target, rows: int, repeats: int) -> Rows:
    """Forward and backward of a batch's tables on the device against the host's; then with all rows new."""
    rng, batch = np.random.default_rng(3), rows if target is CudaDevice else min(rows, 4096)
    fields = [(f"f{i}", f"t{i}") for i in range(FIELDS)]
    hosts = [{name: DynamicTable(WIDE, name=name, seed=1) for _, name in fields} for _ in range(2)]
    count = FIELDS * batch
    keys = (rng.zipf(1.2, count) % 40_000).astype(np.int64)
    offsets = np.arange(count + 1, dtype=np.int32)
    grad = rng.normal(size=(batch, FIELDS, WIDE.dim)).astype(np.float32)
    cache = GpuCache(hosts[0], budget_rows=count, target=target)
    front, plain = CachedFields(cache, fields), FieldTables(hosts[1], fields)
    device = cache.device.device
    memory = device.memory(grad.nbytes)
    device.upload(memory.address, grad.reshape(-1).view(np.uint8))
    there = device.array(memory, grad.shape, np.float32)
    rates = []
    for one, gradient in ((front, there), (plain, grad)):

        def train(one: CachedFields | FieldTables = one, gradient: object = gradient) -> None:
            one.forward(offsets, keys, batch)
            one.backward(gradient)  # type: ignore[arg-type]

        rates.append(batch / seconds(device, train, repeats))
        if one is front:
            with traffic(target) as asked:
                train()
    workload = f"{FIELDS} fields, batch {batch:,}, K = {WIDE.dim}, AdaGrad, keys copied from the host"
    where = "all cores of the host" if target is CudaDevice else "the host's table"
    new = iter(range(1, 1 << 30))

    def fresh(number: int) -> npt.NDArray[np.int64]:
        return keys_of(number * count, (number + 1) * count)

    def cold() -> None:
        """All rows are evicted, and others take their places."""
        front.forward(offsets, fresh(next(new)), batch)
        front.backward(there)

    evicted = cache.evicted
    cold_s = seconds(device, cold, 3)
    gone = (cache.evicted - evicted) / 4
    return [
        row("tables of a training step", workload, "samples/s", rates[0], peer_name=where, peer=rates[1]),
        bounded("waits of the host, tables of a step", workload, "a batch", asked.waits, goal=1),
        bounded(
            "allocations after warm-up, tables of a step",
            workload,
            "calls a batch",
            asked.allocations,
            goal=0,
        ),
        row(
            "device table, evict and fetch",
            f"{workload}, {gone:,.0f} rows evicted a batch",
            "rows/s",
            gone / cold_s,
        ),
    ]


def sampled(rng: np.random.Generator, known: int, count: int) -> npt.NDArray[np.int64]:
    """Keys among the first `known`."""
    return (rng.integers(0, known, count).astype(np.uint64) * GOLDEN).view(np.int64)


def _against_hkv(figure: str, workload: str, rate: float, goal: float) -> dict[str, object]:
    return row(figure, workload, "keys/s", rate, peer_name="HierarchicalKV's find, published for an H100 NVL",
               peer=HIERARCHICAL_KV, goal=goal / HIERARCHICAL_KV)  # fmt: skip
