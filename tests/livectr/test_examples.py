"""The examples' pipelines learn from logs in their data sets' layouts, through the command line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livectr.cli import main
from livectr.ingest.pipeline import load_pipeline
from livectr.trainer.quality.predictions import read_predictions
from tests.commands import run
from tests.livectr.log_samples import avazu, criteo
from tests.tiers import few
from tests.waiting import left_s

EXAMPLES = Path(__file__).parents[2] / "examples"


def train(example: str, source: str, report: Path, *more: str, ranks: int = 1) -> dict[str, Any]:
    command = [sys.executable]
    if ranks > 1:
        command += [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--max-restarts=0",
            f"--nproc-per-node={ranks}",
        ]
    command += ["-m", "livectr", "train", "--pipeline", str(EXAMPLES / example / "pipeline.py")]
    command += ["--source", source, "--until-end", "--set", "threads=1", "--report", str(report)]
    command += ["--set", "batch_ramp=64", *more]  # few steps; the ramp's small ones are tested elsewhere
    begin = subprocess.run if ranks > 1 else run
    done = begin(
        command,
        capture_output=True,
        text=True,
        cwd=EXAMPLES.parent,
        env=os.environ,
        timeout=left_s(),
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize("target", few(["file", "kafka"], "kafka"))
def test_criteo(tmp_path: Path, target: str, kafka_url: str) -> None:
    criteo(tmp_path / "train.txt", 20_000)
    url = f"file:{tmp_path / 'logs'}" if target == "file" else kafka_url
    assert main(["logs", "replay", str(tmp_path / "train.txt"), "--format", "criteo", "--to", url]) == 0
    report = train("criteo", url, tmp_path / "report.json", "--set", "batch_size=512")
    assert report["examples_trained"] == report["events"] == 20_000
    assert report["dead_letters"] == 0
    assert report["last_20_percent"]["auc"] > 0.65


@pytest.mark.full
def test_avazu_on_two_ranks(tmp_path: Path, kafka_url: str) -> None:
    avazu(tmp_path / "train.csv", 10_000)
    assert main(["logs", "replay", str(tmp_path / "train.csv"), "--format", "avazu", "--to", kafka_url]) == 0
    report = train("avazu", kafka_url, tmp_path / "report.json", "--set", "batch_size=512", ranks=2)
    assert (report["examples_trained"], report["world"]) == (10_000, 2)
    assert report["last_20_percent"]["auc"] > 0.7


def test_display_ads_has_forty_features_of_four_views() -> None:
    plan = load_pipeline(EXAMPLES / "display_ads" / "pipeline.py").plan
    assert len(plan.sparse) + len(plan.dense) >= 40
    assert {root.ref.source for root in plan.roots} == {"impressions", "clicks", "users", "ads"}


def test_display_ads_simulated(tmp_path: Path) -> None:
    logs = f"file:{tmp_path / 'logs'}"
    simulate = ["logs", "simulate", "--to", logs, "--fast", "--seconds", "6", "--rate", "2000"]
    assert main([*simulate, "--ledger", str(tmp_path / "ledger")]) == 0
    report = train(
        "display_ads", logs, tmp_path / "report.json", "--set", f"predictions={tmp_path / 'predictions'}"
    )
    from livectr.demo.report import account
    from livectr.trainer.quality.predictions import read_predictions

    found = account(tmp_path / "ledger", read_predictions(tmp_path / "predictions"))
    for name in ("lost_events", "duplicated_events", "unknown_events", "wrong_labels"):
        assert found[name] == 0, name
    assert found["whole_run"]["examples"] == report["examples_trained"]
    assert found["whole_run"]["bayes_auc"] > found["whole_run"]["auc"] > 0.5


@pytest.mark.full
def test_display_ads_learns_in_small_batches(tmp_path: Path) -> None:
    """Batches of 50, as of a slow log: at a rate of 1e-2, predictions swung between 0 and 1 after 2,900."""
    log, kept = f"file:{tmp_path / 'logs'}", tmp_path / "predictions"
    traffic = ["--rate", "100", "--seconds", "1600", "--partitions", "4", "--fast"]
    assert main(["logs", "simulate", "--to", log, *traffic]) == 0
    report = train("display_ads", log, tmp_path / "report.json", "--set", f"predictions={kept}")
    assert report["steps"] > 3_000
    records = read_predictions(kept)
    for part in np.array_split(records, 20):
        logit = part["rank"].astype(np.float64)
        loss = np.logaddexp(0, np.where(part["label"] == 1, -logit, logit)).mean()  # 0.37 to 0.44; then 4.9
        assert loss < 0.5


def test_shop(tmp_path: Path) -> None:
    """Heads, value and places come near to the probabilities of the simulated shop."""

    def script(name: str, folder: str) -> str:
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "shop" / name), str(tmp_path / folder), "12000"],
            capture_output=True,
            text=True,
            timeout=left_s(),
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    script("simulate.py", "logs")
    source, kept = f"file:{tmp_path / 'logs'}", ("--checkpoint", str(tmp_path / "checkpoint"))
    report = train("shop", source, tmp_path / "report.json", *kept)
    assert report["examples_trained"] == 12_000 and report["dead_letters"] == 0
    assert report["auc"] > 0.62 and report["targets"]["order"]["auc"] > 0.62
    assert 0.85 < report["value"]["calibration"] < 1.15 and report["values"]["order"]["gini"] > 0.4
    seen = [report["position_bias"]["rank"][place] for place in "1234"]
    assert seen == sorted(seen, reverse=True) and 0.2 < seen[3] < 0.55
    found = re.findall(r"have ([\d,]+) clicks and earn ([\d,]+)", script("earn.py", "checkpoint"))
    (clicks, earned), (_, listed), (fewer, more), (_, most) = (
        [int(n.replace(",", "")) for n in each] for each in found
    )
    assert clicks > fewer and 1.05 * earned < listed < more < most
