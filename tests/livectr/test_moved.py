"""Former commands and flags run, and say their new names."""

import shlex
from pathlib import Path

import pytest

from livectr.cli import build_parser, main
from livectr.commands.moved import MOVED, todays


@pytest.mark.parametrize(
    ("words", "now"),
    [
        (["redis", "--listen", "127.0.0.1:6379"], ["local", "redis", "--listen", "127.0.0.1:6379"]),
        (["images", "show", "f"], ["features", "show", "f"]),
        (["example", "criteo", "--to=c"], ["init", "--example", "criteo", "--out=c"]),
        (
            ["verify", "--redis", "redis://:geheim@r:6379"],
            ["query", "verify", "--redis", "redis://:geheim@r:6379"],
        ),
        (["train", "replay"], ["train", "replay"]),
        ([], []),
    ],
)
def test_a_former_command_is_todays(
    words: list[str], now: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert todays(words) == now
    said = capsys.readouterr().err
    assert "geheim" not in said
    assert (f"`livectr {words[0]}` is `livectr {MOVED[words[0]]}` now." in said) if words != now else not said


def test_a_former_command_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", "criteo", "--to", str(tmp_path / "c")]) == 0
    said = capsys.readouterr()
    assert (tmp_path / "c" / "pipeline.py").exists() and "pipeline.py" in said.out
    assert said.err == "livectr: `livectr example` is `livectr init --example` now.\n"


@pytest.mark.parametrize(
    ("words", "assigned"),
    [
        (["--batch-size", "512"], "batch_size=512"),
        (["--batch-size=512", "--until-end"], "batch_size=512"),
        (["--restarts", "-1"], "restarts=-1"),
        (["--no-common-features"], "common_features=false"),
    ],
)
def test_a_settings_former_flag_is_taken(
    words: list[str], assigned: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = build_parser().parse_args(["train", *words])
    assert given.assigned == [assigned]
    assert (
        capsys.readouterr().err
        == f"livectr: {words[0].partition('=')[0]} is --set {assigned.partition('=')[0]}=… now.\n"
    )


@pytest.mark.parametrize("words", MOVED.values())
def test_the_new_words_are_a_command(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = ["criteo"] if "--example" in words else []
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args([*shlex.split(words), *example, "--help"])
    assert end.value.code == 0 and "usage: livectr" in capsys.readouterr().out
