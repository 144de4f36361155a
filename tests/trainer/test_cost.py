"""Cost model: predicted and measured bytes, its choice, and the error of bfloat16 on the wire."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livectr.kernels.errors import ConfigError
from livectr.models import Gathers
from livectr.trainer.des.route import route
from livectr.trainer.placement.exchange_cost import CostModel, Measured
from livectr.trainer.placement.placement import place
from livectr.trainer.step_settings import FIELD_EXCHANGES, parse_field_exchange
from tests.ranks import run_ranks
from tests.trainer.cost_worker import FIELDS, MIXED

ROOT = Path(__file__).parents[2]
WORLDS = (2, 4)


@pytest.fixture(scope="module", params=WORLDS)
def ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[list[dict[str, Any]]]:
    """Results of each rank of a world."""
    out = tmp_path_factory.mktemp("cost")
    run_ranks(request.param, "tests.trainer.cost_worker", str(out))
    return [json.loads((out / f"rank{r}.json").read_text()) for r in range(request.param)]


def test_bytes_are_as_predicted(ranks: list[list[dict[str, Any]]]) -> None:
    """Prediction is within 10 % for every exchange, on both wires."""
    for runs in zip(*ranks, strict=True):
        one, world = runs[0], len(ranks)
        names = ("keys", "sum", "vectors", "rows", "networks")
        sent = sum(run["bytes"].get(name, 0) for run in runs for name in names) / 2  # of two steps
        width = 2 if one["wire"] == "bf16" else 4
        sent -= 2 * (world - 1) * width * one["network"]
        assert sent == pytest.approx(one["predicted"], rel=0.1), (one["wire"], one["field_exchange"])


def test_the_cheapest_is_chosen(ranks: list[list[dict[str, Any]]]) -> None:
    for rank in ranks:
        for run in rank:
            if run["field_exchange"] == "auto":
                assert run["predicted"] <= min(run["exchanges"]) * 1.0001
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


def test_partial_results_win_where_fields_are_many() -> None:
    model = CostModel(world=2, partial=10, dim=8, parameters=[64] * 200)
    many = Measured(1_000, np.full(200, 900.0), np.full(200, 400.0))
    assert set(model.cheapest(many)) == {"partial"}
    few = CostModel(world=2, partial=300, dim=8, parameters=[64] * 4)
    assert set(few.cheapest(Measured(1_000, np.full(4, 900.0), np.full(4, 50.0)))) == {"rows"}


def test_vectors_win_for_long_lists_that_do_not_repeat() -> None:
    model = CostModel(world=4, partial=400, dim=8, parameters=[0])
    assert model.cheapest(Measured(100, np.array([40_000.0]), np.array([5_000.0]))) == ["vectors"]


def test_gathered_fields_are_never_partial() -> None:
    model = CostModel(world=2, partial=1, dim=8, parameters=[0] * 3)
    chosen = model.cheapest(Measured(10, np.full(3, 80.0), np.full(3, 10.0)), never_partial=[1])
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
