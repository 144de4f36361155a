"""`livectr up`, `status` and `down` of a small pipeline: real processes, shared by the tests."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from livectr.cli import build_parser, main
from livectr.local.ports import free_ports, is_free
from livectr.system.errors import ConfigError
from livectr.up import plan
from livectr.up.folder import Kind, Part, RunFolder, Running, State
from livectr.up.runs import chosen_folder
from tests import commands
from tests.commands import Command
from tests.waiting import left_s, until

ROWS = 1500
PROGRAM = Path(sys.executable).with_name("livectr")


def write_shop(folder: Path) -> None:
    """A CSV, and the pipeline and log that `livectr init` makes of it."""
    pick = random.Random(1)
    with (folder / "shown.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "shown_at", "user_id", "ad_id", "category", "clicked"])
        for i in range(ROWS):
            ad = pick.randrange(40)
            clicked = int(pick.random() < (0.4 if ad % 4 == 3 else 0.05))
            second = 1_764_000_000 + 20 * i
            rows.writerow([f"i{i}", second, pick.randrange(200), ad, f"c{ad % 4}", clicked])
    csv_file = str(folder / "shown.csv")
    assert main(["init", "--from", csv_file, "--label", "clicked", "--out", str(folder / "shop")]) == 0


class Shop:
    """Run of the pipeline in a working directory.

    Args:
        folder: working directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = RunFolder(folder / ".livectr" / "shop")
        self.port = free_ports(1)
        self.out = folder / "out.txt"
        self.changed = False
        self.process = self.start("--listen", f"127.0.0.1:{self.port}")

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with self.out.open("wb") as out:
            return Command(
                [sys.executable, "-m", "livectr", "up", "shop/pipeline.py", "--set", "threads=1", *words],
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self.command("down")  # a test that detached has failed

    def text(self) -> str:
        return self.out.read_text()

    def wait_up(self) -> None:
        until(lambda: "livectr down" in self.text(), "up", process=self.process, why=self.text)

    def state(self) -> State:
        state = self.run.state()
        assert state is not None, self.text()
        return state

    def part(self, name: str) -> Running:
        return next(one for one in self.state().parts if one.name == name)

    def until_served(self) -> None:
        """Wait until all rows are learned, and all processes say the version that holds them."""

        def versions() -> set[int]:
            """Versions that are said; empty: there is more to come."""
            found = json.loads(self.command("status", "--json").stdout)
            if not (found["trainers"] and found["servers"] and found["published"]):
                return set()  # a part has been killed, and starts
            (trainer,), (server,), (published,) = found["trainers"], found["servers"], found["published"]
            lags = [topic["lag"] for topic in trainer["topics"]]
            if published["examples"] != ROWS or lags != [0] or trainer["backlog_rows"]:
                return set()
            said = {published["version"], server["versions"].get("stable")}
            if trainer["examples"]:  # else it has gone on from a checkpoint of all rows
                said.add(trainer["version"])
            return said

        until(lambda: len(versions()) == 1, "one version of all rows", why=self.text)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(PROGRAM), *words]
        return commands.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=left_s(), check=False
        )


Runs = Callable[[bool], Shop]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The run that is up, or another one: tests may come in any order. Give True to change it."""
    made: list[Shop] = []
    settled: Shop | None = None

    def up(change: bool) -> Shop:
        nonlocal settled
        if not made or made[-1].process.poll() is not None or (made[-1].changed and not change):
            for before in made:
                before.end()
            folder = tmp_path_factory.mktemp("up")
            write_shop(folder)
            made.append(Shop(folder))
            made[-1].wait_up()
        if change or made[-1] is not settled:
            made[-1].until_served()
            settled = made[-1]
        made[-1].changed |= change
        return made[-1]

    yield up
    for one in made:
        one.end()


@pytest.fixture
def shop(runs: Runs) -> Shop:
    """Run as it was started, which the test does not change."""
    return runs(False)


@pytest.fixture
def changed(runs: Runs) -> Shop:
    """Run that the test may change or end."""
    return runs(True)


def status(shop: Shop, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Figures of `livectr status --json`."""
    before = Path.cwd()
    os.chdir(shop.folder)
    try:
        assert main(["status", "--json", *words]) == 0
    finally:
        os.chdir(before)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_it_says_where_all_is_and_how_to_go_on(shop: Shop) -> None:
    text = shop.text()
    assert re.search(rf"rank +│ 127\.0\.0\.1:{shop.port} ", text), text
    assert all(f".livectr/shop/{name}.log" in text for name in ("redis", "trainer", "rank"))
    query, asked, down = (line.strip() for line in text.splitlines() if line.startswith("  livectr "))
    assert (asked, down) == ("livectr status .livectr/shop", "livectr down .livectr/shop")
    answer = shop.command(*shlex.split(query)[1:], "--json")
    assert answer.returncode == 0, answer.stderr
    results = json.loads(answer.stdout)["results"]
    assert len(results) == 3 and all(0 < row["pctr"] < 1 for row in results)


def test_a_second_up_is_refused(shop: Shop) -> None:
    refused = shop.command("up", "shop/pipeline.py")
    assert refused.returncode == 4
    assert "is up already: `livectr status .livectr/shop` shows it" in refused.stderr


def test_status_has_what_the_processes_say(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    found = status(shop, capsys)
    assert [(one["name"], one["state"]) for one in found["parts"]] == [
        ("redis", "ready"),
        ("trainer", "ready"),
        ("rank", "ready"),
    ]
    (trainer,), (server,), (published,) = found["trainers"], found["servers"], found["published"]
    assert trainer["examples"] == ROWS and trainer["backlog_rows"] == 0
    assert trainer["examples_per_s"] >= 0 and trainer["topics"][0]["rows_per_s"] >= 0
    assert [(t["name"], t["read"], t["lag"]) for t in trainer["topics"]] == [("shown", ROWS, 0)]
    quality = {one["over"]: one for one in trainer["quality"] if one["model"] == "rank"}
    assert 0.5 < quality["since start"]["auc"] < 1
    assert trainer["dead_letters"] == {} and trainer["gate"]["held"] == []
    assert server["versions"]["stable"] == published["version"] == trainer["version"]
    assert server["role"] == "rank" and server["ready"] and server["trouble"] == ""
    assert found["silent"] == []


def test_status_of_addresses_says_what_is_silent(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    trainer, rank = shop.part("trainer"), shop.part("rank")
    redis, checkpoint = trainer.part.setting("publish"), trainer.part.setting("checkpoint")
    assert redis is not None and checkpoint is not None
    dead = f"127.0.0.1:{free_ports(1)}"
    words = ["--prometheus", *trainer.metrics, *rank.metrics, dead, "--server", rank.part.address]
    found = status(shop, capsys, *words, "--redis", redis, "--checkpoint", checkpoint)
    assert found["parts"] == []
    assert [one["name"] for one in found["trainers"]] == [*trainer.metrics]
    assert [one["name"] for one in found["servers"]] == [*rank.metrics, rank.part.address]
    assert found["published"][0]["version"] == found["servers"][1]["versions"]["stable"]
    assert found["checkpoints"][0]["examples"] <= ROWS
    (silent,) = found["silent"]
    assert silent["address"] == dead and "Connection refused" in silent["why"]
    assert main(["status", *words]) == 0
    assert "Connection refused" in capsys.readouterr().out


def test_versions_are_those_of_the_run_that_is_up(shop: Shop) -> None:
    listed = shop.command("versions", "list")
    assert listed.returncode == 0 and "served" in listed.stdout and "newest" in listed.stdout, listed.stderr
    for words in (["hold", "--reason", "sale"], ["release"]):
        assert shop.command("versions", *words).returncode == 0
    back = shop.command("versions", "rollback", "--generation", "99")
    assert back.returncode == 2 and "has no generation 99" in back.stderr


def test_watch_looks_again_and_again(shop: Shop) -> None:
    out = shop.folder / "watched.txt"
    with out.open("wb") as file:
        command = [sys.executable, "-m", "livectr", "status", "--watch", "100ms"]
        with Command(command, cwd=shop.folder, stdout=file, stderr=file) as watch:
            until(lambda: out.read_text().count("\nlearned ") > 2, process=watch, why=out.read_text)
            watch.send_signal(signal.SIGINT)
            assert watch.wait(left_s()) == 130


def test_ctrl_c_ends_in_order_and_detached_goes_on(changed: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    pids = [one.pid for one in changed.state().parts]
    changed.process.send_signal(signal.SIGINT)
    assert changed.process.wait(left_s()) == 0, changed.text()
    _, _, ending = changed.text().partition("trainer    ends\n")  # a server may have been replaced before
    lines = [line.split() for line in ending.splitlines()]
    said = ["trainer", "ended"], ["rank", "ends"], ["rank", "ended"], ["redis", "ends"], ["redis", "ended"]
    order = [lines.index(words) for words in said]
    assert order == sorted(order), changed.text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert {one["state"] for one in status(changed, capsys)["parts"]} == {"down"}

    detached = changed.command("up", "--detach")
    assert detached.returncode == 0, detached.stderr + detached.stdout
    assert changed.part("rank").part.address == f"127.0.0.1:{changed.port}"  # as before
    found = status(changed, capsys)
    (trainer,) = found["trainers"]
    assert trainer["examples"] == 0 and found["published"][0]["examples"] == ROWS  # of the checkpoint
    ended = changed.command("down")
    assert ended.returncode == 0 and "is down" in ended.stdout, ended.stderr
    assert changed.run.state() is None
    assert main(["down", str(changed.run.path)]) == 2


def test_a_wrong_start_ends_with_a_sentence(tmp_path: Path) -> None:
    """It leaves the parts of the run before, with which `livectr up` alone goes on."""
    write_shop(tmp_path)
    run = RunFolder(tmp_path / ".livectr" / "shop")
    run.path.mkdir(parents=True)
    run.write_parts([Part("trainer-new", Kind.TRAINER, ("train", "--pipeline", "shop/new.py"))])
    before = run.parts()
    (tmp_path / "empty").mkdir()
    words = [str(PROGRAM), "up", "shop/pipeline.py", "--source", "file:empty"]
    ended = commands.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=left_s(), check=False)
    assert ended.returncode == 2
    (said,) = [line for line in ended.stderr.splitlines() if line.startswith("livectr: ")]
    assert "the trainer ended with exit code 2: " in said and "empty has no folder" in said, ended.stderr
    assert run.parts() == before


def test_printed_commands_are_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--example", "display_ads", "--out", "ads"]) == 0
    capsys.readouterr()
    words = ["--ranks", "2", "--kafka", "--set", "seed=7", "namespace=ads", "max_active=9", "--print"]
    assert main(["up", "ads/pipeline.py", *words]) == 0
    lines = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert [line[:3] for line in lines] == [
        ["livectr", "local", "kafka"],
        ["livectr", "local", "redis"],
        ["livectr", "train", "--pipeline"],
        ["livectr", "serve", "rank"],
        ["livectr", "serve", "prerank"],
        ["livectr", "serve", "recommend"],
    ]
    for line in lines:
        build_parser().parse_args(line[1:])
    train, rank = lines[2], lines[3]
    assert {"--ranks", "seed=7", "--namespace"} <= {*train} and "max_active=9" not in train
    assert {"max_active=9", "share_port=true", "--namespace"} <= {*rank} and "seed=7" not in rank
    kafka = lines[0][lines[0].index("--listen") + 1]
    assert train[train.index("--source") + 1] == f"kafka://{kafka}"


def test_words_that_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--example", "criteo", "--out", "c"]) == 0
    assert main(["up", "c/pipeline.py"]) == 2  # no logs beside it
    assert main(["up", "c/pipeline.py", "--kafka", "--source", "file:logs"]) == 2
    assert main(["up", "c/pipeline.py", "--source", "file:logs", "--set", "bach_size=1"]) == 2
    assert main(["up"]) == 2 and main(["up", "--kafka"]) == 2
    assert main(["status"]) == 2 and main(["down"]) == 2 and main(["down", "elsewhere"]) == 2
    assert main(["status", "--server", f"127.0.0.1:{free_ports(1)}"]) == 4


def test_a_start_that_is_refused_leaves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "pipeline.py").write_text("import nowhere\n")
    (tmp_path / "logs").mkdir()
    for words, says in (
        (["up", "nothing.py"], "pipeline file nothing.py does not exist"),
        (["up", "shop"], "shop is a folder: name the pipeline file, such as shop/pipeline.py"),
        (["rollout", "shop"], "shop is a folder: name the pipeline file, such as shop/pipeline.py"),
        (
            ["up", "shop/pipeline.py", "--source", "file:missing"],
            "there is no folder missing; name the folder",
        ),
        (["up", "shop/pipeline.py", "--source", "file:logs"], "No module named 'nowhere'"),
        (["up", "shop/pipeline.py", "--source", "file:logs", "--detach"], "No module named 'nowhere'"),
    ):
        assert main(words) == 2, words
        said = capfd.readouterr().err
        assert says in said, said
        assert not (tmp_path / ".livectr").exists(), words


def test_a_port_that_is_taken_meanwhile_is_left_to_whoever_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look for free ports finds one free that is taken before Redis binds it."""
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path)
    run = RunFolder(tmp_path / ".livectr" / "shop")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        taken, looks = other.getsockname()[1], [True]
        monkeypatch.setitem(plan.PORTS, "redis", taken)

        def is_free_at_first(host: str, port: int) -> bool:
            return (port == taken and bool(looks) and looks.pop()) or is_free(host, port)

        monkeypatch.setattr(plan, "is_free", is_free_at_first)

        def stop() -> None:
            until(lambda: run.parts().get("redis") and run.parts()["redis"].address != f"127.0.0.1:{taken}")
            os.kill(os.getpid(), signal.SIGTERM)

        watcher = threading.Thread(target=stop)
        watcher.start()
        assert main(["up", "shop/pipeline.py"]) == 0
        watcher.join()
    assert not looks and f"127.0.0.1:{taken}" not in str(run.parts()["trainer"].command)


def test_no_part_gets_the_port_that_the_rank_server_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis and metrics draw theirs before the rank server has its own."""
    asked = free_ports(1)
    draws = [asked, asked]
    monkeypatch.setattr(plan, "free_ports", lambda n, host: draws.pop() if draws else free_ports(n, host))
    monkeypatch.setattr(plan, "is_free", lambda host, port: port == asked and is_free(host, port))
    options = plan.UpOptions("p.py", source="file:logs", listen=f"127.0.0.1:{asked}")
    parts = {part.name: part for part in plan.plan(options, tmp_path, {}, has_prerank=True)}
    assert not draws and parts["rank"].address == f"127.0.0.1:{asked}"
    others = [part for name, part in parts.items() if name != "rank"]
    assert all(not part.address.endswith(f":{asked}") and part.metrics_port != asked for part in others)


def test_a_run_is_found_by_the_pipeline_that_a_rollout_promoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunFolder(tmp_path / ".livectr" / "shop")
    served = Part("rank", Kind.SERVER, ("serve", "rank", "--pipeline", "shop/v3.py"))
    trainer = Part("trainer-v3", Kind.TRAINER, ("train", "--pipeline", "shop/v3.py"))
    run.write_parts([trainer, served])
    assert chosen_folder("shop/v3.py").path == chosen_folder("shop").path == run.path
    with pytest.raises(ConfigError, match="neither the folder of a run nor a pipeline that was run"):
        chosen_folder("shop/v2.py")


def test_versions_without_a_run_say_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["versions", "rollback"]) == 2
    said = capsys.readouterr().err
    assert "start a run by `livectr up`, or say --pipeline, --checkpoint and --redis" in said
    RunFolder(tmp_path / ".livectr" / "shop").write_parts([])
    assert main(["versions", "rollback"]) == 2
    assert (
        "the run in .livectr/shop is down: start it by `livectr up --dir .livectr/shop`"
        in capsys.readouterr().err
    )
    assert main(["versions", "rollback", "--checkpoint", "c"]) == 2
    assert "say --pipeline" in capsys.readouterr().err
