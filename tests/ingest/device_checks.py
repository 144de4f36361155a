"""Bodies of tests that run on every device: the emulated device (tests/ingest) and a GPU (tests/gpu).

The host extractor is the reference here; test_operators.py compares it with NumPy.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from bench.features import display_ads, rows_of
from livectr.ingest import operators as op
from livectr.ingest.extract.device_code import device_units
from livectr.ingest.extract.device_extractor import DeviceExtractor, Flight
from livectr.ingest.extract.device_features import DeviceFeatures
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.statistics import Statistics
from livectr.ingest.language.expr import ColumnRef, Expr, column
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.kernels.runtime.columns import MAX_ROW_VALUES, THREADS
from livectr.kernels.runtime.compiler import cached_cubins
from livectr.system.errors import ConfigError
from tests.ingest.operator_check import plan_of
from tests.ingest.operator_expressions import EXPRESSIONS, F64, I64, L64, LTEXT, ROOTS, TEXT
from tests.ingest.random_plans import random_batch, random_dag
from tests.ingest.text_expressions import TEXT_EXPRESSIONS

Target = Any
SIZES = (1, THREADS - 1, THREADS, THREADS + 1, 3 * THREADS + 5)


def assert_equal(got: Features, want: Features, *, exact: bool = True) -> None:
    """exact: False where the device's log1p may differ in the last bit."""
    np.testing.assert_array_equal(got.failed, want.failed)
    np.testing.assert_array_equal(got.offsets, want.offsets)
    np.testing.assert_array_equal(got.keys, want.keys)
    np.testing.assert_array_equal(got.observed, want.observed)
    if exact:
        np.testing.assert_array_equal(got.dense, want.dense)
    else:
        np.testing.assert_allclose(got.dense, want.dense, rtol=1e-6, atol=0)


def compiles_for_sm_90(plan: FeaturePlan) -> bool:
    """True if NVRTC compiles every unit of a plan's device code; it raises KernelError otherwise."""
    paths = cached_cubins([unit.source for unit in device_units(plan)], arch="sm_90")
    return all(path.read_bytes().startswith(b"\x7fELF") for path in paths)


def operators_equal_the_host(target: Target, expressions: dict[str, list[Expr]], *, exact: bool) -> None:
    """All operators in one plan; batches that end inside, at and behind a block."""
    plan = plan_of([node for nodes in expressions.values() for node in nodes])
    device, host = DeviceExtractor(plan, target), Extractor(plan)
    rng = random.Random(1)
    for rows in SIZES:
        batch = random_batch(rng, rows + 3).slice(2, rows)
        assert_equal(device(batch), host(batch), exact=exact)


def random_dags_equal_the_host(target: Target, seed: int, *, exact: bool) -> None:
    rng = random.Random(seed)
    plan = plan_of(random_dag(rng, 40))
    device, host = DeviceExtractor(plan, target), Extractor(plan)
    for rows in (3, 300):
        batch = random_batch(rng, rows)
        assert_equal(device(batch), host(batch), exact=exact)


def small_budgets_change_nothing(target: Target, *, exact: bool) -> None:
    """With any budget, from all nodes on the device to almost none, the features stay the same."""
    pipeline = display_ads()
    # Results of every type travel from the CPU: numbers, strings, lists of both.
    words = op.split(op.lower(TEXT), " ")
    nodes = [*pipeline.plan.sparse.values(), op.lower(TEXT), words, op.ngrams(words, 2), L64 + I64]
    plan = FeaturePlan({str(i): n for i, n in enumerate(nodes)}, {**pipeline.plan.dense, "x": F64 * 3})
    rows = 700
    batch = rows_of(pipeline, rows)
    other = random_batch(random.Random(2), rows)
    batch = pa.RecordBatch.from_arrays(
        [*batch.columns, *other.columns], names=[*batch.schema.names, *other.schema.names]
    )
    want = Extractor(plan)(batch)
    most = DeviceExtractor(plan, target, rows=rows).placement.device_memory.peak
    on_cpu = []
    for share in (1.0, 0.9, 0.8, 0.7, 0.6):
        device = DeviceExtractor(plan, target, budget_bytes=int(most * share), rows=rows)
        on_cpu.append(len(device.placement.cpu))
        assert_equal(device(batch), want, exact=exact)
    assert on_cpu[0] == 0 and on_cpu == sorted(on_cpu) and on_cpu[-1] >= 3, on_cpu


def a_full_pool_grows_and_nothing_is_cut(target: Target) -> None:
    plan = plan_of([op.lower(TEXT), op.ngrams(LTEXT, 2), op.cross(L64, L64), op.split(op.lower(TEXT), "a")])
    device, host = DeviceExtractor(plan, target), Extractor(plan)
    rng = random.Random(3)
    small, large = random_batch(rng, 10), random_batch(rng, 20_000)
    assert_equal(device(small), host(small))
    assert device.reruns == 0
    assert_equal(device(large), host(large))
    grown = device.reruns
    assert grown > 0
    assert_equal(device(large), host(large))
    assert_equal(device(small), host(small))
    assert device.reruns == grown, "a pool that has grown stays large"


def a_row_with_too_many_values_fails_alone(target: Target) -> None:
    items = column(ColumnRef("t", "items"), "list<int64>")
    plan = FeaturePlan({"all": op.cross(items, items, items), "n": op.length(items)})
    batch = pa.record_batch({"t.items": [[1, 2], list(range(41)), [], list(range(40))]})
    features = DeviceExtractor(plan, target)(batch)
    assert 40**3 <= MAX_ROW_VALUES < 41**3
    assert features.failed.tolist() == [False, True, False, False]
    assert features.lengths[0].tolist() == [8, 0, 0, 40**3]


def both_targets_refuse_the_same_rows(target: Target) -> None:
    """Rows with the greatest number of values or bytes, and with one value more."""
    items, text = column(ColumnRef("t", "items"), "list<int64>"), column(ColumnRef("t", "text"), "string")
    plan = FeaturePlan(
        {
            "numbers": op.cross(items, items),
            "pieces": op.lower(op.split(text, ",")),
            "bytes": op.lower(text),
        }
    )
    most, many = int(MAX_ROW_VALUES**0.5), 1 << 24
    rows = [
        (list(range(most)), "A," * MAX_ROW_VALUES),
        ([*range(most + 1)], "a"),
        ([1], "A," * (MAX_ROW_VALUES + 1)),
        ([2], "a" * many),
        ([3], "a" * (many + 1)),
        ([4], "a"),
    ]
    batch = pa.record_batch({"t.items": [items for items, _ in rows], "t.text": [text for _, text in rows]})
    want = Extractor(plan)(batch)
    got = DeviceExtractor(plan, target)(batch)
    assert want.failed.tolist() == got.failed.tolist() == [False, True, True, False, True, False]
    kept = np.flatnonzero(~want.failed)
    assert_equal(got.take(kept), want.take(kept))


def statistics_equal_the_host(target: Target) -> None:
    plan = FeaturePlan(
        {"bin": op.quantile_bins(F64, 4, fit_rows=50), "again": op.lower(TEXT)},
        {"z": op.zscore(F64), "often": op.log1p(op.frequency(op.lower(TEXT))), "m": op.minmax(I64)},
    )
    device, host = DeviceExtractor(plan, target), Extractor(plan)
    rng = random.Random(4)
    state = Statistics(plan)
    for _ in range(3):
        batch = random_batch(rng, 100)
        want = host(batch, state)
        assert_equal(device(batch, state), want, exact=False)
        state = state.update(want.observed)


def one_launch_per_layer(target: Target) -> None:
    """Meta-kernels: launches do not grow with the operators; three more pack the outputs."""
    pipeline = display_ads()
    device = DeviceExtractor(pipeline.plan, target)
    batch = rows_of(pipeline, 1000)
    device(batch)
    before, reruns = device.launches, device.reruns
    device(batch)
    assert device.reruns == reruns
    assert device.launches - before == len(pipeline.plan.layers) - 1 + 3
    assert device.launches - before < len(pipeline.plan.nodes)


def one_wait_a_batch(target: Target) -> None:
    """Batches like the one before wait once for the queue; more keys than expected wait once more."""
    plan = plan_of([*ROOTS[:8], op.lower(TEXT), op.split(op.lower(TEXT), "a"), op.ngrams(LTEXT, 2)])
    device, host = DeviceExtractor(plan, target), Extractor(plan)
    rng = random.Random(7)
    batches = [random_batch(rng, rows) for rows in (3_000, 3_000, 2_500, 1)]
    device(batches[0])
    reruns = device.reruns
    for batch in batches:
        before = device.waits
        assert_equal(device(batch), host(batch))
        assert device.waits - before == 1
    assert device.reruns == reruns
    other = random_batch(rng, 300)
    at = other.schema.names.index(LTEXT.name)
    texts = [pa.array([[str(i) for i in range(count)]] * 300) for count in (1, 20)]
    few, many = (other.set_column(at, LTEXT.name, array) for array in texts)
    device(few)
    before = device.waits
    assert_equal(device(many), host(many))
    assert (device.waits - before, device.reruns) == (2, reruns), "the keys fit, but were not expected"


def flown(device: DeviceExtractor, batches: Iterable[pa.RecordBatch], ahead: int = 2) -> Iterator[Features]:
    """Features of batches, of which up to `ahead` have begun before an earlier one is taken."""
    flights: deque[Flight] = deque()
    for batch in batches:
        flights.append(device.begin(batch))
        if len(flights) > ahead:
            yield flights.popleft().result().host()
    while flights:
        yield flights.popleft().result().host()


def batches_ahead_equal_calls(target: Target) -> None:
    """Several batches in flight, whose memory is used again: results have the bits and order of calls."""
    pipeline = display_ads()
    device, host = DeviceExtractor(pipeline.plan, target), Extractor(pipeline.plan)
    batches = [rows_of(pipeline, rows, seed) for seed, rows in enumerate((900, 300, 700, 1, 512, 800, 40))]
    for features, batch in zip(flown(device, batches), batches, strict=True):
        assert_equal(features, host(batch), exact=False)
    assert len(device._contexts) == 3


def nothing_is_allocated_after_the_first_batches(target: Target) -> None:
    """Pinned memory and device memory of earlier batches are used again, also with batches in flight."""
    made: list[str] = []

    class Counting(target):
        def memory(self, nbytes: int) -> Any:
            made.append("device")
            return super().memory(nbytes)

        def staging(self, nbytes: int) -> Any:
            made.append("pinned")
            return super().staging(nbytes)

    pipeline = display_ads()
    device = DeviceExtractor(pipeline.plan, Counting)
    batches = [rows_of(pipeline, rows, seed) for seed, rows in enumerate((900, 700, 850, 600))]
    for features in flown(device, batches[:1] * 6):
        assert features.rows == 900
    assert made.count("pinned") > 3
    made.clear()
    for features in flown(device, batches * 3):
        assert features.rows
    assert made == []
    there = DeviceExtractor(pipeline.plan, Counting, brought="nothing")
    for batch in batches * 2:
        held = there.resident(batch)  # beside the one that is computed
    made.clear()
    for batch in batches * 3:
        held = there.resident(batch)
    assert made == [] and held.rows


def a_dropped_flight_gives_its_memory_back(target: Target) -> None:
    pipeline = display_ads()
    device, host = DeviceExtractor(pipeline.plan, target), Extractor(pipeline.plan)
    batches = [rows_of(pipeline, 300, seed) for seed in range(2)]
    flight = device.begin(batches[0])
    assert device._contexts == []
    del flight
    gc.collect()
    (context,) = device._contexts
    assert_equal(device(batches[1]), host(batches[1]), exact=False)
    with pytest.raises(ConfigError, match="no column"):
        device.begin(batches[0].select([0]))
    gc.collect()
    assert device._contexts == [context]


def features_stay_on_the_device(target: Target) -> None:
    """The host gets what it needs in the wait of the batch, the rest when it asks; all is counted."""
    pipeline = display_ads()
    host = Extractor(pipeline.plan)
    batches = [rows_of(pipeline, rows, seed) for seed, rows in enumerate((700, 300, 650))]
    for brought in ("nothing", "ids"):
        device = DeviceExtractor(pipeline.plan, target, brought=brought)
        device.resident(batches[0])  # it has grown
        held = []
        for batch in batches:
            before, waits, want = device.downloaded, device.waits, host(batch)
            features = device.resident(batch)
            ids_bytes = want.offsets.nbytes + want.keys.nbytes
            assert isinstance(features, DeviceFeatures) and device.waits - waits == 1
            assert (device.downloaded - before > ids_bytes) == (brought == "ids")
            assert brought == "ids" or device.downloaded - before < 1000 + 8 * want.fields + batch.num_rows
            assert features.rows == want.rows and not features.failed.any()
            np.testing.assert_array_equal(features.counts, want.counts)
            held.append((features, want))
        for features, want in held:  # no later batch has written over them
            before, waits, ids_bytes = device.downloaded, device.waits, want.offsets.nbytes + want.keys.nbytes
            for _ in range(2):
                ids = features.ids()
                np.testing.assert_array_equal(ids.offsets, want.offsets)
                np.testing.assert_array_equal(ids.keys, want.keys)
                assert ids.dense.shape == (want.rows, 0)
            copied = (1, ids_bytes) if brought == "nothing" else (0, 0)
            assert (device.waits - waits, device.downloaded - before) == copied
            assert_equal(features.host(), want, exact=False)
            assert device.downloaded - before - copied[1] == want.dense.nbytes
            assert_equal(features.take([1, 2]), want.take([1, 2]), exact=False)
        assert_equal(device(batches[0]), host(batches[0]), exact=False)
    assert isinstance(DeviceExtractor(pipeline.plan, target).resident(batches[1]), Features)


def an_empty_batch(target: Target) -> None:
    plan = plan_of([node for node in ROOTS if "float" not in node.dtype])
    features = DeviceExtractor(plan, target)(random_batch(random.Random(5), 3).slice(1, 0))
    assert features.rows == 0 and len(features.keys) == 0


ALL = EXPRESSIONS | TEXT_EXPRESSIONS
