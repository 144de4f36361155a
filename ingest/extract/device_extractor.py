"""Device extractor: one kernel per layer, CPU work in parallel, memory from in-kernel pools.

A call, for a batch of B rows:

    1  CPU workers start the nodes that the placement keeps off the device;
    2  the batch's columns and the plan's pointers are copied to the device, in one copy;
    3  the layers that need no result of the CPU are launched;
    4  the CPU's results are copied, and the other layers are launched;
    5  the outputs are packed and copied back: their number, the pools' heads, what is observed or failed, and
       as many keys as the batch before leads to expect; or they stay on the device (`resident`);
    6  the host waits for the queue. If there are more keys, it copies them and waits again. If a pool or the
       key buffer was too small, it grows and 2 to 6 run again: nothing is truncated.

Batches overlap: `begin` queues 1 to 5 (with CPU nodes 1 to 3), so that the next batch can be staged while the
device computes. Each batch in flight has its own memory and queue, which later batches use again. Kernels and
resources (dictionaries, vectors) are on the device once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from livectr.ingest.extract.device_batch import DeviceBatch, DeviceResources
from livectr.ingest.extract.device_code import device_units, emulation_units
from livectr.ingest.extract.device_features import Brought, DeviceFeatures
from livectr.ingest.extract.engines import explained
from livectr.ingest.extract.extractor import Extract, Extractor
from livectr.ingest.extract.measured_extractor import MeasuredExtractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.extract.transfer import CpuWork
from livectr.ingest.language.expr import Expr, given
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.ingest.plan.placement import place
from livectr.kernels.runtime.device import CudaDevice, EmulatedDevice, has_gpu, require_gpu
from livectr.kernels.runtime.recycled import Recycled
from livectr.system.errors import KernelError

Array = npt.NDArray[Any]


def substitute(plan: FeaturePlan, nodes: Sequence[Expr]) -> tuple[FeaturePlan, dict[int, Expr]]:
    """Replace `nodes` of a plan by placeholders.

    Returns:
        The new plan, and id of each old node → new node.
    """
    new: dict[int, Expr] = {id(node): given(node) for node in nodes}

    def build(node: Expr) -> Expr:
        if id(node) not in new:
            inputs = [build(source) for source in node.inputs]
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            new[id(node)] = (
                node
                if same
                else Expr(node.op, inputs, dtype=node.dtype, params=node.params, device=node.device)
            )
        return new[id(node)]

    sparse = {name: build(node) for name, node in plan.sparse.items()}
    dense = {name: build(node) for name, node in plan.dense.items()}
    return FeaturePlan(sparse, dense), new


class DeviceExtractor:
    """Computes a plan's features on a device; nodes that do not fit its memory are computed on CPU workers.

    Args:
        plan: whose features are computed.
        target: device that runs the kernels.
        budget_bytes: device memory that batches of `rows` rows may take; None: no limit.
        rows: batch size for which the memory is planned.
        brought: features that `resident` copies to the host.

    Raises:
        ConfigError: a user's operator does not compile, or the budget is too small for the features alone.
    """

    def __init__(
        self,
        plan: FeaturePlan,
        target: type[CudaDevice] | type[EmulatedDevice] = CudaDevice,
        *,
        budget_bytes: int | None = None,
        rows: int = 4096,
        brought: Brought = "all",
    ) -> None:
        self.plan, self.brought = plan, brought
        self.placement = place(plan, budget_bytes=budget_bytes, rows=rows)
        #: count of dense numbers that were not finite and became 0
        self.replaced = 0
        #: count of batches that ran again because a pool was too small
        self.reruns = 0
        self._split, new = substitute(plan, self.placement.cpu)
        # Statistic nodes of the plan as nodes of the device's plan; None: computed by the CPU only.
        self._on_device = [new.get(id(node)) for node in plan.statistics]
        self._initial = plan.initial_states()
        self._cpu = CpuWork(self.placement.cpu) if self.placement.cpu else None
        self._worker = ThreadPoolExecutor(1, "cpu-nodes") if self._cpu else None
        self._first_waiting = _first_waiting_layer(self._split)
        first, *more = (device_units if target is CudaDevice else emulation_units)(self._split)
        try:
            self._device = target(first.source, first.kernels, *more)
        except KernelError as error:
            raise explained(error) from None
        self._resources = DeviceResources.upload(self._device, self._split)
        self._outputs = Recycled(keep=8, allocate=self._pinned)
        self._devices = [self._device]  # a queue each
        self._contexts = [DeviceBatch(self._device, self._split, self._resources, self._outputs)]

    @property
    def launches(self) -> int:
        """Number of kernels launched so far."""
        return sum(device.launches for device in self._devices)

    @property
    def waits(self) -> int:
        """Number of times so far that a caller waited for a queue."""
        return sum(device.waits for device in self._devices)

    @property
    def downloaded(self) -> int:
        """Bytes copied to the host so far."""
        return sum(device.downloaded for device in self._devices)

    def __call__(self, batch: pa.RecordBatch, statistics: Statistics | None = None) -> Features:
        """Compute the features of a batch, as `Extractor.__call__`."""
        return self._result(batch, statistics, "all").host()

    def resident(
        self, batch: pa.RecordBatch, statistics: Statistics | None = None
    ) -> Features | DeviceFeatures:
        """Compute the features of a batch and leave them on the device, but for those that are `brought`."""
        return self._result(batch, statistics, self.brought)

    def _result(
        self, batch: pa.RecordBatch, statistics: Statistics | None, brought: Brought
    ) -> Features | DeviceFeatures:
        if batch.num_rows:
            return self.begin(batch, statistics, brought).result()
        return Features(
            0,
            np.zeros(1, np.int32),
            np.empty(0, np.int64),
            np.empty((0, len(self.plan.dense_names)), np.float32),
            np.empty((len(self.plan.statistics), 0), np.int64),
            np.zeros(0, bool),
        )

    def begin(
        self, batch: pa.RecordBatch, statistics: Statistics | None = None, brought: Brought = "all"
    ) -> Flight:
        """Stage a batch of at least one row and queue its work, without a wait for the device.

        Raises:
            ConfigError, InternalError: the batch cannot be read, as `Extractor.__call__`.
        """
        return Flight(self, batch, statistics, brought)

    def _pinned(self, count: int) -> npt.NDArray[np.int64]:
        """Pinned memory int64[count]."""
        return self._device.staging(8 * count).view(np.int64)

    def _context(self) -> DeviceBatch:
        """Memory and queue that no flight has; resources are the first's."""
        try:
            return self._contexts.pop()  # of several threads only one gets the last
        except IndexError:
            self._devices.append(self._device.another())
            return DeviceBatch(self._devices[-1], self._split, self._resources, self._outputs)

    def layer_seconds(self, batch: pa.RecordBatch, repeats: int = 20) -> list[float]:
        """Median seconds of each layer's kernel alone, layer 1 first, on data already on the device.

        Each layer is synchronized, so the time includes one launch. Only for plans without CPU nodes.
        """
        if self._cpu is not None:
            raise ValueError("layers are timed without a budget: some nodes of this plan are on the CPU")
        self(batch)  # pools have grown
        context = self._contexts[-1]
        seconds: list[list[float]] = []
        for _ in range(repeats):
            context.begin(batch, self._states(None))
            context.device.synchronize()
            layer_s = []
            for layer in range(1, len(self._split.layers)):
                start = time.perf_counter()
                context.run(layer, layer + 1)
                context.device.synchronize()
                layer_s.append(time.perf_counter() - start)
            seconds.append(layer_s)
        return [float(np.median(column)) for column in zip(*seconds, strict=True)]

    def _states(self, statistics: Statistics | None) -> list[Array]:
        """Arrays of the device's statistic nodes, in their order."""
        arrays = self._initial if statistics is None else statistics.arrays
        of = {id(node): array for node, array in zip(self._on_device, arrays, strict=True)}
        return [of[id(node)] for node in self._split.statistics]

    def _with_cpu(
        self, features: Features | DeviceFeatures, extra: Features | None
    ) -> Features | DeviceFeatures:
        """Add the results of the CPU: inputs of its own statistics, and rows that failed there."""
        if extra is None or self._cpu is None:
            return features
        seen = {id(n): words for n, words in zip(self._split.statistics, features.observed, strict=True)}
        on_cpu = {id(n): words for n, words in zip(self._cpu.plan.statistics, extra.observed, strict=True)}
        observed = [
            on_cpu[id(node)] if new is None else seen[id(new)]
            for node, new in zip(self.plan.statistics, self._on_device, strict=True)
        ]
        return replace(
            features,
            observed=np.array(observed, np.int64).reshape(len(observed), features.rows),
            failed=features.failed | extra.failed,
        )


class Flight:
    """Batch on its way through the device: steps 1 to 5 of a call when it is made, and 6 in `result`.

    A flight that is dropped gives its memory back when its queue is empty.

    Args:
        extractor: whose plan runs.
        batch: at least one row.
        statistics: as of `DeviceExtractor.begin`.
        brought: features that come to the host.
    """

    def __init__(
        self,
        extractor: DeviceExtractor,
        batch: pa.RecordBatch,
        statistics: Statistics | None,
        brought: Brought,
    ) -> None:
        self._extractor, self._batch, self._brought = extractor, batch, brought
        self._states = extractor._states(statistics)
        self._work: Future[tuple[pa.RecordBatch, Features]] | None = None
        self._context: DeviceBatch | None = extractor._context()
        if extractor._worker is not None and extractor._cpu is not None:
            self._work = extractor._worker.submit(extractor._cpu, batch, statistics)
        self._queue(self._context)

    def result(self) -> Features | DeviceFeatures:
        """Wait for the features; called once."""
        context, extractor = self._context, self._extractor
        assert context is not None, "a flight has one result"
        extra: Features | None = None
        while True:
            if self._work is not None:
                results, extra = self._work.result()
                context.add_cpu_results(results)
                context.run(extractor._first_waiting, len(extractor._split.layers))
                context.pack(self._brought)
            features = context.finish()
            if features is not None:
                break
            extractor.reruns += 1
            self._queue(context)
        extractor.replaced += context.replaced
        self._give_back()
        return extractor._with_cpu(features, extra)

    def _queue(self, context: DeviceBatch) -> None:
        """Queue all that does not wait for the CPU's results."""
        context.begin(self._batch, self._states)
        context.run(1, self._extractor._first_waiting)
        if self._work is None:
            context.pack(self._brought)

    def _give_back(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            self._extractor._contexts.append(context)

    def __del__(self) -> None:
        context: DeviceBatch | None = getattr(self, "_context", None)
        if context is not None:
            context.device.synchronize()
            self._give_back()


def compiler(
    device: Literal["cpu", "gpu", "auto"], *, budget_bytes: int | None, rows: int, brought: Brought = "all"
) -> Callable[[FeaturePlan], Extract]:
    """Compiler of plans for a device.

    Args:
        device: "cpu", "gpu", or "auto": where a batch takes less time, if there is a GPU.
        budget_bytes: GPU memory that batches may take; None: no limit.
        rows: batch size for which the memory is planned.
        brought: features that `resident` copies to the host.

    Raises:
        ConfigError: "gpu", and there is none.
    """
    if device == "cpu" or (device == "auto" and not has_gpu()):
        return Extractor
    require_gpu()
    on_device = partial(DeviceExtractor, budget_bytes=budget_bytes, rows=rows, brought=brought)
    return on_device if device == "gpu" else partial(MeasuredExtractor, on_device=on_device, rows=rows)


def _first_waiting_layer(plan: FeaturePlan) -> int:
    """First layer that needs a placeholder; the number of layers when no layer does."""
    needs = [node.layer for node in plan.nodes if any(source.op == "given" for source in node.inputs)]
    return min(needs, default=len(plan.layers))
