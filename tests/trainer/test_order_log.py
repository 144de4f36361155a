"""Order log: a batcher that follows it cuts the same batches, and a checkpoint keeps its lines."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.chunks import Position
from livectr.ingest.join.decisions import Decision
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint import order_parts
from livectr.trainer.checkpoint.manifest import Manifest
from livectr.trainer.checkpoint.order_parts import ORDER, OrderParts, unpacked
from livectr.trainer.checkpoint.writer import File, Writer
from livectr.trainer.comm.control import Control
from livectr.trainer.ramp import SLOPE, BatchRamp
from livectr.trainer.stream.batcher import Batcher, Times
from livectr.trainer.stream.cut import NEVER
from livectr.trainer.stream.header import Flags
from livectr.trainer.stream.order_log import Begun, ChosenExchange, OrderLog, lines
from tests.tiers import examples
from tests.trainer.scripted_batches import logs
from tests.trainer.scripted_source import Batch, Log, ScriptedSource

MADE = Decision((Position(3, 1), Position(0, 0)), (True, False), 17, False)


class Idle(ScriptedSource):
    """Source whose partitions count as idle now and then: the others do not wait for them."""

    @property
    def frontier(self) -> int:
        waits = [left[0][0] for left in self.waiting.values() if left and self.rng.random() < 0.6]
        return min(waits, default=NEVER)

    @property
    def strict_frontier(self) -> int:
        return super().frontier


def batches_of(source: ScriptedSource, batcher: Batcher) -> list[Batch]:
    found = []
    while not (round_ := batcher.round(Flags())).ended:
        if (cut := round_.cut) is not None:
            rows = source.pop(int(cut.counts[0]), cut.decided)
            found.append([rows[i] for i in cut.sequence])
    return found


@examples(200)
@given(
    logs(), st.integers(1, 9), st.sampled_from([None, 7]), st.booleans(), st.integers(0, 99), st.booleans()
)
def test_a_batcher_that_follows_cuts_the_same_batches(
    log: Log, size: int, interval_ms: int | None, finals: bool, seed: int, overdue: bool
) -> None:
    """The first is overdue at any time, and does not wait for partitions that are idle."""
    live, shape = Idle(log, seed), {"finals": finals, "ramp": BatchRamp(size)}
    waits = 0.0 if overdue else None
    times = Times(interval_ms, waits, poll_s=0)
    first = Batcher(live, Control(), times=times, recorded=True, **shape)  # type: ignore[arg-type]
    want = batches_of(live, first)
    began, noted = first.take()
    assert began is not None and first.take() == (None, {})
    text = lines(noted, [], began)
    order = OrderLog.parse([b'["from",0]\n' + text], len(want), "x")
    source = ScriptedSource(log, seed + 1, most=5)
    times = Times(interval_ms, None, poll_s=0)
    again = Batcher(source, Control(), times=times, recorded=True, follows=order, **shape)  # type: ignore[arg-type]
    assert batches_of(source, again) == want
    assert again.take()[1] == noted


@examples(200)
@given(logs(), st.integers(1, 9), st.sampled_from([None, 7]), st.integers(0, 99), st.integers(0, 20))
def test_a_cut_that_was_never_learned_is_not_followed(
    log: Log, size: int, interval_ms: int | None, seed: int, kept: int
) -> None:
    """A checkpoint is written between a cut and its step; its process is killed, and the next cuts again."""
    source, ramp = Idle(log, seed), BatchRamp(size)
    times = Times(interval_ms, 0.0, poll_s=0)
    killed = Batcher(source, Control(), ramp=ramp, times=times, recorded=True)
    want: list[Batch] = []
    while not (round_ := killed.round(Flags())).ended:
        if (cut := round_.cut) is not None:
            if len(want) == kept:
                break
            want.append(source.pop(int(cut.counts[0]), cut.decided))
    noted, began = killed.take()[1], {"batch_size": size}
    text = lines(noted, [], Begun(0, began))
    source.rng = random.Random(seed + 1)
    seen = sum(map(len, want))
    next_ = Batcher(source, Control(), ramp=ramp, times=times, recorded=True, steps=len(want), seen=seen)
    text += lines({}, [], Begun(len(want), began))  # its first checkpoint
    want += batches_of(source, next_)
    text += lines(next_.take()[1], [])
    order = OrderLog.parse([b'["from",0]\n' + text], len(want), "x")
    follower = ScriptedSource(log, seed + 2, most=5)
    times, follows = Times(interval_ms, None, poll_s=0), replace(order, settings=())
    again = Batcher(follower, Control(), ramp=ramp, times=times, follows=follows)
    assert batches_of(follower, again) == want


def test_batches_that_follow_from_the_log_are_not_noted() -> None:
    log = {p: sorted(random.Random(p).choices(range(50), k=30)) for p in range(4)}
    source = ScriptedSource(log, 1)
    batcher = Batcher(source, Control(), ramp=BatchRamp(8), times=Times(poll_s=0), recorded=True)
    batches = batches_of(source, batcher)
    noted = batcher.take()[1]
    assert len(batches) == 15
    assert [len(batch) for batch in batches] == [8] * 15 and noted == {}


def test_a_log_that_ends_early_is_learned_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """A part of the log was lost: the batches that it cannot form are left out, and the rest is cut again."""
    order = OrderLog(9, {1: {0: 1, 1: 9}}, {})
    source = ScriptedSource({0: [1, 2, 3, 4], 1: [5]}, 1)
    batcher = Batcher(source, Control(), ramp=BatchRamp(2), times=Times(poll_s=0), follows=order)
    batches = batches_of(source, batcher)
    assert [len(batch) for batch in batches] == [2, 2, 1] and source.released
    assert "the order log is not followed to its end: the log ends at step 1" in caplog.text


def test_a_log_without_a_partition_of_the_order_log(caplog: pytest.LogCaptureFixture) -> None:
    order = OrderLog(9, {0: {7: 2}}, {})
    source = ScriptedSource({0: [1, 2, 3, 4]}, 1)
    batcher = Batcher(source, Control(), ramp=BatchRamp(2), times=Times(poll_s=0), follows=order)
    assert [len(batch) for batch in batches_of(source, batcher)] == [2, 2]
    assert "examples of partitions that the logs lack" in caplog.text


def test_other_settings_or_topics_are_refused() -> None:
    settings_ = dict(batch_size=8, batch_ramp=0, batch_interval_ms=None)
    order = OrderLog(9, {}, {0: [MADE]}, [settings_, {**settings_, "batch_size": 9}], "there")
    with pytest.raises(ConfigError, match=r"there had other settings \(batch_size 9 there, 8 here"):
        order.check(settings_, 2)
    with pytest.raises(ConfigError, match="another number of topics"):
        OrderLog(9, {}, {0: [MADE]}, [settings_]).check(settings_, 1)


@pytest.mark.parametrize(("slope", "first", "ramp"), [(SLOPE, 8, 8), (0, 4, 0), (512, 4, None)])
def test_the_ramp_of_an_older_program_is_known(slope: int, first: int, ramp: int | None) -> None:
    given = {"batch_size": 64, "batch_ramp": slope, "batch_min": first, "batch_interval_ms": None}
    order = OrderLog.parse([b'["from",0]\n' + json.dumps(["batches", 0, given]).encode()], 9, "x")
    assert order.settings == [{"batch_size": 64, "batch_ramp": ramp, "batch_interval_ms": None}]


def test_the_exchange_of_a_step_is_that_of_so_many_ranks() -> None:
    """Two ranks, then three, then two again: one that began with each number of ranks resumes as they did."""
    text = lines({}, [], None, ChosenExchange(0, 2, ["rows"])) + lines({3: {0: 1}}, [])
    text += lines({}, [], None, ChosenExchange(5, 3, ["vectors"])) + lines(
        {}, [], None, ChosenExchange(9, 2, ["partial"])
    )
    order = OrderLog.parse([b'["from",0]\n', text], 12, "x")
    found = [order.exchange(step, ranks) for step, ranks in ((0, 2), (4, 2), (5, 3), (7, 3), (9, 2), (12, 2))]
    assert found == [["rows"], ["rows"], ["vectors"], ["vectors"], ["partial"], ["partial"]]
    assert order.exchange(4, 3) is None and order.exchange(12, 1) is None
    assert OrderLog.parse([b'["from",0]\n'], 12, "x").exchange(12, 2) is None, "of an older program"


def test_lines_are_read_as_they_were_written() -> None:
    text = lines({4: {0: 3, 11: 2}}, [{"1": [(0, MADE.as_json())]}, {"0": [(0, MADE.as_json())]}])
    order = OrderLog.parse([b'["from",0]\n', text], 7, "x")
    assert order == OrderLog(7, {4: {0: 3, 11: 2}}, {0: [MADE], 1: [MADE]}, [], "x")


def manifest_of(files: list[File], step: int) -> Manifest:
    entries = tuple(file.entry for file in files)
    return Manifest(1, 1, step, 0, 0, {}, None, entries, (), {}, {}, {}, "")


def test_a_checkpoint_names_few_parts_and_all_lines(tmp_path: Path) -> None:
    """Also when processes resume from each other; each generation names what is kept."""
    want: dict[int, dict[int, int]] = {}
    files: list[File] = []
    step = 0
    for process in range(3):
        writer = Writer(tmp_path)
        parts = OrderParts(writer)
        if process:
            parts.resume(manifest_of(files, step), lambda entry: (tmp_path / entry.path).read_bytes())
        for generation in range(40):
            step += 1
            new = {step: {0: step, 1: generation}} if generation % 3 else {}
            want |= new
            folder = tmp_path / f"gen-{process}-{generation}"
            folder.mkdir()
            files = parts.write(folder, step, lines(new, []))
        writer.wait()
        writer.close()
        assert len(files) < 9
    entries = [file.entry for file in files]
    assert {entry.kind for entry in entries} == {ORDER}
    order = OrderLog.parse([unpacked((tmp_path / entry.path).read_bytes()) for entry in entries], step, "x")
    assert order.cuts == want


def test_a_full_order_log_begins_later_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(order_parts, "PART_BYTES", 200)
    monkeypatch.setattr(order_parts, "MOST_BYTES", 1000)
    writer = Writer(tmp_path)
    parts = OrderParts(writer)
    for step in range(1, 999):
        folder = tmp_path / f"gen-{step}"
        folder.mkdir()
        files = parts.write(folder, step, lines({step: {0: 1}}, []))
    writer.wait()
    writer.close()
    assert sum(file.entry.bytes for file in files) <= 1000 and "the order log is full" in caplog.text
    with pytest.raises(ConfigError, match=r"the order log of x begins at step \d+"):
        OrderLog.parse([unpacked((tmp_path / file.entry.path).read_bytes()) for file in files], 999, "x")


def test_a_checkpoint_of_an_older_program_knows_no_earlier_decisions(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    parts = OrderParts(writer)
    parts.resume(manifest_of([], 5), lambda entry: b"")
    (tmp_path / "gen").mkdir()
    files = parts.write(tmp_path / "gen", 6, b"")
    writer.wait()
    writer.close()
    with pytest.raises(ConfigError, match="begins at step 5"):
        OrderLog.parse([unpacked((tmp_path / file.entry.path).read_bytes()) for file in files], 6, "x")


def test_counts_of_partitions_are_exact() -> None:
    source = ScriptedSource({0: [1, 2], 3: [1, 5], 8: [4]}, 1)
    batcher = Batcher(source, Control(), ramp=BatchRamp(4), times=Times(poll_s=0))
    cuts = (batcher.round(Flags()).cut for _ in itertools.repeat(None))
    cut = next(each for each in cuts if each is not None)
    assert cut.of_partition == {0: 2, 3: 1, 8: 1} and np.array_equal(cut.partition, [0, 3, 0, 8])
