"""Value in service: pre-rank cuts by it, rank and recommend order by it, and bids of a request win."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import livectr
from livectr import probability
from livectr.analysis.served.reading import ServedReader
from livectr.cli import main
from livectr.client.clients import PreRankClient, RankClient, RecommendClient, RecommendItems
from livectr.client.failures import CallError
from livectr.ingest.pipeline import Pipeline
from livectr.serving.app import App
from tests.serving import display_pipeline, value_pipeline
from tests.serving.display_logs import write_logs
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS, in_request_order, sigmoid
from tests.serving.display_world import NOW_MS, SEED, SEGMENTS, World
from tests.serving.plain_pipeline import NO_HISTORY, publish_plain
from tests.serving.publication import Publication

Serve = Callable[..., App]
USER = {"user_id": 3, "ts": NOW_MS}
EVERY = list(range(100, 150))
ads, log = display_pipeline.ads, display_pipeline.log
by_rows = replace(display_pipeline.pipeline, value=ads.price * probability("click"))
by_requests = replace(display_pipeline.pipeline, value=log.position * probability("click"))


def publish(
    world: World, url: str, pipeline: Pipeline, more_ads: Mapping[int, list[object]] = {}
) -> Publication:
    """Publish a world as a version of a pipeline with a value, and more rows of ads."""
    trainer = Publication(url, pipeline.fingerprint, SEGMENTS, seed=SEED)
    trainer.lookup_rows("users", world.users)
    trainer.lookup_rows("ads", {**world.ads, **more_ads})
    ids, vectors = world.items()
    assert pipeline.worths is not None
    if pipeline.worths.published:
        vectors = np.column_stack([vectors, prices(world, ids.tolist())]).astype(np.float32)
    tables = {name: table.export(state=False) for name, table in world.step.tables.items()}
    trainer.publish(tables, world.step.weights(), (ids, vectors))
    return trainer


def prices(world: World, items: Sequence[int]) -> np.ndarray:
    return np.array([world.ads[item][2] for item in items])


def clicks(world: World, items: Sequence[int]) -> np.ndarray:
    """Probabilities of a click by the two-tower model."""
    return np.asarray(sigmoid(world.logits("prerank", world.columns(3, items, [0] * len(items)))))


def test_rows_say_what_candidates_are_worth(redis_url: str, world: World, serve: Serve) -> None:
    publish(world, redis_url, by_rows, {7: [7, "cat1", None], 8: [8, "cat1", -2.0]})
    app = serve("recommend", by_rows)
    candidates = {"ad_id": ADS, "position": POSITIONS}
    bids = np.random.default_rng(1).random(len(ADS)) * 5
    with RankClient(app.server.address) as client:
        reply, given = client.rank(CONTEXT, candidates), client.rank(CONTEXT, candidates, bids.tolist())
        explained = client.explain(CONTEXT, candidates, best=2)
        no_bid = client.rank(CONTEXT, {"ad_id": [100, 7, 8, 999], "position": [1] * 4})
    pctr = in_request_order(reply)
    for answer, worths in ((reply, prices(world, ADS)), (given, bids), (explained, prices(world, ADS))):
        value = np.array(answer.value)
        np.testing.assert_allclose(value, (worths * pctr)[list(answer.index)], rtol=1e-6)
        assert list(value) == sorted(value, reverse=True)
        np.testing.assert_allclose(answer.ecpm, 1000 * value)
    assert [one.index for one in explained.explanations.candidates] == list(reply.index)[:2]
    assert no_bid.index[0] == 0 and list(no_bid.value[1:]) == [0, 0, 0]


def test_pre_rank_cuts_by_value(redis_url: str, world: World, serve: Serve) -> None:
    trainer = publish(world, redis_url, by_rows)
    trainer.lookup_rows("ads", {7: [7, "cat1", 9.5]})  # of this minute: in no version
    app = serve("recommend", by_rows)
    expected, bids = prices(world, EVERY) * clicks(world, EVERY), np.random.default_rng(2).random(50)
    with PreRankClient(app.server.address) as client:
        named, all_items = client.prerank(USER, EVERY, 10), client.prerank(USER, None, 10)
        given = client.prerank(USER, EVERY, 10, bids.tolist())
        cold = client.prerank(USER, [100, 7, 101], 3)
    for answer, values in ((named, expected), (all_items, expected), (given, bids * clicks(world, EVERY))):
        best = np.argsort(-values, kind="stable")[:10]
        assert list(answer.ids.values) == [EVERY[i] for i in best]
        np.testing.assert_allclose(answer.value, values[best], rtol=1e-5)
        np.testing.assert_allclose(sigmoid(np.array(answer.score)), clicks(world, EVERY)[best], rtol=1e-5)
    by_key = dict(zip(cold.ids.values, cold.value, strict=True))
    columns = world.columns(3, [7], [0], more_ads={7: [7, "cat1", 9.5]})
    np.testing.assert_allclose(by_key[7], 9.5 * sigmoid(world.logits("prerank", columns))[0], rtol=1e-5)
    assert cold.unknown == 1


@pytest.mark.parametrize("named", [False, True])
def test_recommend_is_pre_rank_then_rank_by_value(
    redis_url: str, world: World, serve: Serve, named: bool
) -> None:
    publish(world, redis_url, by_rows)
    address = serve("recommend", by_rows).server.address
    bids = np.random.default_rng(3).random(50).tolist() if named else []
    context = {**CONTEXT, "position": 2}
    with (
        PreRankClient(address) as towers,
        RankClient(address) as ranks,
        RecommendClient(address) as client,
    ):
        chosen = towers.prerank(USER, EVERY[1:] if named else None, 12, bids[1:])
        best = list(chosen.ids.values)
        ranked = ranks.rank(context, {"ad_id": best}, [bids[item - 100] for item in best] if named else [])
        items = RecommendItems(EVERY if named else None, [100] if named else (), bids=bids)
        answer = client.recommend(context, 5, 12, items=items)
        with pytest.raises(CallError, match=r"bid_column: is given, but .* says what items are worth"):
            client.recommend(context, 5, 12, items=replace(items, bid_column="price"))
    assert list(answer.ids.values) == [best[i] for i in ranked.index[:5]]
    assert list(answer.value) == list(ranked.value[:5]) and list(answer.ecpm) == list(ranked.ecpm[:5])


def test_bids_that_no_row_has_come_with_requests(redis_url: str, world: World, serve: Serve) -> None:
    publish(world, redis_url, by_requests)
    address = serve("recommend", by_requests).server.address
    with RankClient(address) as client:
        described = client.describe()
    assert described.needs_bids and described.value == "impressions.position * probability('click')"
    candidates, bids = {"ad_id": ADS, "position": POSITIONS}, [float(1 + i % 7) for i in range(len(ADS))]
    with (
        PreRankClient(address) as towers,
        RankClient(address) as ranks,
        RecommendClient(address) as client,
    ):
        for ask in (
            lambda: ranks.rank(CONTEXT, candidates),
            lambda: towers.prerank(USER, EVERY, 10),
            lambda: towers.prerank(USER, None, 10),
            lambda: client.recommend({**CONTEXT, "position": 1}, 5, 10),
        ):
            with pytest.raises(CallError, match="bids: is missing: no look-up row has the bids") as caught:
                ask()
            assert "bids" in caught.value.fields()
        with pytest.raises(CallError, match="bids: holds 50 values for 0 candidates"):
            towers.prerank(USER, None, 10, [1.0] * 50)
        for wrong, words in ((-1.0, "value 49 is negative"), (float("nan"), "value 49 is not a finite")):
            with pytest.raises(CallError, match=f"bids: {words}"):
                towers.prerank(USER, EVERY, 10, [1.0] * 49 + [wrong])
        reply = ranks.rank(CONTEXT, candidates, bids)
        chosen = towers.prerank(USER, EVERY, 10, [1.0 + i % 7 for i in range(50)])
    np.testing.assert_allclose(
        reply.value, np.array(bids)[list(reply.index)] * np.array(reply.pctr), rtol=1e-6
    )
    values = np.array([1.0 + i % 7 for i in range(50)]) * clicks(world, EVERY)
    assert list(chosen.index) == np.argsort(-values, kind="stable")[:10].tolist()


def test_bids_weigh_items_of_a_pipeline_without_value(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(Publication(redis_url, display_pipeline.pipeline.fingerprint, SEGMENTS, seed=SEED))
    bids = np.random.default_rng(4).random(50)
    with PreRankClient(serve("prerank").server.address) as client:
        reply, plain = client.prerank(USER, EVERY, 10, bids.tolist()), client.prerank(USER, EVERY, 10)
    best = np.argsort(-bids * clicks(world, EVERY), kind="stable")[:10]
    assert list(reply.index) == best.tolist() and len(reply.value) == 10 and not plain.value


def test_values_of_targets_are_those_of_the_checkpoint(
    tmp_path: Path,
    redis_url: str,
    world: World,
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From the log to the replies: the trainer publishes what items are worth, and `query verify` agrees."""
    caplog.set_level("INFO")
    pipeline, answered = value_pipeline.pipeline, f"file:{tmp_path / 'served'}"
    write_logs(tmp_path / "logs", world, 1_000)
    livectr.train(
        pipeline,
        source=f"file:{tmp_path / 'logs'}",
        checkpoint=tmp_path / "checkpoint",
        publish=redis_url,
        batch_size=64,
        threads=1,
    )
    app = serve("recommend", pipeline, served_log=answered, served_share=1.0)
    assert "0.5 * probability('seen') * expected_value('seen') orders rank and recommend alone" in caplog.text
    bids, candidates = np.random.default_rng(5).random(len(ADS)) * 5, {"ad_id": ADS, "position": POSITIONS}
    with (
        RankClient(app.server.address) as ranks,
        PreRankClient(app.server.address) as towers,
        RecommendClient(app.server.address) as client,
    ):
        reply = ranks.rank(CONTEXT, candidates, request_id="of rows")
        given = ranks.rank(CONTEXT, candidates, bids.tolist(), request_id="sent")
        explained = ranks.explain(CONTEXT, candidates, best=2)
        chosen = towers.prerank(USER, None, 20)
        passed = towers.prerank(USER, None, 12)
        context = {**CONTEXT, "position": 2}
        again = ranks.rank(context, {"ad_id": list(passed.ids.values)})
        answered_ads = client.recommend(context, 5, 12, request_id="best")
        none_left = client.recommend(context, 5, 12, items=RecommendItems([100], [100]))
    assert not none_left.ids.values and not none_left.value
    assert list(answered_ads.value) == list(again.value)[:5]
    assert list(answered_ads.ids.values) == [passed.ids.values[i] for i in again.index[:5]]
    assert [one.index for one in explained.explanations.candidates] == list(reply.index)[:2]
    for answer, worths in ((reply, prices(world, ADS)), (given, bids)):
        order, seen = answer.targets
        assert len(set(seen.value)) > 1
        value = worths[list(answer.index)] * np.array(answer.pctr) + 5 * np.array(order.probability)
        value += 0.5 * np.array(seen.probability) * np.array(seen.value)
        np.testing.assert_allclose(answer.value, value, rtol=1e-5)
        assert list(answer.value) == sorted(answer.value, reverse=True)
    expected = prices(world, list(chosen.ids.values)) * sigmoid(np.array(chosen.score))
    np.testing.assert_allclose(chosen.value, expected, rtol=1e-5)
    words = ["--server", app.server.address, "--redis", redis_url, "--requests", "6", "--json"]
    words += ["--pipeline", str(value_pipeline.__file__), "--checkpoint", str(tmp_path / "checkpoint")]
    assert main(["query", "verify", *words]) == 0
    assert json.loads(capsys.readouterr().out)["equal"] == 12
    app.stop()
    records = [json.loads(line) for line in ServedReader(answered).lines()]
    by_id = {record["request_id"]: np.sort(record["value"])[::-1] for record in records}
    for name, values in (("of rows", reply.value), ("sent", given.value), ("best", answered_ads.value)):
        np.testing.assert_array_equal(by_id[name][: len(values)], values)


def test_plain_requests_with_bids_are_answered_without_python(
    redis_url: str, world: World, serve: Serve
) -> None:
    """The reply is Python's; a request without bids needs rows, which Python reads."""
    pipeline = replace(NO_HISTORY, value=ads.price * probability("click"))
    publish_plain(redis_url, world, pipeline)
    app = serve("rank", pipeline)
    (method,) = app.sides.methods
    assert method.plain is not None
    candidates, bids = {"ad_id": ADS, "position": POSITIONS}, [float(i % 7) for i in range(len(ADS))]
    with RankClient(app.server.address) as client:
        by_python, plainly = (client.rank(CONTEXT, candidates, bids) for _ in "ab")
        assert method.plain.take().requests == 1
        no_bids = client.rank(CONTEXT, candidates)
        assert method.plain.take().requests == 0
    assert plainly == by_python and list(plainly.value) != list(no_bids.value)
    np.testing.assert_allclose(plainly.ecpm, 1000 * np.array(plainly.value))


def test_the_served_log_has_bids_and_values(
    tmp_path: Path, redis_url: str, world: World, serve: Serve
) -> None:
    publish(world, redis_url, by_rows)
    app = serve("recommend", by_rows, served_log=f"file:{tmp_path}", served_share=1.0)
    bids = [float(i % 7) for i in range(len(ADS))]
    with RankClient(app.server.address) as ranks, RecommendClient(app.server.address) as client:
        candidates = {"ad_id": ADS, "position": POSITIONS}
        replies: list[Any] = [
            ranks.rank(CONTEXT, candidates, bids, request_id="sent"),
            ranks.rank(CONTEXT, candidates, request_id="of rows"),
            client.recommend({**CONTEXT, "position": 1}, 5, 12, request_id="best"),
        ]
    app.stop()
    records = [json.loads(line) for line in ServedReader(f"file:{tmp_path}").lines()]
    assert [record["request_id"] for record in records] == ["sent", "of rows", "best"]
    wanted = (bids, prices(world, ADS), prices(world, replies[2].ids.values))
    for record, reply, worths in zip(records, replies, map(np.asarray, wanted), strict=True):
        np.testing.assert_allclose(record["bids"], worths)
        np.testing.assert_allclose(record["value"], np.array(record["bids"]) * record["pctr"], rtol=1e-6)
        assert sorted(record["value"], reverse=True) == list(reply.value)
