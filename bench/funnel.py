"""Revenue that a pre-rank cut lets through: by click probability, and by the value that a pipeline declares.

    simulated market ─► log ─► trainer ─► Redis ─► pre-rank server ─► a tenth of the ads
                  └───── true P(click), bids ─► true values ─► the ten best ads of a page

An ad's true value on a page is bid · P(click), which only the simulator knows. Of the ten ads of the largest
values, those that the cut has let through keep their revenue. Both cuts come from the same replies: the
scores of pre-rank are logits of clicks, and its order is that of the value.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import numpy.typing as npt

import livectr
from bench.rows import bounded
from livectr import Pipeline, PreRankClient, Stream, Table, labelled, ops, probability
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.models import LR, TwoTower
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.simulator.closed_loop import bids_of
from livectr.simulator.traffic import Traffic, TrafficOptions
from livectr.simulator.truth import DEVICES, PAGES, World

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

ADS, USERS, CUT, BEST = 1_000, 2_000, 0.1, 10
ROWS, PAGES_ASKED, SEEDS = 120_000, 300, 5
RATE = 20_000.0
GOAL = 97.0
"""Percent of the true top ten's expected revenue that a cut by value lets through."""
T_975 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t of a two-sided interval of 95 %, by the number of seeds."""

_KEYS = {"user": "int64", "age": "int64", "gender": "int64", "city": "int64"}
STREAM = Stream(
    "shown",
    key="user",
    columns={
        **_KEYS,
        "device": "int64",
        "page": "int64",
        "position": "int64",
        "ad": "int64",
        "clicked": "int32",
    },
)
TABLE = Table(
    "ads", key="ad", columns={"ad": "int64", "category": "int64", "advertiser": "int64", "bid": "float64"}
)
LOG = labelled(STREAM, label="clicked").lookup(TABLE)
_WHO = ("user", "age", "gender", "segment", "city", "device", "page", "position")
PIPELINE = Pipeline(
    LOG,
    sparse={
        **{name: LOG[name] for name in _WHO if name != "segment"},
        "segment": ops.cross(LOG.age, LOG.gender),
        "ad": LOG.ad,
        "category": TABLE.category,
        "advertiser": TABLE.advertiser,
    },
    rank=LR(),
    prerank=TwoTower(user=_WHO, item=("ad", "category", "advertiser"), dim=16, hidden=(64,), out=32),
    items=TABLE,
    value=TABLE.bid * probability("click"),
)

CUTS = ("value", "click probability", "true click probability")


def run(quick: bool = False) -> list[dict[str, object]]:
    """Rows of `livectr bench funnel`."""
    rows, pages, seeds = (10_000, 20, 2) if quick else (ROWS, PAGES_ASKED, SEEDS)
    found = [kept(seed, rows, pages) for seed in range(1, seeds + 1)]
    workload = (
        f"{ADS:,} ads, cut to {CUT:.0%}, two towers after {rows:,} impressions, {pages} pages, {seeds} seeds"
    )
    result = []
    for cut in CUTS:
        shares = [100 * each[cut] for each in found]
        half = T_975[seeds] * statistics.stdev(shares) / seeds**0.5
        goal = GOAL if cut == "value" and not quick else None
        result.append(
            bounded(
                f"revenue of the true top ten that is kept, cut by {cut}",
                f"{workload}, ± {half:.2f}",
                "%",
                statistics.mean(shares),
                goal=goal,
                better="more",
            )
        )
    return result


def kept(seed: int, rows: int, pages: int) -> dict[str, float]:
    """Share of the expected revenue of the ten best ads that each cut keeps, over some pages."""
    market = Market(seed, rows)
    with LocalRedis(f"127.0.0.1:{free_ports(1)}") as redis:
        data = {"shown": market.shown, "ads": market.ads}
        livectr.train(PIPELINE, data, publish=redis.url, seed=seed, threads=1, batch_size=512)
        app = App("prerank", PIPELINE, ServeOptions(redis.url, max_top_k=ADS))
        app.start()
        try:
            app.wait_ready(60)
            with PreRankClient(app.server.address, 60) as client:
                return _kept(market, client, pages)
        finally:
            app.stop()


def _kept(market: Market, client: PreRankClient, pages: int) -> dict[str, float]:
    survivors = round(CUT * ADS)
    revenue, passed = 0.0, dict.fromkeys(CUTS, 0.0)
    for context, chance in market.pages(pages):
        values = market.bids * chance
        top = np.argsort(-values)[:BEST]
        reply = client.prerank(context, None, ADS)
        place = np.searchsorted(market.ads["ad"], np.array(reply.ids.values))
        clicks = np.empty(ADS)
        clicks[place] = reply.score
        by = {
            "value": place,
            "click probability": np.argsort(-clicks),
            "true click probability": np.argsort(-chance),
        }
        revenue += float(values[top].sum())
        for cut, order in by.items():
            passed[cut] += float(values[np.intersect1d(top, order[:survivors])].sum())
    return {cut: each / revenue for cut, each in passed.items()}


class Market:
    """Market of a seed: its log, whose labels users give at once, and pages whose truth is known.

    Args:
        seed: of all that is random.
        rows: impressions of the log.

    Attributes:
        shown, ads: columns of the log and of the ads.
        bids: f64[ADS], of the ads.
    """

    def __init__(self, seed: int, rows: int) -> None:
        self.world = World(users=USERS, ads=ADS, ad_interval_s=1e9, ad_life=1, seed=seed)
        traffic = Traffic(
            self.world, TrafficOptions(rate=RATE, seconds=1.1 * rows / RATE + 1, duplicates=0.0)
        )
        ticks = list(traffic)
        self._truth, self._rng = traffic.truth, np.random.default_rng([seed, 1])
        self._live = self._truth.live(0.0)
        shown = {
            name: np.concatenate([tick.impressions[name] for tick in ticks if tick.impressions])
            for name in ("request_id", "user_id", "ad_id", "device", "page", "position")
        }
        order = np.argsort(shown["request_id"])[:rows]
        chance = np.concatenate([tick.truth.probability for tick in ticks])[:rows]
        user = shown["user_id"][order] - 1
        self.shown: dict[str, Any] = self._who(user)
        self.shown |= {name: shown[name][order] for name in ("device", "page", "position")}
        self.shown["ad"] = shown["ad_id"][order]
        self.shown["clicked"] = (self._rng.random(rows) < chance).astype(np.int32)
        self.bids = bids_of(seed, self._live)
        self.ads: dict[str, Any] = {
            "ad": self._live.ad_id,
            "category": self._live.category,
            "advertiser": self._live.advertiser,
            "bid": self.bids,
        }

    def _who(self, user: I64) -> dict[str, I64]:
        truth = self._truth
        return {
            "user": user,
            "age": truth.age[user] // 10,
            "gender": truth.gender[user],
            "city": truth.city[user],
        }

    def pages(self, count: int) -> list[tuple[dict[str, int], F64]]:
        """Contexts of pages without a query, each with the true P(click) f64[ADS] of all ads."""
        rng, truth, found = self._rng, self._truth, []
        share = truth.activity / truth.activity.sum()
        for user in rng.choice(USERS, count, p=share).tolist():
            device, page = int(rng.integers(len(DEVICES))), int(rng.choice([0, 2, 3][: len(PAGES)]))
            place = {"device": device, "page": page, "position": 0}
            chance = truth.probability(
                np.full(ADS, user),
                self._live,
                np.arange(ADS),
                np.full(ADS, device),
                np.zeros(ADS, np.int64),
                np.full(ADS, 22),
                np.full((ADS, 2), -1),
            )
            who = {name: int(values[0]) for name, values in self._who(np.array([user])).items()}
            found.append(({**who, **place}, chance))
        return found
