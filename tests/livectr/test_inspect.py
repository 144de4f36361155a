"""`livectr inspect --pipeline`: operators with device and memory, effect of the budget, the drawing."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from livectr.cli import main
from livectr.ingest.pipeline import load_pipeline
from livectr.ingest.plan.placement import place
from tests.livectr.inspected_plan import DISPLAY_ADS, inspect, table

PLAN = load_pipeline(DISPLAY_ADS).plan


def test_a_line_per_node_with_its_device_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    shown = inspect(capsys, "--batch-size", 1024)
    nodes = table(shown, "operators of a batch of 1,024 rows")
    assert [(row[1], row[2]) for row in nodes] == [(str(node), node.dtype) for node in PLAN.nodes]
    assert {row[3] for row in nodes[len(PLAN.roots) :]} == {"GPU"}
    by_name = {row[1]: row for row in nodes}
    assert by_name["impressions.user_id"][4:] == ["8.00 KiB", "field user"]
    assert "on the CPU  nothing: there is no gpu_budget" in shown


def test_a_line_per_layer(capsys: pytest.CaptureFixture[str]) -> None:
    layers = table(inspect(capsys), "layers ")
    assert [row[0] for row in layers] == [*map(str, range(len(PLAN.layers))), "all"]
    assert [int(row[1]) for row in layers[:-1]] == [len(layer) for layer in PLAN.layers]
    assert [row[4] for row in layers] == ["0", *["1"] * (len(PLAN.layers) - 1), str(len(PLAN.layers) - 1)]


def test_a_budget_moves_nodes_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    peak = place(PLAN, budget_bytes=None, rows=2048).device_memory.peak
    placed = place(PLAN, budget_bytes=peak - 1, rows=2048)
    assert placed.cpu
    shown = inspect(capsys, "--gpu-budget", peak - 1)
    on_cpu = {row[0]: row[2] for row in table(shown, "on the CPU")}
    assert set(on_cpu) == {str(node) for node in placed.host_nodes if not node.is_root}
    assert all(on_cpu[str(node)] == "does not fit, result copied" for node in placed.cpu)
    assert "needed by a node on the CPU" in on_cpu.values()
    assert "would keep all on the GPU" in shown
    assert "all fits into 8.00 GiB" in inspect(capsys, "--gpu-budget", "8GiB")


def test_the_budget_is_a_setting_of_the_pipeline_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.py"
    file.write_text(DISPLAY_ADS.read_text().replace('"batch_size": 2048', '"gpu_budget": "1KiB"'))
    assert main(["inspect", "--pipeline", str(file)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "gpu_budget is 1.00 KiB, but the features alone of a batch of 4,096 rows take" in output.err
    assert main(["inspect", "--pipeline", str(file), "--gpu-budget", "1GiB"]) == 0


def test_the_drawing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a folder" / "plan.svg"
    file.parent.mkdir()
    assert f"drew {file}\n" in inspect(capsys, "--svg", file)
    assert ElementTree.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_terminal_s_width_is_kept(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = inspect(capsys, "--gpu-budget", "3MiB")
    nodes = table(shown, "operators of a batch")
    assert len(nodes) == len(PLAN.nodes) and all(
        row[2] == n.dtype for row, n in zip(nodes, PLAN.nodes, strict=True)
    )
    assert max(len(line) for line in shown.splitlines() if line[:1] in "┏┃│└") <= width


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--pipeline", str(DISPLAY_ADS), "--gpu-budget", "much"], 'an amount of memory like "512MiB"'),
        (["--pipeline", str(DISPLAY_ADS), "--batch-size", "0"], "must be at least 1"),
        (["--pipeline", str(DISPLAY_ADS), "--svg", "/no/such/folder/x.svg"], "/no/such/folder/x.svg"),
        (["--checkpoint", "x", "--svg", "y"], "--svg is about a pipeline; say --pipeline FILE.py too"),
        (["--checkpoint", "x", "--gpu-budget", "1GiB"], "--gpu-budget is about a pipeline"),
    ],
)
def test_mistakes(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *flags]) == 2
    assert says in capsys.readouterr().err
