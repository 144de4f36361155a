"""Closed loop: what the simulated users see is what servers choose, and the clicks come back as logs.

    page view ─► candidates with bids ─► rank server ─► auction ─► impressions ─► clicks by the known truth
                                            ▲                          └──────────► logs, learned by trainers
                                            └── versions of the trainers

Each page has a place for each position. Users belong to an arm, which asks a server of its own. With a cut,
the server's pre-rank passes so many of the candidates on to its rank, as a funnel does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from livectr.client.clients import PreRankClient, RankClient
from livectr.protos import livectr_pb2 as pb
from livectr.simulator.auction import best_welfare, second_prices
from livectr.simulator.outcome import Account, outcome
from livectr.simulator.records import CONTEXTS, QUERIES
from livectr.simulator.traffic import Shown, Tick, Traffic, TrafficOptions, query_code
from livectr.simulator.truth import APPS, DEVICES, F64, I64, PAGES, POSITIONS, Ads, World
from livectr.system.errors import ConfigError

THREADS = 4
FIRST_REQUEST = 1 << 40
"""Request ids begin here, so that a log may follow one that was simulated without servers."""
BID_SPREAD = 0.6
"""Standard deviation of the logarithm of the ads' bids."""
_CONTEXT = ("user_id", "ts", "position", "page", "query", "context")
_CANDIDATE = ("ad_id",)


@dataclass(frozen=True)
class LoopOptions:
    """Options of a closed loop.

    Args:
        servers: HOST:PORT of a rank server for each arm, one or two; HOST:PORT@SIDE asks a side of it.
        candidates: ads among which a server chooses for a page; at least the number of positions.
        before: share of the time, from the start, in which all users are asked of the first server. The
            differences of two arms are measured after it; what a user did before it sharpens them (CUPED).
        timeout_s: deadline of a call.
        cut: candidates that pre-rank passes on to rank; 0: rank sees all. The servers then are servers of
            recommendations.
        blind: pre-rank of the first arm gets no bids; that of the second does, and may be the same server.
    """

    servers: Sequence[str]
    candidates: int = 40
    before: float = 1 / 3
    timeout_s: float = 5.0
    cut: int = 0
    blind: bool = False

    def __post_init__(self) -> None:
        if self.blind and not self.cut:
            raise ConfigError("bids are kept from pre-rank, but there is no cut; say how many it passes on")
        if self.cut and not POSITIONS <= self.cut <= self.candidates:
            raise ConfigError(
                f"the cut is {self.cut}; it is from {POSITIONS}, the places of a page, to the "
                f"{self.candidates} candidates"
            )
        if len(self.servers) > 1 and self.servers[0] == self.servers[1] and not self.blind:
            raise ConfigError(
                f"both arms ask {self.servers[0]}; name two servers, or two sides (HOST:PORT@SIDE)"
            )
        if self.candidates < POSITIONS:
            raise ConfigError(f"candidates is {self.candidates}, but a page has {POSITIONS} places")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arms."""
        first, *others = self.servers
        return (f"{first}, pre-rank without bids" if self.blind else first, *others)


class _Arm:
    """Server that an arm asks.

    Args:
        server: HOST:PORT, or HOST:PORT@SIDE.
        timeout_s: deadline of a call.
        cut: candidates that pre-rank passes on; 0: rank sees all.
        blind: pre-rank gets no bids.
    """

    def __init__(self, server: str, timeout_s: float, cut: int, *, blind: bool) -> None:
        address, _, side = server.partition("@")
        self.client = RankClient(address, timeout_s).on_side(side)
        self._prerank = PreRankClient(address, timeout_s).on_side(side)
        self._cut, self._blind = cut, blind
        described = self.client.describe()
        if cut and described.role != "recommend":
            raise ConfigError(f"{server} is a {described.role} server; a cut needs `livectr serve recommend`")
        self._context, self._candidate = list[str](), list[str]()
        for column in described.columns:
            if column.name in _CANDIDATE:
                self._candidate.append(column.name)
            elif column.name in _CONTEXT:
                one = column.placement != pb.PLACEMENT_CANDIDATE
                (self._context if one else self._candidate).append(column.name)
            elif column.required:
                raise ConfigError(
                    f"{server} asks for {column.name}, which the simulated market does not have; it has "
                    f"{', '.join((*_CONTEXT, *_CANDIDATE))}"
                )

    def rank(
        self, values: dict[str, Any], ads: list[int], bids: list[float], request_id: str
    ) -> tuple[I64, F64]:
        """Places among the candidates as answered, and predicted click probabilities in that order."""
        context = {name: values[name] for name in self._context}
        passed = np.arange(len(ads))
        if self._cut:
            chosen = self._prerank.prerank(context, ads, self._cut, () if self._blind else bids)
            passed = np.array(chosen.index, np.int64)
            ads, bids = [ads[i] for i in passed], [bids[i] for i in passed]
        same = {name: [values[name]] * len(ads) for name in self._candidate if name not in _CANDIDATE}
        candidates = {"ad_id": ads, **same}
        answer = self.client.rank(context, candidates, bids, request_id=request_id)
        return passed[np.array(answer.index, np.int64)], np.array(answer.pctr, np.float64)


class ClosedTraffic(Traffic):
    """Traffic whose ads are chosen by servers; see the module.

    Args:
        world: the market.
        options: the traffic; `rate` counts impressions, so that there are rate / POSITIONS pages a second. No
            record is broken or sent twice.
        loop: the servers.

    Raises:
        ConfigError: a server asks for a column that the market does not have.
        CallError: a server does not answer.
    """

    def __init__(self, world: World, options: TrafficOptions, loop: LoopOptions) -> None:
        super().__init__(world, replace(options, duplicates=0.0, broken=0.0))
        self._next_request = FIRST_REQUEST
        self._loop = loop
        self._arms = [
            _Arm(server, loop.timeout_s, loop.cut, blind=loop.blind and number == 0)
            for number, server in enumerate(loop.servers)
        ]
        self._visits = np.random.default_rng([world.seed, 6])
        arms = np.random.default_rng([world.seed, 7]).integers(len(self._arms), size=world.users)
        self.arm: I64 = arms.astype(np.int64)
        self.account = Account(world.users)

    def __iter__(self) -> Iterator[Tick]:
        with ThreadPoolExecutor(THREADS, "simulated-visits") as self._threads:
            yield from super().__iter__()

    def outcome(self) -> dict[str, Any]:
        """See `outcome.outcome`."""
        return {"outcome": outcome(self.account, self.arm, self._loop.names)}

    def _show(self, start_ms: int, elapsed_s: float) -> Shown:
        self._pass_time(start_ms)
        o, rng, truth = self.options, self._visits, self.truth
        ads = truth.live(elapsed_s)
        n, live = int(rng.poisson(o.rate * o.tick_ms / 1000 / POSITIONS)), len(ads.ad_id)
        ts = start_ms + np.sort(rng.integers(o.tick_ms, size=n))
        user = np.searchsorted(self._users, rng.random(n)).clip(max=truth.world.users - 1)
        device, app = rng.integers(len(DEVICES), size=n), rng.integers(len(APPS), size=n)
        page = rng.integers(len(PAGES), size=n)
        words, style = self._search(ads.words[rng.integers(live, size=n)], page)
        # A sample without replacement by weight (Efraimidis & Spirakis 2006): the largest log(u) / w.
        keys = np.log(rng.random((n, live))) / ads.budget
        most = min(self._loop.candidates, live)
        candidates = np.sort(np.argpartition(-keys, most - 1, axis=1)[:, :most], axis=1)
        tested = len(self._arms) == 1 or elapsed_s >= self._loop.before * o.seconds
        bids = bids_of(truth.world.seed, ads)

        def choose(i: int) -> tuple[I64, F64]:
            arm = self._arms[self.arm[user[i]] if tested else 0]
            values = {
                "user_id": int(truth.user_id[user[i]]),
                "ts": int(ts[i]),
                "position": 0,
                "page": PAGES[page[i]],
                "query": QUERIES[query_code(words[i : i + 1], style[i : i + 1])[0]] or "",
                "context": CONTEXTS[device[i] * len(APPS) + app[i]],
            }
            mine = candidates[i]
            # The id of a page is that of its first impression.
            id = str(self._next_request + i * POSITIONS)
            order, pctr = arm.rank(values, ads.ad_id[mine].tolist(), bids[mine].tolist(), id)
            return mine[order[:POSITIONS]], second_prices(bids[mine[order]], pctr, POSITIONS)

        chosen = list(self._threads.map(choose, range(n)))  # in the order of the views
        shown = np.array([ad for ad, _ in chosen], np.int64).reshape(n, POSITIONS)
        prices = np.array([price for _, price in chosen]).reshape(n, POSITIONS)
        columns = {"user": user, "device": device, "page": page, "style": style, "ts": ts, "app": app}
        views = {name: np.repeat(values, POSITIONS) for name, values in columns.items()}
        views |= {"ad": shown.ravel(), "position": np.tile(np.arange(POSITIONS), n)}
        made = self._queue(ads, views, np.repeat(words, POSITIONS, axis=0))
        clicked = made.clicked.reshape(n, POSITIONS)
        probability = made.shown.probability.reshape(n, POSITIONS) / (1 - o.late)
        best = self._best(ads, candidates, bids, columns, words)
        sums = (
            np.ones(n),
            np.full(n, float(POSITIONS)),
            clicked.sum(1),
            (clicked * prices).sum(1),
            (probability * bids[shown]).sum(1),
            best,
        )
        self.account.add(user, np.stack(sums, axis=1), tested=tested)
        return made.shown

    def _best(self, ads: Ads, candidates: I64, bids: F64, views: dict[str, I64], words: I64) -> F64:
        """Welfare of what an oracle shows, f64[n]."""
        n, most = candidates.shape
        each = {name: np.repeat(values, most * POSITIONS) for name, values in views.items()}
        probability = self.truth.probability(
            each["user"],
            ads,
            np.repeat(candidates.ravel(), POSITIONS),
            each["device"],
            np.tile(np.arange(POSITIONS), n * most),
            each["ts"] // 3_600_000 % 24,
            np.repeat(words, most * POSITIONS, axis=0),
        ).reshape(n, most, POSITIONS)
        found = [best_welfare(bids[candidates[i]], probability[i])[1] for i in range(n)]
        return np.array(found, np.float64)


def bids_of(seed: int, ads: Ads) -> F64:
    """Most that each ad pays for a click, f64[A]: a function of the seed and its id."""
    first = int(ads.ad_id[0])
    drawn = [np.random.default_rng([seed, 8, first + i]).normal(0, BID_SPREAD) for i in range(len(ads.ad_id))]
    return np.asarray(np.exp(np.array(drawn)))
