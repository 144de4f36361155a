"""The global cut: batches are a function of the logs, not of N, of timing or of the fetch size."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.trainer.comm.control import Control
from livectr.trainer.options import TrainOptions
from livectr.trainer.ramp import BatchRamp
from livectr.trainer.run import train
from livectr.trainer.stream.batcher import Batcher, Times
from livectr.trainer.stream.cut import cut
from livectr.trainer.stream.header import Flags
from tests.tiers import examples
from tests.trainer.ad_logs import ad_pipeline, write_kafka
from tests.trainer.scripted_batches import batches_of, logs
from tests.trainer.scripted_source import Batch, Log, ScriptedSource, is_final


@examples(200)
@given(logs(), st.integers(1, 9), st.sampled_from([None, 1, 7, 20]), st.integers(1, 4), st.integers(0, 99))
def test_batches_depend_on_the_logs_alone(
    log: Log, batch_size: int, interval_ms: int | None, world: int, seed: int
) -> None:
    want = batches_of(log, world=1, seed=0, batch_size=batch_size, interval_ms=interval_ms)
    assert batches_of(log, world=world, seed=seed, batch_size=batch_size, interval_ms=interval_ms) == want


@examples(100)
@given(logs(), st.integers(1, 9), st.sampled_from([None, 1, 7, 20]))
def test_batches_are_the_global_sequence_cut_in_order(
    log: Log, batch_size: int, interval_ms: int | None
) -> None:
    batches = batches_of(log, world=2, seed=3, batch_size=batch_size, interval_ms=interval_ms)
    everything = sorted((o, p, i) for p, orders in log.items() for i, o in enumerate(orders))
    assert [example for batch in batches for example in batch] == everything
    for batch in batches:
        assert len(batch) <= batch_size
        if interval_ms is not None:
            assert len({order // interval_ms for order, _, _ in batch}) == 1
    if interval_ms is None:
        assert all(len(batch) == batch_size for batch in batches[:-1])


@examples(200)
@given(logs(), st.integers(1, 9), st.sampled_from([None, 7]), st.integers(1, 4), st.integers(0, 99))
def test_finals_take_no_examples_place(
    log: Log, batch_size: int, interval_ms: int | None, world: int, seed: int
) -> None:
    """A batch is the shortest piece of the sequence with enough examples, or as many finals."""
    options = dict(batch_size=batch_size, interval_ms=interval_ms, finals=True)
    batches = batches_of(log, world=world, seed=seed, **options)  # type: ignore[arg-type]
    want: list[Batch] = [[]]
    for example in sorted((o, p, i) for p, orders in log.items() for i, o in enumerate(orders)):
        held = want[-1]
        rides = sum(is_final(*row) for row in held)
        full = batch_size in (rides, len(held) - rides)
        if held and interval_ms is not None:
            full |= held[0][0] // interval_ms != example[0] // interval_ms
        want += [[]] if full else []
        want[-1].append(example)
    assert batches == [batch for batch in want if batch]


def test_the_batcher_counts_examples_without_finals() -> None:
    log = {p: sorted(random.Random(p).choices(range(50), k=30)) for p in range(4)}
    source = ScriptedSource(log, 1)
    batcher = Batcher(source, Control(), ramp=BatchRamp(8), finals=True, times=Times(poll_s=0))
    batches = []
    while not (round_ := batcher.round(Flags())).ended:
        if round_.cut is not None:
            rows = source.pop(int(round_.cut.counts[0]))
            batches.append([rows[i] for i in round_.cut.sequence])
    options = dict(world=1, seed=0, batch_size=8, interval_ms=None, finals=True)
    assert batches == batches_of(log, **options)  # type: ignore[arg-type]
    assert batcher.seen == sum(not is_final(*row) for batch in batches for row in batch)


def test_an_example_at_the_frontier_is_not_settled() -> None:
    """Another example of the same order may still come from a lower partition."""
    requested = dict(ended=False, batch_size=2, interval_ms=None)
    offers, parts = [np.array([4, 5])], [np.array([1, 1])]
    assert cut(offers, parts, frontier=5, **requested) is None  # type: ignore[arg-type]
    found = cut(offers, parts, frontier=6, **requested)  # type: ignore[arg-type]
    assert found is not None and found.counts.tolist() == [2]


def test_a_complete_tick_is_cut_before_its_batch_is_full() -> None:
    requested = dict(ended=False, batch_size=9, interval_ms=10)
    offers, parts = [np.array([11, 12]), np.array([13])], [np.array([0, 0]), np.array([1])]
    assert cut(offers, parts, frontier=19, **requested) is None  # type: ignore[arg-type]
    found = cut(offers, parts, frontier=20, **requested)  # type: ignore[arg-type]
    assert found is not None and found.counts.tolist() == [2, 1]


def test_a_batch_waits_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, from its first example that is settled; a full batch never waits."""
    clock = [100.0]
    monkeypatch.setattr("livectr.trainer.stream.batcher.time.monotonic", lambda: clock[0])
    source = ScriptedSource({0: [1, 2, 3, 50]}, 1)
    source.ready, source.waiting[0] = source.waiting[0][:3], source.waiting[0][3:]
    monkeypatch.setattr(source, "poll", lambda max_wait_s, rows: False)
    batcher = Batcher(source, Control(), ramp=BatchRamp(8), times=Times(longest_s=1.0, poll_s=0))
    for clock[0] in (100.0, 100.4, 100.99):
        assert batcher.round(Flags()).cut is None
    clock[0] = 101.0
    found = batcher.round(Flags()).cut
    assert found is not None and source.pop(int(found.counts[0])) == [(1, 0, 0), (2, 0, 1), (3, 0, 2)]
    clock[0] = 200.0
    source.ready = [(5, 0, 3)]  # it waits from now on
    assert batcher.round(Flags()).cut is None
    source.ready += [(6, 0, n) for n in range(4, 11)]
    found = batcher.round(Flags()).cut
    assert found is not None and found.counts.tolist() == [8]
    assert batcher.seen == 11


def test_the_clock_cuts_nothing_while_the_logs_hold_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that reads its backlog slowly has the batches that it would have at full speed."""
    clock = [100.0]
    monkeypatch.setattr("livectr.trainer.stream.batcher.time.monotonic", lambda: clock[0])
    source = ScriptedSource({0: [1, 2, 3, 50]}, 1)
    source.ready, source.waiting[0] = source.waiting[0][:3], source.waiting[0][3:]
    monkeypatch.setattr(source, "poll", lambda max_wait_s, rows: False)
    batcher = Batcher(source, Control(), ramp=BatchRamp(8), times=Times(longest_s=1.0, poll_s=0))
    for clock[0] in (100.0, 101.0, 160.0):
        assert batcher.round(Flags(behind=9, unread=8)).cut is None
    found = batcher.round(Flags(behind=9, unread=7)).cut
    assert found is not None and found.counts.tolist() == [3]


@pytest.mark.parametrize(
    ("more", "wait_s"),
    [
        ({}, 1.0),
        ({"batch_wait_s": 0}, None),
        ({"batch_wait_s": 3}, 3.0),
        ({"until_end": True}, None),
        ({"until_idle_s": 5}, None),
        ({"source": "file:x"}, None),
        ({"source": "file:x", "batch_wait_s": 2.5}, 2.5),
    ],
)
def test_a_live_log_of_kafka_waits_a_second(more: dict[str, Any], wait_s: float | None) -> None:
    assert TrainOptions(**{"source": "kafka://h:1", **more}).longest_wait_s == wait_s


def test_a_quiet_live_stream_is_learned(kafka_url: str, topic_name: Callable[[str], str]) -> None:
    """400 impressions come, and nothing after them; a batch may hold 4,096."""
    prefix = topic_name("quiet")
    write_kafka(kafka_url, prefix, 400)
    report = train(ad_pipeline(prefix), TrainOptions(kafka_url, batch_ramp=0, max_steps=1))
    assert 100 < report.examples_trained < 400  # those whose label window has passed


@pytest.mark.parametrize("interval_ms", [None, 10])
def test_the_batcher_gives_the_same_batches_and_stops_polling_when_it_has_enough(
    interval_ms: int | None,
) -> None:
    log = {p: sorted(random.Random(p).choices(range(50), k=30)) for p in range(4)}
    source = ScriptedSource(log, 1)
    batcher = Batcher(source, Control(), ramp=BatchRamp(8), times=Times(interval_ms, poll_s=0))
    batches, most_ready = [], 0
    while not (round_ := batcher.round(Flags(stop=True, due=2, publish=3))).ended:
        assert round_.flags == (Flags(True, False, 2, 3),)
        most_ready = max(most_ready, len(source.ready))
        if round_.cut is not None:
            rows = source.pop(int(round_.cut.counts[0]))
            batches.append([rows[i] for i in round_.cut.sequence])
    assert batches == batches_of(log, world=1, seed=0, batch_size=8, interval_ms=interval_ms)
    assert most_ready < 60
