"""Exploration: the distribution of drawn orders, replies of sides that explore, and their records."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livectr.analysis.served.off_policy import Target
from livectr.analysis.served.reading import ServedReader
from livectr.cli import main
from livectr.client.clients import RankClient, RecommendClient, RecommendItems
from livectr.serving.app import App
from livectr.serving.explore.options import ExploreOptions
from livectr.serving.explore.orders import Explorer, greedy
from livectr.serving.options import ServeOptions
from livectr.serving.served.record import decode
from livectr.system.errors import ConfigError
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS, in_request_order
from tests.serving.display_world import World, publication
from tests.waiting import left_s

Serve = Callable[..., App]
VALUES = np.array([0.2, 0.0, 0.5, 0.1, 0.3])
EVERY = "share=1,temperature=1,top=4"
SOME = Explorer(ExploreOptions.parse("share=0.4,temperature=0.5,top=3"))


def by_hand(order: tuple[int, ...]) -> float:
    """Propensity under SOME of places of VALUES: greedy is 2, 4, 0, 3, 1, of which the first three move."""
    best = (2, 4, 0, 3, 1)
    chance, left = 1.0, {item: VALUES[item] ** 2 for item in best[:3]}
    for place, item in enumerate(order):
        if place < 3:
            chance *= left[item] / sum(left.values()) if item in left else 0.0
            left.pop(item, None)
        else:
            chance *= item == best[place]
    return 0.4 * chance + 0.6 * (order == best[: len(order)])


@pytest.mark.parametrize("places", [1, 2, 3, 4, 5])
def test_propensities_are_the_product_of_softmaxes(places: int) -> None:
    orders = list(itertools.permutations(range(5), places))
    found = [SOME.propensity(VALUES, np.array(order))[-1] for order in orders]
    np.testing.assert_allclose(found, [by_hand(order) for order in orders], atol=1e-15)
    assert math.isclose(sum(found), 1.0)
    assert SOME.propensity(VALUES, np.array(orders[-1])).shape == (places,)


def test_orders_come_as_often_as_their_propensities_say() -> None:
    drawn = [SOME.draw(f"request {i}", VALUES) for i in range(20_000)]
    for one in drawn[:100]:
        np.testing.assert_array_equal(one.propensity, SOME.propensity(VALUES, one.order[:3]))
    assert abs(np.mean([one.explored for one in drawn]) - 0.4) < 0.01
    counts = Counter(tuple(one.order.tolist()) for one in drawn)
    expected = {order: by_hand(order) for order in itertools.permutations(range(5)) if by_hand(order) > 0}
    assert counts.keys() == expected.keys() and len(expected) == 6
    spread = sum((counts[order] - 20_000 * p) ** 2 / (20_000 * p) for order, p in expected.items())
    assert spread < 20.5  # of chi-square with 5 degrees of freedom, 1 in 1,000 is larger
    mean = np.mean([1 / one.propensity[-1] for one in drawn])
    assert abs(mean - 6) < 0.2  # Σ over the 6 orders of propensity / propensity


def test_a_request_is_always_answered_alike_and_another_seed_draws_anew() -> None:
    first, second = (
        [Explorer(ExploreOptions(1.0, 1.0, seed=seed)).draw(str(i), VALUES).order.tolist() for i in range(50)]
        for seed in (0, 1)
    )
    again = [Explorer(ExploreOptions(1.0, 1.0)).draw(str(i), VALUES).order.tolist() for i in range(50)]
    assert first == again and first != second


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [0.3], [1e-300, 1e300, 1.0], [0.1] * 200])
def test_extreme_values(values: list[float]) -> None:
    held = np.array(values)
    for temperature in (1e-3, 100.0):
        explorer = Explorer(ExploreOptions(1.0, temperature, top=100))
        drawn = explorer.draw("a", held)
        assert sorted(drawn.order.tolist()) == list(range(len(values)))
        assert len(drawn.propensity) == min(100, len(values))
        assert ((drawn.propensity >= 0) & (drawn.propensity <= 1 + 1e-9)).all()
        worthless = np.flatnonzero(held == 0)
        np.testing.assert_array_equal(drawn.order[len(held) - len(worthless) :], worthless)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.1", "'0.1' is wrong"),
        ("share=0.1", "temperature= is missing"),
        ("share=0.1,temperature=1,epsilon=2", "'epsilon=2' is wrong"),
        ("share=0.1,share=0.2,temperature=1", "'share=0.2' is wrong"),
        ("share=0,temperature=1", "share is '0', but must be a number above 0 and at most 1"),
        ("share=nan,temperature=1", "share is 'nan'"),
        ("share=0.1,temperature=-1", "temperature is '-1', but must be a number above 0 and at most 100"),
        ("share=0.1,temperature=1,top=0", "top is '0', but must be a whole number from 1 to 100"),
        ("share=0.1,temperature=1,side=left", "side is 'left', but must be stable or canary"),
    ],
)
def test_mistakes_in_the_option(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        ServeOptions(explore=text)
    assert says in str(raised.value)


def test_options_are_read_as_they_are_written() -> None:
    options = ExploreOptions.parse("temperature=0.25,share=0.1,seed=7,side=canary")
    assert options == ExploreOptions(0.1, 0.25, 10, 7, "canary")
    assert ExploreOptions.parse(str(options)) == ExploreOptions(0.1, 0.25, 10, 7)


def test_replies_and_records_have_the_drawn_order(
    redis_url: str, world: World, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scores are those of a server that does not explore; a request without an id has nothing to draw by."""
    world.publish(publication(redis_url))
    plain = serve("recommend")
    app = serve("recommend", explore=EVERY, served_log=f"file:{tmp_path}", served_share=1.0)
    candidates = {"ad_id": ADS, "position": POSITIONS}
    bids = np.random.default_rng(1).random(len(ADS)) * 5
    explorer, context = Explorer(ExploreOptions.parse(EVERY)), {**CONTEXT, "position": 1}
    items = RecommendItems(bid_column="price")
    replies: dict[str, Any] = {}
    with (
        RankClient(plain.server.address) as before,
        RankClient(app.server.address) as rank,
        RecommendClient(plain.server.address) as best,
        RecommendClient(app.server.address) as recommend,
    ):
        expected = before.rank(CONTEXT, candidates, bids.tolist())
        unnamed = rank.rank(CONTEXT, candidates, bids.tolist())
        assert unnamed == expected and not unnamed.HasField("exploration")
        for number in range(8):
            id = f"r{number}"
            replies[id] = rank.rank(CONTEXT, candidates, bids.tolist(), request_id=id)
            replies[f"best {id}"] = recommend.recommend(context, 6, 12, items=items, request_id=f"best {id}")
        whole = best.recommend(context, 12, 12, items=items)
        assert recommend.recommend(context, 12, 12, items=items).ids == whole.ids
        assert [(side.name, side.explore) for side in rank.describe().sides] == [
            ("stable", "share=1.0,temperature=1.0,top=4,seed=0")
        ]
        assert before.describe().sides[0].explore == ""
        assert main(["query", "describe", "--server", app.server.address]) == 0
        assert "stable explores: share=1.0,temperature=1.0,top=4,seed=0" in capsys.readouterr().out
    app.stop()
    values = bids * in_request_order(expected)
    exact = np.empty(len(ADS))
    exact[list(expected.index)] = list(expected.ecpm)
    np.testing.assert_allclose(exact, values, rtol=1e-6)
    for id, reply in replies.items():
        known = exact if not id.startswith("best") else np.array(whole.ecpm)
        drawn = explorer.draw(id, known)
        assert reply.exploration.explored
        np.testing.assert_array_equal(list(reply.exploration.propensity), drawn.propensity)
        if id.startswith("best"):
            assert list(reply.ids.values) == np.array(whole.ids.values)[drawn.order[:6]].tolist()
        else:
            assert list(reply.index) == drawn.order.tolist()
            np.testing.assert_array_equal(in_request_order(reply), in_request_order(expected))
        np.testing.assert_array_equal(list(reply.ecpm), known[drawn.order[: len(reply.ecpm)]])
    assert len({tuple(replies[f"r{i}"].index) for i in range(8)}) > 4

    records = {r.request_id: r for r in map(decode, ServedReader(f"file:{tmp_path}").lines())}
    assert records.keys() == replies.keys()
    for id, record in records.items():
        assert record.explore is not None and record.value is not None and record.bids is not None
        reply, order = replies[id], record.explore.order
        assert record.explore.explored and len(order) == 4
        np.testing.assert_array_equal(record.explore.propensity, list(reply.exploration.propensity))
        again = Explorer(ExploreOptions.parse(record.explore.options)).propensity(record.value, order)
        np.testing.assert_array_equal(again, record.explore.propensity)
        if id.startswith("best"):  # all that pre-rank passed on
            assert sorted(record.candidates["ad_id"]) == sorted(whole.ids.values)
            assert [record.candidates["ad_id"][i] for i in order] == list(reply.ids.values)[:4]
            assert len(record.features.digests) == 12
        else:
            assert order.tolist() == list(reply.index)[:4]
            np.testing.assert_array_equal(record.bids, bids)
    with Target(plain.server.address, left_s()) as target:  # asked about the records, it has these values
        answers = target.ask(records.values())
    for record, answer in zip(records.values(), answers, strict=True):
        assert record.value is not None
        np.testing.assert_array_equal(answer.order, greedy(record.value))


def test_one_side_explores(redis_url: str, world: World, serve: Serve) -> None:
    world.publish(publication(redis_url))
    app = serve("rank", explore=f"{EVERY},side=stable", canary="ns=none,share=0")
    with RankClient(app.server.address) as client:
        assert [bool(side.explore) for side in client.describe().sides] == [True, False]


def test_equal_values_keep_their_order() -> None:
    assert greedy(np.array([0.1, 0.3, 0.1, 0.3])).tolist() == [1, 3, 0, 2]
