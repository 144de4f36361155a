"""`livectr experiment tune`: variants are shadows of one pass, and measured on the same examples."""

import json
from pathlib import Path

import numpy as np
import pytest

import livectr
from livectr.analysis.tune import Measured, advice, parse, variants_of, with_setting
from livectr.cli import main
from livectr.models import DeepFM, ftrl
from livectr.system.errors import ConfigError
from livectr.trainer.quality.metrics import quality
from livectr.trainer.quality.predictions import read_predictions
from tests.trainer.ad_logs import write_files

PIPELINE = """\
from dataclasses import replace
from tests.trainer.ad_logs import ad_pipeline
from livectr.models import DeepFM
pipeline = replace(
    ad_pipeline(), rank=DeepFM(dim=4, hidden=(8,)), settings={"batch_size": 64, "batch_ramp": 0, "threads": 1}
)
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dense_lr=1e-3,3e-3", ("dense_lr", [1e-3, 3e-3])),
        ("hidden=(64,32),(8,)", ("hidden", [(64, 32), (8,)])),
        ("aggregator=sum_pool, max_pool", ("aggregator", ["sum_pool", "max_pool"])),
    ],
)
def test_a_grid_is_read(text: str, found: tuple[str, list[object]]) -> None:
    assert parse(text) == found


@pytest.mark.parametrize("text", ["dense_lr", "=1", "dense_lr="])
def test_a_grid_without_values_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write NAME=VALUE,VALUE"):
        parse(text)


def test_combinations_are_variants() -> None:
    base = DeepFM(first_order=ftrl(l1=1.0))
    found = variants_of(base, [("dim", [4, 8]), ("first_order.alpha", [0.1, 0.2])])
    assert [*found] == [f"dim={d} first_order.alpha={a}" for d in (4, 8) for a in (0.1, 0.2)]
    assert found["dim=8 first_order.alpha=0.1"] == DeepFM(dim=8, first_order=ftrl(l1=1.0, alpha=0.1))
    assert with_setting(base, "hidden", 16) == DeepFM(hidden=(16,), first_order=ftrl(l1=1.0))
    with pytest.raises(ConfigError, match="has 25 variants; try at most 24"):
        variants_of(base, [("dim", range(1, 6)), ("dense_lr", [0.1 * i for i in range(5)])])


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("width", 3, "DeepFM has no setting 'width'; it has dim, "),
        ("dim", 0, "--grid dim: DeepFM: dim is 0"),
        ("optimiser.rate", 0.1, "AdaGrad has no parameter 'rate'"),
        ("dim.lr", 0.1, "dim is no optimiser; write dim=VALUE"),
    ],
)
def test_a_wrong_setting_is_refused(name: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        with_setting(DeepFM(), name, value)


def measured(variant: str, gain: float, error: float) -> Measured:
    return Measured(variant, 0.7, 0.3, 1.0, 0.0, 0.0, gain, error)


def test_chance_is_no_advice() -> None:
    assert advice([measured("", 0, 0), measured("dim=8", 0.1, 0.01)]).startswith("No variant")
    assert "no better than chance" in advice([measured("dim=8", -0.01, 0.02)])
    assert advice([measured("dim=8", -0.03, 0.02)]).startswith("Write dim=8 into the pipeline's rank model")


def test_variants_learn_as_models_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A variant has about the figures of its model in a run without others: initial values differ by the
    variant's place in a row."""
    source = write_files(tmp_path / "logs", 1_500)
    file = tmp_path / "p.py"
    file.write_text(PIPELINE)
    flags = ["--pipeline", str(file), "--source", source, "--grid", "dense_lr=1e-2,1e-3"]
    assert main(["experiment", "tune", *flags, "--json"]) == 0
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert [*rows] == sorted(rows, key=lambda name: rows[name]["logloss"])
    assert set(rows) == {"", "dense_lr=0.01", "dense_lr=0.001"}
    file.write_text(PIPELINE.replace("hidden=(8,)", "hidden=(8,), dense_lr=1e-2"))
    alone = tmp_path / "alone"
    livectr.train(str(file), source=source, checkpoint=tmp_path / "c", predictions=str(alone))
    held = read_predictions(alone)
    last = held[int(0.8 * len(held)) :]
    label = last["label"].astype(np.float32)
    want = quality(last["user"], last["rank"], label, np.zeros(len(last), bool))
    assert rows["dense_lr=0.01"]["logloss"] == pytest.approx(want.logloss, rel=2e-2)
    assert rows["dense_lr=0.01"]["logloss_gain"] == pytest.approx(
        rows["dense_lr=0.01"]["logloss"] - rows[""]["logloss"], abs=1e-6
    )
    assert main(["experiment", "tune", *flags]) == 0
    shown = capsys.readouterr().out
    assert (
        "the pipeline's" in shown and "dense_lr=0.001" in shown and "log loss" in shown and "…" not in shown
    )
