"""The command line: mistakes are one sentence and exit code 2, help teaches and is quick, Ctrl-C is clean."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from livectr.cli import main
from livectr.commands.develop import bench
from tests import commands
from tests.tiers import few
from tests.waiting import left_s

EXAMPLES = Path(__file__).parents[2] / "examples"
DISPLAY_ADS = str(EXAMPLES / "display_ads" / "pipeline.py")
COMMANDS = (
    "up", "status", "rollout", "down", "demo", "train", "serve", "query", "versions", "local", "init",
    "check", "logs", "features", "inspect", "evaluate", "report", "experiment", "plan", "bench",
)  # fmt: skip
GROUPS = {
    "serve": ("rank", "prerank", "recommend", "json"),
    "query": ("rank", "prerank", "recommend", "describe", "verify"),
    "versions": ("list", "hold", "release", "rollback"),
    "local": ("kafka", "redis"),
    "logs": ("simulate", "replay"),
    "features": ("materialize", "encode", "show", "compile"),
    "experiment": ("tune", "ablate", "compare"),
}
"""Command → commands of its own."""


LIVECTR = [sys.executable, "-m", "livectr"]


def livectr(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LIVECTR, *arguments],
        capture_output=True,
        text=True,
        timeout=left_s(),
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "say what to do"),
        (["zzz"], "there is no command 'zzz'; known are bench, "),
        (["trian"], "there is no command 'trian'; did you mean 'train'?"),
        (["train", "--soruce", "x"], "there is no flag --soruce; did you mean --source?"),
        (["train", "--sources=x"], "there is no flag --sources; did you mean --source?"),
        (["train", "x"], "'x' is too much"),
        (["serve", "renk"], "there is no command 'renk'; did you mean 'rank'?"),
        (["train", "x", "y"], "'x', 'y' are too much"),
        (
            ["train", "--foo", "3", "--soruce", "x", "--restarts", "-1"],
            "no flags --foo, --soruce (did you mean --source?); `livectr",
        ),
        (["query", "rank", "--server", "h:1", "--wait", "-5s"], "--wait: -5s must be at least 0"),
        (["logs", "replay", "x", "--start-wait-s", "-.5"], "--start-wait-s: -.5 must be at least 0"),
        (["logs", "simulate", "--to", "file:x", "--drift", "-2d"], "--drift: -2d must be more than 0"),
        (["logs", "simulate", "--to", "file:x", "--drift", "-2x"], "--drift: '-2x' is no duration"),
        (["train", "--chekpoint", "3"], "there is no flag --chekpoint; did you mean --checkpoint?"),
        (["train", "--bach-size", "3"], "there is no flag --bach-size; did you mean --set batch_size=…?"),
        (
            ["train", "--pipeline", "p.py", "--set", "bach_size=3"],
            "there is no setting 'bach_size'; did you mean 'batch_size'?",
        ),
        (["train", "--set", "batch_size"], "say a name and a value, as in --set NAME=VALUE"),
        (["serve", "rank", "--set", "listen=x"], "--set listen: this setting has a flag, say --listen"),
        (["train", "--set", "until_end=true"], "say --until-end or --no-until-end"),
        (["train", "--set", "publish=redis://:geheim@h:1"], "this setting has a flag, say --publish"),
        (["train", "--set", "max_active=3"], "this is a setting of rank, prerank, recommend"),
        (["serve", "prerank", "--set", "served_log=file:x"], "this is a setting of rank, recommend"),
        (["train", "--set", "=5"], "say a name and a value"),
        (["train", "--batch-size"], "say --set batch_size=…"),
        (
            ["train", "--settings", "zzz"],
            "no setting has the word 'zzz'; `--settings` lists all",
        ),
        (["train", "--settings", "batch_sise"], "has the word 'batch_sise'; did you mean 'batch_size'?"),
        (["train"], "say --pipeline, or set LIVECTR_PIPELINE"),
        (
            ["train", "--pipeline", "nothing.py", "--source", "file:x"],
            "pipeline file nothing.py does not exist",
        ),
        (["train", "--pipeline", DISPLAY_ADS], "say --source"),
        (
            ["train", "--pipeline", DISPLAY_ADS, "--source", "file:x", "--set", "warm_parts=rows"],
            "warm_parts names 'rows', which is no part; parts are network, content, embeddings",
        ),
        (
            ["train", "--pipeline", DISPLAY_ADS, "--source", "file:x", "--warm-start", "/nothing/here"],
            "warm_start: /nothing/here holds no checkpoint",
        ),
        (["train", "--pipeline", DISPLAY_ADS, "--source", "kafka:x"], "must begin with kafka:// or file:"),
        (["train", "--pipeline", DISPLAY_ADS, "--source", "file:/nothing/here"], "/nothing/here"),
        (["train", "--pipeline", DISPLAY_ADS, "--source", "kafka://127.0.0.1:9"], "127.0.0.1:9"),
        (["serve", "rank", "--pipeline", DISPLAY_ADS, "--redis", "redis://127.0.0.1:9"], "127.0.0.1:9"),
        (["serve", "rank", "--pipeline", DISPLAY_ADS, "--listen", "nowhere"], "nowhere"),
        (["query", "rank", "--server", "127.0.0.1:9"], "127.0.0.1:9 cannot answer yet"),
        (["query", "rank", "--server", "127.0.0.1:9", "--timeout", "soon"], "soon"),
        (["logs", "replay", "x.csv", "--format", "tsv", "--to", "file:x"], "invalid choice: 'tsv'"),
        (["logs", "replay", "x.csv", "--format", "csv", "--to", "file:x", "--types", "a=int"], "a is 'int'"),
        (
            ["logs", "replay", "x.csv", "--format", "csv", "--to", "file:x", "--rate", "0"],
            "must be more than 0",
        ),
        (["logs", "simulate", "--to", "file:x", "--start", "yesterday"], "--start is 'yesterday'"),
        (["inspect"], "say what to show"),
        (["inspect", "--checkpoint", "/nothing/here"], "holds no checkpoint"),
        (["inspect", "--redis", "redis://127.0.0.1:9"], "Redis at redis://127.0.0.1:9 does not answer"),
        (["versions"], "the following arguments are required: list|hold|release|rollback"),
        (["versions", "list", "--redis", "redis://127.0.0.1:9"], "redis://127.0.0.1:9 does not answer"),
        (["versions", "rollback", "--pipeline", DISPLAY_ADS], "say --checkpoint"),
        (["plan", "--rate", "1M/s"], "the following arguments are required: --ids"),
        (["plan", "--rate", "fast", "--ids", "1e9"], 'write a rate such as "1M/s"'),
        (["plan", "--rate", "1M/s", "--ids", "1e9", "--network", "10GB/s"], "bits or bytes?"),
        (["bench", "tabels"], "did you mean 'tables'?"),
        (["demo", "--pipeline", str(EXAMPLES / "criteo" / "pipeline.py")], "joins no clicks"),
        (["demo", "--keep", str(EXAMPLES)], "is not empty"),
    ],
)
def test_a_users_mistake_is_a_sentence(
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == (4 if "127.0.0.1:9" in says else 2)  # 4: nothing answers
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("livectr: ")
    assert says in said[-1] and "geheim" not in said[-1]
    assert not any("Traceback" in line for line in said)


def test_mistakes_in_a_pipeline_file_name_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.py"
    path.write_text(
        "from livectr.ingest.language.streams import Stream\n\n"
        "x = Stream('t', key='u', columns={'u': 'int65'})\n"
    )
    assert main(["inspect", "--pipeline", str(path)]) == 2
    assert f"{path}:3:" in capsys.readouterr().err


def test_an_unknown_setting_of_the_pipeline_file_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(DISPLAY_ADS).read_text().replace('"batch_size"', '"batchsize"')
    (tmp_path / "p.py").write_text(text)
    assert main(["train", "--pipeline", str(tmp_path / "p.py"), "--source", "file:x"]) == 2
    assert "settings of the pipeline: there is no setting 'batchsize'" in capsys.readouterr().err


def test_the_process_exits_with_the_code() -> None:
    done = livectr("train", "--pipeline", "x.py", "--source", "file:y", LIVECTR_BATCHSIZE="3")
    assert done.returncode == 2
    assert done.stderr == (
        "livectr: environment variable LIVECTR_BATCHSIZE: there is no setting 'batchsize'; "
        "did you mean 'batch_size'?\n"
    )


def shown_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_settings_are_listed_by_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "--settings", "Idle"])
    assert end.value.code == 0
    listed = re.findall(r"^  (\w+) \(", capsys.readouterr().out, re.MULTILINE)
    assert listed == ["until_idle_s", "idle_partition_s"]


def test_the_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    listed = re.findall(r"^  ([a-z]+)  ", shown_help([], capsys), re.MULTILINE)
    assert tuple(listed) == COMMANDS and len(COMMANDS) <= 20


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_help([command], capsys)
    assert shown.startswith(f"usage: livectr {command} ")
    _, _, examples = shown.partition("\nexamples:\n")
    assert f"  livectr {command} " in examples
    for own in GROUPS.get(command, ()):
        assert f"\n    {own} " in shown and f"  livectr {command} {own} " in examples
        assert f"usage: livectr {command} {own} " in shown_help([command, own], capsys)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from livectr.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass\n"
    )
    code += "print([m for m in ('torch', 'pyarrow', 'kafka', 'grpc', 'rich') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_ctrl_c_is_clean(tmp_path: Path) -> None:
    simulate = ["logs", "simulate", "--to", f"file:{tmp_path}", "--seconds", "60"]
    process = subprocess.Popen([*LIVECTR, *simulate], stderr=subprocess.PIPE, text=True)
    assert process.stderr
    process.stderr.readline()  # the first counts
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=left_s())
    assert process.returncode == 130
    assert said.strip().splitlines()[-1] == "livectr: stopped."


@pytest.mark.parametrize("words", [["train"], ["serve", "rank"]])
def test_a_program_gets_its_signal_handlers_back(words: list[str], tmp_path: Path) -> None:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    try:
        assert main([*words, "--pipeline", str(tmp_path / "missing.py")]) == 2
        assert [signal.getsignal(number) for number in numbers] == before
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`livectr inspect … | head -1`"""
    program = (
        "from livectr.commands.develop import bench; bench.run = lambda given: print('a line\\n' * 100_000); "
        "import sys, livectr.cli; sys.exit(livectr.cli.main(['bench', 'tables']))"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(left_s()) == 0


def test_a_broken_pipe_to_another_process_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other end is a benchmark's client, a rank or a server: the command has not done its work."""

    def broken(given: argparse.Namespace) -> int:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            return os.write(writer, b"a question")
        finally:
            os.close(writer)

    monkeypatch.setattr(bench, "run", broken)
    with pytest.raises(BrokenPipeError):
        main(["bench", "tables"])


def test_inspect_shows_pipelines(capsys: pytest.CaptureFixture[str]) -> None:
    for example in ("display_ads", "criteo", "avazu", "open_bandit", "shop"):
        assert main(["inspect", "--pipeline", str(EXAMPLES / example / "pipeline.py")]) == 0
    shown = capsys.readouterr().out
    assert "recent(clicks.ad_id,20,1209600000)" in shown
    assert "a click with equal request_id within 2 s" in shown
    assert "label: column label" in shown


def test_train_publish_serve_query_inspect(
    tmp_path: Path, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of a small life, from logs to a CTR."""
    url, logs = f"{redis_url}/3", f"file:{tmp_path / 'logs'}"
    simulate = ["logs", "simulate", "--to", logs, "--fast", "--seconds", "3", "--rate", "1000"]
    # Clicks depend on the hour, and so does the share of the broken ones.
    assert main([*simulate, "--start", "2026-01-01T12:00:00Z"]) == 0
    train = [
        "train",
        "--pipeline",
        DISPLAY_ADS,
        "--source",
        logs,
        "--until-end",
        "--set",
        "threads=1",
        "--json",
    ]
    train += ["--publish", url, "--checkpoint", str(tmp_path / "checkpoint"), "--namespace", "cli"]
    done = commands.run([*LIVECTR, *train], capture_output=True, text=True, timeout=left_s())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["examples_trained"] > 2000
    warm = ["--checkpoint", str(tmp_path / "next"), "--warm-start", str(tmp_path / "checkpoint")]
    again = [*LIVECTR, *train[:8], *warm, "--set", "warm_parts=network,embeddings", "max_steps=1"]
    done = commands.run(again, capture_output=True, text=True, timeout=left_s())
    assert done.returncode == 0, done.stderr
    assert f"starts with content, embeddings, network of {tmp_path / 'checkpoint'} after" in done.stderr
    capsys.readouterr()
    assert main(["inspect", "--checkpoint", str(tmp_path / "checkpoint")]) == 0
    assert main(["inspect", "--redis", url, "--namespace", "cli"]) == 0
    shown = capsys.readouterr().out
    assert "whole" in shown and "fingerprint" in shown

    serve = [*LIVECTR, "serve", "rank", "--pipeline", DISPLAY_ADS, "--redis", url]
    process = commands.Command([*serve, "--namespace", "cli"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        server = process.stdout.readline().split(" on ")[1].split()[0]
        assert main(["query", "describe", "--server", server, "--json"]) == 0
        described = json.loads(capsys.readouterr().out)
        assert {"user_id", "ad_id"} <= {column["column"] for column in described["columns"]}
        context = ["--context", "user_id=42", 'context={"device": {"os": "ios"}}', "query=best sale"]
        context += ["--context", "page=search", "position=1"]
        ask = ["query", "rank", "--server", server, *context, "--candidates", "ad_id=1,2,3"]
        assert main([*ask, "--bids", "1,2,0.5", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert sorted(row["ad_id"] for row in answer["results"]) == [1, 2, 3]
        ecpm = [row["ecpm"] for row in answer["results"]]
        assert ecpm == sorted(ecpm, reverse=True)
        assert main(ask) == 0
        assert "ad_id" in capsys.readouterr().out
        assert main([*ask, "--context", "age=3"]) == 2
        assert "age" in capsys.readouterr().err
        assert main([*ask, "--context", "user_id=me"]) == 2
        assert "user_id is 'me', but must be int64" in capsys.readouterr().err
        assert main(["query", "prerank", "--server", server]) == 2
        assert "is a rank server" in capsys.readouterr().err
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(left_s()) == 0


@pytest.mark.parametrize("command", few(["redis", "kafka"], "redis"))
def test_local_servers_run_until_they_are_told(command: str) -> None:
    process = subprocess.Popen(
        [*LIVECTR, "local", command, "--listen", f"127.0.0.1:{_port()}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert "answers at" in process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(left_s()) == 0


def _port() -> int:
    from livectr.local.ports import free_ports

    return free_ports(1)
