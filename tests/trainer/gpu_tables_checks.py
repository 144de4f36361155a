"""Checks of training with tables on a device, emulated or real; tests/trainer and tests/gpu run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from bench.planted import pipeline
from livectr.ingest.common_features import AnyFeatures, CommonFeatures
from livectr.ingest.extract.device_features import DeviceFeatures, Part, Parts
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.gpu_table.device_store import Target
from livectr.kernels.runtime.device import Buffer, Device
from livectr.kernels.runtime.recycled import Recycled
from livectr.models import DIN, attention
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.batch import PreparedBatch
from livectr.trainer.des.item_vectors import item_vectors
from livectr.trainer.des.result import StepResult
from livectr.trainer.des.step import DesStep
from livectr.trainer.step_settings import StepSettings
from livectr.trainer.tables.gpu_tables import GpuTables
from livectr.trainer.tables.rank_tables import Tier
from tests.kernels.device_table_checks import Counted, same_tables
from tests.models.examples import SHARED
from tests.trainer import common_worker, des_worker

Examples = tuple[AnyFeatures, NDArray[np.float32]]
BUDGET = 400
"""Rows: a batch's distinct keys fit, the tables' do not."""
ROWS, STEPS = 60, 12
CASES = ("both", "both, gathered", "both in fp16", "grouped", "grouped, gathered")


def pipeline_of(case: str) -> Pipeline:
    """Rows written out, or in groups of a user's; with and without lists whose every vector is gathered."""
    if case.startswith("grouped"):
        models = common_worker.ROLES["both"]
        if case.endswith("gathered"):
            din = DIN(target=("ad",), behaviors=("liked",), dim=4, hidden=(8,), attention=(6,))
            models = (din, models[1])
        return common_worker.pipeline(*models)
    name, _, values = case.partition(" in ")
    rank, prerank = des_worker.ROLES[name]
    built = pipeline(rank, prerank=prerank, fields=des_worker.FIELDS, dense=des_worker.DENSE, shared=SHARED)
    assert values in ("", "fp16")
    return replace(built, row_values="fp16" if values else "fp32")


def batches(case: str, seed: int) -> Iterator[Examples]:
    """Batches out of a few hundred keys each; one of rows that are written out is empty."""
    rng = np.random.default_rng(seed)
    for step in range(STEPS):
        if case.startswith("grouped"):
            yield common_worker.batch(rng, ROWS, ROWS // 5)
        else:
            yield des_worker.batch(rng, 0 if step == 4 else ROWS)


def step_of(case: str, device: str, tier: Tier) -> DesStep:
    """A single rank, whose networks torch learns: with tables on a device it does."""
    one = Collectives(device=device)
    step = DesStep(pipeline_of(case), seed=5, collectives=one, tier=tier)
    step.small = step.blocks = None
    return step


class Laid:
    """Lays features on a device, as an extractor leaves them there; memory that comes back is written over.

    Attributes:
        returned: number of batches whose memory came back.
    """

    def __init__(self, device: Device) -> None:
        self.device = device.another()
        self._pinned = Recycled(allocate=lambda count: self.device.staging(8 * count).view(np.int64))
        self._kept: list[object] = []
        self.returned = 0

    def __call__(self, features: AnyFeatures) -> AnyFeatures:
        if isinstance(features, CommonFeatures):
            common, own = self(features.common), self(features.own)
            assert not isinstance(common, CommonFeatures) and not isinstance(own, CommonFeatures)
            return replace(features, common=common, own=own)
        if not isinstance(features, Features) or not features.rows:
            return features
        arrays: list[NDArray[Any]] = [features.offsets, features.keys, features.dense]
        starts = np.cumsum([0, *(-(-array.nbytes // 128) * 128 for array in arrays)]).tolist()
        staged = self.device.staging(starts[-1])
        for array, at in zip(arrays, starts, strict=False):
            staged[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        memory = self.device.lend(self.device.memory(starts[-1]), self._write_over)
        self.device.upload(memory.address, staged)
        self._kept.append(staged)
        parts = Parts(*(Part(at, a.shape, a.dtype.type) for at, a in zip(starts, arrays, strict=False)))
        given = features.rows, features.counts, features.observed, features.failed
        return DeviceFeatures(*given, self.device, memory, parts, self._pinned)

    def _write_over(self, memory: Buffer) -> None:
        self.returned += 1
        self._kept.append(memory)
        self.device.clear(memory.address, memory.nbytes)


def learned(step: DesStep, examples: Iterable[Examples], *, prefetch: bool) -> Iterator[StepResult]:
    """Learn batches as the trainer does with tiers: each waits until the next is prepared, and prefetched."""
    held: PreparedBatch | None = None
    for features, label in examples:
        prepared = step.prepare(features, label)
        if prefetch:
            step.prefetch(prepared)
        if held is not None:
            yield step.learn(held)
        held = prepared
    if held is not None:
        yield step.learn(held)


def same_steps(
    one: DesStep,
    other: DesStep,
    examples: Iterable[Examples],
    *,
    prefetch: bool,
    there: Callable[[AnyFeatures], AnyFeatures] = lambda features: features,
) -> None:
    """Train both and compare results, tables and weights, bit for bit. `there` moves the first's features."""
    one.storage.flush()
    other.storage.flush()
    marks = same_tables(one.tables, other.tables, dict.fromkeys(one.tables, 0))
    given = list(examples)
    moved = ((there(features), label) for features, label in given)
    results = zip(
        learned(one, moved, prefetch=prefetch), learned(other, given, prefetch=prefetch), strict=True
    )
    for number, ((features, _), (got, expected)) in enumerate(zip(given, results, strict=True)):
        assert got.loss == expected.loss
        for role, logits in expected.logits.items():
            np.testing.assert_array_equal(got.logits[role], logits)
        if number == 2:
            one.storage.flush()
            other.storage.flush()
            marks = same_tables(one.tables, other.tables, marks)
        if number == 9 and isinstance(features, Features):
            np.testing.assert_array_equal(item_vectors(one, features), item_vectors(other, features))
    one.storage.flush()
    other.storage.flush()
    same_tables(one.tables, other.tables, marks)
    same_tables(one.tables, other.tables, dict.fromkeys(one.tables, 0))
    state = other.state_dense()
    assert all(torch.equal(tensor, state[name]) for name, tensor in one.state_dense().items())


def fewer_rows_than_tables_have(step: DesStep, budget: int) -> None:
    """Check that rows moved between both tiers."""
    cache = step.storage.cache
    assert cache is not None
    assert cache.evicted > 0 and cache.written_back > 0 and cache.hits > 0
    assert len(cache) <= budget < sum(map(len, step.tables.values()))


def cached_training_equals_the_host(target: Target, device: str, case: str, *, prefetch: bool) -> None:
    """Steps with fewer rows on the device than the tables have."""
    make = partial(step_of, case, device)
    plain, cached = make(None), make(GpuTables(BUDGET, target))
    same_steps(plain, cached, batches(case, 0), prefetch=prefetch)
    fewer_rows_than_tables_have(cached, BUDGET)
    assert cached.storage.cache is not None and (cached.storage.cache.prefetched > 0) == prefetch


def resident_training_equals_the_host(target: Target, device: str, case: str) -> None:
    """Features stay on the device, over tables there: the host waits for none of them, and gets none."""
    make = partial(step_of, case, device)
    plain, cached = make(None), make(GpuTables(BUDGET, target))
    assert cached.storage.cache is not None
    laid = Laid(cached.storage.cache.device.device)
    same_steps(cached, plain, batches(case, 0), prefetch=True, there=laid)
    fewer_rows_than_tables_have(cached, BUDGET)
    assert (laid.device.downloaded, laid.device.waits) == (0, 0) and laid.returned >= STEPS - 3


def host_tables_get_ids_alone(target: Target, device: str, case: str) -> None:
    """Tables in host memory take keys from the device; dense features stay there."""
    given = [features for features, _ in batches(case, 0)]
    plain, other = step_of(case, device, None), step_of(case, device, None)
    cache = step_of(case, device, GpuTables(BUDGET, target)).storage.cache
    assert cache is not None
    laid = Laid(cache.device.device)
    same_steps(other, plain, batches(case, 0), prefetch=False, there=laid)
    parts = [[f.common, f.own] if isinstance(f, CommonFeatures) else [f] for f in given]
    ids_bytes = sum(part.offsets.nbytes + part.keys.nbytes for of in parts for part in of if part.rows)
    assert laid.device.downloaded == ids_bytes > 0


def a_step_waits_once(target: Target, device: str) -> None:
    """Training steps of keys that are all on the device, prefetched; the features are there, too.

    The step's own thread waits for its logits alone, and the thread that reads ahead for the next keys.
    """
    step = step_of("both, gathered", device, GpuTables(20_000, target))
    cache = step.storage.cache
    assert cache is not None
    counted, taken, laid = Counted(cache.device.device), [], Laid(cache.device.device)
    given = [(laid(features), label) for features, label in batches("both, gathered", 0)]
    for _ in learned(step, 4 * given, prefetch=True):
        taken.append((step.copies.waits, counted.taken()))
    assert cache.evicted == 0 and laid.device.waits == 0
    logits, of_tables = zip(*taken[2 * STEPS : -1], strict=True)
    empty = [number for number, (_, label) in enumerate(2 * given) if not len(label)]  # is not learned
    waits = np.diff(logits, prepend=logits[0] - 1).tolist()
    for number, count in enumerate(waits):  # sizes of lists come with the logits of the batch before
        assert count == (0 if number in empty else 2 if number - 1 in empty else 1), number
    assert {(counts.waits, counts.allocations) for counts in of_tables} == {(0, 0)}
    assert 0 < sum(counts.elsewhere for counts in of_tables) <= len(of_tables)
    assert not any(counts.waits for _, counts in taken), "nor does the first step"


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations of PyTorch for which the host waits where tensors are on a GPU."""

    WAITING = (
        *("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "equal", "bincount"),
        *("unique_dim", "_unique", "_unique2", "unique_consecutive"),
    )

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = func.overloadpacket.__name__, kwargs or {}
        waits = name in self.WAITING
        waits |= name == "repeat_interleave" and options.get("output_size") is None
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):  # a mask is searched
            waits |= any(part is not None and part.dtype == torch.bool for part in args[1])
        if waits:
            self.found.append(name)
        return func(*args, **options)


class HostIndices(TorchFunctionMode):
    """Notes tensors that are made on a device out of Python's numbers: the copy waits for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and options.get("device") is not None:
            self.found.append(func.__name__)
        if func is torch.Tensor.__getitem__:
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            self.found += ["getitem" for part in parts if isinstance(part, list | np.ndarray)]
        return func(*args, **options)


def networks_wait_once(target: Target, device: str, case: str) -> None:
    """Logits, and whether gradients are finite, come to the host in one wait; on a GPU nothing else waits."""
    step = step_of(case, device, GpuTables(20_000, target))
    assert step.storage.cache is not None
    laid, waits = Laid(step.storage.cache.device.device), [0]
    given = [(laid(features), label) for features, label in batches(case, 0) if len(label)]
    results = learned(step, given, prefetch=True)
    next(results)  # the first step reads its scores early, for its biases
    first = step.copies.waits
    mode = torch.cuda.get_sync_debug_mode() if device != "cpu" else 0
    try:
        # attention of a GPU
        with (
            HostIndices() as made,
            HostReads() as reads,
            patch.object(attention, "fused", attention.composed),
        ):
            if device != "cpu":
                torch.cuda.set_sync_debug_mode("error")
            for _ in results:
                waits.append(step.copies.waits - first)
    finally:
        if device != "cpu":
            torch.cuda.set_sync_debug_mode(mode)
    assert waits == list(range(len(given)))
    assert (made.found, reads.found) == ([], [])


def a_resumed_step_continues(target: Target, device: str) -> None:
    """Load rows and networks into a step whose device held others; it continues like the original."""
    unbroken, resumed = (step_of("both", device, GpuTables(BUDGET, target)) for _ in range(2))
    for step, seed in ((unbroken, 1), (resumed, 2)):
        for features, label in batches("both", seed):
            step.step(features, label)
    unbroken.storage.flush()
    for name, table in unbroken.tables.items():
        resumed.tables[name].clear()
        resumed.tables[name].assign(*table.export())
    resumed.storage.drop()
    resumed.load_dense(unbroken.state_dense())
    same_steps(unbroken, resumed, batches("both", 3), prefetch=True)
    fewer_rows_than_tables_have(resumed, BUDGET)


def ranks_train_alike(collectives: Collectives, target: Target, way: StepSettings) -> None:
    """Train as one of several ranks: the bits of host tables on this rank."""
    rank, world = collectives.rank, collectives.world
    budget = BUDGET // world
    make = partial(
        DesStep,
        pipeline_of("both, gathered"),
        seed=5,
        collectives=collectives,
        settings=way,
    )
    plain, cached = make(), make(tier=GpuTables(budget, target))
    own = []
    for step, (features, label) in enumerate(batches("both, gathered", 0)):
        cuts = des_worker.shares(np.random.default_rng(step), len(label), world, step)
        mine = np.arange(cuts[rank], cuts[rank + 1])
        own.append((features.take(mine), label[mine]))
    assert cached.storage.cache is not None
    laid = Laid(cached.storage.cache.device.device)
    there = [(laid(features), label) for features, label in own]
    results = learned(plain, own, prefetch=False), learned(cached, there, prefetch=True)
    for one, other in zip(*results, strict=True):
        for role, logits in one.logits.items():
            np.testing.assert_array_equal(logits, other.logits[role])
    cached.storage.flush()
    same_tables(plain.tables, cached.tables, dict.fromkeys(plain.tables, 0))
    fewer_rows_than_tables_have(cached, budget)
