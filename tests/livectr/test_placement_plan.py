"""`livectr inspect --pipeline … --ranks N`: the plan, from measured numbers where there are some."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from livectr.cli import main
from livectr.ingest.pipeline import load_pipeline
from tests.livectr.inspected_plan import DISPLAY_ADS, inspect, table

PIPELINE = load_pipeline(DISPLAY_ADS)
NAMES = [field.name for field in PIPELINE.fields]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """100 examples; the first field has 40 keys in each, its table 1,000,000 rows, the others 1 and 10."""
    file = tmp_path / "report.json"
    values = {
        "examples_trained": 100,
        "field_keys": {name: 100 for name in NAMES} | {NAMES[0]: 4000},
        "table_rows": {field.table: 10 for field in PIPELINE.fields} | {PIPELINE.fields[0].table: 1_000_000},
    }
    file.write_text(json.dumps(values))
    return file


def held(shown: str, title: str) -> list[list[str]]:
    """Cells of each rank's first line, its fields from all lines."""
    ranks: list[list[str]] = []
    for row in table(shown, title):
        if row[0]:
            ranks.append([*row[:-1], ""])
        ranks[-1][-1] += " " + row[-1]
    return [[*rank[:-1], *sorted(rank[-1].replace(",", " ").split())] for rank in ranks]


def test_fields_in_turn(capsys: pytest.CaptureFixture[str]) -> None:
    shown = inspect(capsys, "--ranks", 3)
    ranks = held(shown, "3 ranks, placement mod")
    assert [rank[0] for rank in ranks] == ["0", "1", "2"]
    assert sum(int(rank[1]) for rank in ranks) == len(NAMES)
    tables = list(dict.fromkeys(field.table for field in PIPELINE.fields))
    first = {field.name for field in PIPELINE.fields if field.table in tables[::3]}
    assert set(ranks[0]) & set(NAMES) == first
    assert "measured  nothing: one key of every field" in shown


def test_a_report_s_numbers_are_balanced(capsys: pytest.CaptureFixture[str], report: Path) -> None:
    shown = inspect(capsys, "--ranks", 2, "--placement", "balanced", "--report", report)
    first, second = held(shown, "2 ranks, placement balanced")
    others = len(NAMES) - 1
    assert first[1:3] == ["1", "1,000,000"] and first[4] == "40" and NAMES[0] in first
    assert second[1] == str(others) and second[4] == str(others)
    assert f"measured  {report}" in shown and "split by key" not in shown


def test_a_table_larger_than_a_rank(capsys: pytest.CaptureFixture[str], report: Path) -> None:
    flags = ("--ranks", 4, "--placement", "balanced", "--report", report)
    shown = inspect(capsys, *flags, "--rank-memory", "100MiB")
    assert f"split by key over all ranks  {PIPELINE.fields[0].table}" in shown
    assert all(float(rank[4]) >= 10 for rank in held(shown, "4 ranks, placement balanced"))
    reported = mistake(capsys, *flags, "--rank-memory", "1MiB")
    assert "more than 4 ranks of 1.00 MiB can hold; start more ranks, or raise rank_memory" in reported


def mistake(capsys: pytest.CaptureFixture[str], *flags: object) -> str:
    assert main(["inspect", "--pipeline", str(DISPLAY_ADS), *map(str, flags)]) == 2
    return capsys.readouterr().err


def test_mistakes(capsys: pytest.CaptureFixture[str], report: Path, tmp_path: Path) -> None:
    assert "at most" in mistake(capsys, "--ranks", len(NAMES) + 1)
    assert "must be mod or balanced" in mistake(capsys, "--ranks", 2, "--placement", "best")
    assert "placement balanced alone" in mistake(capsys, "--ranks", 2, "--rank-memory", "1GiB")
    assert "is no report" in mistake(capsys, "--ranks", 2, "--report", tmp_path)
    assert "holds no checkpoint" in mistake(capsys, "--ranks", 2, "--checkpoint", tmp_path)
    report.write_text(report.read_text().replace(f'"{NAMES[1]}"', '"stranger"'))
    reported = mistake(capsys, "--ranks", 2, "--report", report)
    assert "belongs to another pipeline" in reported and "stranger" in reported
    assert main(["inspect", "--checkpoint", str(tmp_path), "--ranks", "2"]) == 2
    assert "--ranks is about a pipeline" in capsys.readouterr().err
