"""Checks of training with tables on a device, emulated or real; tests/trainer and tests/gpu run them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from bench.planted import pipeline
from livectr.ingest.common_features import CommonFeatures
from livectr.ingest.pipeline import Pipeline
from livectr.ingest.plan.features import Features
from livectr.kernels.gpu_table.device_store import Target
from livectr.models import DIN
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

Examples = tuple[Features | CommonFeatures, NDArray[np.float32]]
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
    """A single rank."""
    one = Collectives(device=device)
    return DesStep(pipeline_of(case), seed=5, collectives=one, tier=tier)


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


def same_steps(one: DesStep, other: DesStep, examples: Iterable[Examples], *, prefetch: bool) -> None:
    """Train both and compare results, tables and weights, bit for bit."""
    one.storage.flush()
    other.storage.flush()
    marks = same_tables(one.tables, other.tables, dict.fromkeys(one.tables, 0))
    given = list(examples)
    results = zip(*(learned(step, given, prefetch=prefetch) for step in (one, other)), strict=True)
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


def a_step_waits_once(target: Target, device: str) -> None:
    """Training steps of keys that are all on the device, prefetched."""
    step = step_of("both, gathered", device, GpuTables(20_000, target))
    cache = step.storage.cache
    assert cache is not None
    counted, taken = Counted(cache.device.device), []
    for _ in learned(step, 4 * list(batches("both, gathered", 0)), prefetch=True):
        taken.append(counted.taken())
    assert cache.evicted == 0
    # an empty batch is not learned; a wait is for the batch before it, whose successor is prefetched
    assert set(taken[2 * STEPS :]) <= {(1, 0), (0, 0)} and sum(waits for waits, _ in taken[2 * STEPS :]) >= 20


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
    results = (learned(step, own, prefetch=step is cached) for step in (plain, cached))
    for one, other in zip(*results, strict=True):
        for role, logits in one.logits.items():
            np.testing.assert_array_equal(logits, other.logits[role])
    cached.storage.flush()
    same_tables(plain.tables, cached.tables, dict.fromkeys(plain.tables, 0))
    fewer_rows_than_tables_have(cached, budget)
