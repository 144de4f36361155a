"""`livectr plan`: amounts, formulas beside measurements and real tables, limits, reports, what is printed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench.plan.points
from bench.plan.check import sent_in_a_step
from livectr.cli import main
from livectr.ingest.pipeline import load_pipeline
from livectr.kernels.table.layout import FTRL, AdaGrad, RowLayout, Segment, Values
from livectr.kernels.table.table import DynamicTable
from livectr.plan import amounts
from livectr.plan.distinct import distinct
from livectr.plan.load import Load
from livectr.plan.model import Model, Shape, deepfm, table_row_bytes
from livectr.plan.points import value
from livectr.plan.serving import Serving
from livectr.plan.store import Store
from livectr.plan.trainer import LOAD, MEMORY_SHARE, OWN_EXAMPLES, Ids, Machine, Trainer, wire_s
from livectr.system.errors import ConfigError
from tests.livectr.inspected_plan import DISPLAY_ADS, table

GIB = 1 << 30
MODEL = deepfm(Shape())
MACHINE = Machine(cores=8, memory_bytes=64 * GIB, gbit=10.0, latency_s=5e-5, disk=5e8)


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (amounts.rate, "1M/s", 1e6),
        (amounts.rate, "20k/s", 2e4),
        (amounts.rate, "500", 500),
        (amounts.quantity, "1e10", 1e10),
        (amounts.quantity, "1_000_000", 1e6),
        (amounts.quantity, "2.5G", 2.5e9),
        (amounts.memory, "256GiB", 256 * GIB),
        (amounts.bandwidth, "10Gbit/s", 10),
        (amounts.bandwidth, "800Mbit/s", 0.8),
        (amounts.throughput, "500MB/s", 5e8),
        (amounts.latency, "50us", 5e-5),
        (amounts.latency, "0.2ms", 2e-4),
        (amounts.share, "5%", 0.05),
        (amounts.widths, "256,128", (256, 128)),
        (amounts.price, "0", 0),
    ],
)
def test_amounts(read: Callable[[str], Any], text: str, expected: object) -> None:
    assert read(text) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (amounts.rate, "1M/h", 'such as "1M/s"'),
        (amounts.rate, "-1/s", "no amount above 0"),
        (amounts.quantity, "0", "no amount above 0"),
        (amounts.quantity, "1e999", "no amount above 0"),
        (amounts.memory, "0GiB", "no amount of memory"),
        (amounts.bandwidth, "10GB/s", "bits or bytes"),
        (amounts.bandwidth, "10G", 'such as "10Gbit/s"'),
        (amounts.throughput, "500MB", "no speed of a disk"),
        (amounts.latency, "50", "no latency"),
        (amounts.share, "1.5", "no share"),
        (amounts.widths, "256;128", "no widths"),
        (amounts.widths, "256,0", "no widths"),
        (amounts.price, "free", "no price"),
    ],
)
def test_amounts_that_are_none(read: Callable[[str], Any], text: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        read(text)


def test_points_are_those_of_the_results() -> None:
    assert bench.plan.points.FILE.read_text() == bench.plan.points.text(), "run `python -m bench.plan.points`"


@pytest.mark.parametrize("ids", [1, 2, 1000, 1024, 1025, 200_000])
@pytest.mark.parametrize("exponent", [0.5, 1.1, 2.0])
def test_distinct_keys(ids: int, exponent: float) -> None:
    likely = np.arange(1, ids + 1) ** -exponent
    likely /= likely.sum()
    for draws in (1, 100, 1e5):
        expected = -np.expm1(draws * np.log1p(-np.minimum(likely, 1 - 1e-12))).sum()
        assert distinct(draws, ids, exponent) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("values", ["fp32", "bf16"])
def test_bytes_of_a_row_are_the_table_s(values: Values) -> None:
    layout = RowLayout((Segment("w", 1, FTRL()), Segment("v", 16, AdaGrad(), 0.01)), values)
    assert table_row_bytes(layout) == DynamicTable(layout, name="plan", seed=1).row_bytes


def test_bytes_of_a_step_are_the_measured() -> None:
    """On one measured workload all fields have equally many ids, as the plan assumes."""
    errors = [one.error for one in sent_in_a_step() if one.file == "scaling"]
    assert len(errors) > 30 and max(map(abs, errors)) < 0.05


def trainer(ids: float, machine: Machine = MACHINE, model: Model = MODEL, **more: Any) -> Trainer:
    return Trainer(model, Ids(ids, 1.1), machine, **more)


def test_one_rank_sends_and_waits_for_nothing() -> None:
    step = trainer(1e6).step(1)
    assert step.waits_s == step.wire_s == 0 and set(step.sent.values()) == {0.0}
    assert step.batch == OWN_EXAMPLES
    assert trainer(1e6).smallest(step.rate * LOAD) == (step, "one is enough")


def test_more_examples_take_more_ranks() -> None:
    found = [trainer(1e6).smallest(rate)[0].ranks for rate in (1e4, 1e5, 1e6, 3e6)]
    assert found == sorted(found) and found[0] == 1 and found[-1] > found[1]
    for rate, ranks in zip((1e6, 3e6), found[2:], strict=True):
        assert trainer(1e6).step(ranks).rate * LOAD >= rate
        assert trainer(1e6).step(ranks - 1).rate * LOAD < rate


def test_memory_limits() -> None:
    many = trainer(1e10)
    step, limit = many.smallest(1.0)
    ranks = step.ranks
    assert limit == "limited by memory" and ranks == many.memory_ranks and step.batch == OWN_EXAMPLES
    assert many.smallest(1e6)[0].batch > OWN_EXAMPLES  # waits are shared by more examples
    assert many.rank_bytes(ranks) <= MEMORY_SHARE * MACHINE.memory_bytes < many.rank_bytes(ranks - 1)
    with pytest.raises(ConfigError, match="--memory leaves no room"):
        trainer(1e6, replace(MACHINE, memory_bytes=GIB)).smallest(1.0)
    with pytest.raises(ConfigError, match="need the memory of"):
        trainer(1e15).smallest(1.0)


def test_a_slow_network_limits_and_a_fixed_batch_may_never_be_enough() -> None:
    slow = replace(MACHINE, gbit=0.1)
    step, limit = trainer(1e8, slow).smallest(3e5)
    assert limit == "limited by network" and step.ranks > 1
    with pytest.raises(ConfigError, match=r"no number of ranks .* larger --batch-size"):
        trainer(1e8, slow, batch=4096).smallest(1e6)


def test_the_exchange_is_the_fastest_and_not_the_fewest_bytes() -> None:
    """Two fast and two slow machines: `rows` sends fewest bytes, and costs more work for each key."""
    model = deepfm(Shape(dim=4))
    fast, slow = (trainer(1e6, replace(MACHINE, gbit=gbit), model).step(2, 2048) for gbit in (100.0, 0.1))
    assert min(fast.sent, key=lambda way: fast.sent[way]) == "rows" == slow.exchange != fast.exchange
    for step in (fast, slow):
        assert step.exchange_s[step.exchange] == min(step.exchange_s.values())
        assert step.wire_s == wire_s(step.sent[step.exchange], 100.0 if step is fast else 0.1)


def test_a_report_replaces_the_fit() -> None:
    own = trainer(1e6, core_s=1e-5, waited=True)
    assert own.step(4).waits_s == 0
    assert own.step(4).computing_s == pytest.approx(OWN_EXAMPLES * 1e-5 / MACHINE.cores)
    assert trainer(1e6, core_s=1e-5).step(4).waits_s > value("wait_s")


def test_a_redis_node_holds_whole_buckets() -> None:
    store = Store(MODEL, Ids(1e9, 1.1), 64 * GIB, 2.0, copies=2)
    room = 0.7 * store.memory_bytes
    assert 5 * room < store.bytes < 6 * room  # but of 6 or 7 nodes, some would hold 3 of 16 buckets
    assert 2 / 16 * store.bytes < room < 3 / 16 * store.bytes and store.primaries == 8
    with pytest.raises(ConfigError, match=r"a bucket, a 16th of .* --redis-memory of at least"):
        _ = replace(store, ids=Ids(1e10, 1.1)).primaries


def test_rows_of_a_version_are_distinct_keys() -> None:
    store = Store(MODEL, Ids(1e6, 1.1), 64 * GIB, 2.0, copies=1)
    assert store.changed(1.0) < 2 * MODEL.keys
    assert store.changed(1e4) < store.changed(1e6) < 1e6
    assert store.push_s(1e6, 4) == store.push_s(1e6, 1) == store.changed(1e6) / value("publish")


def test_servers() -> None:
    measured = deepfm(Shape(fields=16))
    same = Serving(measured, value("open_loop"), 400, 20_000, 2_000_000, 2)
    assert same.growth == pytest.approx(1) and same.worker_cores in (2, 3)
    half, twice = (replace(same, candidates=n).growth for n in (200, 800))
    assert 0.5 < half < 1 < twice < 2
    assert replace(same, requests=27 * value("open_loop")).servers > 20


def test_partitions_are_a_multiple_of_the_ranks() -> None:
    load = Load(1e6, 0.0, 300.0, 86400.0, 3, 10 << 40)
    assert load.bytes == 3e8 and load.kept_bytes == 3e8 * 86400 * 3
    assert [load.partitions(ranks) for ranks in (1, 8, 50)] == [30, 32, 50]
    assert load.brokers(None) == 11 and replace(load, retention_s=1.0).brokers(None) == 3


# ── the command ──

SIZE = ("--rate", "20k/s", "--ids", "50M")


def plan(*flags: object) -> int:
    return main(["plan", *SIZE, *map(str, flags)])


def test_tables_cite_the_measured_points(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--requests", "2k/s", "--price-node", 1.2, "--cores", 2) == 0
    shown = capsys.readouterr().out
    ranks = next(row for row in table(shown, "\ntrainer ") if row[0] == "ranks")
    assert ranks[1] == "1" and ranks[2].startswith("one is enough; 2 cores")
    cited = next(row for row in table(shown, "\nRedis ") if row[0] == "a row")
    points = {row[0]: row for row in table(shown, "measured points")}
    assert points[cited[3]][1].endswith("bytes") and points[cited[3]][6] == "redis-memory"
    cost = next(row for row in table(shown, "\nmachines ") if row[0] == "cost")
    machines = {row[0]: int(row[1]) for row in table(shown, "\nmachines ") if row[0] != "cost"}
    assert float(cost[1].replace(",", "")) == pytest.approx(sum(machines.values()) * 1.2 * 730, abs=1)
    beyond = {row[0]: row[1:] for row in table(shown, "! outside of what was measured")}
    assert beyond["rows in Redis"] == ["50,000,000", "200,000", "250×"]
    assert "cores of a rank" not in beyond


def test_json_of_a_pipeline_with_a_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = load_pipeline(DISPLAY_ADS).plan.fields
    report = tmp_path / "report.json"
    run: dict[str, object] = {
        "examples_per_second": 40_000.0,
        "world": 2,
        "examples_trained": 100,
        "steps": 10,
    }
    report.write_text(json.dumps(run | {"field_keys": dict.fromkeys(names, 200)}))
    flags = ("--pipeline", DISPLAY_ADS, "--report", report, "--report-cores", 1, "--cores", 4, "--json")
    assert plan(*flags) == 0
    found = json.loads(capsys.readouterr().out)
    figures = {figure["name"]: figure for figure in found["parts"]["trainer"]}
    assert figures["core time of an example"]["value"] == pytest.approx(2 * 1 / 40_000)
    assert figures["core time of an example"]["points"] == []
    assert figures["most examples learned"]["value"] == pytest.approx(4 * 20_000)
    assert "servers" not in found["parts"] and "join" in found["points"]
    assert "ranks if steps are slow" not in figures
    assert "the report's steps have 10 examples: its speed may be that of a live log" in found["notes"][0]


def test_what_a_large_plan_leaves(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["plan", "--rate", "1k/s", "--ids", "1e10", "--redis-memory", "256GiB"]
    assert main([*flags, "--fields", "20", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ranks = next(figure["value"] for figure in found["parts"]["trainer"] if figure["name"] == "ranks")
    assert ranks > 20
    assert [note.partition(" (")[0] for note in found["notes"]] == [
        "rows may lie on SSD",
        f"{ranks} ranks share 20 tables: set placement balanced and rank_memory",
    ]
    beyond = {one["size"]: one["factor"] for one in found["beyond"]}
    assert beyond["ranks"] == ranks / 4 and beyond["ranks and nodes that publish"] == 16
    assert main(flags[:-2]) == 2
    assert "--redis-memory of at least" in capsys.readouterr().err


def mistake(capsys: pytest.CaptureFixture[str], *flags: object) -> str:
    assert plan(*flags) == 2
    return capsys.readouterr().err


def test_mistakes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "leave out --dim" in mistake(capsys, "--pipeline", DISPLAY_ADS, "--dim", 8)
    assert "say --report FILE too" in mistake(capsys, "--report-cores", 2)
    assert "is no report" in mistake(capsys, "--report", tmp_path)
    other = tmp_path / "report.json"
    run: dict[str, object] = {"examples_per_second": 1.0, "world": 1, "examples_trained": 1, "steps": 1}
    run |= {"field_keys": {"x": 1}}
    other.write_text(json.dumps(run))
    assert "another pipeline" in mistake(capsys, "--report", other, "--pipeline", DISPLAY_ADS)
    other.write_text(json.dumps(run | {"examples_per_second": 0.0}))
    assert "learned nothing" in mistake(capsys, "--report", other)
    assert "invalid choice: 'adamw'; did you mean 'adam'?" in mistake(capsys, "--optimizer", "adamw")
