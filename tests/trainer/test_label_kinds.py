"""Labels of several kinds, each learned when its own window has passed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import livectr
from livectr.analysis.score_log import Scoring, score_log
from livectr.check.rules import DOUBTFUL, WRONG, findings
from livectr.check.sample import read_sample
from livectr.cli import main
from livectr.ingest.join import arrivals
from livectr.ingest.language.delays import Delayed
from livectr.ingest.language.labels import labels_of
from livectr.ingest.language.streams import Label, Stream, label_join
from livectr.ingest.language.targets import Target
from livectr.ingest.materialized.features import MaterializedFeatures
from livectr.models import LR, DeepFM, ModelConfig
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.checkpoint.restored import Restored
from livectr.trainer.quality.metrics import calibration
from livectr.trainer.quality.predictions import UNKNOWN, quality_of, read_predictions, read_records
from livectr.trainer.run import TrainOptions, train
from livectr.trainer.stream.batcher import Batcher, Round
from livectr.trainer.stream.header import Flags
from tests.ingest.counted_log import read
from tests.ranks import Processes
from tests.trainer.kills import OPTIONS, kill_group, kill_one_rank, kill_somewhere
from tests.trainer.label_kinds_once import WINDOWS, placed_shop, shop, shop_log, write_log, write_shop
from tests.trainer.processes import finish
from tests.trainer.run_result import Result, assert_same

ROWS = 6_000
ROLES = {"carts": "rank.cart.label", "clicks": "label", "orders": "rank.order.label"}


def parts_of(root: Path, kind: str) -> dict[str, Any]:
    """State of a part in the newest generation."""
    manifest = newest_manifest(root)
    assert manifest is not None
    return Restored(root, manifest).state(kind)


@pytest.mark.parametrize("model", [LR(), DeepFM(dim=4, hidden=(8,))])
def test_each_head_learns_its_own_label_of_every_impression(model: ModelConfig) -> None:
    log = shop_log(ROWS)
    run = livectr.train(shop(model), log, seed=1, threads=1, batch_size=64)
    assert run.report.examples_trained == run.report.measured_examples == ROWS
    assert run.report.stream["labels"]["order"]["matched"] == len(log["orders"])
    found = read_predictions(Path(run.checkpoint) / "predictions")
    assert len(found) == ROWS
    place = np.array([row["place"] for row in log["shown"]])[found["instance"]]
    for topic, column in ROLES.items():
        came = np.zeros(ROWS, np.uint8)
        came[[row["id"] for row in log[topic]]] = 1
        assert (found[column] == came[found["instance"]]).all(), topic
    late = np.arange(ROWS) > ROWS // 2
    for role, at in (("rank.cart", 3), ("rank.cart", 2), ("rank.order", 3), ("rank.order", 2)):
        held = found[late & (place == at)]
        assert calibration(held[role], held[role + ".label"]) == pytest.approx(1, abs=0.3), (role, at)
    rows = [{"user": 1, "ad": 0, "place": place} for place in (0, 3)]
    carts = livectr.score(shop(model), run.checkpoint, rows, target="cart")
    assert carts[1] > 3 * carts[0]
    order = run.report.targets["order"]
    assert order["examples"] == ROWS and order["calibration"] == pytest.approx(1, abs=0.1)
    assert order["auc"] == pytest.approx(quality_of(found, "rank.order").auc, abs=1e-9)
    assert order["auc"] > quality_of(found, "rank").auc + 0.05


def test_a_label_is_scored_before_it_is_learned_and_no_sooner_than_known() -> None:
    """The records of an impression: a cart's, then the click's, then an order's."""
    run = livectr.train(shop(), shop_log(1_000), seed=1, threads=1, batch_size=16)
    records = read_records(Path(run.checkpoint) / "predictions")
    assert len(records) == 3_000
    ends = {}
    for name, column in (("cart", "rank.cart.label"), ("click", "label"), ("order", "rank.order.label")):
        known = records[records[column] != UNKNOWN]
        assert len(known) == 1_000, name
        ends[name] = known["time_ms"] + WINDOWS[name]
        # Records are in the order in which labels are known, but for the rows of a batch.
        assert (np.diff(np.maximum.accumulate(ends[name]) - ends[name]) <= 16 * 400).all(), name
    of = {
        column: {i: n for n, i in enumerate(records["instance"]) if records[column][n] != UNKNOWN}
        for column in ROLES.values()
    }
    assert all(of["rank.cart.label"][i] < of["label"][i] < of["rank.order.label"][i] for i in of["label"])


@pytest.mark.parametrize("late", ["wait", "fnw"])
def test_an_amount_is_that_of_the_first_event_in_the_window(tmp_path: Path, late: Delayed) -> None:
    """Carts come with clicks, in one row; an event again, with another amount, changes nothing."""
    whole = shop(late=late)
    cart, order = whole.log.more_labels
    cart = replace(cart, window=WINDOWS["click"])
    targets = [
        Target("cart", value=cart.stream.amount, values="ziln"),
        Target("order", value=order.stream.amount),
    ]
    pipeline = replace(whole, log=replace(whole.log, more_labels=(cart, order)), targets=targets)
    log = shop_log(1_500)
    for topic in ("carts", "orders"):
        again = [row | dict(ts=row["ts"] + 40, amount=row["amount"] + 90) for row in log[topic][::3]]
        log[topic] = sorted(log[topic] + again, key=lambda row: row["ts"])
    shown = {row["id"]: row["ts"] for row in log["shown"]}
    found = {topic: dict[int, set[float | None]]() for topic in ("carts", "orders")}
    batches = read(pipeline.learned, write_log(tmp_path, log), [7, 64])
    for batch in batches:
        assert batch.words is not None
        labels = labels_of(batch.words, 2)
        for bit, topic in enumerate(found):
            values = batch.columns.column(f"{topic}.amount").to_pylist()
            assert all(
                (value is not None) == (came == 1) for value, came in zip(values, labels[:, bit], strict=True)
            )
            for id, value in zip(batch.instance.tolist(), values, strict=True):
                found[topic].setdefault(id, set()).add(value)
    for topic, window in (("carts", WINDOWS["click"]), ("orders", WINDOWS["order"])):
        want = dict[int, float]()
        for row in log[topic]:
            if row["ts"] <= shown[row["id"]] + window:
                want.setdefault(row["id"], row["amount"])
        assert len(want) > 50
        assert {id: values - {None} for id, values in found[topic].items() if values - {None}} == {
            id: {value} for id, value in want.items()
        }


def test_ranks_that_are_killed_end_as_one_that_was_not(tmp_path: Path) -> None:
    source = write_shop(tmp_path / "logs", 2_500)

    def begin(world: int, name: str) -> Processes:
        options = {**OPTIONS, "source": source, "checkpoint": str(tmp_path / name)}
        return Processes(world, "tests.trainer.label_kinds_once", [json.dumps(options)])

    finish(begin(1, "unbroken"))
    for world, name, kill in ((1, "one", kill_group), (2, "two", kill_one_rank)):
        kill_somewhere(begin(world, name), tmp_path / name, random.Random(), kill)
        finish(begin(world, name))
    unbroken, one, two = (Result(tmp_path / name, placed_shop()) for name in ("unbroken", "one", "two"))
    assert_same(one, unbroken, statistics=0, items=set())
    assert (tmp_path / "one" / "predictions").read_bytes() == (
        tmp_path / "unbroken" / "predictions"
    ).read_bytes()
    assert two.step == unbroken.step
    for name in (*ROLES.values(), "instance", "time_ms"):
        assert (two.predictions[name] == unbroken.predictions[name]).all(), name
    counters = [parts_of(tmp_path / name, "counters") for name in ("unbroken", "one", "two")]
    assert len(counters[0]) == 5 and all(array.size for array in counters[0].values())
    for name, array in counters[0].items():
        assert all(other[name].tobytes() == array.tobytes() for other in counters), name
    for kind in ("position", "values", "late_labels"):
        whole, same, near = (parts_of(tmp_path / name, kind) for name in ("unbroken", "one", "two"))
        assert whole
        for name, array in whole.items():
            assert same[name].tobytes() == array.tobytes(), name
            np.testing.assert_allclose(near[name], array, rtol=1e-2, atol=1e-2)
            if name.endswith(".sums"):
                examples, weight = array[:2]
                assert examples == weight == len(whole[name.replace(".sums", ".newest")])
    for name in ("rank", "rank.cart", "rank.order"):
        np.testing.assert_allclose(two.predictions[name], unbroken.predictions[name], atol=2e-3)
    (tmp_path / "pipeline.py").write_text(
        "from tests.trainer.label_kinds_once import placed_shop\n\npipeline = placed_shop()\n"
    )
    at = str(tmp_path / "pipeline.py"), tmp_path / "one", source, tmp_path / "scored"
    path = score_log(Scoring(*at, from_start=True))
    assert path is not None
    scored = read_predictions(path)
    for name in ROLES.values():
        assert sorted(scored[["instance", name]].tolist()) == sorted(
            unbroken.predictions[["instance", name]].tolist()
        )
    sample = read_sample(placed_shop(), source, 1_000)
    assert len(sample) == 1_000 and sample.stats.labels["order"]["matched"] > 0


def test_a_live_run_is_replayed_to_the_last_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock lets topics be idle, and ends the run while batches that it let go are cut.

    The end releases rows that come before those of these batches.
    """
    source = write_shop(tmp_path / "logs", 1_000)
    options: dict[str, Any] = dict(threads=1, batch_size=64, batch_ramp=32)
    live, again = tmp_path / "live", tmp_path / "again"
    now_s = 0.0
    ended_at: list[int] = []
    round_of = Batcher.round

    def timed(batcher: Batcher, flags: Flags) -> Round:
        nonlocal now_s
        found = round_of(batcher, flags)
        if found.cut is None and not found.moved:
            now_s += 0.25
        elif found.cut is not None and not found.cut.natural and not ended_at:
            now_s += 1
            ended_at.append(batcher.steps)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(arrivals, "time", SimpleNamespace(monotonic=lambda: now_s))
        patch.setattr(Batcher, "round", timed)
        report = train(
            shop(),
            TrainOptions(source, checkpoint=str(live), until_idle_s=1, idle_partition_s=0.2, **options),
        )
    assert 0 < ended_at[0] < report.steps - 1
    train(shop(), TrainOptions(source, checkpoint=str(again), until_end=True, order_of=str(live), **options))
    assert (again / "predictions").read_bytes() == (live / "predictions").read_bytes()
    assert len(read_predictions(live / "predictions")) == 1_000


def test_events_that_do_not_meet_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = shop_log(4_000)
    log["orders"] = [{**row, "id": row["id"] + 1_000_000} for row in log["orders"]]
    none = pa.table({name: pa.array([], pa.int64()) for name in ("user", "id", "ts")})
    run = livectr.train(shop(), log | {"carts": none}, logs=tmp_path, threads=1, batch_size=64)
    hints = "\n".join(run.report.hints)
    assert "carts has no rows: every label 'cart' is 0" in hints
    assert (
        f"{len(log['orders'])} of {len(log['orders'])} orders (100%) have no row of shown with their id"
        in hints
    )
    sample = read_sample(shop(), f"file:{tmp_path}", 2_000)
    found = {finding.what: finding for finding in findings(shop(), sample)}
    assert found["label cart"].mark == DOUBTFUL and "written to carts?" in found["label cart"].advice
    assert found["label order"].mark == WRONG and "are id the same ids" in found["label order"].advice
    (tmp_path / "pipeline.py").write_text(
        "from tests.trainer.label_kinds_once import shop\n\npipeline = shop()\n"
    )
    assert main(["inspect", "--pipeline", str(tmp_path / "pipeline.py")]) == 0
    assert "order: orders with equal id within 200 s, after a click" in capsys.readouterr().out


def test_what_does_not_go_with_labels_is_refused(tmp_path: Path) -> None:
    whole = shop()
    with pytest.raises(ConfigError, match=r"'cart' has no label: write the column .* labels=.*it has none"):
        replace(whole, log=replace(whole.log, more_labels=()))
    with pytest.raises(ConfigError, match="Label 'cart' of the label join teaches nothing; add Target"):
        replace(whole, targets=[Target("order")])
    with pytest.raises(ConfigError, match="sampling does not go with labels"):
        replace(whole, sampling=0.5)
    with pytest.raises(ConfigError, match="impressions come again for 'cart', 'order'"):
        MaterializedFeatures.open(tmp_path, whole)
    shown, clicks, carts, _ = whole.streams
    join: Any = dict(on="id", window="10s")
    cart = Label("cart", carts, window="1s")
    with pytest.raises(ConfigError, match="Label 'cart': clicks is joined already"):
        label_join(shown, clicks, labels=[Label("cart", clicks, window="1s")], **join)
    with pytest.raises(ConfigError, match="two labels have the name 'cart'"):
        label_join(shown, clicks, labels=[cart, cart], **join)
    with pytest.raises(ConfigError, match='labels beside the click do not go with delayed="fnw"'):
        label_join(shown, clicks, labels=[cart], delayed="fnw", wait="1s", **join)
    with pytest.raises(ConfigError, match="labels is 'carts'; write labels="):
        label_join(shown, clicks, labels="carts", **join)  # type: ignore[arg-type]
    timeless = Stream("carts", key="user", columns=dict(user="int64", id="int64"))
    with pytest.raises(ConfigError, match="Label 'cart': carts needs a time column"):
        label_join(shown, clicks, labels=[Label("cart", timeless, window="1s")], **join)
    with pytest.raises(ConfigError, match="Label: the name is 'click'"):
        Label("click", carts, window="1s")


def test_a_value_reads_one_number_of_its_own_events() -> None:
    whole = shop()
    carts, orders = (label.stream for label in whole.log.more_labels)
    cart, order = Target("cart", value=carts.amount), Target("order", value=orders.amount)
    assert replace(whole, targets=[cart, order]).fingerprint != whole.fingerprint
    for value, sentence in (
        (carts.amount, "carts.amount is not known when an impression of shown is scored"),
        (orders.amount + orders.user, "reads orders.amount and orders.user; the join keeps one column"),
        (
            Stream("orders", key="user", columns=dict(user="int64", amount="int32")).amount,
            "comes from another declaration",
        ),
    ):
        with pytest.raises(ConfigError, match=sentence):
            replace(whole, targets=[cart, replace(order, value=value)])
    log = shop_log(400)
    log["orders"] = [
        row | dict(amount=None if n % 2 else row["amount"]) for n, row in enumerate(log["orders"])
    ]
    run = livectr.train(replace(whole, targets=[cart, order]), log, threads=1, batch_size=64)
    assert run.report.dead_letters == len(log["orders"]) // 2
    assert run.report.values["order"]["examples"] == len(log["orders"]) - len(log["orders"]) // 2
