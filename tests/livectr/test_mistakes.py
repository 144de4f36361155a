"""A user's mistakes, from the outside: one sentence that says what to change, and exit code 2."""

import gzip
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from livectr.cli import main
from tests.commands import run
from tests.waiting import left_s

DISPLAY_ADS = (Path(__file__).parents[2] / "examples" / "display_ads" / "pipeline.py").read_text()


def says(capsys: pytest.CaptureFixture[str], arguments: Sequence[object]) -> str:
    """Message of a command that must be refused; never a traceback, which would raise here."""
    assert main([str(argument) for argument in arguments]) in (2, 4)
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("livectr: ")
    return output.err


@pytest.fixture
def logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    target = f"file:{tmp_path / 'logs'}"
    assert main(["logs", "simulate", "--to", target, "--fast", "--seconds", "1", "--rate", "50"]) == 0
    capsys.readouterr()
    return target


@pytest.mark.parametrize(
    ("was", "becomes", "sentence"),
    [
        ('"batch_size": 2048', '"batch_sise": 2048', "no setting 'batch_sise'; did you mean 'batch_size'"),
        (
            "    dim=8,\n    hidden=(64, 32)",
            "    dim=0,\n    hidden=(64, 32)",
            "DICM: dim is 0, but must be a whole number above 0",
        ),
        ("hidden=(64, 32)", "hidden=()", "hidden is (), but must be one or more widths"),
        ("lr=0.01", "lr='x'", "AdaGrad: lr is 'x', but must be a number of at least 0"),
        ("lr=0.01", "rate=1", "AdaGrad has no parameter 'rate'; it has lr, eps, initial"),
        ("rank=dicm,", "rank=dict(),", "rank= must be a model such as livectr.models.DeepFM()"),
        ('"page": log.page', '"page": page_kind(log.position)', "operator 'page_kind' does not compile"),
    ],
)
def test_inspect_finds_what_training_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], was: str, becomes: str, sentence: str
) -> None:
    text = DISPLAY_ADS.replace(
        "\nlog = ",
        "\nfrom livectr.ingest.operators import operator\n"
        'page_kind = operator("int32 x -> int32", "x + no_such_name", name="page_kind")\nlog = ',
    )
    assert was in text
    file = tmp_path / "mistaken.py"
    file.write_text(text.replace(was, becomes))
    assert sentence in says(capsys, ["inspect", "--pipeline", file])


def test_a_wrong_source_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.py"
    file.write_text(DISPLAY_ADS)
    train = ["train", "--pipeline", file, "--until-end", "--source"]
    assert "there is no folder" in says(capsys, [*train, f"file:{tmp_path / 'nowhere'}"])
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "empty").mkdir()
    assert "its folders are none" in says(capsys, [*train, f"file:{tmp_path / 'empty'}"])


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--checkpoint", "FILE"], "checkpoints cannot be kept in"),
        (["--report", "FOLDER"], "is a directory; name a file"),
        (["--set", "predictions=FILE/x"], "cannot be made"),
        (["--set", "metrics_port=99999"], "must be at most 65535"),
        (["--set", "batch_size=inf"], "must be a number below 2^63"),
        (["--set", "seed=99999999999999999999"], "must be a number below 2^63"),
    ],
)
def test_training_checks_first_what_it_will_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], logs: str, flags: list[str], sentence: str
) -> None:
    file = tmp_path / "p.py"
    file.write_text(DISPLAY_ADS)
    flags = [flag.replace("FILE", str(file)).replace("FOLDER", str(tmp_path)) for flag in flags]
    reported = says(capsys, ["train", "--pipeline", file, "--source", logs, "--set", "max_steps=1", *flags])
    assert sentence in reported and reported.count("\n") == 1


def test_a_table_of_toml_is_refused_with_what_was_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.py").write_text(DISPLAY_ADS)
    inspect = ["inspect", "--pipeline", tmp_path / "p.py", "--config", tmp_path / "x.toml"]
    for text, sentence in (
        (
            "[train]\nbatch_size = 3\n",
            "[train] is a table, and settings are in none; write batch_size without it",
        ),
        (
            "[train]\nbatch_sise = 3\n",
            "and settings are in none; there is no setting 'batch_sise'; did you mean 'batch_size'?",
        ),
        ("[batch_sise]\n", "[batch_sise] is a table, and settings are in none; did you mean 'batch_size'?"),
        (
            "[batch_size]\nx.y = 3\n",
            "[batch_size] is a table, and settings are in none; write batch_size = … in its place",
        ),
        ("batch_sise = 3\n", "there is no setting 'batch_sise'; did you mean 'batch_size'?"),
    ):
        (tmp_path / "x.toml").write_text(text)
        assert "x.toml: " in (said := says(capsys, inspect)) and sentence in said


def test_inspect_says_which_flags_need_a_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.toml").write_text("batch_size = 512\n")
    config = ["--config", tmp_path / "x.toml"]
    reported = says(capsys, ["inspect", "--checkpoint", tmp_path, *config])
    assert "--config is about a pipeline or Redis; say --pipeline FILE.py or --redis URL too" in reported
    (tmp_path / "x.toml").write_text("batch_sise = 512\n")
    reported = says(capsys, ["inspect", "--redis", "redis://127.0.0.1:1", *config])
    assert "there is no setting 'batch_sise'" in reported
    (tmp_path / "x.toml").write_text(f"redis_password_file = '{tmp_path / 'nowhere'}'\n")
    reported = says(capsys, ["inspect", "--redis", "redis://127.0.0.1:1", *config])
    assert "redis_password_file: " in reported and "nowhere cannot be read" in reported


def test_replay_refuses_what_is_no_gzip_file_and_no_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replay = ["logs", "replay", "--format", "csv", "--to", f"file:{tmp_path / 'out'}"]
    (tmp_path / "a.csv.gz").write_bytes(b"no gzip")
    assert "is not gzipped; name it without .gz" in says(capsys, [*replay, tmp_path / "a.csv.gz"])
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 10_000)[:-20])
    assert "is no whole gzip file" in says(capsys, [*replay, tmp_path / "b.csv.gz"])
    (tmp_path / "c.csv").write_text("a,b\n1,2\n")
    assert "topic '../c'" in says(capsys, [*replay, tmp_path / "c.csv", "--topic", "../c"])
    assert not (tmp_path / "c").exists()


def test_simulate_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate = ["logs", "simulate", "--to", f"file:{tmp_path / 'out'}", "--fast", "--seconds", "1"]
    assert "must be more than 0" in says(capsys, [*simulate, "--drift", "0"])
    assert "'soon' is no duration" in says(capsys, [*simulate, "--ad-interval", "soon"])
    assert "the ledger" in says(capsys, [*simulate, "--ledger", tmp_path / "none" / "ledger"])


def test_a_brokers_port_in_use_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        reported = says(capsys, ["local", "kafka", "--listen", address])
    assert f"no broker can listen at {address}" in reported and "choose another HOST:PORT" in reported


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.csv").write_text("a,b\n1,2\n")
    target = f"file:{tmp_path / 'out'}"
    reported = says(
        capsys,
        ["logs", "replay", tmp_path / "c.csv", "--format", "csv", "--to", target, "--bad-rows", tmp_path],
    )
    assert f"{tmp_path}: Is a directory; name another path" in reported


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:99999", ":7001", "127.0.0.1:http"])
def test_a_server_wants_a_host_and_a_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    file = tmp_path / "p.py"
    file.write_text(DISPLAY_ADS)
    reported = says(capsys, ["serve", "rank", "--pipeline", file, "--listen", address])
    assert f"listen is '{address}', but must be HOST:PORT" in reported


def test_all_ranks_mistake_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(DISPLAY_ADS)
    train = ["-m", "livectr", "train", "--pipeline", "p.py", "--source", "file:nowhere", "--ranks", "2"]
    done = run(
        [sys.executable, *train],
        capture_output=True,
        text=True,
        timeout=left_s(),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    told = [line for line in done.stderr.splitlines() if line.startswith("livectr: ")]
    assert told == ["livectr: there is no folder nowhere; name the folder that holds a folder for each topic"]


@pytest.mark.full
def test_one_rank_s_mistake_is_no_traceback_of_the_others(tmp_path: Path, logs: str) -> None:
    file = tmp_path / "p.py"
    file.write_text(DISPLAY_ADS)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--max-restarts=0", "--nproc-per-node=2"]
    train = ["-m", "livectr", "train", "--pipeline", str(file), "--source", logs, "--checkpoint", str(file)]
    done = subprocess.run(
        [sys.executable, *torchrun, *train],
        capture_output=True,
        text=True,
        timeout=left_s(),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode != 0
    assert "checkpoints cannot be kept in" in done.stderr
    assert "lost another rank" in done.stderr and "[rank1]: Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "--redis"],
        ["serve", "rank", "--pipeline", "p.py", "--redis"],
        ["train", "--pipeline", "p.py", "--source", "LOGS", "--publish"],
    ],
    ids=lambda command: command[0],
)
def test_passwords_stay_out_of_messages(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    logs: str,
    command: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.py").write_text(DISPLAY_ADS)
    command = [logs if part == "LOGS" else part for part in command]
    reported = says(capsys, [*command, "redis://:hunter2@127.0.0.1:1"])
    assert "redis://:***@127.0.0.1:1" in reported and "hunter2" not in reported
