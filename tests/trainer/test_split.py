"""Any placement gives the model of one rank, and so do tables that are split by key."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bench.planted import pipeline
from livectr.models import DeepFM
from livectr.system.errors import ConfigError
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.exchange_choice import FIELD_EXCHANGE_KEY
from livectr.trainer.des.step import DesStep
from livectr.trainer.placement.placement import FieldPlacement, owners_by_key
from livectr.trainer.step_settings import StepSettings
from tests.ranks import run_ranks
from tests.tiers import few
from tests.trainer import common_worker
from tests.trainer.des_worker import ROLES, train
from tests.trainer.rank_results import LOGITS, WEIGHTS, facts
from tests.trainer.split_worker import CASES, COMMON, COMMON_SPLIT, FULL, SPLIT, placed

ROOT = Path(__file__).parents[2]
SENT: dict[str, set[str]] = {
    "auto": set(),
    "partial": {"rows"},
    "rows": {"rows"},
    "vectors": {"vectors"},
    "mixed": {"rows", "vectors"},
}
"""Collectives of a split table's fields, by exchange."""


@pytest.fixture(scope="module", params=few([2, 4], 2))
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """World size, and folder with its ranks' results."""
    world, folder = request.param, tmp_path_factory.mktemp("split")
    full = ["full"] if request.config.getoption("--full") else []
    run_ranks(world, "tests.trainer.split_worker", str(folder), *full)
    return world, folder


@pytest.fixture(scope="module")
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a single rank's results."""
    folder = tmp_path_factory.mktemp("one")
    full = FULL if request.config.getoption("--full") else []
    for name in dict.fromkeys(name for name, _, _ in [*CASES, *full]):
        train(name, "auto", Collectives(), folder)
    for name in dict.fromkeys(name for name, _, _ in COMMON):
        common_worker.train(name, "plain", "partial", Collectives(), folder)
    return folder


def merged(files: list[Path], split: frozenset[str]) -> dict[str, Tensor]:
    """Results of all ranks, merged; a split table's parts are concatenated, in the order of keys."""
    whole: dict[str, Tensor] = {}
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {table: [] for table in split}
    for rank, file in enumerate(files):
        tensors = load_file(file)
        for table in split:
            keys, rows = tensors.pop(f"keys.{table}"), tensors.pop(f"rows.{table}")
            assert len(keys) and (owners_by_key(keys.numpy(), len(files)) == rank).all()
            parts[table].append((keys, rows))
        for key, tensor in tensors.items():
            assert key not in whole or torch.equal(whole[key], tensor), f"{key} differs between ranks"
            whole[key] = tensor
    for table, found in parts.items():
        keys, rows = (torch.cat(column) for column in zip(*found, strict=True))
        order = torch.argsort(keys)
        whole |= {f"keys.{table}": keys[order], f"rows.{table}": rows[order]}
    return whole


def assert_equal(many: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """Equal up to the order of sums."""
    many.pop(f"dense.{FIELD_EXCHANGE_KEY}", None)
    assert want.keys() == many.keys()
    for key, tensor in want.items():
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


ALL_CASES = [*CASES, *(pytest.param(*case, marks=pytest.mark.full) for case in FULL)]


@pytest.mark.parametrize(("name", "way", "kind"), ALL_CASES)
def test_ranks_equal_one(runs: tuple[int, Path], one: Path, name: str, way: str, kind: str) -> None:
    world, folder = runs
    files = sorted((folder / kind).glob(f"{name}.{way}.rank*.safetensors"))
    assert len(files) == world
    many = merged(files, SPLIT if kind == "split" else frozenset())
    assert_equal(many, load_file(one / f"{name}.auto.rank0.safetensors"))
    reported = facts(folder / kind, f"{name}.{way}")
    assert all(rank["checksums"] == reported[0]["checksums"] for rank in reported)
    assert all(rank["placement"] == list(placed(kind, world).owner) for rank in reported)
    for rank in reported if kind == "split" else ():
        sent = {collective for collective in ("rows", "vectors") if rank["bytes"].get(collective)}
        assert sent >= SENT[way]
        assert way != "vectors" or "rows" not in sent or ROLES[name][0].gathers(()).sequences


@pytest.mark.parametrize(("name", "form", "how"), COMMON)
def test_groups_equal_one(runs: tuple[int, Path], one: Path, name: str, form: str, how: str) -> None:
    """Partial sums of common fields are those of groups."""
    world, folder = runs
    files = sorted((folder / "common").glob(f"{name}.{form}.{how}.rank*.safetensors"))
    assert len(files) == world
    assert_equal(merged(files, COMMON_SPLIT), load_file(one / f"{name}.plain.partial.rank0.safetensors"))


def test_partial_sums_cost_what_is_predicted(runs: tuple[int, Path]) -> None:
    world, folder = runs
    found = [json.loads((folder / f"cost{rank}.json").read_text()) for rank in range(world)]
    assert found[0]["forced"] == ["vectors"] * 4
    assert sum(rank["sent"] for rank in found) == pytest.approx(found[0]["predicted"], rel=0.1)


def test_a_table_that_is_split_again_lets_a_batch_choose(runs: tuple[int, Path]) -> None:
    """Its checkpoint has an exchange that it cannot resume with; the next checkpoint has one that it can."""
    world, folder = runs
    for rank in range(world):
        found = json.loads((folder / f"cost{rank}.json").read_text())
        assert found["again, undecided"] and not found["resumed, undecided"]
        assert found["again"] == found["resumed"] == found["fastest"]
        assert "partial" not in (found["again"][1], found["again"][3])


def test_an_all_reduce_refuses_a_split_table() -> None:
    with pytest.raises(ConfigError, match=r"'C1' is split by key.*use aggregate='reducescatter'"):
        DesStep(
            pipeline(DeepFM(dim=4), fields=2),
            seed=1,
            collectives=Collectives(0, 2),
            settings=StepSettings("allreduce"),
            placement=FieldPlacement((0, 1), 0, 2, frozenset({"C1"})),
        )


def test_keys_are_spread_evenly() -> None:
    keys = np.arange(30_000, dtype=np.int64) * 64 - 5
    assert np.bincount(owners_by_key(keys, 3)) == pytest.approx(10_000, rel=0.03)
