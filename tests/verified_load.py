"""`livectr verify` beside mixed load: python -m tests.verified_load [--seconds 600].

A trainer learns a live log with pictures, and publishes a version every two seconds; a server of
recommendations follows it. Clients rank, pre-rank and recommend without a pause, while replies are verified
again and again. The last lines have all counts. The command exits with 1 if a reply differs, none was
compared, or a call failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.serving.process import running, serve_command, started
from livectr.client.clients import PreRankClient, RankClient, RecommendClient
from livectr.client.failures import CallError
from livectr.local.ports import free_ports
from livectr.local.valkey import LocalRedis
from livectr.verify.verify import VerifyOptions, verify
from tests.serving import content_world
from tests.serving.content_logs import write_logs
from tests.serving.content_world import ADS, NOW_MS, USERS

FIRST = 2_000
"""Impressions of the log's first part; they are a second apart."""
TICK_S, EACH = 0.2, 40
"""Pause between two parts of the log, and the impressions of a part."""
ATTEMPTS = 3
TOLERANCE = 1e-5
SETTINGS = {
    "batch_size": "64", "batch_ramp": "0", "threads": "1", "publish_interval_s": "2",
    "checkpoint_interval_s": "4", "batch_wait_s": "0.2", "idle_partition_s": "1", "min_examples": "0",
}  # fmt: skip


def grow(folder: Path, over: threading.Event) -> None:
    """Append to a log, whose time runs faster than ours, until an event."""
    rng, number = np.random.default_rng(8), FIRST
    while not over.wait(TICK_S):
        shown, clicked = [], []
        for _ in range(EACH):
            number += 1
            user, ad, ts = int(rng.choice(USERS)), int(rng.choice(ADS)), NOW_MS + number * 1000
            event: dict[str, Any] = {"request_id": f"r{number}", "user_id": user, "ad_id": ad, "ts": ts}
            shown.append(event)
            if rng.random() < 0.3:
                clicked.append({**event, "ts": ts + 500, "image_id": ad + 5000})
        for topic, events in (("impressions", shown), ("clicks", clicked)):
            with (folder / topic / "00000.jsonl").open("a") as log:
                log.write("".join(json.dumps(event) + "\n" for event in events))


class Load:
    """Clients that ask until they are told to end.

    Attributes:
        answered: replies by method.
        failed: failed calls by their sentence.
        versions: that answered.
        recommended: replies whose probabilities are those that rank gives their items, or are not. A user may
            click between the two calls, so that only a reply which differs each time is counted as different.
    """

    def __init__(self, address: str) -> None:
        self.answered: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.versions: set[int] = set()
        self.recommended: Counter[str] = Counter()
        self._over = threading.Event()
        self._address, asks = address, (self._rank, self._prerank, self._recommend)
        self._threads = [threading.Thread(target=self._ask, args=(ask,)) for ask in asks]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop asking."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, ask: Callable[[np.random.Generator], Iterator[Any]]) -> None:
        name, rng = ask.__name__.strip("_"), np.random.default_rng(5)
        while not self._over.is_set():
            try:
                for reply in ask(rng):
                    self.versions.add(reply.version)
                    self.answered[name] += 1
            except CallError as error:
                self.failed[f"{name}: {error}"] += 1

    def _rank(self, rng: np.random.Generator) -> Iterator[Any]:
        with RankClient(self._address) as client:
            while not self._over.is_set():
                ads = rng.choice(ADS, int(rng.integers(1, len(ADS)))).tolist()
                yield client.rank(_visit(rng), {"ad_id": ads}, rng.random(len(ads)).tolist())

    def _prerank(self, rng: np.random.Generator) -> Iterator[Any]:
        with PreRankClient(self._address) as client:
            while not self._over.is_set():
                items = None if rng.random() < 0.5 else rng.choice(ADS, 20, replace=False).tolist()
                yield client.prerank(_visit(rng), items, 10)

    def _recommend(self, rng: np.random.Generator) -> Iterator[Any]:
        with RecommendClient(self._address) as client, RankClient(self._address) as ranks:
            while not self._over.is_set():
                visit = _visit(rng)
                for attempt in range(ATTEMPTS):
                    reply = client.recommend(visit, 5, 20)
                    with contextlib.suppress(CallError):  # another version is served by now
                        again = ranks.pinned(reply.version).rank(visit, {"ad_id": list(reply.ids.values)})
                        if np.allclose(_in_order(again), reply.pctr, rtol=0, atol=TOLERANCE):
                            self.recommended["equal"] += 1
                            break
                        self.recommended["different"] += attempt == ATTEMPTS - 1
                yield reply


def _in_order(ranked: Any) -> npt.NDArray[np.float64]:
    """Click probabilities of a RankResponse in the order of its request."""
    out = np.empty(len(ranked.pctr))
    out[list(ranked.index)] = ranked.pctr
    return out


def _visit(rng: np.random.Generator) -> dict[str, Any]:
    return {"user_id": int(rng.choice(USERS)), "ts": NOW_MS + int(rng.integers(10**6)) * 1000}


def run(seconds: int) -> int:
    """Verify for some seconds. Returns 0 if no reply differs."""
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="livectr-load-")))
        write_logs(folder / "logs", FIRST)
        content_world.make_store(folder / "images")
        url = stack.enter_context(LocalRedis(f"127.0.0.1:{free_ports(1)}")).url
        source, pipeline = f"file:{folder / 'logs'}", "tests/serving/content_world.py"
        train = [sys.executable, "-m", "livectr", "train", "--pipeline", pipeline, "--source", source]
        train += ["--checkpoint", str(folder / "checkpoint"), "--publish", url]
        train += ["--set", f"content=images={folder / 'images'}"]
        for name, value in SETTINGS.items():
            train += ["--set", f"{name}={value}"]
        stack.enter_context(running(train))
        _, address = stack.enter_context(started(serve_command("recommend", url, pipeline)))
        over = threading.Event()
        stack.callback(over.set)
        writer = threading.Thread(target=grow, args=(folder / "logs", over))
        writer.start()
        load, end, seed = Load(address), time.monotonic() + seconds, 0
        while time.monotonic() < end:
            seed += 1
            report = verify(
                VerifyOptions(
                    content_world.pipeline, address, folder / "checkpoint", url, requests=50, candidates=20,
                    source=source, wait_s=60, content={"images": folder / "images"}, seed=seed,
                )
            )  # fmt: skip
            counts.update(
                {"equal": report.equal, "different": report.different, "candidates": report.candidates}
            )
            counts.update({f"compared: {kind}": count for kind, count in report.compared.items()})
            counts.update({"degraded": report.degraded, "unanswered": report.unanswered})
            print(f"{end - time.monotonic():5.0f} s left: {dict(counts)}", flush=True)
            if report.different:
                report.show(as_json=False)
        load.end()
        over.set()
        writer.join()
    print(f"load: {dict(load.answered)} of {len(load.versions)} versions; failed: {dict(load.failed)}")
    print(f"verified: {dict(counts)}; recommended: {dict(load.recommended)}")
    different = counts["different"] + load.recommended["different"]
    return int(different > 0 or not counts["equal"] or bool(load.failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Verify replies of a server under mixed load.")
    parser.add_argument("--seconds", type=int, default=600, help="seconds to verify for [600]")
    sys.exit(run(parser.parse_args().seconds))
