"""Every benchmark exists, and its JSON is complete."""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

from bench.environment import ROOT
from bench.machine import hardware
from bench.run import ROW, _complete
from livectr.cli import main
from livectr.commands.develop.bench import NAMES
from livectr.system.errors import InternalError


@pytest.mark.parametrize("name", NAMES)
def test_the_module_is_there(name: str) -> None:
    run = importlib.import_module(f"bench.{name.replace('-', '_')}").run
    assert "quick" in inspect.signature(run).parameters


def test_make_bench_runs_every_benchmark() -> None:
    names = re.search(r"^bench:.*\n\t@for name in (.*); do", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert names is not None and sorted([*names[1].split(), "gpu"]) == sorted(NAMES)


def test_the_json_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "results" / "tables.json"
    assert main(["bench", "tables", "--quick", "--json", str(target)]) == 0
    result = json.loads(target.read_text())
    assert set(result) == {"name", "commit", "hardware", "settings", "rows"}
    assert result["name"] == "tables" and result["settings"]["quick"] is True
    assert result["hardware"] == hardware()
    model = re.search(r"^model\s*: (\d+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    assert model is None or f", model {model[1]}, " in result["hardware"]["processor"]
    assert result["rows"]
    for row in result["rows"]:
        assert tuple(row) == ROW
        assert row["ours"] > 0


def test_rows_with_other_columns_are_refused() -> None:
    with pytest.raises(InternalError, match="lacks ours"):
        _complete("x", {"figure": "f", "workload": "w", "unit": "u"})
    with pytest.raises(InternalError, match="unknown columns speed"):
        _complete("x", {"figure": "f", "workload": "w", "unit": "u", "ours": 1, "speed": 2})


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("bench", ["tables"]),
        ("experiment ablate", ["--pipeline", "p.py", "--source", "file:x", "--grid", "images", "--out", "y"]),
    ],
)
def test_without_a_checkout_a_sentence_says_so(
    command: str,
    flags: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("livectr.checkout.ROOT", tmp_path)
    assert main([*command.split(), *flags]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"livectr: `livectr {command}` needs a checkout of the repository; this is an installed package.\n"
    )
