"""Public forms of data, from `livectr init` to a served click-through rate, without an edit."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import livectr
from livectr.cli import main
from livectr.ingest.pipeline import load_pipeline
from livectr.serving.app import App
from livectr.serving.options import ServeOptions
from tests.livectr.public_forms import FORMS, ROWS
from tests.waiting import left_s

SAYS = {
    "criteo": ('"I1": [', 'f"C{i}": log[f"C{i}"]'),
    "avazu": ('key="device_ip"', '"hour",  # epoch milliseconds', '"hour": ops.hour(log.hour)'),
    "movielens": ('EventTime("timestamp", unit="s")', 'labelled(ratings, label="label")'),
    "open-bandit": ('key="user"', '"item_id": log.item_id'),
    "outbrain": ('on=("display_id", "ad_id")', 'key="uuid"'),
    "kuairec": ('"feat": "list<int64>"', '"tags": "list<string>"'),
    "hive": ('"user_id": "string"', '"tags": "list<int64>"'),
    "topics": ('on="view_id"', 'key="visitor"'),
}
"""Form → parts of its pipeline file."""


@pytest.mark.parametrize("form", FORMS)
def test_from_init_to_a_ctr(
    form: str,
    tmp_path: Path,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = FORMS[form](tmp_path)
    assert main(["init", *words, "--out", "made"]) == 0
    printed = capsys.readouterr().out
    file = Path("made/pipeline.py")
    for part in SAYS[form]:
        assert part in file.read_text()
    assert main(["check", "--pipeline", str(file), "--source", "file:made/logs"]) == 0
    settings: dict[str, Any] = {"publish": redis_url, "namespace": form, "min_examples": ROWS // 2}
    report = livectr.train(file, source="file:made/logs", checkpoint="made/checkpoint", **settings).report
    assert (report.examples_trained, report.dead_letters) == (ROWS, 0)
    again = livectr.train(file, source="file:made/logs", warm_start="made/checkpoint").report
    assert again.auc is not None and again.auc > 0.55, "a second look at rows that it has learned"
    app = App("rank", load_pipeline(file), ServeOptions(redis_url, namespace=form))
    try:
        app.start()
        assert app.wait_ready(left_s())
        (query,) = re.findall(r"livectr (query rank .*)", printed)
        capsys.readouterr()
        assert main(shlex.split(query.replace("127.0.0.1:50051", app.server.address))) == 0
    finally:
        app.stop()
    answer = capsys.readouterr().out
    ctrs = [float(line.split("│")[-3]) for line in answer.splitlines() if line.startswith("│")]
    assert ctrs and all(0 < ctr < 1 for ctr in ctrs)
