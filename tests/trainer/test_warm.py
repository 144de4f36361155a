"""Warm start: the parts that are named are the other run's, bit for bit; all others are a fresh run's."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from livectr.ingest.content.store import ContentStore
from livectr.ingest.language.content import Content
from livectr.ingest.language.policies import TablePolicy
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR, DeepFM, adagrad
from livectr.system.errors import CheckpointError, ConfigError, MismatchError
from livectr.trainer.checkpoint.manifest import MANIFEST, newest_manifest
from livectr.trainer.des.biases import BIASES_TRAINED_KEY
from livectr.trainer.des.dense import DenseAdam
from livectr.trainer.quality.predictions import read_predictions
from livectr.trainer.run import TrainOptions, train
from livectr.trainer.warm_parts import PARTS, parse_warm_parts
from tests.tiers import few
from tests.trainer.ad_logs import ADS, ad_pipeline, write_files
from tests.trainer.content_worker import IMAGE, Pictured
from tests.trainer.kept import Kept
from tests.trainer.processes import finish, start

OPTIONS = dict(batch_size=64, batch_ramp=0, until_end=True, threads=1)
STATISTICS = ("network", "embeddings")
NARROWER = r"is another one: rank\.\S+ \(\[.*8.*\] there, \[.*4.*\] here\), .*; start from a run with these"


def pictured() -> Pipeline:
    """The ad pipeline with a sub-model of the ads' images, and policies that keep the use of rows."""
    return replace(
        ad_pipeline(),
        rank=Pictured(images=("ad", "behaviors"), texts=()),
        content={"images": Content(("ad", "behaviors"), IMAGE)},
        policies=TablePolicy(admit_after=2, max_age="30d", sketch="4KiB"),
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), 1_200)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("content") / "images"
    store = ContentStore.create(folder, width=IMAGE.width, encoder="random", shards=4)
    ids = np.arange(0, ADS, 2)
    features = np.random.default_rng(0).normal(size=(len(ids), IMAGE.width)).astype(np.float16)
    store.append(ids, features, np.zeros(len(ids), np.uint64))
    return f"images={folder}"


def run(pipeline: Pipeline, source: str, root: Path, **options: object) -> Kept:
    settings: Mapping[str, object] = {**OPTIONS, "checkpoint": str(root), **options}
    train(pipeline, TrainOptions(source, **settings))  # type: ignore[arg-type]
    return Kept(root, pipeline)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory, source: str, images: str) -> tuple[Path, Kept]:
    root = tmp_path_factory.mktemp("old")
    return root, run(pictured(), source, root, content=images)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, source: str, images: str) -> Kept:
    """A run of another seed that has learned nothing."""
    return run(pictured(), source, tmp_path_factory.mktemp("fresh"), content=images, seed=5, max_steps=0)


@pytest.mark.parametrize(
    "named",
    few(["none", "content", "network", "partial", "embeddings", "full"], "content", "partial", "full"),
)
def test_exactly_the_named_parts_are_the_others(
    tmp_path: Path, source: str, images: str, old: tuple[Path, Kept], fresh: Kept, named: str
) -> None:
    root, theirs = old
    warm = dict(warm_start=str(root), warm_parts=named)
    got = run(pictured(), source, tmp_path, content=images, seed=5, max_steps=0, **warm)
    parts = parse_warm_parts(named)
    for part in PARTS:
        assert theirs.part(part) != fresh.part(part)
        assert got.part(part) == (theirs if part in parts else fresh).part(part), part
    with_statistics = not parts.isdisjoint(STATISTICS)
    assert got.part("statistics") == (theirs if with_statistics else fresh).part("statistics")
    trusted = {name for name in got.part("adam") if name.endswith(".bias")} if "network" in parts else set()
    assert not trusted or {
        bytes(got.part("adam")[f"adam.exp_avg_sq.{role}.bias"]) for role in ("rank", "prerank")
    } == {np.float32(DenseAdam.TRUSTED).tobytes()}
    assert {n: m for n, m in got.part("adam").items() if n not in trusted} == {
        n: m for n, m in fresh.part("adam").items() if n not in trusted
    }
    assert got.manifest.field_keys == fresh.manifest.field_keys
    assert (got.manifest.step, got.manifest.examples, got.manifest.predictions) == (0, 0, 0)


def bias(kept: Kept) -> float:
    return float(kept.dense["rank.bias"])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, source: str) -> Path:
    """The ad pipeline after 12 steps."""
    root = tmp_path_factory.mktemp("plain")
    run(ad_pipeline(), source, root, max_steps=12)
    return root


def test_two_ranks_start_from_one_and_one_from_two(tmp_path: Path, source: str, plain: Path) -> None:
    pipeline, warm = ad_pipeline(), dict(seed=5, max_steps=0, warm_parts="full")
    options = {**OPTIONS, **warm, "source": source, "checkpoint": str(tmp_path / "two")}
    log = finish(start(2, {**options, "warm_start": str(plain)}))
    assert f"starts with content, embeddings, network of {plain} after step 12" in log
    one, two = Kept(plain, pipeline), Kept(tmp_path / "two", pipeline)
    back = run(pipeline, source, tmp_path / "back", warm_start=str(tmp_path / "two"), **warm)
    assert (two.manifest.world, back.manifest.world) == (2, 1)
    for part in PARTS:
        assert one.part(part) == two.part(part) == back.part(part), part
    assert one.part("statistics") == two.part("statistics") == back.part("statistics")


def test_two_ranks_learn_as_one_from_there(tmp_path: Path, source: str, plain: Path) -> None:
    """The first batch decides on the field exchange, and networks are rebuilt: they still start warm."""
    options = {**OPTIONS, "seed": 5, "max_steps": 2, "warm_start": str(plain), "warm_parts": "full"}
    one = run(ad_pipeline(), source, tmp_path / "one", **options)
    finish(start(2, {**options, "source": source, "checkpoint": str(tmp_path / "two")}))
    two = Kept(tmp_path / "two", ad_pipeline())
    assert (one.manifest.step, two.manifest.step) == (2, 2)
    # fp32 sums over ranks are added in another order
    np.testing.assert_allclose(predictions(tmp_path / "two"), predictions(tmp_path / "one"), atol=2e-3)
    for name in one.part("network"):
        np.testing.assert_allclose(two.dense[name], one.dense[name], atol=2e-3, err_msg=name)


def predictions(root: Path) -> np.ndarray:
    """Logits of the rank model, in the order of training."""
    return np.asarray(read_predictions(root / "predictions")["rank"])


def test_the_first_batch_moves_new_biases_and_no_trained_ones(
    tmp_path: Path, source: str, plain: Path
) -> None:
    """Also where a checkpoint was written, and resumed, before the first batch."""
    pipeline, old = ad_pipeline(), bias(Kept(plain, ad_pipeline()))
    new = bias(run(pipeline, source, tmp_path / "new", max_steps=0))
    for parts, before in (("network", old), ("embeddings", new)):
        root, warm = tmp_path / parts, dict(warm_start=str(plain), warm_parts=parts)
        begun = run(pipeline, source, root, max_steps=0, **warm)
        assert bias(begun) == before and (BIASES_TRAINED_KEY in begun.dense) == (parts == "network")
        after = run(pipeline, source, root, max_steps=1, **warm)
        # a first step of AdaGrad, or from a CTR of 5 % to that of the batch
        moved = bias(after) - before
        assert abs(moved) < DenseAdam.BIAS_RATE if parts == "network" else moved > DenseAdam.BIAS_RATE
        assert BIASES_TRAINED_KEY not in after.dense
        # the log is read from its beginning
        learned, first = (read_predictions(at / "predictions")["instance"] for at in (root, plain))
        np.testing.assert_array_equal(learned, first[:64])


def test_a_run_that_is_resumed_does_not_look_at_it(
    tmp_path: Path, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    root, away = tmp_path / "new", tmp_path / "away"
    want = run(ad_pipeline(), source, root, max_steps=2)
    with caplog.at_level("INFO"):
        got = run(ad_pipeline(), source, root, max_steps=2, warm_start=str(away), warm_parts="full")
    assert f"{root} is resumed; warm_start {away} is for a new run" in caplog.text
    assert all(got.part(part) == want.part(part) for part in PARTS)


def test_without_a_checkpoint_of_its_own(source: str, plain: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = TrainOptions(source, until_end=True, max_steps=1, warm_start=str(plain))
    with caplog.at_level("INFO"):
        assert train(ad_pipeline(), options).steps == 1
    assert f"starts with content, network of {plain} after step 12" in caplog.text


@pytest.mark.parametrize(
    "change, parts, says",
    [
        ({"rank": DeepFM(dim=4, hidden=(16, 4))}, "network", NARROWER),
        ({"rank": LR(), "prerank": None}, "embeddings", r"rows of the embeddings in .* hold fp32, rank\.w"),
        ({"sparse": "more"}, "embeddings", "has no embedding table second_hour; start from a run with"),
        ({"sparse": "more"}, "partial", r"is another one: .*second_hour \(none there, "),
        ({}, "content", "warm_parts names content, but no model of the pipeline looks at any"),
    ],
    ids=["network", "layout", "table", "field", "content"],
)
def test_another_model_is_refused(
    tmp_path: Path, source: str, plain: Path, change: dict[str, object], parts: str, says: str
) -> None:
    pipeline = ad_pipeline()
    if change == {"sparse": "more"}:
        change = {"sparse": {**pipeline.sparse, "second_hour": pipeline.sparse["hour"]}}
    warm = dict(warm_start=str(plain), warm_parts=parts)
    with pytest.raises((MismatchError, ConfigError), match=says):
        run(replace(pipeline, **change), source, tmp_path, max_steps=1, **warm)  # type: ignore[arg-type]
    assert newest_manifest(tmp_path) is None


def test_rates_and_other_seeds_may_differ(tmp_path: Path, source: str, plain: Path) -> None:
    pipeline = ad_pipeline()
    other = replace(pipeline, rank=replace(pipeline.rank, optimiser=adagrad(lr=0.5)))  # type: ignore[type-var]
    warm = dict(warm_start=str(plain), warm_parts="full", seed=9, max_steps=0)
    got, want = run(other, source, tmp_path, **warm), Kept(plain, pipeline)
    assert all(got.part(part) == want.part(part) for part in PARTS)


def test_a_place_without_a_checkpoint_and_a_torn_one(tmp_path: Path, source: str, plain: Path) -> None:
    for missing in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigError, match="holds no checkpoint; name what"):
            run(ad_pipeline(), source, tmp_path / "new", warm_start=str(missing))
    torn = Path(shutil.copytree(plain, tmp_path / "torn"))
    for path in torn.glob("gen-*/rank-0/dense.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"every generation is torn .* name another --warm-start"):
        run(ad_pipeline(), source, tmp_path / "new", warm_start=str(torn))
    assert list(torn.glob(f"gen-*/{MANIFEST}"))  # it is only read


@pytest.mark.parametrize(
    "text, parts",
    [
        ("network", {"network", "content"}),
        ("partial", {"network", "content"}),
        ("content, embeddings", {"content", "embeddings"}),
        ("full", set(PARTS)),
        ("none", set()),
    ],
)
def test_names_of_parts(text: str, parts: set[str]) -> None:
    assert parse_warm_parts(text) == parts


@pytest.mark.parametrize("text", ["", "rows", "network,", "full,all"])
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"warm_parts names '.*', which is no part; parts are network, content"
    ):
        TrainOptions("file:x", warm_parts=text)
