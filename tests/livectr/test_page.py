"""`livectr report` and `livectr train --live`: the page holds the numbers of the run, and loads nothing."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livectr.analysis.page import reading
from livectr.analysis.page.axes import clock, linear, short
from livectr.analysis.page.importance import Asked, importance
from livectr.analysis.page.quality import groups_of
from livectr.cli import main
from livectr.local.ports import free_ports
from livectr.trainer.quality.metrics import auc, logloss
from livectr.trainer.quality.predictions import read_predictions
from tests.commands import Command
from tests.commands import run as run_command
from tests.livectr.page_tree import Element, Page
from tests.waiting import left_s, until

PIPELINE = str(Path(__file__).parents[2] / "examples" / "display_ads" / "pipeline.py")
LIVECTR = (sys.executable, "-m", "livectr")
FEW_STEPS = ("--set", "batch_ramp=32")
SECTIONS = ("learning-curve", "reliability", "scores", "importance", "tables", "dead-letters", "freshness")


@dataclass
class Run:
    """A run that has ended, and its page."""

    folder: Path
    lines: list[dict[str, Any]]
    report: dict[str, Any]
    text: str

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def page(self) -> Element:
        return Page(self.text).root


def command(*words: object) -> str:
    done = run_command([*LIVECTR, *map(str, words)], capture_output=True, text=True, timeout=left_s())
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    logs, log, report = f"file:{folder / 'logs'}", folder / "run.log", folder / "report.json"
    command(
        "logs",
        "simulate",
        "--to",
        logs,
        "--fast",
        "--seconds",
        30,
        "--rate",
        400,
        "--ads",
        40,
        "--start",
        "2026-11-20T10:00",
    )
    train = [
        "train",
        "--pipeline",
        PIPELINE,
        "--source",
        logs,
        "--until-end",
        "--set",
        "threads=1",
        *FEW_STEPS,
    ]
    train += ["--checkpoint", str(folder / "c"), "--set", f"run_log={log}", "--report", str(report)]
    command(*train)
    page = folder / "new" / "run.html"
    model = ["--pipeline", PIPELINE, "--checkpoint", folder / "c", "--source", logs, "--from-start"]
    said = command("report", log, "--html", page, *model, "--examples", 1500)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    windows = sum(line["kind"] == "window" for line in lines)
    assert said.startswith(f"{page}: {windows} windows, ")
    return Run(folder, lines, json.loads(report.read_text()), page.read_text())


def test_the_page_loads_nothing(run: Run) -> None:
    page = run.page
    assert not re.findall(r"https?://|url\(|@import|//[a-z]", run.text)
    for tag in ("script", "img", "iframe", "link"):
        for element in page.all(tag):
            links = {element.attributes.get("src"), element.attributes.get("href")} - {None, "data:,"}
            assert not links
    policy = next(m for m in page.all("meta") if m.attributes.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in (policy.attributes["content"] or "")


def test_every_section_is_there_and_every_chart_has_a_name(run: Run) -> None:
    page = run.page
    links = [a.attributes["href"] for a in page.all("a")]
    for key in SECTIONS:
        section = page.by_id(key)
        assert f"#{key}" in links and section.all("h2")[0].text
        assert key == "freshness" or section.all("svg"), key
    for svg in page.all("svg"):
        if svg.attributes.get("aria-hidden") == "true":
            continue
        assert svg.attributes["role"] == "img" and svg.all("title")[0].text and svg.all("desc")[0].text
    for figure in page.all("figure"):
        assert figure.all("figcaption")[0].text
    for table in page.all("table"):
        assert table.all("caption") and {th.attributes["scope"] for th in table.all("th")} == {"col", "row"}


def test_the_cards_are_the_reports_numbers(run: Run) -> None:
    cards = {div.all("dt")[0].text: div.all("dd")[0].text for dl in run.page.all("dl") for div in dl.children}
    assert cards == {
        "Examples": f"{run.report['examples_trained']:,}",
        "AUC": f"{run.report['auc']:.4f}",
        "GAUC": f"{run.report['gauc']:.4f}",
        "Log loss": f"{run.report['logloss']:.4f}",
        "Calibration": f"{run.report['calibration']:.4f}",
        "Dead letters": f"{run.report['dead_letters']:,}",
    }
    assert run.report["dead_letters"] > 0 and run.report["examples_trained"] > 10_000


def test_the_log_is_of_the_predictions(run: Run) -> None:
    """Windows are those of the prediction log, which the same run has written."""
    held = read_predictions(run.folder / "c" / "predictions")
    assert len(held) == run.of("window")[-1]["examples"]
    for window in run.of("window"):
        part = held[window["first_example"] : window["examples"]]
        label = part["label"].astype(np.float32)
        assert window["models"]["rank"]["auc"] == pytest.approx(auc(part["rank"], label))
        assert window["models"]["prerank"]["logloss"] == pytest.approx(logloss(part["prerank"], label))


def test_tables_hold_the_numbers_of_the_log(run: Run) -> None:
    page, windows, samples = run.page, run.of("window"), run.of("sample")
    curve = page.by_id("learning-curve").all("table")[0].rows()
    assert len(curve) == len(windows) + 1
    for row, window in zip(curve[1:], windows, strict=True):
        assert row[0] == f"{window['examples']:,}" and row[2] == f"{window['clicks']:,}"
        assert row[3] == f"{window['models']['rank']['auc']:.4f}"
        assert row[4] == f"{1.959964 * window['models']['rank']['auc_error']:.4f}"
    last = [w for w in windows if w["examples"] > 0.8 * windows[-1]["examples"]]
    for i, model in enumerate(run.lines[0]["models"]):
        bins = [b for w in last for b in w["models"][model]["bins"]]
        for key, (examples, clicked) in {"reliability": (4, 5), "scores": (2, 3)}.items():
            rows = page.by_id(key).all("table")[i].rows()[1:]
            sums = [sum(int(row[at].replace(",", "")) for row in rows) for at in (examples, clicked)]
            assert sums == [sum(b[1] for b in bins), sum(b[2] for b in bins)]
    grown = {row[0]: row[1:] for row in page.by_id("tables").all("table")[0].rows()[1:]}
    held = samples[-1]["tables"]
    assert {name: table["rows"] for name, table in held.items()} == run.report["table_rows"]
    assert grown.pop("all")[0] == f"{sum(run.report['table_rows'].values()):,}"
    assert grown == {name: [f"{table['rows']:,}", f"{table['bytes']:,}"] for name, table in held.items()}
    letters = {row[0]: row[1] for row in page.by_id("dead-letters").all("table")[0].rows()[1:]}
    assert letters.pop("all") == f"{run.report['dead_letters']:,}"
    assert letters == {reason: f"{n:,}" for reason, n in samples[-1]["dead_letters"].items()}


def test_importance_is_measured_on_the_models_own_scores(run: Run) -> None:
    """As they are, the examples have the log loss that `livectr evaluate` finds; shuffled they cost more."""
    source, to = f"file:{run.folder / 'logs'}", run.folder / "scored"
    model = ["--pipeline", PIPELINE, "--checkpoint", run.folder / "c", "--source", source, "--from-start"]
    command("evaluate", *model, "--to", to)
    held = read_predictions(to / "predictions")[-2000:]
    found = importance(Asked(PIPELINE, run.folder / "c", source, from_start=True, most=2000))
    label = held["label"].astype(np.float32)
    assert (found.examples, found.learned, found.step) == (2000, True, run.report["steps"])
    assert found.logloss == pytest.approx(logloss(held["rank"], label), rel=1e-5)
    assert found.auc == pytest.approx(auc(held["rank"], label), rel=1e-5)
    by_name = {f.name: f for f in found.fields}
    assert set(run.lines[0]["fields"]) < set(by_name)
    best = max(found.fields, key=lambda f: f.logloss)
    assert best.logloss > 3 * best.error > 0 and best.auc > 0
    assert abs(by_name["weekday"].logloss) < 1e-9  # a constant in this log: nothing changes
    rows = run.page.by_id("importance").all("table")[0].rows()[1:]
    assert best.name in [row[0] for row in rows][:3] and len(rows) == len(found.fields)


def test_a_log_that_is_cut_off_still_has_a_page(run: Run, tmp_path: Path) -> None:
    """A run that continues, or was killed while it wrote a line, has the figures so far."""
    lines = (run.folder / "run.log").read_bytes().splitlines(keepends=True)
    for kept in (1, 2, 3, len(lines) // 2):
        log = tmp_path / "cut.log"
        log.write_bytes(b"".join(lines[:kept]) + lines[kept][:40])
        assert main(["report", str(log), "--html", str(tmp_path / "cut.html")]) == 0
        page = Page((tmp_path / "cut.html").read_text()).root
        assert "No report yet" in page.all("main")[0].text
        assert "Add" in page.by_id("importance").text or "Give" in page.by_id("importance").text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["none.log", "--html", "x.html"],
            r"no run log none\.log; livectr train --set run_log=none\.log writes it",
        ),
        (["text", "--html", "x.html"], "text is no run log; livectr train --set run_log=FILE writes one"),
        (["predictions", "--html", "x.html"], "it is a log of predictions, for livectr evaluate"),
        (["damaged", "--html", "x.html"], "line 2 of damaged is damaged"),
        (["newer", "--html", "x.html"], "newer is of format 99"),
        (["text", "--html", "x.html", "--pipeline", "p.py"], "give --checkpoint, --source, too"),
        (["text", "--html", "x.html", "--from-start"], "give --pipeline, --checkpoint, --source, too"),
    ],
)
def test_mistakes_cost_a_sentence(
    words: list[str],
    sentence: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    head = json.dumps(run.lines[0], separators=(",", ":"))
    Path("text").write_text("hello\n")
    Path("predictions").write_bytes((run.folder / "c" / "predictions").read_bytes()[:5000])
    Path("damaged").write_text(head + "\n{oops\n")
    Path("newer").write_text(json.dumps({**run.lines[0], "version": 99}, separators=(",", ":")) + "\n")
    assert main(["report", *words]) == 2
    assert re.search(sentence, capsys.readouterr().err)
    assert not Path("x.html").exists()


def fetched(url: str, tag: str = "") -> tuple[int, str, Any]:
    request = urllib.request.Request(url, headers={"If-None-Match": tag} if tag else {})
    try:
        with urllib.request.urlopen(request, timeout=left_s()) as reply:
            return reply.status, reply.read().decode(), reply.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def test_live_shows_a_run_that_continues(tmp_path: Path, redis_url: str) -> None:
    """A real trainer on a growing log; the page comes, changes, shows freshness, and ends with the run."""
    port, logs = free_ports(1), f"file:{tmp_path / 'logs'}"
    simulate = [
        *LIVECTR,
        "logs",
        "simulate",
        "--to",
        logs,
        "--seconds",
        "600",
        "--rate",
        "600",
        "--ads",
        "40",
    ]
    train = [*LIVECTR, "train", "--pipeline", PIPELINE, "--source", logs, "--set", "threads=1"]
    train += [
        "--publish",
        f"{redis_url}/5",
        "--namespace",
        "live",
        "--take-over",
        "--set",
        "publish_interval_s=0.5",
    ]
    train += ["--live", str(port), "--set", f"run_log={tmp_path / 'run.log'}"]
    train += ["--report", str(tmp_path / "report.json")]
    with Command(simulate, stdout=subprocess.DEVNULL) as traffic:
        try:
            until(lambda: (tmp_path / "logs" / "impressions").exists())
            with Command(train, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as trainer:
                try:
                    url, tags = f"http://127.0.0.1:{port}", set()

                    def grown() -> bool:
                        code, text, headers = fetched(url + "/content")
                        assert code == 200 and headers["X-Run-Ended"] == "0"
                        tags.add(headers["ETag"])
                        return len(tags) > 3 and "Seconds from event to servable" in text

                    until(
                        grown,
                        despite=urllib.error.URLError,  # it does not listen yet
                        process=trainer,
                        why=lambda: tags,
                        turn=lambda: time.sleep(0.3),
                    )
                    page = Page(fetched(url + "/")[1]).root
                    assert page.by_id("learning-curve").all("svg") and "if (true)" in fetched(url + "/")[1]
                    seconds = [float(row[2]) for row in page.by_id("freshness").all("table")[0].rows()[1:]]
                    assert all(s > 2.0 for s in seconds)  # the label window is 2 s
                    assert fetched(url + "/other")[0] == 404
                    again = [fetched(url + "/content", tag)[0] for tag in tags]
                    assert set(again) <= {200, 304}
                    for _ in range(5):  # a browser that leaves at once
                        with socket.create_connection(("127.0.0.1", port)) as rude:
                            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                            rude.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    assert fetched(url + "/")[0] == 200
                finally:
                    trainer.terminate()
                    _, err = trainer.communicate(timeout=left_s())
            assert f"the run is shown at {url}/" in err and "Traceback" not in err and trainer.returncode == 0
            report = json.loads((tmp_path / "report.json").read_text())
            last = json.loads((tmp_path / "run.log").read_text().splitlines()[-1])
            assert last["kind"] == "end" and last["report"]["examples_trained"] == report["examples_trained"]
            with pytest.raises(urllib.error.URLError):
                fetched(url)
        finally:
            traffic.kill()


@pytest.mark.full
def test_ranks_leave_the_page_to_their_supervisor(run: Run, tmp_path: Path) -> None:
    """Two ranks: one page, one run log beside the checkpoint, and the model of a run without a page."""
    port, c = free_ports(1), str(tmp_path / "c")
    train = ["train", "--pipeline", PIPELINE, "--source", f"file:{run.folder / 'logs'}", "--until-end"]
    train += ["--set", "threads=1", "--ranks", "2", "--checkpoint", c, "--live", f"127.0.0.1:{port}"]
    command(*train, *FEW_STEPS, "--report", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "c" / "run.log").read_text().splitlines()]
    assert (
        lines[-1]["report"]["examples_trained"]
        == report["examples_trained"]
        == run.report["examples_trained"]
    )
    assert report["logloss"] == pytest.approx(run.report["logloss"], rel=1e-3)
    assert next(line for line in lines if line["kind"] == "start")["world"] == 2


def test_live_changes_nothing_that_is_learned(run: Run, tmp_path: Path) -> None:
    logs = f"file:{run.folder / 'logs'}"
    train = ["train", "--pipeline", PIPELINE, "--source", logs, "--until-end", "--set", "threads=1"]
    command(*train, *FEW_STEPS, "--live", "0", "--report", tmp_path / "report.json")
    live = json.loads((tmp_path / "report.json").read_text())
    for name in ("auc", "gauc", "logloss", "table_rows", "last_20_percent", "steps"):
        assert live[name] == run.report[name]


def test_a_taken_port_is_said_before_training(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", "--pipeline", PIPELINE, "--source", f"file:{run.folder / 'logs'}", "--until-end"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([*train, "--live", str(port)]) == 4
    said = capsys.readouterr()
    assert said.err.endswith(f"livectr: port {port} of 127.0.0.1 is taken; give --live another port\n")
    assert said.out == ""
    assert main([*train, "--live", "here"]) == 2
    assert "--live here is no [HOST:]PORT, such as 8350" in capsys.readouterr().err


def test_axes_have_round_ticks() -> None:
    assert [text for _, text in linear([0.02, 0.98], "").ticks] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    axis = linear([0.0, 60_169.0], "", exact=True)
    assert axis.high == 60_169 and axis.ticks[-1] == (60_000, "60k") and axis.share(60_169) == 1
    assert linear([3.0, 3.0], "").low < 3 < linear([3.0, 3.0], "").high
    day = 86_400_000
    assert [text for _, text in clock([0.0, 2.0 * day], "").ticks] == [
        f"01-0{d} {h}:00" for d, h in ((1, "00"), (1, "12"), (2, "00"), (2, "12"), (3, "00"))
    ]
    assert (short(1_234_567), short(0.25, 0.05), short(5_000)) == ("1.23M", "0.25", "5,000")


def test_samples_of_months_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_SAMPLES", 10)
    lines: list[dict[str, Any]] = [
        {"kind": "run"},
        *({"kind": kind, "n": n} for n in range(35) for kind in ("window", "sample")),
    ]
    thin = reading.thinned_samples(lines)
    samples = [line["n"] for line in thin if line["kind"] == "sample"]
    assert samples == [2, 6, 10, 14, 18, 22, 26, 30, 34]
    assert len(thin) == 1 + 35 + len(samples)


def test_groups_of_a_reliability_diagram_keep_every_example() -> None:
    rng = np.random.default_rng(5)
    n = rng.integers(0, 1000, 80).astype(float)
    clicks = np.floor(n * rng.random(80))
    bins = np.stack([n, clicks, clicks + 0.5], axis=1)
    groups = groups_of(bins)
    assert 5 < len(groups) <= 16 and sum(g.examples for g in groups) == n.sum()
    assert sum(g.clicks for g in groups) == clicks.sum()
    for group in groups:
        low, high = group.interval
        assert 0 <= low <= group.rate <= high <= 1
