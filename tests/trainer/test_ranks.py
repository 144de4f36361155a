"""1 rank = 2 ranks = 4 ranks: logits, tables and dense parameters of every model, in real processes."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from livectr.trainer.des.exchange_choice import FIELD_EXCHANGE_KEY
from tests.ranks import run_ranks
from tests.tiers import Worlds, few
from tests.trainer.des_worker import ADDITIVE, AHEAD, CASES, FULL, STEPS, WORLDS
from tests.trainer.rank_results import LOGITS, WEIGHTS, facts, merged

ROOT = Path(__file__).parents[2]


ALL_CASES = [*CASES, *(pytest.param(*case, marks=pytest.mark.full) for case in FULL)]
ALL_ADDITIVE = [ADDITIVE[0], *(pytest.param(name, marks=pytest.mark.full) for name in ADDITIVE[1:])]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """World size → folder with its ranks' results."""
    full = ["full"] if request.config.getoption("--full") else []

    def make(world: int) -> Path:
        folder = tmp_path_factory.mktemp(f"world{world}")
        run_ranks(world, "tests.trainer.des_worker", str(folder), *full)
        return folder

    return Worlds(make)


@pytest.mark.parametrize("world", few(WORLDS, 2))
@pytest.mark.parametrize(("name", "way"), ALL_CASES)
def test_n_ranks_equal_one(runs: dict[int, Path], name: str, way: str, world: int) -> None:
    one, many = merged(runs[1], f"{name}.auto"), merged(runs[world], f"{name}.{way}")
    assert (many.pop(f"dense.{FIELD_EXCHANGE_KEY}", None) is None) is (way == "allreduce")
    assert one.keys() == many.keys()
    for key, tensor in one.items():
        if key.startswith("keys."):
            assert torch.equal(tensor, many[key]), key
        else:
            tolerance = LOGITS if key.startswith("logits.") else WEIGHTS
            torch.testing.assert_close(
                many[key],
                tensor,
                rtol=tolerance["rtol"],
                atol=tolerance["atol"],
                msg=partial("{}: {}".format, key),
            )
    assert float(one["dense.adam.step"]) == STEPS - 1  # one step had no examples at all


@pytest.mark.parametrize("world", few(WORLDS, 2))
@pytest.mark.parametrize(("name", "way"), ALL_CASES)
def test_replicas_stay_bitwise_equal(runs: dict[int, Path], name: str, way: str, world: int) -> None:
    ranks = facts(runs[world], f"{name}.{way}")
    assert len(ranks) == world
    assert all(rank["checksums"] == ranks[0]["checksums"] for rank in ranks)
    assert len(set(ranks[0]["checksums"])) == STEPS - 1  # every step but the empty one changed them


@pytest.mark.parametrize(("name", "way"), AHEAD)
def test_batches_prepared_ahead_change_no_bit(runs: dict[int, Path], name: str, way: str) -> None:
    plain, ahead = (merged(runs[min(WORLDS)], f"{name}.{way}{form}") for form in ("", ".ahead"))
    assert plain.keys() == ahead.keys()
    assert [key for key, tensor in plain.items() if not torch.equal(tensor, ahead[key])] == []
    plain_facts, ahead_facts = (facts(runs[min(WORLDS)], f"{name}.{way}{form}") for form in ("", ".ahead"))
    assert plain_facts == ahead_facts and len(plain_facts) == min(WORLDS)


@pytest.mark.parametrize("world", few(WORLDS, 2))
@pytest.mark.parametrize("name", [*ALL_ADDITIVE, "few"])
def test_only_partial_results_cross(runs: dict[int, Path], name: str, world: int) -> None:
    """⊕ sends 2 (N − 1) / N · B · S · 4 bytes; besides it keys, labels, dense features, and first orders that
    are learned example by example; nothing back."""
    rows = sum(len(t) for k, t in merged(runs[1], f"{name}.auto").items() if k.startswith("logits.rank."))
    for rank in facts(runs[world], f"{name}.allreduce"):
        assert bool(rank["bytes"].pop("items", 0)) is (name == "both")
        assert bool(rank["bytes"].pop("online", 0)) is (name != "TwoTower")  # of small batches
        assert rank["bytes"].keys() == {"sizes", "keys", "labels", "dense", "sum", "check"}
        expected = 2 * (world - 1) / world * rows * rank["partial_size"] * 4
        assert rank["bytes"]["sum"] == pytest.approx(expected, abs=STEPS)


@pytest.mark.parametrize("world", few(WORLDS, 2))
@pytest.mark.parametrize("name", ALL_ADDITIVE)
def test_gradients_of_partial_results_go_back(runs: dict[int, Path], name: str, world: int) -> None:
    """A reduce-scatter sends as much as an all-reduce: half of it there, half of it back. Of tables nothing
    crosses but first orders that are learned example by example: no vector and no gradient of a sparse
    row."""
    rows = sum(len(t) for k, t in merged(runs[1], f"{name}.auto").items() if k.startswith("logits.rank."))
    ranks = facts(runs[world], f"{name}.partial")
    for rank in ranks:
        assert bool(rank["bytes"].pop("items", 0)) is (name == "both")
        assert bool(rank["bytes"].pop("online", 0)) is (name != "TwoTower")  # of small batches
        assert rank["bytes"].keys() <= {
            "sizes",
            "keys",
            "labels",
            "dense",
            "sum",
            "scores",
            "networks",
            "check",
        }
        assert rank["bytes"]["labels"] == rank["bytes"]["dense"] == 0
    expected = 2 * (world - 1) * rows * ranks[0]["partial_size"] * 4
    assert sum(rank["bytes"]["sum"] for rank in ranks) == pytest.approx(expected, abs=STEPS)
    numbers = sum(len(t) for k, t in merged(runs[1], f"{name}.auto").items() if k.startswith("logits."))
    reported = sum(rank["bytes"]["scores"] for rank in ranks) / (world - 1) - 4 * numbers
    assert rows / 8 <= reported <= rows / 8 + 4 * world * STEPS, "a label is a bit"


@pytest.mark.parametrize("world", few(WORLDS, 2))
@pytest.mark.parametrize("way", ["vectors", "rows"])
@pytest.mark.parametrize("name", ALL_ADDITIVE)
def test_the_chosen_exchange_is_used(runs: dict[int, Path], name: str, way: str, world: int) -> None:
    ranks = facts(runs[world], f"{name}.{way}")
    assert len(ranks) == world
    for rank in ranks:
        assert rank["bytes"][way] > 0
        assert not rank["bytes"].keys() & ({"sum", "vectors", "rows"} - {way})


@pytest.mark.parametrize("world", few(WORLDS, 2))
def test_the_ranks_took_part(runs: dict[int, Path], world: int) -> None:
    assert set(facts(runs[world], "both.allreduce")[0]["placement"]) == set(range(world))
    losses = facts(runs[1], "both.auto")[0]["losses"]
    assert np.isfinite(losses).all()
