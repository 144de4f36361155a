"""Cost model: predicted and measured bytes, the choice by time, which a checkpoint keeps, and the error of
bfloat16 on the wire."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livectr.models import Gathers
from livectr.system.errors import ConfigError
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.exchange_choice import exchange_state, saved_exchange
from livectr.trainer.des.route import route
from livectr.trainer.placement.exchange_cost import CostModel, Measured
from livectr.trainer.placement.placement import place
from livectr.trainer.step_settings import FIELD_EXCHANGES, FieldExchange, parse_field_exchange
from tests.ranks import run_ranks
from tests.tiers import few
from tests.trainer.cost_worker import FIELDS, MIXED

ROOT = Path(__file__).parents[2]
WORLDS = (2, 4)


@pytest.fixture(scope="module", params=few(WORLDS, 2))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the ranks of a world."""
    out = tmp_path_factory.mktemp("cost")
    run_ranks(request.param, "tests.trainer.cost_worker", str(out))
    return out


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[list[dict[str, Any]]]:
    """Exchanges of each rank of a world."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


def test_bytes_are_as_predicted(ranks: list[list[dict[str, Any]]]) -> None:
    """Prediction is within 10 % for every exchange, on both wires."""
    for runs in zip(*ranks, strict=True):
        one, world = runs[0], len(ranks)
        names = ("keys", "sum", "vectors", "rows", "networks")
        sent = sum(run["bytes"].get(name, 0) for run in runs for name in names) / 2  # of two steps
        width = 2 if one["wire"] == "bf16" else 4
        sent -= 2 * (world - 1) * width * one["network"]
        assert sent == pytest.approx(one["predicted"], rel=0.1), (one["wire"], one["field_exchange"])


def test_the_fastest_is_chosen(ranks: list[list[dict[str, Any]]]) -> None:
    for rank in ranks:
        for run in rank:
            if run["field_exchange"] == "auto":
                assert run["seconds"] <= min(run["exchanges"]) * 1.0001
                same = [
                    r["chosen"] for r in ranks[0] if (r["wire"], r["field_exchange"]) == (run["wire"], "auto")
                ]
                assert same == [run["chosen"]]
            elif run["field_exchange"] == MIXED:
                assert [run["chosen"][f] for f in (0, 1, FIELDS - 1, 2)] == [
                    "rows",
                    "rows",
                    "vectors",
                    "partial",
                ]
            else:
                assert set(run["chosen"]) == {run["field_exchange"]}


def test_bfloat16_halves_the_bytes_and_rounds(ranks: list[list[dict[str, Any]]]) -> None:
    """Logits after a step over a bfloat16 wire are within 2 % of a standard deviation of the others' mostly:
    8 bits of mantissa, so a relative error of 2⁻⁹ for each number that is sent."""
    by_way = {(run["wire"], json.dumps(run["field_exchange"])): run for run in ranks[0]}
    for field_exchange in FIELD_EXCHANGES:
        wide, narrow = by_way["fp32", json.dumps(field_exchange)], by_way["bf16", json.dumps(field_exchange)]
        name = {"partial": "sum"}.get(field_exchange, field_exchange)
        assert narrow["bytes"][name] * 2 == wide["bytes"][name]
        error = np.subtract(narrow["logits"], wide["logits"])
        assert 0 < np.sqrt(np.mean(error**2)) < 0.02 * np.std(wide["logits"])


def test_a_checkpoint_keeps_the_choice(folder: Path) -> None:
    """A run of as many ranks resumes with the exchange of its checkpoint, whatever it would choose."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("kept*.json"))]
    assert len(found) in WORLDS and all(one == found[0] for one in found)
    kept = found[0]
    assert kept["resumed"] == kept["first"] != kept["given"]
    assert kept["another"] == kept["given"]
    assert kept["more ranks"] == kept["first"]


def test_a_setting_is_used_in_place_of_the_checkpoint_s(caplog: pytest.LogCaptureFixture) -> None:
    saved: list[FieldExchange] = ["rows", "vectors"]
    state = exchange_state(saved, 2)
    assert saved_exchange(state, Collectives(0, 2), None) == saved
    assert saved_exchange(state, Collectives(0, 4), None) is None
    assert saved_exchange(state, Collectives(0, 2), ("rows", "vectors")) is None and not caplog.text
    for rank in (1, 0):
        assert saved_exchange(state, Collectives(rank, 2), ("rows", "rows")) is None
        assert ("last bits" in caplog.text) is (rank == 0)


def scaling(vector: int, unique: float = 670.0) -> tuple[CostModel, Measured]:
    """Two ranks, B = 2048, F = 32 and H = 64 of docs/scaling.md; unique keys of a field by its bytes."""
    dim, fields = 1 + vector, np.ones(32)
    model = CostModel(world=2, partial=64 + dim, dim=dim, parameters=[64 * vector + 1] * 32)
    return model, Measured(2048, fields * (8 * unique + 2048 * 9 / 8), fields * unique, fields * 2048)


def test_vectors_win_where_rows_send_less_and_work_more() -> None:
    """Rows send a third of the bytes here, and took 18.6 ms a step where vectors took 11.4."""
    model, measured = scaling(4)
    ways = {way: [way] * 32 for way in FIELD_EXCHANGES}
    assert model.bytes(measured, ways["rows"]) < model.bytes(measured, ways["vectors"]) / 2
    assert model.fastest(measured) == ways["vectors"]
    found = {way: 1e3 * model.seconds(measured, fields) for way, fields in ways.items()}
    assert found["rows"] - found["vectors"] == pytest.approx(3.5, abs=1)


def test_rows_win_over_a_slow_link() -> None:
    model, measured = scaling(4)
    assert set(replace(model, gbit=0.3).fastest(measured)) == {"rows"}
    assert set(replace(model, gbit=30.0).fastest(measured)) == {"vectors"}


def test_a_link_costs_its_bytes() -> None:
    model, measured = scaling(8)
    for way in FIELD_EXCHANGES:
        fields = [way] * 32
        more = replace(model, gbit=1.0).seconds(measured, fields) - model.seconds(measured, fields)
        assert more == pytest.approx(8e-9 * model.bytes(measured, fields) / 2)


def test_bf16_saves_time_on_a_link_alone() -> None:
    """On one machine, to round and widen numbers takes as long as what their bytes save."""
    model, measured = scaling(16)
    ways = [[way] * 32 for way in FIELD_EXCHANGES]
    narrow = replace(model, width=2)
    assert [narrow.seconds(measured, way) for way in ways] == [model.seconds(measured, way) for way in ways]
    assert narrow.fastest(measured) == model.fastest(measured)
    slow, slow_narrow = replace(model, gbit=1.0), replace(narrow, gbit=1.0)
    assert all(slow_narrow.seconds(measured, way) < slow.seconds(measured, way) for way in ways)


def test_partial_results_win_where_fields_are_many() -> None:
    model = CostModel(world=2, partial=10, dim=8, parameters=[64] * 200)
    many = Measured(1_000, np.full(200, 900.0), np.full(200, 400.0), np.full(200, 1_000.0))
    assert set(model.fastest(many)) == {"partial"}
    few = CostModel(world=2, partial=300, dim=8, parameters=[64] * 4, gbit=1.0)
    once = Measured(1_000, np.full(4, 900.0), np.full(4, 50.0), np.full(4, 1_000.0))
    assert set(few.fastest(once)) == {"rows"}


def test_vectors_win_for_long_lists_that_do_not_repeat() -> None:
    model = CostModel(world=4, partial=400, dim=8, parameters=[0])
    lists = Measured(100, np.array([40_000.0]), np.array([5_000.0]), np.array([5_000.0]))
    assert model.fastest(lists) == ["vectors"]


def lists(length: int, world: int) -> tuple[CostModel, Measured]:
    """A field of W whose table is split by key: lists of `length` keys, two fifths of a rank's unique."""
    read = 4096.0 * length
    model = CostModel(world=world, partial=265, dim=9, parameters=[0], split=(0,))
    return model, Measured(4096, np.array([4 * read]), np.array([0.4 * read]), np.array([read]))


def test_partial_sums_win_for_long_lists_of_a_split_table() -> None:
    """Each rank sends a vector: N times the bytes and the work, whatever the length of the lists is."""
    for world in (2, 4):
        model, measured = lists(12, world)
        assert model.fastest(measured, never_partial=(0,)) == ["vectors"]
        whole = replace(model, split=())
        added = model.bytes(measured, ["vectors"]) - whole.bytes(measured, ["vectors"])
        assert added == 8 * (world - 1) ** 2 / world * 4096 * 9
        seconds = whole.seconds(measured, ["rows"]) / model.seconds(measured, ["vectors"])
        assert seconds > 2
    for length, world in ((1, 4), (12, 32)):
        model, measured = lists(length, world)
        assert model.fastest(measured, never_partial=(0,)) == ["rows"]


def test_gathered_fields_are_never_partial() -> None:
    model = CostModel(world=2, partial=1, dim=8, parameters=[0] * 3)
    sizes = Measured(10, np.full(3, 80.0), np.full(3, 10.0), np.full(3, 10.0))
    chosen = model.fastest(sizes, never_partial=[1])
    assert chosen[0] == chosen[2] == "partial" != chosen[1]


def test_field_exchange_as_text() -> None:
    assert parse_field_exchange("auto") == "auto"
    assert parse_field_exchange("rows") == "rows"
    assert parse_field_exchange("a=rows, b=vectors") == {"a": "rows", "b": "vectors"}
    with pytest.raises(
        ConfigError, match="field_exchange is 'a=fast'; it must be auto, partial, vectors, rows"
    ):
        parse_field_exchange("a=fast")


def test_an_all_reduce_knows_partial_results_only() -> None:
    placement = place(["a", "b"], 2)
    with pytest.raises(ConfigError, match="need aggregate='reducescatter'"):
        route(
            placement, ["a", "b"], ["a", "b"], Gathers(), mode="allreduce", field_exchange=["rows", "partial"]
        )
