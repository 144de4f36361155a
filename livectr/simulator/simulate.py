"""`livectr logs simulate`: the simulated market's logs in files or Kafka, by the clock or at full speed."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from livectr.simulator.ledger import Ledger
from livectr.simulator.partition import integer_keys, partitions_of
from livectr.simulator.records import (
    ARROW_OF,
    EVENT_TOPICS,
    IMAGE_TOPIC,
    JSON_OF,
    TABLE_TOPICS,
    ads_json,
    broken_images,
    images_json,
    users_json,
)
from livectr.simulator.sinks import Sink, open_sink
from livectr.simulator.traffic import Columns, Tick, Traffic, TrafficOptions
from livectr.simulator.truth import Ads, World

if TYPE_CHECKING:
    from livectr.simulator.closed_loop import LoopOptions

ARROW_BATCH_MS = 1000  # event time of an Arrow message or file


@dataclass(frozen=True)
class SimulateOptions:
    """Options of a simulation.

    Args:
        to: target URL.
        world: the market.
        traffic: the traffic.
        partitions: of every topic.
        events: "json" or "arrow".
        real_time: pace by the clock, not at full speed.
        ledger: file of the true click probabilities.
        images: write the ads' images.
        wait_for_start: write the look-up tables, then wait for a line on standard input, with which event
            time starts.
        loop: servers that choose what is shown; None: it is drawn by the ads' budgets.
    """

    to: str
    world: World = field(default_factory=World)
    traffic: TrafficOptions = field(default_factory=TrafficOptions)
    partitions: int = 4
    events: str = "json"
    real_time: bool = True
    ledger: str | None = None
    images: bool = True
    wait_for_start: bool = False
    loop: "LoopOptions | None" = None


def simulate(
    options: SimulateOptions, *, progress: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, Any]:
    """Write the traffic and return the counts. `progress` gets them about once a second."""
    topics = dict.fromkeys((*EVENT_TOPICS, *TABLE_TOPICS), options.partitions)
    tables: tuple[str, ...] = TABLE_TOPICS
    if options.images:
        topics[IMAGE_TOPIC] = options.partitions
        tables = (*TABLE_TOPICS, IMAGE_TOPIC)
    live = tuple(topics) if options.events == "json" else tables
    sink = open_sink(options.to, topics, tables=tables, live=live)
    try:
        return _Writer(options, sink).run(progress)
    finally:
        sink.close()


def _traffic(options: SimulateOptions) -> Traffic:
    if options.loop is None:
        return Traffic(options.world, options.traffic)
    from livectr.simulator.closed_loop import ClosedTraffic  # with gRPC, which the others do without

    return ClosedTraffic(options.world, options.traffic, options.loop)


class _Writer:
    def __init__(self, options: SimulateOptions, sink: Sink) -> None:
        self.options, self.sink = options, sink
        self.traffic = _traffic(options)
        self.ledger: Ledger | None = None
        self.records = 0
        self.images = self.broken_images = 0
        user_keys = integer_keys(self.traffic.truth.user_id)  # user u is row u - 1
        self._keys = np.array(user_keys, object)
        self._partition = partitions_of(user_keys, options.partitions)
        self._held: dict[str, list[Columns]] = {topic: [] for topic in EVENT_TOPICS}
        self._held_since = 0

    def run(self, progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        self._rows("users", users_json(self.traffic.truth), self.traffic.truth.user_id)
        for ads in self.traffic.opening_ads():
            self._ads(ads)
        self.sink.flush()
        if self.options.wait_for_start:
            progress({"ready": True})
            sys.stdin.readline()
            start_ms = int(time.time() * 1000)
            self.traffic.options = replace(self.traffic.options, start_ms=start_ms)
        if self.options.ledger:
            window = self.options.traffic.label_window_ms
            self.ledger = Ledger(Path(self.options.ledger), window, self.options.partitions)
        began = reported = time.monotonic()
        try:
            for number, tick in enumerate(self.traffic):
                if self.options.real_time:
                    late = began + (tick.end_ms - self.traffic.options.start_ms) / 1000 - time.monotonic()
                    if late > 0:
                        time.sleep(late)
                self._tick(tick)
                if time.monotonic() - reported >= 1:
                    reported = time.monotonic()
                    progress(self.counts(reported - began) | {"ticks": number + 1})
            self._release_held()
            self.sink.flush()
        finally:
            if self.ledger:
                self.ledger.close()
        return self.counts(time.monotonic() - began) | self.traffic.outcome()

    def counts(self, wall_s: float) -> dict[str, Any]:
        """Counts of the written records."""
        c = self.traffic.counts
        return {
            "records": self.records,
            "impressions": c["impressions"],
            "clicks": c["clicks"],
            "late_clicks": c["late_clicks"],
            "duplicates": c["duplicate_impressions"] + c["duplicate_clicks"],
            "broken": sum(n for name, n in c.items() if name.startswith("broken_")),
            "images": self.images,
            "broken_images": self.broken_images,
            "seconds": round(wall_s, 3),
            "records_per_second": round(self.records / max(wall_s, 1e-9)),
            "records_per_batch": self.sink.records_per_batch and round(self.sink.records_per_batch, 1),
        }

    def _tick(self, tick: Tick) -> None:
        for ads in tick.new_ads:
            self._ads(ads)
        if self.ledger:
            self.ledger.show(tick.truth)
        for topic, events in (("impressions", tick.impressions), ("clicks", tick.clicks)):
            if events and len(events["ts"]):
                self._events(topic, events)
        for topic, user, value in tick.broken:
            self._broken(topic, user, value)
        if self.options.events == "arrow" and tick.end_ms - self._held_since >= ARROW_BATCH_MS:
            self._release_held()
            self._held_since = tick.end_ms
        self.sink.flush()
        if self.ledger:
            self.ledger.settle(tick.end_ms)

    def _events(self, topic: str, events: Columns) -> None:
        row = events["user_id"] - 1
        partition: NDArray[np.int32] = self._partition[row]
        if topic == "clicks" and self.ledger:
            self.ledger.click(events, partition)
        self.records += len(row)
        if self.options.events == "arrow":
            self._held[topic].append(events)
        else:
            self.sink.write(topic, partition, self._keys[row].tolist(), JSON_OF[topic](events))

    def _release_held(self) -> None:
        for topic, held in self._held.items():
            if not held:
                continue
            events = {name: np.concatenate([c[name] for c in held]) for name in held[0]}
            held.clear()
            partition = self._partition[events["user_id"] - 1]
            for p in np.unique(partition).tolist():
                mine = {name: values[partition == p] for name, values in events.items()}
                self.sink.write_batch(topic, p, ARROW_OF[topic](mine))

    def _broken(self, topic: str, user: int, value: bytes) -> None:
        if self.options.events == "arrow" and self.options.to.startswith("file:"):
            return  # a folder holds files of a single kind
        self.records += 1
        self.sink.write(topic, self._partition[[user - 1]], [self._keys[user - 1]], [value])

    def _rows(self, topic: str, values: list[bytes], ids: NDArray[np.int64]) -> None:
        keys = integer_keys(ids)
        self.sink.write(topic, partitions_of(keys, self.options.partitions), keys, values)

    def _ads(self, ads: Ads) -> None:
        if self.options.images:
            self._rows(IMAGE_TOPIC, images_json(ads), ads.image_id)
            self.images += len(ads.image_id)
            self.broken_images += int(broken_images(ads).sum())
        self._rows("ads", ads_json(ads), ads.ad_id)
