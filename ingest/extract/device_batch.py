"""Batch on a device: its memory, and the copies and launches that compute its features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.device_features import Brought, DeviceFeatures, Part, Parts
from livectr.ingest.extract.device_tables import Tables, root_words
from livectr.ingest.extract.staging import Staging
from livectr.ingest.language.expr import Expr
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.kernels.runtime.columns import THREADS
from livectr.kernels.runtime.device import Buffer, Device
from livectr.kernels.runtime.device_memory import Results
from livectr.kernels.runtime.recycled import Recycled
from livectr.system.errors import InternalError

Array = npt.NDArray[Any]
ALIGNMENT = 128
"""Bytes to whose multiples parts of device memory are aligned."""
HEAD, POOL = 21, 3
"""Words of the structs `Plan` (kernels/extract/device_plan.cuh) and `Pool`."""
LEAST_POOL, LEAST_KEYS = 1 << 16, 1 << 16
GROWTH = 1.25
"""Factor over the required size by which memory grows when it was too small."""
MARGIN, LEAST_MARGIN = 1.125, 1024
"""Factor over the keys a row of the batch before, and keys besides, that are copied to the host before their
number is known."""

_NOTHING: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


@dataclass(frozen=True)
class DeviceResources:
    """Tables of a plan and their arrays (dictionaries, vectors, constants) in a device's memory.

    Args:
        tables: the tables.
        memory: memory of arrays and tables.
        address: of the tables' words.
    """

    tables: Tables
    memory: Buffer
    address: int

    @classmethod
    def upload(cls, device: Device, plan: FeaturePlan) -> DeviceResources:
        """Copies them. Waits. The arrays may be large and are copied once, so they are not pinned."""
        tables = Tables(plan)
        *starts, at, size = _offsets([*(array.nbytes for array in tables.arrays), tables.nbytes])
        memory = device.memory(max(size, ALIGNMENT))
        addresses = [memory.address + start for start in starts]
        words = device.staging(tables.nbytes)
        words[:] = _bytes(tables.at(addresses))
        sources = [*map(_bytes, tables.arrays), words]
        for source, address in zip(sources, [*addresses, memory.address + at], strict=True):
            device.upload(address, source)
        device.synchronize()
        return cls(tables, memory, memory.address + at)


class DeviceBatch:
    """Queue and memory of one batch at a time on a device.

    Its methods are the steps of `ingest.extract.device_extractor`. Between `begin` and `finish` it belongs to
    one batch.

    Args:
        device: runs the kernels.
        plan: whose features are computed.
        resources: the plan's tables on this device, which batches share.
        pinned: host memory of the features.
    """

    def __init__(
        self, device: Device, plan: FeaturePlan, resources: DeviceResources, pinned: Recycled
    ) -> None:
        self.device, self.plan = device, plan
        self.replaced = 0
        self._words = (
            HEAD + POOL * len(plan.layout.regions) + resources.tables.root_words + len(plan.statistics)
        )
        self._regions = [LEAST_POOL] * (max(plan.layout.regions, default=-1) + 1)
        self._keys = 0
        self._keys_a_row = float(len(plan.sparse))
        self._pinned = pinned
        self._host_outputs = _NOTHING
        self._results = Results(device)
        self._outputs: Buffer | None = None
        self._brought: Brought = "all"
        self._buffers: dict[str, Buffer] = {}
        self._hosts: dict[str, npt.NDArray[np.uint8]] = {}
        self._resources = resources
        given = [root.op == "given" for root in roots_in(plan)]
        self._columns, self._given = (
            Staging([root for root, of_cpu in zip(roots_in(plan), given, strict=True) if of_cpu is which])
            for which in (False, True)
        )
        self._state_of: tuple[Any, ...] = ()
        self._state_at: list[int] = []

    # Steps of a call

    def begin(self, batch: pa.RecordBatch, states: Sequence[Array]) -> None:
        """Step 2: queue the copies of columns and plan, and allocate memory for results."""
        rows = batch.num_rows
        self.rows, self.blocks = rows, -(-rows // THREADS)
        plan, fields = self.plan, len(self.plan.sparse)
        self._keys = max(self._keys, fields * rows, LEAST_KEYS)
        if states and tuple(map(id, states)) != tuple(map(id, self._state_of)):
            self._state_of, self._state_at = tuple(states), self._upload_arrays("states", states)
        self._slots = self._memory("slots", plan.layout.bytes_per_row * self.blocks * THREADS)
        sizes = [fields * self.blocks * 8 + 8, 8 * fields, 8 * len(plan.layout.regions), 8, rows]
        small = list(_offsets(sizes))
        self._small = self._memory("small", small[-1])
        self._counts, self._totals, self._heads, self._replaced, self._failed = (
            self._small + at for at in small[:-1]
        )
        self._small_end = self._small + small[-1]
        self.device.clear(self._small, small[-1])
        self._region_at = [self._memory(f"region{i}", capacity) for i, capacity in enumerate(self._regions)]
        widths = [4 * len(plan.dense_names) * rows, 8 * len(plan.statistics) * rows, 4 * (fields * rows + 1)]
        self._out = list(_offsets([*widths, 8 * self._keys]))
        self._outputs = None  # a batch that runs again uses the same memory
        self._outputs = self._results.take(self._out[-1])
        self._root_words: dict[int, list[int]] = {}
        self._upload("columns", self._columns, batch)

    def add_cpu_results(self, results: pa.RecordBatch) -> None:
        """Step 4: queue the copy of the CPU's results."""
        self._upload("given", self._given, results)

    def run(self, first: int, end: int) -> None:
        """Steps 3 and 4: launch layers first … end - 1."""
        for kernel in self._resources.tables.kernels:
            if first <= kernel.layer < end:
                self.device.launch(kernel.name, self.blocks * len(kernel.nodes), self._plan)

    def pack(self, brought: Brought = "all") -> None:
        """Step 5: pack the outputs, and queue the copies to the host, of as many keys as are to be expected.

        Args:
            brought: features that are copied; what is observed or failed is copied in any case.
        """
        plan = self.plan
        fields, outputs = len(plan.sparse), len(plan.sparse) + len(plan.dense) + len(plan.statistics)
        if fields:
            self.device.launch("pack_count", self.blocks * fields, self._plan)
            self.device.launch("pack_place", fields, self._plan)
        if outputs:
            self.device.launch("pack_write", self.blocks * outputs, self._plan)
        self._total = self._counts + 8 * fields * self.blocks
        nbytes = self._small_end - self._total
        self._known = self._host("known", nbytes)[:nbytes]
        self.device.download(self._known, self._total)
        expected = int(self.rows * self._keys_a_row * MARGIN) + LEAST_MARGIN
        self._brought = brought
        self._download(min(self._keys, expected))

    def finish(self) -> Features | DeviceFeatures | None:
        """Step 6: wait for the features; once more if there are more keys than were expected.

        Returns:
            The features, in memory that is used again when they are freed; or None when a pool was too small:
            it has grown, and the batch has to run again.
        """
        self.device.synchronize()
        rows, fields, regions = self.rows, len(self.plan.sparse), self.plan.layout.regions
        (nnz,), (self.replaced,) = self._copied(self._total, 1), self._copied(self._replaced, 1)
        if nnz > np.iinfo(np.int32).max:
            raise InternalError(f"a batch of {rows} rows has more than 2147483647 keys; use smaller batches")
        fits = nnz <= self._keys
        if not fits:
            self._keys = int(nnz * GROWTH)
        for region, head in zip(regions, self._copied(self._heads, len(regions)), strict=True):
            if head > self._regions[region]:
                fits = False
                self._regions[region] = max(self._regions[region], -(-int(head * GROWTH) // 256) * 256)
        if not fits:
            return None
        if nnz > self._expected and self._brought != "nothing":
            self._download(nnz)
            self.device.synchronize()
        self._keys_a_row = nnz / rows
        dense_at, observed_at, offsets_at, keys_at, _ = self._out
        parts = Parts(
            Part(offsets_at, (fields * rows + 1,), np.int32),
            Part(keys_at, (nnz,), np.int64),
            Part(dense_at, (rows, len(self.plan.dense_names)), np.float32),
        )
        failed_at = self._failed - self._total
        failed = self._known[failed_at : failed_at + rows].astype(bool)
        outputs, self._host_outputs = self._host_outputs, _NOTHING
        memory, self._outputs = self._outputs, None
        assert memory is not None, "a batch is finished once"

        def copied(part: Part) -> Array:
            at = part.at - self._copied_from
            return outputs[at : at + part.nbytes].view(part.dtype).reshape(part.shape)

        observed = copied(Part(observed_at, (len(self.plan.statistics), rows), np.int64))
        if self._brought == "all":
            offsets, keys, dense = map(copied, (parts.offsets, parts.keys, parts.dense))
            return Features(rows, offsets, keys, dense, observed, failed)
        counts = np.array(self._copied(self._totals, fields), np.int64)
        ids = (copied(parts.offsets), copied(parts.keys)) if self._brought == "ids" else None
        return DeviceFeatures(rows, counts, observed, failed, self.device, memory, parts, self._pinned, ids)

    def _download(self, keys: int) -> None:
        """Queue the copy of the outputs, with that many keys, to pinned memory that no other batch has."""
        _, observed_at, offsets_at, keys_at, _ = self._out
        assert self._outputs is not None, "a batch has begun"
        first = 0 if self._brought == "all" else observed_at
        end = offsets_at if self._brought == "nothing" else keys_at + 8 * keys
        self._copied_from, self._expected = first, keys
        self._host_outputs = _NOTHING  # what was copied before is free again
        self._host_outputs = self._pinned.empty((end - first) // 8).view(np.uint8)
        if end > first:
            self.device.download(self._host_outputs, self._outputs.address + first)

    def _copied(self, address: int, count: int) -> list[int]:
        """Words at an address behind the total of keys, as they were copied to the host."""
        at = address - self._total
        words: list[int] = self._known[at : at + 8 * count].view(np.int64).tolist()
        return words

    # Memory

    def _memory(self, name: str, nbytes: int) -> int:
        """Address of device memory that is kept for the next batch."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.nbytes < nbytes:
            buffer = self._buffers[name] = self.device.memory(max(nbytes, ALIGNMENT))
        return buffer.address

    def _host(self, name: str, nbytes: int) -> npt.NDArray[np.uint8]:
        """Pinned memory of at least `nbytes` bytes that is kept for the next batch."""
        host = self._hosts.get(name)
        if host is None or host.nbytes < nbytes:
            host = self._hosts[name] = self.device.staging(max(nbytes, ALIGNMENT))
        return host

    def _upload_arrays(self, name: str, arrays: Sequence[Array]) -> list[int]:
        """Queues a copy of arrays; returns the address of each."""
        *starts, size = _offsets([array.nbytes for array in arrays])
        host, address = self._host(name, size)[:size], self._memory(name, size)
        for array, at in zip(arrays, starts, strict=True):
            host[at : at + array.nbytes] = _bytes(array)
        self.device.upload(address, host)
        return [address + at for at in starts]

    def _upload(self, name: str, staging: Staging, batch: pa.RecordBatch) -> None:
        """Queue one copy of the columns, followed by the plan struct as it is now."""
        plan_bytes = 8 * self._words
        starts = np.empty(staging.parts, np.int64)
        host = self._host(name, plan_bytes)
        size = staging(batch, host[:-plan_bytes], starts)
        if size + plan_bytes > len(host):
            host = self._host(name, int(size * GROWTH) + plan_bytes)
            staging(batch, host[:-plan_bytes], starts)
        address = self._memory(name, len(host))
        words = staging.words(starts + address)
        self._root_words |= {id(root): of_root for root, of_root in zip(staging.roots, words, strict=True)}
        plan = self._plan_words(address + size)
        host[size : size + plan_bytes] = np.array(plan, np.int64).view(np.uint8)
        self.device.upload(address, host[: size + plan_bytes])
        self._plan = address + size

    def _plan_words(self, address: int) -> list[int]:
        """Words of the struct `Plan` at an address, and of what it points to: pools, roots, states."""
        plan, resources = self.plan, self._resources
        pools = address + 8 * HEAD
        roots = pools + 8 * POOL * len(plan.layout.regions)
        states = roots + 8 * resources.tables.root_words
        tables = [resources.address + 8 * word for word in resources.tables.begins]
        assert self._outputs is not None, "a batch has begun"
        dense, observed, offsets, keys, _ = (self._outputs.address + at for at in self._out)
        head = [
            *(self.rows, self.blocks, self._failed, self._slots, pools, roots, states, *tables),
            *(self._counts, self._totals, offsets, keys, self._keys, dense, observed, self._replaced),
            *(len(plan.sparse), len(plan.dense_names)),
        ]
        assert len(head) == HEAD, len(head)
        for number, region in enumerate(plan.layout.regions):
            head += [self._region_at[region], self._regions[region], self._heads + 8 * number]
        for root in roots_in(plan):
            head += self._root_words.get(id(root), [0] * root_words(root))
        return [*head, *self._state_at]


def _bytes(array: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Aligned start of each part, and the end: an exclusive prefix sum of the sizes."""
    at = [0]
    for size in sizes:
        at.append(at[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return at


def roots_in(plan: FeaturePlan) -> list[Expr]:
    """Root nodes; two roots of the same name may differ in their fill."""
    return [node for node in plan.nodes if node.is_root]
