"""Publish gate: pure policy, in real runs, after a restart, and by an operator's word."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from livectr.ingest.language.promotion import Promotion
from livectr.store.layout import Keyspace, decode_rows
from livectr.store.manifest import VersionManifest
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.options import TrainOptions
from livectr.trainer.publish.telemetry import PUBLISH_HELD
from livectr.trainer.quality.gate import PANES, GateRule, PublishGate
from livectr.trainer.quality.metrics import auc, calibration
from livectr.trainer.quality.predictions import Records, read_predictions
from livectr.trainer.run import train
from tests.metrics_page import metric_value
from tests.tiers import few
from tests.trainer.planted_log import PARTITIONS, contest_pipeline, write_log
from tests.waiting import left_s

EXAMPLES, BAD = 9_000, range(4_500, 6_000)
"""Examples of the log; those whose labels are turned round."""
RULE = GateRule(auc=0.05, window=1_000)
"""Rule of the real runs. LAX is for drawn scores, whose AUC is about .75 or .5."""
LAX = GateRule(auc=0.12, window=1_000)
RNG = np.random.default_rng()


@pytest.fixture(autouse=True)
def redrawn() -> None:
    """Each test draws the same scores, whichever tests ran before."""
    global RNG
    RNG = np.random.default_rng(7)


def scores(n: int, strength: float, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits f32[n] that explain the labels with a strength, and are shifted; labels f32[n]."""
    logit = RNG.normal(-1.0, 1.0, n)
    label = RNG.random(n) < 1 / (1 + np.exp(-logit * strength - (1 - strength) * -1.0))
    return (logit + shift).astype(np.float32), label.astype(np.float32)


def held(gate: PublishGate) -> list[str]:
    """Reasons for which versions are held."""
    return list(gate.held)


def test_a_window_has_the_measures_of_its_examples() -> None:
    gate = PublishGate(LAX)
    logit, label = scores(1_700, 1.0)
    gate.add(logit, label)
    newest = slice(700, None)
    assert gate.measures.auc == pytest.approx(auc(logit[newest], label[newest]), abs=1e-3)
    assert gate.measures.calibration == pytest.approx(calibration(logit[newest], label[newest]), rel=1e-6)
    assert gate.measured() == {
        "window": 1_000,
        "auc": round(gate.measures.auc, 6),
        "calibration": round(gate.measures.calibration, 6),
    }


def test_versions_are_held_while_auc_is_low_and_a_bad_time_is_not_usual() -> None:
    gate = PublishGate(LAX)
    gate.add(*scores(4_000, 1.0))
    usual = gate.usual
    assert held(gate) == [] and usual > 0.7
    gate.add(*scores(20_000, 0.0))
    assert held(gate) == ["auc"] and abs(gate.usual - usual) < 0.02, "long after, it is still the same"
    assert metric_value(PUBLISH_HELD, reason="auc") == 1
    gate.add(*scores(1_000, 1.0))
    assert held(gate) == [] and metric_value(PUBLISH_HELD, reason="auc") == 0


@pytest.mark.parametrize("shift", [1.5, -1.5])
def test_versions_are_held_while_probabilities_are_wrong(shift: float) -> None:
    gate = PublishGate(GateRule(calibration=0.5, window=1_000))
    gate.add(*scores(2_000, 1.0))
    assert held(gate) == []
    gate.add(*scores(1_000, 1.0, shift))
    assert held(gate) == ["calibration"]
    gate.accept()
    assert held(gate) == []
    gate.add(*scores(1_000, 1.0, shift))
    assert held(gate) == [], "it was accepted"
    gate.add(*scores(1_000, 1.0))
    gate.add(*scores(1_000, 1.0, shift))
    assert held(gate) == ["calibration"], "it was right in between"


def test_what_few_clicks_show_is_no_fall() -> None:
    """The AUC of ten clicks moves by more than the bound."""
    gate = PublishGate(GateRule(auc=0.01, window=1_000))
    rare = [(RNG.normal(size=1_000).astype(np.float32), RNG.permutation(1_000) < 10) for _ in range(30)]
    for logit, label in rare:
        gate.add(logit, label.astype(np.float32))
        assert held(gate) == []


def test_scores_that_are_no_numbers_and_windows_of_one_class_are_judged() -> None:
    gate = PublishGate(GateRule(auc=0.12, calibration=0.5, window=1_000))
    gate.add(*scores(2_000, 1.0))
    logit, label = scores(1_000, 1.0)
    gate.add(np.full_like(logit, np.nan), label)
    assert held(gate) == ["auc", "calibration"], "a model that has diverged"
    gate.add(np.full_like(logit, np.nan), np.zeros_like(label))
    assert held(gate) == ["auc", "calibration"] and np.isnan(gate.measures.auc), (
        "nothing shows that it is well"
    )


def test_a_click_topic_that_fails_is_held_although_the_model_follows() -> None:
    gate = PublishGate(GateRule(calibration=0.5, clicks=1.0, window=1_000))
    gate.add(*scores(4_000, 1.0))
    usual = gate.usual_rate
    for shift in np.linspace(0.0, -8.0, 40):  # the model learns that nobody clicks
        logit, label = scores(100, 1.0, shift)
        gate.add(logit, np.where(RNG.random(100) < np.exp(shift), label, 0))
    for _ in range(5):
        gate.add(scores(1_000, 1.0, -8.0)[0], np.zeros(1_000))
    assert held(gate) == ["clicks"] and gate.usual_rate == pytest.approx(usual, rel=0.2)
    gate.add(*scores(1_000, 1.0))
    assert held(gate) == []


def test_without_bounds_nothing_is_held() -> None:
    gate = PublishGate(GateRule(window=1_000))
    gate.add(*scores(2_000, 1.0))
    gate.add(*scores(2_000, 0.0, 3.0))
    assert held(gate) == []


def test_any_batches_and_restarts_decide_alike() -> None:
    parts = [scores(1_500, 1.0), scores(1_500, 0.0), scores(2_000, 1.0)]
    logit, label = (np.concatenate(column) for column in zip(*parts, strict=True))
    whole, cut = PublishGate(LAX), PublishGate(LAX)
    seen = []
    for one in range(len(logit)):
        whole.add(logit[one : one + 1], label[one : one + 1])
        seen.append(held(whole))
    assert ["auc"] in seen and seen[-1] == []
    start = 0
    while start < len(logit):
        stop = min(start + int(RNG.integers(1, 300)), len(logit))
        cut.add(logit[start:stop], label[start:stop])
        assert held(cut) == seen[stop - 1]
        cut, before = PublishGate(LAX), cut
        cut.load(before.state())
        assert held(cut) == held(before)
        start = stop
    ours, theirs = whole.state(), cut.state()
    assert all((ours[name] == theirs[name]).all() for name in ("numbers", "counts"))
    np.testing.assert_allclose(ours["figures"], theirs["figures"], rtol=1e-12)


def test_another_window_keeps_what_is_usual_and_another_bound_is_obeyed_at_once() -> None:
    gate = PublishGate(LAX)
    gate.add(*scores(4_000, 1.0))
    gate.add(*scores(1_000, 0.0))
    assert held(gate) == ["auc"]
    other, off = PublishGate(GateRule(auc=0.12, window=500)), PublishGate(GateRule(window=1_000))
    other.load(gate.state())
    off.load(gate.state())
    assert (other.usual, held(other), held(off)) == (gate.usual, [], [])
    other.add(*scores(500, 0.0))
    assert held(other) == ["auc"]


def turned(source: str) -> None:
    """Turn the labels of the log's BAD examples round."""
    for partition in range(PARTITIONS):
        path = Path(source.removeprefix("file:")) / "planted" / f"{partition:05d}.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for place, row in enumerate(rows):
            if place * PARTITIONS + partition in BAD:
                row["label"] = 1.0 - row["label"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def held_after(predictions: Records) -> list[list[str]]:
    """Decision of the gate after each number of examples."""
    gate, decisions = PublishGate(RULE), list[list[str]]([[]])
    for record in np.split(predictions, len(predictions)):
        gate.add(record["rank"], record["label"])
        decisions.append(held(gate))
    return decisions


class Watcher(threading.Thread):
    """Keeps every manifest that is flipped in a namespace."""

    def __init__(self, url: str, namespace: str) -> None:
        super().__init__()
        self.manifests: list[VersionManifest] = []
        self._space, self._client = Keyspace(namespace), redis.Redis.from_url(url)
        self._listener = self._client.pubsub()  # type: ignore[no-untyped-call]
        self._listener.subscribe(self._space.versions)
        assert self._listener.get_message(timeout=left_s())
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._ended.is_set():
            if self._listener.get_message(ignore_subscribe_messages=True, timeout=0.05) is not None:
                self.manifests.append(VersionManifest.from_json(self._client.get(self._space.manifest)))  # type: ignore[arg-type]

    def close(self) -> list[VersionManifest]:
        self._ended.set()
        self.join()
        return self.manifests


@pytest.mark.parametrize("restarts", few([False, True], True))
def test_a_bad_time_of_a_log_is_not_published_and_nothing_of_it_is_lost(
    tmp_path: Path, redis_url: str, client: redis.Redis, restarts: bool
) -> None:
    """The log alone decides which versions are held; the rows after the hold are the trainer's."""
    source = write_log(tmp_path / "logs", EXAMPLES)
    turned(source)
    root, namespace = tmp_path / "checkpoint", f"gate-{restarts}"
    options: dict[str, Any] = dict(
        until_end=True, batch_size=64, batch_ramp=0, threads=1, min_examples=0, publish=redis_url,
        namespace=namespace, checkpoint=str(root), publish_interval_s=0.02, publish_gate_auc=RULE.auc,
        publish_gate_window=RULE.window,
    )  # fmt: skip
    pipeline = contest_pipeline(challengers={}, promotion=Promotion())
    watcher = Watcher(redis_url, namespace)
    if restarts:
        for steps in (60, 85, 95):  # before, while, while
            train(pipeline, TrainOptions(source, **options, max_steps=steps))
    train(pipeline, TrainOptions(source, **options))
    manifests = watcher.close()

    decisions = held_after(read_predictions(root / "predictions"))
    bad = [n for n, reasons in enumerate(decisions) if reasons]
    assert bad and decisions[-1] == [] and len(decisions) == EXAMPLES + 1
    published = [manifest.examples for manifest in manifests]
    assert not [n for n in published if decisions[n]], "none of a bad time"
    assert min(published) < bad[0] and published[-1] == EXAMPLES
    last = manifests[-1]
    manifest = newest_manifest(root)
    assert manifest is not None
    state, replay = Restored(root, manifest).state(PublishGate.kind), PublishGate(RULE)
    replay.load(state)
    assert held(replay) == [] and manifest.quality["window"] == RULE.window
    assert state["numbers"].tolist() == [RULE.window, EXAMPLES % (RULE.window // PANES), PANES, 0]
    tables: dict[str, Rows] = {name: Rows() for name in last.tables}
    Restored(root, manifest).load_tables(tables)  # type: ignore[arg-type]
    for name, table in tables.items():
        keys = np.array(list(table.rows))
        slots = client.mget(Keyspace(namespace).rows(last.row_set, name, keys))
        rows, status = decode_rows(slots, last.version, last.dim)  # type: ignore[arg-type]
        assert not status.any() and len(keys) == last.tables[name]
        assert (rows == np.array([table.rows[k][: last.dim] for k in keys.tolist()])).all()


class Rows:
    """Table that keeps the rows of a checkpoint."""

    tracks = False

    def __init__(self) -> None:
        self.rows: dict[int, np.ndarray] = {}

    def assign(self, keys: np.ndarray, rows: np.ndarray) -> None:
        self.rows |= dict(zip(keys.tolist(), rows, strict=True))

    def erase(self, keys: np.ndarray) -> None:
        for key in keys.tolist():
            self.rows.pop(key, None)
