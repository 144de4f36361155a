"""Any placement gives the model of one rank, and so do tables that are split by key."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bench.planted import pipeline
from livectr.kernels.errors import ConfigError
from livectr.models import DeepFM
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.exchange_choice import FIELD_EXCHANGE_KEY
from livectr.trainer.des.step import DesStep
from livectr.trainer.placement.placement import FieldPlacement, owners_by_key
from livectr.trainer.step_settings import StepSettings
from tests.ranks import run_ranks
from tests.trainer.des_worker import train
from tests.trainer.split_worker import CASES, SPLIT, placed
from tests.trainer.test_ranks import LOGITS, WEIGHTS, facts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=[2, 4])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """World size, and folder with its ranks' results."""
    world, folder = request.param, tmp_path_factory.mktemp("split")
    run_ranks(world, "tests.trainer.split_worker", str(folder))
    return world, folder


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a single rank's results."""
    folder = tmp_path_factory.mktemp("one")
    for name in dict.fromkeys(name for name, _, _ in CASES):
        train(name, "auto", Collectives(), folder)
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


@pytest.mark.parametrize(("name", "way", "kind"), CASES)
def test_ranks_equal_one(runs: tuple[int, Path], one: Path, name: str, way: str, kind: str) -> None:
    world, folder = runs
    files = sorted((folder / kind).glob(f"{name}.{way}.rank*.safetensors"))
    assert len(files) == world
    many = merged(files, SPLIT if kind == "split" else frozenset())
    want = load_file(one / f"{name}.auto.rank0.safetensors")
    many.pop(f"dense.{FIELD_EXCHANGE_KEY}", None)
    assert want.keys() == many.keys()
    for key, tensor in want.items():
        if key.startswith("keys."):
            assert torch.equal(tensor, many[key]), key
        else:
            tolerance = LOGITS if key.startswith("logits.") else WEIGHTS
            torch.testing.assert_close(many[key], tensor, **tolerance, msg=lambda m, k=key: f"{k}: {m}")
    reported = facts(folder / kind, f"{name}.{way}")
    assert all(rank["checksums"] == reported[0]["checksums"] for rank in reported)
    assert all(rank["placement"] == list(placed(kind, world).owner) for rank in reported)
    if kind == "split":
        assert all(rank["bytes"]["rows"] > 0 for rank in reported)


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
