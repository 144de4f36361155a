"""Traffic of the simulated market, tick by tick: the records of the logs, and the truth about them.

The logs are as untidy as real logs: records arrive a little out of order, some impressions and clicks are
sent twice, some clicks come after the label window, and a few records are broken. All of it is a function of
the seed alone; the clock only decides when a tick is written.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from livectr.simulator.delays import ClickDelays
from livectr.simulator.truth import (
    APPS,
    DEVICES,
    F64,
    I64,
    PAGES,
    POSITIONS,
    SEARCH,
    WORDS,
    Ads,
    Truth,
    World,
)

TICK_MS = 100
JITTER_MS = 60  # records of a topic arrive out of order by up to so much
DRIFT_MS = 1000  # tastes move in steps of this, or of a tick
ADS_AHEAD_S = 5.0  # time from the announcement of an ad to its first impression

STYLES = ("plain", "shouted", "mistyped")  # how a query is written

Columns = dict[str, I64]


def query_code(words: I64, style: I64) -> I64:
    """Index into `records.QUERIES` of words [n, 2] (indices in WORDS, or -1) and style [n]."""
    options = len(WORDS) + 1
    return np.asarray(((words[:, 0] + 1) * options + words[:, 1] + 1) * len(STYLES) + style)


@dataclass(frozen=True)
class TrafficOptions:
    """rate: impressions per second of event time, for `seconds` from `start_ms` (epoch).

    label_window_ms: clicks that come later than this do not count; the pipeline has to say the same.
    click_delays: of the clicks that count.
    tick_ms: event time that is made at once; days of thin traffic are made quickly in ticks of many seconds.
    The shares are of impressions or clicks that are sent twice, of clicks that come too late, of records
    that are broken on top of the sound records.
    """

    rate: float = 1000.0
    seconds: float = 60.0
    start_ms: int = 1_700_000_000_000
    label_window_ms: int = 2000
    click_delays: ClickDelays = ClickDelays()
    tick_ms: int = TICK_MS
    duplicates: float = 0.005
    late: float = 0.02
    broken: float = 0.0005


@dataclass
class Tick:
    """Records that arrive in a tick, each topic in arrival order. `truth` is not written to any log."""

    impressions: Columns
    clicks: Columns
    broken: list[tuple[str, int, bytes]]  # topic, user the record would belong to, value
    new_ads: list[Ads]
    truth: "Shown"
    end_ms: int


@dataclass
class Shown:
    """n unique impressions in request order: ids, event time, P(click within the label window)."""

    request_id: I64
    user_id: I64
    ad_id: I64
    ts: I64
    probability: F64


@dataclass
class Queued:
    """Impressions on their way; clicked: bool[n]."""

    shown: Shown
    clicked: NDArray[np.bool_]


@dataclass
class Pool:
    """Events on their way, taken out in arrival order."""

    columns: Columns = field(default_factory=dict)

    def add(self, columns: Columns) -> None:
        """`columns` includes "arrival" (ms)."""
        if self.columns:
            self.columns = {name: np.concatenate([self.columns[name], columns[name]]) for name in columns}
        else:
            self.columns = columns

    def take(self, before_ms: int) -> Columns:
        """The events with arrival < before_ms, without that column."""
        if not self.columns:
            return {}
        arrival = self.columns["arrival"]
        due = np.flatnonzero(arrival < before_ms)
        due = due[np.argsort(arrival[due], kind="stable")]
        events = {name: values[due] for name, values in self.columns.items() if name != "arrival"}
        rest = arrival >= before_ms
        self.columns = {name: values[rest] for name, values in self.columns.items()}
        return events

    def __len__(self) -> int:
        return len(self.columns["arrival"]) if self.columns else 0


class Traffic:
    """Iterate over the ticks. The last ticks have no new impressions, only delayed records."""

    def __init__(self, world: World, options: TrafficOptions) -> None:
        self.truth = Truth(world)
        self.options = options
        self.counts: Counter[str] = Counter()
        self._rng = np.random.default_rng([world.seed, 3])
        self._typing = np.random.default_rng([world.seed, 4])
        self._users = np.cumsum(self.truth.activity) / self.truth.activity.sum()
        self._impressions, self._clicks = Pool(), Pool()
        self._next_request = 1
        self._announced = 0

    def outcome(self) -> dict[str, Any]:
        """More that is told in the end, JSON-able; of traffic that nobody chose, nothing."""
        return {}

    def opening_ads(self) -> list[Ads]:
        """Cohorts that are alive or announced when the traffic starts; write them before the first tick."""
        return self._announce(0.0)

    def _announce(self, elapsed_s: float) -> list[Ads]:
        born = self.truth.world.cohorts_born(elapsed_s + ADS_AHEAD_S)
        cohorts = [self.truth.cohort(number) for number in range(self._announced, born)]
        self._announced = born
        return cohorts

    def __iter__(self) -> Iterator[Tick]:
        tick_ms, step = self.options.tick_ms, self.options.tick_ms / 1000
        ticks = round(self.options.seconds / step)
        number = 0
        while number < ticks or self._impressions or self._clicks:
            start = self.options.start_ms + number * tick_ms
            shown = self._show(start, number * step) if number < ticks else _nothing()
            number += 1
            impressions, clicks = self._impressions.take(start + tick_ms), self._clicks.take(start + tick_ms)
            yield Tick(
                impressions=impressions,
                clicks=clicks,
                broken=self._break("impressions", impressions) + self._break("clicks", clicks),
                new_ads=self._announce(number * step) if number < ticks else [],
                truth=shown,
                end_ms=start + tick_ms,
            )

    def _show(self, start_ms: int, elapsed_s: float) -> Shown:
        """Queue impressions of a tick and their clicks, with their delays."""
        self._pass_time(start_ms)
        o, rng, truth = self.options, self._rng, self.truth
        ads = truth.live(elapsed_s)
        n = int(rng.poisson(o.rate * o.tick_ms / 1000))
        ts = start_ms + np.sort(rng.integers(o.tick_ms, size=n))
        user = np.searchsorted(self._users, rng.random(n)).clip(max=truth.world.users - 1)
        budget = np.cumsum(ads.budget) / ads.budget.sum()
        ad = np.searchsorted(budget, rng.random(n)).clip(max=len(ads.ad_id) - 1)
        device, position = rng.integers(len(DEVICES), size=n), rng.integers(POSITIONS, size=n)
        page = rng.integers(len(PAGES), size=n)
        words, style = self._search(ads.words[ad], page)
        columns = {"user": user, "ad": ad, "device": device, "position": position, "page": page}
        columns |= {"style": style, "ts": ts, "app": self._typing.integers(len(APPS), size=n)}
        return self._queue(ads, columns, words).shown

    def _pass_time(self, start_ms: int) -> None:
        """Let tastes drift until a tick."""
        tick_ms = self.options.tick_ms
        if start_ms // DRIFT_MS != (start_ms - tick_ms) // DRIFT_MS:
            self.truth.drift(max(DRIFT_MS, tick_ms) / 1000)

    def _queue(self, ads: Ads, of: Columns, words: I64) -> "Queued":
        """Queue n impressions, and the clicks on them.

        Args:
            ads: among which `ad` counts.
            of: i64[n] each: user, ad (row numbers), device, position, page, style, ts, app.
            words: i64[n, 2] of the queries.
        """
        truth, rng, o, ts, user, ad = self.truth, self._rng, self.options, of["ts"], of["user"], of["ad"]
        n, hour = len(ts), ts // 3_600_000 % 24
        probability = truth.probability(user, ads, ad, of["device"], of["position"], hour, words)
        request = np.arange(self._next_request, self._next_request + n, dtype=np.int64)
        self._next_request += n
        events = {
            "request_id": request,
            "user_id": truth.user_id[user],
            "ad_id": ads.ad_id[ad],
            "image_id": ads.image_id[ad],
            "ts": ts,
            "position": of["position"],
            "page": of["page"],
            "query": query_code(words, of["style"]),
            "device": of["device"],
            "app": of["app"],
            "arrival": ts + rng.integers(JITTER_MS, size=n),
        }
        self._send("impressions", self._impressions, events)
        clicked = rng.random(n) < probability
        names = ("request_id", "user_id", "ad_id", "image_id", "ts")
        self._click({name: events[name][clicked] for name in names})
        shown = Shown(request, events["user_id"], events["ad_id"], ts, probability * (1 - o.late))
        return Queued(shown, clicked)

    def _search(self, titles: I64, page: I64) -> tuple[I64, I64]:
        """Queries on the search page: words [n, 2], -1 for none, and style [n].

        Half of the queries have a second word; half of the words are taken from the title of the ad that
        was found.
        """
        rng, n = self._typing, len(page)
        words = rng.integers(len(WORDS), size=(n, 2))
        repeats = rng.random((n, 2)) < 0.5
        words = np.where(repeats, np.take_along_axis(titles, rng.integers(3, size=(n, 2)), 1), words)
        words[rng.random(n) < 0.5, 1] = -1
        words[page != SEARCH] = -1
        return words, rng.choice(len(STYLES), n, p=[0.6, 0.2, 0.2])

    def _click(self, of: Columns) -> None:
        """Put clicks on the impressions `of` on their way; `late` of them miss the label window."""
        rng, window, n = self._rng, self.options.label_window_ms, len(of["ts"])
        means = self.options.click_delays.means(of["ad_id"], of["ts"])
        delay = np.minimum(rng.standard_exponential(n) * means, 0.9 * rng.random(n) + 0.05)
        late = rng.random(n) < self.options.late
        delay = np.where(late, rng.uniform(1.2, 2.0, n), delay)
        ts = of["ts"] + np.maximum((delay * window).astype(np.int64), 1)
        dwell = rng.lognormal(8.5, 1.0, n).astype(np.int64)
        self.counts["late_clicks"] += int(late.sum())
        arrival = ts + rng.integers(JITTER_MS, size=n)
        self._send("clicks", self._clicks, {**of, "ts": ts, "dwell_ms": dwell, "arrival": arrival})

    def _send(self, topic: str, pool: Pool, events: Columns) -> None:
        """Put events on their way, some of them twice."""
        n = len(events["ts"])
        again = self._rng.random(n) < self.options.duplicates
        later = self._rng.integers(max(2, self.options.label_window_ms // 2), size=n)
        pool.add(events)
        pool.add({**{k: v[again] for k, v in events.items()}, "arrival": (events["arrival"] + later)[again]})
        self.counts[topic] += n
        self.counts[f"duplicate_{topic}"] += int(again.sum())

    def _break(self, topic: str, events: Columns) -> list[tuple[str, int, bytes]]:
        """Broken records, as if a bad writer had added them to these events."""
        n = len(events["ts"]) if events else 0
        broken = []
        for row in np.flatnonzero(self._rng.random(n) < self.options.broken).tolist():
            request, user, ad = (int(events[name][row]) for name in ("request_id", "user_id", "ad_id"))
            kind = ("bad_json", "missing_column", "wrong_type")[int(self._rng.integers(3))]
            value = {
                "bad_json": f'{{"request_id":{-request},"user_id":{user},"ad_',
                "missing_column": f'{{"request_id":{-request},"ad_id":{ad}}}',
                "wrong_type": f'{{"request_id":{-request},"user_id":{user},"ad_id":{ad},"ts":"yesterday"}}',
            }[kind]
            self.counts[f"broken_{kind}"] += 1
            broken.append((topic, user, value.encode()))
        return broken


def _nothing() -> Shown:
    none = np.zeros(0, np.int64)
    return Shown(none, none, none, none, np.zeros(0))
