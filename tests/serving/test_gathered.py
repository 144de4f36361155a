"""Models that gather vectors or lists: the rank server's answers equal the model's on its tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import grpc
import numpy as np
import pytest

from livectr.client.clients import RankClient
from livectr.ingest.pipeline import Pipeline
from livectr.models import LR
from livectr.serving.app import App
from livectr.trainer.des.step import DesStep
from livectr.trainer.publish.snapshot import served_columns
from livectr.trainer.publish.version import PublishedModel
from tests.serving.display_pipeline import pipeline
from tests.serving.display_requests import in_request_order
from tests.serving.display_world import HISTORY, NOW_MS, SEED, World
from tests.serving.gathered_models import ADS, CONFIGS, CONTEXT, OTHERS, POSITIONS, SEEN, TAGS, Trained
from tests.serving.publication import Publication
from tests.serving.swaps import served
from tests.tiers import few
from tests.waiting import until

Serve = Callable[..., App]


@pytest.mark.parametrize("name", CONFIGS | OTHERS)
def test_served_probabilities_are_the_models(name: str, redis_url: str, serve: Serve) -> None:
    trained = Trained((CONFIGS | OTHERS)[name])
    trained.publish(redis_url)
    candidates = {"ad_id": ADS, "position": POSITIONS}
    with RankClient(serve("rank", trained.pipeline).server.address) as client:
        for _ in range(2):  # from Redis, then from the near-cache
            alike = client.rank(CONTEXT | {"tags": ["x", "y"]}, candidates)
            np.testing.assert_allclose(in_request_order(alike), trained.pctr(3, SEEN, ["x", "y"]), atol=1e-6)
        apart = client.rank(CONTEXT, candidates | {"tags": TAGS})
        np.testing.assert_allclose(in_request_order(apart), trained.pctr(3, SEEN, TAGS), atol=1e-6)
        nobody = client.rank(CONTEXT | {"user_id": 12, "tags": []}, candidates)  # no history, no tags
        np.testing.assert_allclose(in_request_order(nobody), trained.pctr(12, [], []), atol=1e-6)
        one = client.rank(CONTEXT | {"tags": ["x", "y"]}, {"ad_id": ADS[:1], "position": POSITIONS[:1]})
        np.testing.assert_allclose(one.pctr, trained.pctr(3, SEEN, ["x", "y"])[:1], atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("own", few([False, True], True), ids=["shared lists", "own lists"])
def test_equal_candidates_have_equal_probabilities(
    name: str, own: bool, redis_url: str, serve: Serve
) -> None:
    """To the last bit, of any number of candidates."""
    trained, tags = Trained(CONFIGS[name]), ["x", "y"]
    trained.publish(redis_url)
    with RankClient(serve("rank", trained.pipeline).server.address) as client:
        for count in (2, 17):
            candidates = {"ad_id": ADS[:1] * count, "position": [1] * count}
            if own:
                found = client.rank(CONTEXT, candidates | {"tags": [tags] * count})
            else:
                found = client.rank(CONTEXT | {"tags": tags}, candidates)
            assert list(found.index) == list(range(count)) and len(set(found.pctr)) == 1


def test_a_long_list_is_not_looked_at_from_many_candidates(redis_url: str, serve: Serve) -> None:
    trained = Trained(CONFIGS["DIN, two lists"])
    trained.publish(redis_url)
    app = serve("rank", trained.pipeline, max_values=8000)
    context = CONTEXT | {"tags": [f"t{i}" for i in range(1561)]}
    with RankClient(app.server.address) as client:
        with pytest.raises(
            grpc.RpcError, match="feature tags has 1561 values, too many to be looked at from 41"
        ):
            client.rank(context, {"ad_id": ADS, "position": POSITIONS})
        assert len(client.rank(context, {"ad_id": ADS[:39], "position": POSITIONS[:39]}).pctr) == 39


def test_a_history_changes_what_din_answers(redis_url: str, serve: Serve) -> None:
    trained = Trained(CONFIGS["DIN"])
    publication = trained.publish(redis_url)
    context = CONTEXT | {"tags": ["x", "y"]}
    with RankClient(serve("rank", trained.pipeline).server.address) as client:
        before = in_request_order(client.rank(context, {"ad_id": ADS, "position": POSITIONS}))
        publication.history(HISTORY, 3, [120, 121], [NOW_MS - 2, NOW_MS - 1])
        after = in_request_order(client.rank(context, {"ad_id": ADS, "position": POSITIONS}))
    np.testing.assert_allclose(after, trained.pctr(3, [120, 121], ["x", "y"]), atol=1e-6)
    assert np.abs(after - before).max() > 1e-5


def test_a_challenger_may_gather_what_the_champion_does_not(redis_url: str, serve: Serve) -> None:
    """LR reads no list: the server begins to read lists with the version that promotes DIN, then stops."""
    world = World(object())  # type: ignore[arg-type]
    contested = Pipeline(
        pipeline.log,
        sparse=pipeline.sparse,
        dense=pipeline.dense,
        rank=LR(),
        challengers={"din": CONFIGS["DIN"]},
    )
    step = DesStep(contested, seed=SEED)
    rng = np.random.default_rng(0)
    for _ in range(10):
        ads, position = rng.choice(list(world.ads), 64).tolist(), rng.integers(0, 5, 64).tolist()
        batch = world.columns(
            int(rng.integers(1, 20)), ads, position, history=SEEN[: int(rng.integers(0, 5))]
        )
        step.step(world.extract(batch), (rng.random(64) < 0.3).astype(np.float32))
    layout = step.spec.layout.segments
    model = PublishedModel(contested.fingerprint, [(s.name, s.dim) for s in layout], SEED)
    out = Publication(redis_url, contested.fingerprint, model.served("rank"), seed=SEED)
    out.lookup_rows("users", world.users)
    out.lookup_rows("ads", world.ads)
    out.history(HISTORY, 3, SEEN, [NOW_MS - 5000 + i for i in range(len(SEEN))])
    rows = {name: table.export(state=False) for name, table in step.tables.items()}
    weights, answers = step.weights(), []
    for champion in ("rank", "din", "rank"):
        if out.version:
            out.promote(champion, model.served(champion))
        columns = served_columns(layout, champion)
        kept = {name: (keys, values[:, columns]) for name, (keys, values) in rows.items()}
        dense = {n: t for n, t in weights.items() if n.startswith((f"{champion}.", "features."))}
        version = out.publish(kept, dense)
        if version == 1:
            app = serve("rank", contested)
        until(partial(served, app), equals=version)
        with RankClient(app.server.address) as client:
            context = CONTEXT | {"tags": ["x", "y"]}
            answers.append(client.rank(context, {"ad_id": ADS, "position": POSITIONS}))
    probe = world.extract(world.columns(3, ADS, POSITIONS, history=SEEN, tags=["x", "y"]))
    scored = step.step(probe, np.zeros(len(ADS), np.float32)).logits  # of before it learns them
    for champion, answer in zip(("rank", "din", "rank"), answers, strict=True):
        want = 1 / (1 + np.exp(-scored[champion].astype(np.float64)))
        np.testing.assert_allclose(in_request_order(answer), want, atol=1e-6)
    assert [answer.model.split("/")[0] for answer in answers] == ["LR", "din:DIN", "LR"]
