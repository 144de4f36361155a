"""Former commands answer with the new ones."""

import shlex

import pytest

from livectr.cli import build_parser, main
from livectr.commands.moved import MOVED


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["kafka"], "`livectr kafka` is `livectr local kafka` now."),
        (
            ["redis", "--listen", "127.0.0.1:6379"],
            "`livectr redis` is `livectr local redis` now: livectr local redis --listen 127.0.0.1:6379",
        ),
        (
            ["simulate", "--to", "file:a b", "--help"],
            "`livectr simulate` is `livectr logs simulate` now: livectr logs simulate --to 'file:a b' --help",
        ),
        (["images", "show", "f"], "`livectr images` is `livectr features` now: livectr features show f"),
        (
            ["kernels", "--servers"],
            "`livectr kernels` is `livectr features compile` now: livectr features compile --servers",
        ),
        (
            ["example", "criteo", "--to=c"],
            "`livectr example` is `livectr init --example` now: livectr init --example criteo --out=c",
        ),
        (
            ["verify", "--redis", "redis://:geheim@r:6379"],
            "`livectr verify` is `livectr query verify` now.",
        ),
    ],
)
def test_a_former_command_answers_with_the_new_one(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"livectr: {sentence}\n")


@pytest.mark.parametrize("words", MOVED.values())
def test_the_new_words_are_a_command(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    example = ["criteo"] if "--example" in words else []
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args([*shlex.split(words), *example, "--help"])
    assert end.value.code == 0 and "usage: livectr" in capsys.readouterr().out
