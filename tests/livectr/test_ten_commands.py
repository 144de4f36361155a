"""An owner's first week in eight commands: two raw Kafka topics, a model that changes, a rollback."""

from __future__ import annotations

import heapq
import json
import os
import random
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from kafka import KafkaProducer

from livectr.client.clients import RankClient
from livectr.ingest.addresses import kafka_servers
from livectr.local.kafka import create_topics
from livectr.local.scrape import scrape, value
from livectr.up.folder import Kind, Phase, RunFolder, Running
from tests.commands import Command
from tests.waiting import left_s, until

START_MS = 1_767_600_000_000
FIRST = 1_500
"""Impressions that are there before the first command."""
MOST_COMMANDS = 10


class Traffic:
    """Impressions and clicks of a shop, in event time that goes faster than the clock.

    Args:
        kafka_url: of the broker.
        views, clicks: topics.
    """

    def __init__(self, kafka_url: str, views: str, clicks: str) -> None:
        create_topics(kafka_url, {views: 1, clicks: 1})
        self._producer = KafkaProducer(bootstrap_servers=kafka_servers(kafka_url), linger_ms=20)
        self._views, self._clicks, self._pick, self._number = views, clicks, random.Random(0), 0
        self._due = list[tuple[int, str, int]]()  # (time, view, visitor) of clicks

    def send(self, views: int) -> None:
        """Show products, 100 ms apart; clicks follow after 1 to 4 s."""
        pick = self._pick
        for _ in range(views):
            self._number += 1
            at, view = START_MS + 100 * self._number, f"v{self._number}"
            visitor, product = pick.randrange(50), pick.randrange(40)
            row = {"view_id": view, "visitor": visitor, "at": at, "product": product, "slot": view[-1]}
            self._log(self._views, visitor, row)
            if pick.random() < (0.4 if (visitor + product) % 4 == 3 else 0.05):
                heapq.heappush(self._due, (at + pick.randrange(1_000, 4_000), view, visitor))
            while self._due and self._due[0][0] <= at:
                clicked, view, visitor = heapq.heappop(self._due)
                self._log(self._clicks, visitor, {"view_id": view, "visitor": visitor, "at": clicked})
        self._producer.flush()

    def _log(self, topic: str, visitor: int, row: dict[str, Any]) -> None:
        self._producer.send(topic, json.dumps(row).encode(), str(visitor).encode())

    @contextmanager
    def live(self) -> Iterator[None]:
        """Go on until the end."""
        stop = threading.Event()

        def go_on() -> None:
            while not stop.wait(0.1):
                self.send(30)

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self._producer.close()


class Owner:
    """Commands of an owner, in a working directory.

    Args:
        folder: of them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, RunFolder(folder / ".livectr" / "shop")
        self.log, self.commands = self.run.path / "up.log", 0

    def types(self, *words: str, code: int = 0) -> str:
        """Output of a command that ends with this code."""
        self.commands += 1
        out = self.folder / f"{self.commands}.txt"
        with out.open("w") as file:
            command = [sys.executable, "-m", "livectr", *words]
            process = Command(command, cwd=self.folder, stdout=file, stderr=file, text=True)
        with process:
            try:
                assert process.wait(left_s()) == code, out.read_text()
            finally:
                if process.poll() is None:
                    process.kill()
        return out.read_text()

    def parts(self) -> dict[str, Running]:
        """States of the parts."""
        state = self.run.state()
        return {one.name: one for one in state.parts} if state else {}

    def part(self, name: str) -> Running:
        """State of a part."""
        return self.parts()[name]

    def is_back(self, killed: dict[str, Running]) -> bool:
        """Tell if these parts are ready again, with other processes, and the trainer learns."""
        parts = self.parts()
        back = [parts[name] for name, one in killed.items() if parts[name].pid not in (0, one.pid)]
        if len(back) < len(killed) or any(one.phase is not Phase.READY for one in back):
            return False
        trainer = next(one for one in back if one.part.kind is Kind.TRAINER)
        return bool(value(scrape(int(trainer.metrics[0].rpartition(":")[2])), "livectr_examples_total"))


@contextmanager
def asking(address: str) -> Iterator[Callable[[], Any]]:
    """A client asks one request after the other; none may fail. Gives the newest reply."""
    stop, replies, failed = threading.Event(), list[Any](), list[grpc.RpcError]()

    def ask() -> None:
        with RankClient(address, timeout_s=60.0) as client:
            while not stop.wait(0.005):  # a pause that leaves the cores to the trainers
                try:
                    replies[:] = [client.rank({"visitor": 7, "slot": "1"}, {"product": [1, 2, 3]})]
                except grpc.RpcError as error:
                    failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield lambda: replies[0] if replies else None
    finally:
        stop.set()
        thread.join()
    assert replies and not failed, (len(failed), failed[:1])


def test_two_topics_are_served_changed_rolled_back_and_ended(
    kafka_url: str, topic_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Nothing is lost: each model continues the one before, and no request fails but at a kill."""
    views, clicks = topic_name("views"), topic_name("clicks")
    traffic, owner = Traffic(kafka_url, views, clicks), Owner(tmp_path)
    traffic.send(FIRST)
    with traffic.live():
        try:
            of = ("--impressions", f"{kafka_url}/{views}", "--clicks", f"{kafka_url}/{clicks}")
            said = owner.types("init", *of, "--out", "shop")
            assert f"{clicks} joins {views} on view_id; both are keyed by visitor" in said

            fast = ("threads=1", "min_examples=200", "publish_interval_s=0.5")
            where = ("--source", kafka_url, "--listen", "127.0.0.1:0")
            said = owner.types("up", "shop/pipeline.py", *where, "--detach", "--set", *fast, "keep_ages=1s")
            (query,) = [line.strip() for line in said.splitlines() if line.startswith("  livectr query")]
            address = owner.run.parts()["rank"].address
            served = json.loads(owner.types(*shlex.split(query)[1:], "--json"))
            assert served["results"] and all(0 < row["pctr"] < 1 for row in served["results"])

            found = json.loads(owner.types("status", "--json"))
            (trainer,), (server,) = found["trainers"], found["servers"]
            assert {topic["name"] for topic in trainer["topics"]} == {views, clicks}
            assert trainer["examples"] >= 200 and server["versions"]["stable"] > 0

            text = (tmp_path / "shop" / "pipeline.py").read_text()
            cross = '{**sparse, "visitor_x_product": ops.cross(log.visitor, log.product)}'
            text = text.replace("sparse=sparse", f"sparse={cross}")
            (tmp_path / "shop" / "v2.py").write_text(text)
            text = text.replace("import LR", "import FM").replace("LR()", "FM(dim=2)")
            (tmp_path / "shop" / "v3.py").write_text(text)
            with asking(address) as newest:
                until(newest)
                replaced = owner.part("rank")
                rule = "examples >= 300 and auc > -0.5"
                said = owner.types("rollout", "shop/v2.py", "--promote", rule)
                assert "new: visitor_x_product" in said and "promoted shop/v2.py" in said
                assert sorted(owner.run.parts()) == ["rank", "redis", "trainer-v2"]
                second, rank = newest().model, owner.part("rank")
                assert second != served["model"] and rank.pid != replaced.pid
                assert rank.part.address == address and {*rank.metrics}.isdisjoint(replaced.metrics)

                rule = "examples >= 300 and auc > 0.5"
                said = owner.types("rollout", "shop/v3.py", "--promote", rule, code=1)
                assert "shop/v3.py was not promoted: after" in said
                assert sorted(owner.run.parts()) == ["rank", "redis", "trainer-v2"]
                assert newest().model == second

            killed = {name: owner.part(name) for name in ("rank", "trainer-v2")}
            for one in killed.values():
                os.kill(one.pid, signal.SIGKILL)
            until(lambda: owner.is_back(killed))
            for name, before in killed.items():  # one that found its port taken has started twice
                after = owner.part(name)
                assert after.restarts == before.restarts + 1, (before, after, owner.log.read_text())
                assert after.reason == "was killed by SIGKILL"
            assert owner.part("redis").restarts == 0
            assert "rank       was killed by SIGKILL; it starts again" in owner.log.read_text()

            with asking(address) as newest:
                until(newest)
                newer = newest().version
                said = owner.types("versions", "rollback", "--and-train")
                assert "are forgotten" in said and "; the trainer goes on from there" in said
                until(lambda: f"version {newest().version} is served" in said)
                assert newest().version > newer and newest().model == second

            pids = [one.pid for one in owner.parts().values()]
            assert "is down" in owner.types("down")
            assert owner.run.state() is None and not any(Path(f"/proc/{pid}").exists() for pid in pids)
        finally:
            if owner.run.running:  # of a test that failed
                owner.types("down")
    assert owner.commands <= MOST_COMMANDS
