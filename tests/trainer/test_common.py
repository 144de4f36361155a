"""Users' examples in groups: the same model as without, on any number of ranks, with fewer bytes."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from livectr.cli import main
from livectr.ingest.common_features import Common, CommonExtractor, CommonFeatures
from livectr.ingest.dead_letters.letters import DeadLetters
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.join.examples import ExampleSource, ReadOptions
from livectr.models import AutoInt
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.des.exchange_choice import FIELD_EXCHANGE_KEY
from livectr.trainer.des.step import DesStep
from livectr.trainer.groups import Groups
from tests.ranks import run_ranks
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.common_worker import ROLES, SETTINGS, STEPS, WAYS, batch, pipeline
from tests.trainer.processes import finish, start
from tests.trainer.rank_results import LOGITS, WEIGHTS, facts, merged
from tests.trainer.run_result import Result, assert_close, assert_same

WORLDS = (1, 2, 5)
"""World sizes; of 5 ranks, one holds the users' fields alone, others hold none of them."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """World size → folder with its ranks' results."""
    folders = {}
    for world in WORLDS:
        folders[world] = tmp_path_factory.mktemp(f"world{world}")
        run_ranks(world, "tests.trainer.common_worker", str(folders[world]))
    return folders


CASES = [(way, world) for way in WAYS for world in WORLDS if world > 1 or way[1] == "partial"]


@pytest.mark.parametrize(("way", "world"), CASES)
@pytest.mark.parametrize("name", ROLES)
def test_groups_change_nothing(runs: dict[int, Path], name: str, way: tuple[str, str], world: int) -> None:
    """Every way, on any number of ranks, ends as rows written out on one rank: up to the order of sums."""
    plain = merged(runs[1], f"{name}.plain.partial")
    other = merged(runs[world], f"{name}.{'.'.join(way)}")
    other.pop(f"dense.{FIELD_EXCHANGE_KEY}", None)
    assert plain.keys() == other.keys()
    for key, tensor in plain.items():
        if key.startswith("keys."):
            assert torch.equal(tensor, other[key]), key
        else:
            tolerance = LOGITS if key.startswith("logits.") else WEIGHTS
            torch.testing.assert_close(
                other[key],
                tensor,
                rtol=tolerance["rtol"],
                atol=tolerance["atol"],
                msg=partial("{}: {}".format, key),
            )
    assert float(plain["dense.adam.step"]) == STEPS


@pytest.mark.parametrize("world", WORLDS[1:])
@pytest.mark.parametrize("way", WAYS)
def test_replicas_stay_bitwise_equal(runs: dict[int, Path], way: tuple[str, str], world: int) -> None:
    ranks = facts(runs[world], f"both.{'.'.join(way)}")
    assert len(ranks) == world
    assert all(rank["checksums"] == ranks[0]["checksums"] for rank in ranks)
    assert len(set(ranks[0]["checksums"])) == STEPS


def test_groups_send_less(runs: dict[int, Path]) -> None:
    """A user's keys cross once a group; partial results of examples are as many as before."""
    plain, grouped = (
        [rank["bytes"] for rank in facts(runs[2], f"both.{form}.partial")] for form in ("plain", "grouped")
    )
    sent = {name: (sum(r[name] for r in plain), sum(r[name] for r in grouped)) for name in plain[0]}
    assert sent["keys"][1] < sent["keys"][0]  # repeated keys are sent once in both ways
    assert sent["sum"][1] == sent["sum"][0]


def test_groups_of_rows_are_exchanged_only_where_partial_results_are_added() -> None:
    """The common fields are user, liked and city, on ranks 0 to 2; sample-parallel, city alone is partial."""
    whole = pipeline(*ROLES["LR"])
    for how, needed in (("sample-parallel", {2}), ("partial", {0, 1, 2})):
        des = DesStep(whole, seed=5, collectives=Collectives(0, 4), settings=SETTINGS[how])
        assert {r for r in range(4) if des.routed.exchange._needs_groups(r)} == needed


def test_equal_runs_give_equal_bits() -> None:
    def run() -> dict[str, torch.Tensor]:
        des = DesStep(pipeline(*ROLES["both"]), seed=5)
        rng = np.random.default_rng(0)
        for _ in range(3):
            des.step(*batch(rng, 1_000, 300))
        return des.state_dense() | {n: torch.from_numpy(t.export()[1]) for n, t in des.tables.items()}

    one, other = run(), run()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_groups_are_added_to_their_rows_and_sum_their_gradients() -> None:
    rng = np.random.default_rng(0)
    index = np.r_[np.arange(5), rng.integers(0, 5, 20)].astype(np.int32)
    source = torch.Generator().manual_seed(1)
    shared, own = (torch.randn(n, 3, generator=source, requires_grad=True) for n in (5, 25))
    rows = Groups(index, 5, torch.device("cpu")).add(own * 2, shared)
    torch.testing.assert_close(rows, 2 * own + shared[index])
    grad = torch.from_numpy(rng.integers(-4, 5, (25, 3)).astype(np.float32))
    rows.backward(grad)  # type: ignore[no-untyped-call]
    wanted = np.zeros((5, 3), np.float32)
    np.add.at(wanted, index, grad.numpy())
    assert shared.grad is not None and own.grad is not None
    np.testing.assert_array_equal(shared.grad.numpy(), wanted)
    np.testing.assert_array_equal(own.grad.numpy(), 2 * grad.numpy())


def test_a_model_without_partial_results_learns_in_groups() -> None:
    """AutoInt gathers all that it reads."""
    whole, rng = pipeline(AutoInt(dim=4, layers=1)), np.random.default_rng(0)
    grouped, plain = (DesStep(whole, seed=5) for _ in range(2))
    for _ in range(3):
        features, label = batch(rng, 200, 60)
        found, want = grouped.step(features, label), plain.step(features.plain(Common.of(whole)), label)
        np.testing.assert_allclose(found.logits["rank"], want.logits["rank"], rtol=1e-4, atol=1e-6)


IMPRESSIONS, FAILING = 4_000, {5, 6, 1_700, 3_999}
OPTIONS: dict[str, object] = dict(
    batch_size=512, batch_ramp=0, publish_interval_s=0.2, threads=1, until_end=True
)


def test_a_run_in_groups_ends_as_one_without(tmp_path: Path) -> None:
    """Train from log to checkpoint, with rows that fail: the same examples, predictions and tables; on two
    ranks, too; and bit for bit when it was interrupted, and when some features are read."""
    source = write_files(tmp_path / "logs", IMPRESSIONS, failing=FAILING)
    assert groups_of_first_batch(source) < 0.5 * 512

    def run(name: str, world: int = 1, **more: object) -> Result:
        letters, root = str(tmp_path / "letters"), tmp_path / name
        finish(
            start(
                world, {**OPTIONS, "source": source, "checkpoint": str(root), "dead_letters": letters, **more}
            )
        )
        return Result(root)

    grouped = run("grouped")
    assert len(grouped.predictions) == IMPRESSIONS - len(FAILING)
    apart = run("apart", common_features=False)
    assert grouped.predictions.tobytes() != apart.predictions.tobytes()  # sums were added in another order
    assert_close(grouped, apart)
    assert_close(run("two ranks", world=2), apart)
    run("interrupted", max_steps=3)
    assert_same(run("interrupted"), grouped)
    (tmp_path / "p.py").write_text(
        "from tests.trainer.ad_logs import ad_pipeline\n\npipeline = ad_pipeline()\n"
    )
    materialized = str(tmp_path / "materialized")
    materialize = ["features", "materialize", "--pipeline", str(tmp_path / "p.py"), "--source", source]
    assert main([*materialize, "--out", materialized, "--features", "age,behaviors,category,tag_pairs"]) == 0
    assert_same(run("read", materialized=materialized), grouped)


def groups_of_first_batch(source: str) -> int:
    """Number of groups in the first 512 examples."""
    built = ad_pipeline()
    examples = ExampleSource(
        built, source, ReadOptions(until_end=True), rank=0, world=1, dead_letters=DeadLetters(None)
    )
    while not examples.ended:
        examples.poll(0.1)
    first = examples.pop(512)
    examples.close()
    found = CommonExtractor(built, Extractor(built.plan)).features(first)
    assert isinstance(found, CommonFeatures)
    return found.groups
