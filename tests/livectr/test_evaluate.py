"""`livectr evaluate`: the measures of a prediction log, over all of it and over event time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livectr.analysis.evaluate import sliding
from livectr.cli import main
from livectr.trainer.quality.metrics import gauc, gauc_error, quality
from livectr.trainer.quality.predictions import PredictionLog, Records, records
from livectr.trainer.quality.seen import NOT_COUNTED, ItemCounts, is_cold

N, START_MS, SPAN_MS = 3_000, 1_763_719_200_000, 3_600_000  # 2025-11-21 10:00 UTC


def log(
    path: Path,
    *,
    noise: float = 1.0,
    roles: tuple[str, ...] = ("rank", "ids"),
    items: bool = True,
    n: int = N,
) -> Records:
    """A log of n examples in about an hour, of which the first role knows most, written to `path`."""
    rng = np.random.default_rng(3)
    truth = rng.normal(size=n)
    item = np.minimum(rng.integers(0, 150, n), 20 + np.arange(n) // 25)  # new ones come
    held = records(
        instance=np.arange(n),
        user=rng.integers(0, 80, n),
        item=item,
        time_ms=START_MS + np.arange(n) * SPAN_MS // n + rng.integers(0, 5_000, n),
        seen=ItemCounts().seen(item) if items else np.full(n, NOT_COUNTED, np.uint32),
        logits={
            role: (truth - 1 + noise * (1 + i) * rng.normal(size=n)).astype(np.float32)
            for i, role in enumerate(roles)
        },
        label=(rng.random(n) < 1 / (1 + np.exp(1 - truth))).astype(np.float32),
    )
    with PredictionLog(path, roles) as file:
        file.append(held)
    return held


def of(held: Records, model: str, rows: Any) -> dict[str, float | None]:
    part = held[rows]
    label = part["label"].astype(np.float32)
    return quality(part["user"], part[model], label, is_cold(part["seen"])).as_dict()


def evaluated(capsys: pytest.CaptureFixture[str], *flags: str) -> list[dict[str, Any]]:
    assert main(["evaluate", *flags, "--json"]) == 0
    return list(json.loads(capsys.readouterr().out)["rows"])


def test_rows_are_the_measures_of_their_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "a.log")
    held = log(tmp_path / "a.log")
    rows = evaluated(capsys, file, "--period", "20m")
    time_ms = held["time_ms"] - START_MS
    minutes = 60_000
    parts = [
        ("all", None, slice(None)),
        ("last", None, slice(int(0.8 * N), None)),
        *(("period", START_MS + m * minutes, time_ms // (20 * minutes) == m // 20) for m in (0, 20, 40, 60)),
    ]
    assert len(rows) == 2 * len(parts)
    for row, (model, (name, start, at)) in zip(
        rows, ((model, part) for model in ("rank", "ids") for part in parts), strict=True
    ):
        reported: dict[str, object] = dict(log=file, model=model, of=name, start_ms=start)
        assert row == pytest.approx(reported | of(held, model, at), nan_ok=True)
    assert rows[0]["gauc"] > rows[6]["gauc"] and rows[0]["cold_examples"] > 100 and rows[0]["cold_gauc"]


def test_lifts_over_a_shadow_are_those_of_the_same_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = log(tmp_path / "a.log", roles=("rank", "prerank", "ids"))
    assert main(["evaluate", str(tmp_path / "a.log"), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    rows = {(row["model"], row["of"]): row for row in reported["rows"]}
    assert {lift["over"] for lift in reported["lifts"]} == {"ids"} and len(reported["lifts"]) == 10
    for lift in reported["lifts"]:
        better, worse = (rows[model, lift["of"]][lift["measure"]] for model in ("rank", "ids"))
        assert lift["difference"] == pytest.approx(better - worse, abs=1e-6)
    error = gauc_error(held["user"], held["rank"], held["label"], held["ids"])
    lifts = {(lift["of"], lift["measure"]): lift for lift in reported["lifts"]}
    assert lifts["all", "gauc"]["standard_error"] == pytest.approx(error)
    assert lifts["all", "gauc"]["difference"] > 2 * error
    assert main(["evaluate", str(tmp_path / "a.log")]) == 0
    shown = capsys.readouterr().out
    assert f"rank − ids of {tmp_path / 'a.log'}, ± 95 %" in shown and "rank − prerank" not in shown
    assert f"{lifts['all', 'gauc']['difference']:+.4f} ±{1.959964 * error:.4f}" in shown


def test_periods_are_round_and_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(tmp_path / "a.log")
    starts = [row["start_ms"] for row in evaluated(capsys, str(tmp_path / "a.log")) if row["of"] == "period"]
    assert starts[: len(starts) // 2] == [START_MS + m * 600_000 for m in range(7)]


def test_a_sliding_window_is_the_examples_before(tmp_path: Path) -> None:
    held = log(tmp_path / "a.log")
    times, values = sliding(held, "rank", "gauc", window_ms=600_000, points=7)
    last = int(held["time_ms"].max())
    first = int(held["time_ms"].min()) + 600_000
    expected = np.linspace(first, last, 7).round().astype(np.int64)
    assert (times.astype(np.int64) == expected).all()
    for end, value in zip(expected, values, strict=True):
        inside = held[(held["time_ms"] > end - 600_000) & (held["time_ms"] <= end)]
        assert value == pytest.approx(gauc(inside["user"], inside["rank"], inside["label"])[0])
    times, values = sliding(held[:1], "rank", "gauc", window_ms=1)
    assert len(times) == 1 and np.isnan(values).all()


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_fit_a_terminal(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    log(tmp_path / "a.log", n=200_000)
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "a.log"]) == 0
    shown = capsys.readouterr().out
    tables, _, _ = shown.partition("Last:")  # a terminal breaks the words below
    assert "…" not in tables and max(map(len, tables.splitlines())) <= width
    assert "rank of" in shown and "ids of" in shown and "bration" in shown and "11-21 10:10:00" in shown


def test_without_items_nothing_is_cold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(tmp_path / "a.log", items=False)
    first = evaluated(capsys, str(tmp_path / "a.log"))[0]
    assert first["cold_examples"] == 0 and first["cold_gauc"] is None and first["gauc"] is not None
    assert main(["evaluate", str(tmp_path / "a.log")]) == 0
    assert "–" in capsys.readouterr().out


def test_plots_of_two_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / f"{name}.log") for name in "ab"]
    log(tmp_path / "a.log")
    log(tmp_path / "b.log", noise=3, roles=("rank",))
    drawn = {}
    measures = ("gauc", "cold_gauc", "logloss")
    for measure in measures:
        plot, bars = tmp_path / f"{measure}.svg", tmp_path / f"{measure}-bars.svg"
        flags = ["--plot", str(plot), "--bars", str(bars), "--measure", measure]
        rows = evaluated(capsys, *files, *flags)
        assert [(row["log"], row["model"]) for row in rows if row["of"] == "all"] == [
            (files[0], "rank"), (files[0], "ids"), (files[1], "rank")
        ]  # fmt: skip
        drawn[measure] = plot.read_bytes(), bars.read_bytes()
    assert len(set(drawn.values())) == len(measures), "each measure has plots of its own"
    evaluated(capsys, *files, "--plot", str(tmp_path / "again.svg"))
    assert (tmp_path / "again.svg").read_bytes() == drawn["gauc"][0]


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(tmp_path / "a.log")
    with PredictionLog(tmp_path / "empty"):
        pass
    (tmp_path / "text").write_text("hello")
    good = str(tmp_path / "a.log")
    for flags, says in [
        ([str(tmp_path / "no")], "there are no predictions"),
        ([str(tmp_path / "text")], "is no log of predictions of livectr train"),
        ([str(tmp_path / "empty")], "holds no predictions yet"),
        ([good, "--plot", "x.pdf"], "ends in .png or .svg"),
        ([good, "--bars", str(tmp_path / "text" / "b.svg")], "cannot be written"),
        ([good, "--measure", "loss"], "invalid choice"),
        ([good, "--period", "0"], "more than 0"),
        ([], "PREDICTIONS"),
    ]:
        assert main(["evaluate", *flags]) == 2
        assert says in capsys.readouterr().err
