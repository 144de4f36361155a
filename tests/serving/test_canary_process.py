"""Canary of real processes: workers, metrics, and what `livectr query` shows."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from livectr.cli import main
from livectr.client.clients import RankClient
from livectr.local.ports import free_ports
from tests.promtool import checked_scrape
from tests.serving.processes import HERE, ready, server
from tests.serving.refusing_pipeline import refusing
from tests.serving.swaps import publish, trainer
from tests.waiting import left_s, until

PIPELINE = HERE / "swap_pipeline.py"
ADS = [1000, 1001]


def ends(process: subprocess.Popen[str]) -> str:
    """Error output of a process that ends with a user's mistake."""
    _, err = process.communicate(timeout=left_s())
    assert process.returncode == 2 and "Traceback" not in err, err
    return err


def test_workers_agree_on_the_side_of_a_user(
    redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    publish(trainer(redis_url))
    beside = trainer(redis_url, namespace="b")
    for _ in range(3):
        publish(beside)
    port = free_ports(1)
    flags = "--listen", "127.0.0.1:0", "--workers", "2", "--set", f"metrics_port={port}"
    canary = "--set", f"canary=ns=b,share=0.4,pipeline={PIPELINE}"
    with server("rank", redis_url, *flags, *canary, pipeline=PIPELINE) as process:
        address, _ = ready(process)
        ready(process)

        def settled(worker: int) -> bool:
            return 'livectr_served_version{role="rank",side="canary"} 3.0' in checked_scrape(port + worker)

        until(lambda: settled(0) and settled(1))
        found: dict[int, set[str]] = {user: set() for user in range(1, 31)}
        for _ in range(8):  # connections, which the kernel spreads over the workers
            with RankClient(address) as client:
                for user, sides in found.items():
                    sides.add(client.rank({"user_id": user}, {"ad_id": ADS}).side)
        assert all(len(sides) == 1 for sides in found.values())
        assert set.union(*found.values()) == {"stable", "canary"}

        ask = [
            "query",
            "rank",
            "--server",
            address,
            "--context",
            "user_id=3",
            "--candidates",
            "ad_id=1000,1001",
        ]
        assert main([*ask, "--side", "canary", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["side"], answer["version"]) == ("canary", 3)
        assert main([*ask, "--side", "canary"]) == 0 and "canary, version 3 of LR/" in capsys.readouterr().out
        assert main([*ask, "--side", "left"]) == 2
        assert "side: is 'left', but must be stable, canary or empty" in capsys.readouterr().err

        assert main(["query", "describe", "--server", address]) == 0
        shown = capsys.readouterr().out
        lines = [" ".join(line.replace("│", " ").split()) for line in shown.splitlines()]
        assert any(
            line.startswith("stable 1 20") and line.endswith("rank 0 450 served, may be pinned")
            for line in lines
        )
        assert "canary 2 kept for servers that lag" in lines
        assert any(
            line.startswith("stable: 0.6 of the requests by user, livectr, version 1 of LR/")
            for line in lines
        )
        assert any(
            line.startswith("canary: 0.4 of the requests by user, b, version 3 of LR/") for line in lines
        )
        assert main(["query", "describe", "--server", address, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert [side["name"] for side in facts["sides"]] == ["stable", "canary"]
        assert [(v["side"], v["number"]) for v in facts["versions"]][:2] == [("stable", 1), ("canary", 3)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(left_s()) == 0


def test_one_side_needs_no_column_for_it(
    redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    publication = trainer(redis_url)
    publish(publication)
    with server("rank", redis_url, "--listen", "127.0.0.1:0", pipeline=PIPELINE) as process:
        address, _ = ready(process)
        assert main(["versions", "hold", "--redis", redis_url, "--reason", "a sale"]) == 0
        with RankClient(address) as client:
            until(lambda: client.describe().held != "")
        capsys.readouterr()
        assert main(["query", "describe", "--server", address]) == 0
        shown = capsys.readouterr().out
        assert "served, may be pinned, held" in shown and "stable" not in shown and ", held: a sale" in shown


def test_a_pipeline_that_refuses_the_requests_ends_the_server(redis_url: str, tmp_path: Path) -> None:
    publish(trainer(redis_url))
    (tmp_path / "new.py").write_text(refusing())
    canary = f"ns=b,share=0.1,pipeline={tmp_path / 'new.py'}"
    with server(
        "rank", redis_url, "--set", f"canary={canary}", "--workers", "2", pipeline=PIPELINE
    ) as process:
        err = ends(process)
    assert "new.py does not take the requests of the server's pipeline: ad_id is string, not int64" in err


def test_mistakes_of_the_flag_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    serve = ["serve", "rank", "--pipeline", str(PIPELINE), "--redis", "redis://127.0.0.1:9"]
    for canary, says in (
        ("b", "canary is 'b', but must be ns=NAMESPACE,share=SHARE[,by=user|request][,pipeline=FILE.py]"),
        ("ns=livectr,share=0.1", "name the namespace of the trainer of the new model"),
        ("ns=b,share=0.1,pipeline=nowhere.py", "canary: pipeline file nowhere.py does not exist"),
    ):
        assert main([*serve, "--set", f"canary={canary}"]) == 2
        assert says in capsys.readouterr().err
