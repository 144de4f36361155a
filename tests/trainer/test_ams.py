"""AMS: sub-models whose features are spread over ranks learn what one process learns (DICM §4)."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from bench import planted
from livectr.ingest.common_features import Common, CommonFeatures
from livectr.ingest.content.store import ContentStore
from livectr.ingest.language.content import Content
from livectr.models import DICM, EmbeddingModel
from livectr.models.base import prior_log_odds
from livectr.models.configs import model_configs
from livectr.system.errors import ConfigError
from livectr.trainer.des.exchange_choice import FIELD_EXCHANGE_KEY
from livectr.trainer.des.field_parallel import FieldParallel
from livectr.trainer.des.step import DesStep
from tests.ranks import run_ranks
from tests.tiers import Worlds, few
from tests.trainer.common_worker import SIZE, STEPS, batch
from tests.trainer.content_worker import IDS, IMAGE, TEXT, WAYS, asks, make_stores, pipeline
from tests.trainer.key_entropy import best_bytes
from tests.trainer.rank_results import LOGITS, WEIGHTS, facts, merged
from tests.waiting import left_s

WORLDS = (1, 2, 4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """World size → folder with its ranks' results."""

    def make(world: int) -> Path:
        folder = tmp_path_factory.mktemp(f"world{world}")
        make_stores(folder)
        run_ranks(world, "tests.trainer.content_worker", str(folder))
        return folder

    return Worlds(make)


@pytest.mark.parametrize("world", few(WORLDS[1:], 2))
@pytest.mark.parametrize("way", WAYS)
def test_n_ranks_equal_one(runs: dict[int, Path], way: tuple[str, str], world: int) -> None:
    """Logits, vectors, weights of the sub-models, and Adam's first moments, which are sums of gradients."""
    one, many = merged(runs[1], "plain.partial"), merged(runs[world], ".".join(way))
    many.pop(f"dense.{FIELD_EXCHANGE_KEY}", None)
    assert one.keys() == many.keys()
    assert "dense.adam.exp_avg.content.images.weights.0" in one and "dense.content.texts.absent" in one
    for key, tensor in one.items():
        tolerance = LOGITS if key.startswith("logits.") else WEIGHTS
        if ".adam." in key:
            tolerance = dict(rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(
            many[key],
            tensor,
            rtol=tolerance["rtol"],
            atol=tolerance["atol"],
            msg=partial("{}: {}".format, key),
        )


@pytest.mark.parametrize("world", few(WORLDS[1:], 2))
@pytest.mark.parametrize("way", WAYS)
def test_replicas_stay_bitwise_equal(runs: dict[int, Path], way: tuple[str, str], world: int) -> None:
    ranks = facts(runs[world], ".".join(way))
    assert len(ranks) == world
    assert all(rank["checksums"] == ranks[0]["checksums"] for rank in ranks)
    assert len(set(ranks[0]["checksums"])) == STEPS


def test_what_crosses_are_ids_and_vectors(runs: dict[int, Path]) -> None:
    """Bytes of each unique id that a rank requests from another: bits of the ids' span, a vector back, its
    gradient there."""
    common = Common.of(pipeline())
    rng, world, ids, floats = np.random.default_rng(0), 2, 0, 0
    for step in range(STEPS):
        features, _ = batch(rng, SIZE, SIZE // 6)
        cuts = [0, 0 if step == 1 else SIZE // 2, SIZE]
        for rank in range(world):
            own = features.take(np.arange(cuts[rank], cuts[rank + 1])).plain(common)
            if not own.rows:
                continue
            for name, fields, out in (("images", (1, 4), IMAGE.out), ("texts", (5,), TEXT.out)):
                keys = np.unique(np.concatenate([own.field(f)[1] for f in fields]))
                store = ContentStore.open(runs[2] / name, shards=())
                away = keys[store.shard_of(keys) % world != rank]
                ids += best_bytes([away.tolist()])
                floats += 2 * len(away) * out
    ranks = facts(runs[2], "grouped.partial")
    assert sum(rank["bytes"]["content ids"] for rank in ranks) == ids
    reported = 2 * (world - 1) / world * 4 * (len(IDS) + 2) * (IMAGE.out + TEXT.out) * STEPS  # of all vectors
    assert sum(rank["bytes"]["content"] for rank in ranks) - world * reported == pytest.approx(
        4 * floats, abs=64
    )


@pytest.mark.parametrize("world", few(WORLDS, 1, 2))
@pytest.mark.parametrize("kind", ["numbers", "hashes"])
def test_owners_get_the_ids(runs: dict[int, Path], kind: str, world: int) -> None:
    """Ids keep the order of their request; numbers that span 5,000 in 13 bits, hashes as they are."""
    requested = [asks(kind, rank, world) for rank in range(world)]
    for rank, reported in enumerate(facts(runs[world], kind)):
        assert reported["came"] == [lists[rank].tolist() for lists in requested]
        away = [part for r, part in enumerate(requested[rank]) if r != rank]
        assert reported["bytes"] == sum(best_bytes([part.tolist()]) for part in away)
        if kind == "numbers":
            assert reported["bytes"] <= sum(9 + 13 * len(part) / 8 for part in away)


def test_one_process_equals_a_plain_loop(tmp_path: Path) -> None:
    """Logits and gradients of the first batch against sample by sample PyTorch."""
    make_stores(tmp_path)
    built = pipeline()
    stores = {name: ContentStore.open(tmp_path / name) for name in built.content}
    des = DesStep(built, seed=5, content=stores)
    assert des.ams is not None
    features, label = batch(np.random.default_rng(0), 60, 20)
    plain = features.plain(Common.of(built))
    networks = {name: built.content[name].model.network(f"content.{name}", 5) for name in built.content}  # type: ignore[attr-defined]
    model = des.models["rank"]
    weights = {name: w.detach().clone() for name, w in model.weights.items()}  # type: ignore[operator, union-attr]
    rows = {}
    for name, table in des.tables.items():
        keys = np.unique(
            np.concatenate([plain.field(f)[1] for f, t in enumerate(des.spec.table_of) if t == name])
        )
        rows[name] = dict(zip(keys.tolist(), table.lookup(keys).tolist(), strict=True))
    logits = []
    for b in range(plain.rows):
        z = torch.zeros(())
        for f, of in enumerate(des.spec.table_of):
            offsets, keys = plain.field(f)
            z = z + sum(rows[of][int(key)][0] for key in keys[offsets[b] : offsets[b + 1]])
        for field, (name, f) in {"ad": ("images", 1), "liked": ("images", 4), "words": ("texts", 5)}.items():
            offsets, keys = plain.field(f)
            total = torch.zeros(len(weights[field]))
            for key in keys[offsets[b] : offsets[b + 1]]:
                raw, known = stores[name].read(np.array([key]))
                assert bool(known[0]) == (key in IDS)
                total = total + networks[name](torch.from_numpy(raw.copy()), torch.from_numpy(known))[0]
            z = z + (total**2 @ weights[field])[0]
        logits.append(z)
    found = torch.stack(logits)
    result = des.step(features, label)
    reported = torch.from_numpy(result.logits["rank"]) - prior_log_odds()
    torch.testing.assert_close(reported, found.detach(), rtol=1e-4, atol=1e-5)
    # Both roles' gradients meet in the sub-model of images; that of texts has the first role's alone.
    target = torch.from_numpy(label)
    shift = prior_log_odds(float(label.sum()), float(len(label) - label.sum()))
    binary_cross_entropy_with_logits(found + shift, target, reduction="mean").backward()  # type: ignore[no-untyped-call]
    state = des.state_dense()
    for name, p in networks["texts"].named_parameters():
        moment = state[f"adam.exp_avg.content.texts.{name}"] / 0.1
        torch.testing.assert_close(moment, p.grad, rtol=1e-3, atol=1e-7)


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    built = pipeline()
    with pytest.raises(ConfigError, match=r"content 'images' has no features: set content to images=DIR"):
        DesStep(built, seed=1)
    make_stores(tmp_path)
    wrong = ContentStore.create(tmp_path / "wrong", width=9, encoder="random", shards=5)
    with pytest.raises(ConfigError, match=r"features have 9 numbers, the sub-model takes 10"):
        DesStep(built, seed=1, content={"images": wrong, "texts": wrong})


def test_features_take_groups(tmp_path: Path) -> None:
    """Rows in groups and written out give the same bits."""
    make_stores(tmp_path)
    built = pipeline()
    stores = {name: ContentStore.open(tmp_path / name) for name in built.content}
    features, label = batch(np.random.default_rng(2), 50, 10)
    assert isinstance(features, CommonFeatures)
    results = [
        DesStep(built, seed=5, content=stores).step(f, label).logits["rank"]
        for f in (features, features.plain(Common.of(built)))
    ]
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_features_are_read_while_partial_results_are_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single rank waits for them where it embeds them."""
    make_stores(tmp_path)
    built = pipeline()
    stores = {name: ContentStore.open(tmp_path / name) for name in built.content}
    des = DesStep(built, seed=5, content=stores)
    features, label = batch(np.random.default_rng(2), 50, 10)
    computed, in_time = threading.Event(), []
    read, aggregate = ContentStore.read, FieldParallel.aggregate

    def slow_read(store: ContentStore, *given: Any) -> Any:
        in_time.append(computed.wait(left_s()))
        return read(store, *given)

    def then_read(strategy: FieldParallel, *given: Any) -> Any:
        found = aggregate(strategy, *given)
        computed.set()
        return found

    monkeypatch.setattr(ContentStore, "read", slow_read)
    monkeypatch.setattr(FieldParallel, "aggregate", then_read)
    des.step(features, label)
    assert in_time == [True, True]


def test_widths_must_fit() -> None:
    """Check the vector size that a model expects against the sub-model's."""
    dicm = DICM(ad_image="C2", behavior_images="C6", ad="C1", image_dim=5, dim=4)
    content = {"images": Content(("C2", "C6"), EmbeddingModel(width=6, out=3))}
    built = planted.pipeline(dicm, fields=6, content=content)
    with pytest.raises(
        ConfigError, match=r"rank: image_dim is 5, but the sub-model of content 'images' makes"
    ):
        model_configs(built)
