"""`livectr experiment compare`: two runs side by side, and whether their difference may be chance."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from livectr.analysis.paired_auc import Difference, paired_auc, paired_gauc
from livectr.analysis.paired_runs import PairedRuns
from livectr.cli import main
from livectr.rollout.comparison import Comparison
from livectr.rollout.rule import Outcome, Rule
from livectr.trainer.quality.metrics import auc, gauc, gauc_error, logloss
from livectr.trainer.quality.predictions import PredictionLog, records
from livectr.trainer.report import Report
from tests.waiting import left_s

F32 = NDArray[np.float32]


def scores(
    n: int, *, noise: float, seed: int = 0, digits: int | None = None
) -> tuple[F32, F32, NDArray[np.bool_]]:
    """Two correlated scores of n examples, the second with `noise` on top; rounded to make ties."""
    rng = np.random.default_rng(seed)
    label = rng.random(n) < 0.2
    a = label * 0.7 + rng.normal(size=n)
    b = a + noise * rng.normal(size=n)
    if digits is not None:
        a, b = np.round(a, digits), np.round(b, digits)
    return a.astype(np.float32), b.astype(np.float32), label


def run(
    folder: Path,
    name: str,
    logits: F32,
    label: NDArray[np.bool_],
    instance: object = None,
    prerank: F32 | None = None,
) -> list[str]:
    """A report and a prediction log as `livectr train` writes them; their paths."""
    n = len(logits)
    ids = np.arange(n) if instance is None else np.asarray(instance)
    roles = {"rank": logits} | ({} if prerank is None else {"prerank": prerank})
    with PredictionLog(folder / f"{name}.log", roles) as log:
        log.append(
            records(
                instance=ids.astype(np.int64),
                user=(ids % 10).astype(np.int64),
                item=(ids % 7).astype(np.int64),
                time_ms=np.arange(n),
                seen=np.arange(n, dtype=np.uint32) // 7,
                logits=roles,
                label=label.astype(np.float32),
            )
        )
        found = {of: quality.as_dict() for of, quality in log.report("rank").items()}
    measures = {key: found["all"][key] for key in ("auc", "gauc", "logloss", "calibration")}
    report = dataclasses.asdict(Report(n, 1, 1.0, 1.0, 1, n, 0, 0, 0)) | measures
    report["last_20_percent"] = found["last"]
    (folder / f"{name}.json").write_text(json.dumps(report))
    return [str(folder / f"{name}.json"), str(folder / f"{name}.log")]


@pytest.mark.parametrize("digits", [None, 1], ids=["no ties", "ties"])
def test_the_error_is_that_of_a_bootstrap(digits: int | None) -> None:
    a, b, label = scores(1500, noise=0.7, digits=digits)
    found = paired_auc(a, b, label)
    assert found.a == pytest.approx(auc(a, label.astype(np.float32)), abs=1e-12)
    assert found.b == pytest.approx(auc(b, label.astype(np.float32)), abs=1e-12)
    rng = np.random.default_rng(1)
    drawn = [rng.integers(len(a), size=len(a)) for _ in range(1500)]
    target = label.astype(np.float32)
    differences = [auc(b[rows], target[rows]) - auc(a[rows], target[rows]) for rows in drawn]
    # The bootstrap's own error: 1 / √(2 · 1500) = 1.8 % of a standard error.
    assert found.standard_error == pytest.approx(np.std(differences), rel=0.08)


def test_the_components_are_delong_s() -> None:
    """Against the definition, pair by pair."""
    a, b, label = scores(120, noise=0.5, digits=1)

    def psi(scores: F32) -> NDArray[np.float64]:
        high, low = scores[label][:, None], scores[~label][None, :]
        return np.asarray((high > low) + 0.5 * (high == low))

    apart = psi(b) - psi(a)
    variance = apart.mean(1).var(ddof=1) / label.sum() + apart.mean(0).var(ddof=1) / (~label).sum()
    assert paired_auc(a, b, label).standard_error == pytest.approx(np.sqrt(variance), rel=1e-12)


def test_equal_models_differ_significantly_in_one_of_twenty_samples() -> None:
    """Under the null hypothesis p is uniform: both scores are equally good, each with noise of its own."""
    rng = np.random.default_rng(2)
    p_values = []
    for _ in range(400):
        label = rng.random(400) < 0.3
        common = label + rng.normal(size=400)
        a, b = (common + 0.8 * rng.normal(size=400) for _ in range(2))
        p_values.append(paired_auc(a, b, label).p_value)
    assert 0.02 < np.mean(np.array(p_values) < 0.05) < 0.09
    assert 0.4 < np.mean(p_values) < 0.6


def test_the_same_scores_do_not_differ() -> None:
    a, _, label = scores(100, noise=0)
    found = paired_auc(a, 3 * a + 1, label)
    assert (found.difference, found.standard_error, found.p_value) == (0, 0, 1)


@pytest.mark.parametrize("label", [np.zeros(9, bool), np.arange(9) == 4])
def test_too_few_of_a_class_give_no_value(label: NDArray[np.bool_]) -> None:
    found = paired_auc(np.arange(9.0), -np.arange(9.0), label)
    assert np.isnan([found.a, found.b, found.standard_error]).all()


def test_p_is_that_of_the_normal_distribution() -> None:
    assert Difference(0, 1.959964, 1).p_value == pytest.approx(0.05, abs=1e-6)
    assert Difference(0, -2.575829, 1).p_value == pytest.approx(0.01, abs=1e-6)


def test_few_users_who_agree_have_no_error_of_gauc() -> None:
    """Else one user more that agrees would be proof."""
    user, label = np.repeat([1, 2], 3), np.tile([1, 0, 0], 2).astype(np.float32)
    found = paired_gauc(user, np.tile([1, 0, 2], 2).astype(np.float32), label, label)
    assert (found.a, found.b) == (0.5, 1) and np.isnan(found.standard_error)
    same = paired_gauc(user, label, 2 * label, label)
    assert (same.difference, same.standard_error, same.p_value) == (0, 0, 1)


def test_predictions_are_matched_by_instance_and_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In another order, with examples of its own, and with a late click's correction: both labels."""
    a, b, label = scores(400, noise=1)
    ids = np.arange(400)
    label[:2], ids[1] = [False, True], 0
    order = np.random.default_rng(0).permutation(400)[:350]
    report_a, log_a = run(tmp_path, "a", a, label, ids)
    report_b, log_b = run(tmp_path, "b", b[order], label[order], ids[order])
    flags = ["experiment", "compare", report_a, report_b, "--predictions", log_a, log_b]
    assert main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    both = np.sort(order)
    rows = {(row["of"], row["measure"]): row for row in found["rows"]}
    target = label.astype(np.float32)
    for of, at in (("all", both), ("last", both[280:])):
        assert rows[of, "auc"]["a"] == pytest.approx(auc(a[at], target[at]))
        assert rows[of, "auc"]["b"] == pytest.approx(auc(b[at], target[at]))
        assert rows[of, "auc"]["standard_error"] == paired_auc(a[at], b[at], label[at]).standard_error
        assert rows[of, "logloss"]["difference"] == pytest.approx(
            logloss(b[at], target[at]) - logloss(a[at], target[at])
        )
        assert rows[of, "calibration"]["p_value"] is None
        user = ids[at] % 10
        assert rows[of, "gauc"]["standard_error"] == gauc_error(user, b[at], target[at], a[at]) > 0
        assert rows[of, "gauc"]["b"] == gauc(user, b[at], target[at])[0]
    cold = both[both // 7 < 20]
    error = paired_auc(a[cold], b[cold], label[cold]).standard_error
    assert (rows["all", "cold_auc"]["standard_error"], ("last", "cold_auc") in rows) == (error, False)
    assert found["notes"] == [
        "350 examples are in both prediction logs.",
        f"50 of {log_a} are left out: the other has no such example.",
    ]
    assert main(flags) == 0
    shown = capsys.readouterr().out
    assert "rank, all" in shown and "rank, last" in shown and "prerank" not in shown
    assert "yes" in shown  # noise as large as the scores' own


def test_reports_alone_have_no_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, label = scores(300, noise=1)
    report_a, report_b = run(tmp_path, "a", a, label)[0], run(tmp_path, "b", b[1:], label[1:])[0]
    assert main(["experiment", "compare", report_a, report_b]) == 0
    shown = capsys.readouterr().out
    assert "calibration" in shown and "p < 0.05" not in shown
    assert "The runs have 300 and 299 examples" in shown


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_a_terminal(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    a, b, label = scores(300, noise=1)
    pairs = [run(tmp_path, "a", a, label, prerank=b), run(tmp_path, "b", b, label, prerank=a)]
    reports, logs = zip(*pairs, strict=True)
    assert main(["experiment", "compare", *reports, "--predictions", *logs]) == 0
    shown = capsys.readouterr().out
    assert "…" not in shown and "calibration" in shown and "p < 0.05" in shown


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, _, label = scores(60, noise=0)
    report, log = run(tmp_path, "a", a, label)
    _, other = run(tmp_path, "b", a, label, np.arange(60) + 1000)
    (tmp_path / "text").write_text("hello")
    (tmp_path / "list").write_text("[]")
    for flags, says in [
        ([report, str(tmp_path / "no")], "there is no report"),
        ([report, str(tmp_path / "text")], "is no JSON"),
        ([report, str(tmp_path / "list")], "is no report of livectr train --report"),
        ([report, report, "--predictions", log, str(tmp_path / "no")], "there are no predictions"),
        (
            [report, report, "--predictions", log, str(tmp_path / "text")],
            "is no log of predictions of livectr train",
        ),
        ([report, report, "--predictions", log, other], "have no example in common"),
        ([report], "REPORT.json"),
    ]:
        assert main(["experiment", "compare", *flags]) == 2
        assert says in capsys.readouterr().err


def learn(log: PredictionLog, logits: F32, label: NDArray[np.bool_], at: slice) -> None:
    """Let a run score the examples `at`."""
    ids = np.arange(len(logits))[at]
    none = np.zeros(len(ids), np.int64)
    log.append(
        records(
            instance=ids,
            user=ids % 10,
            item=none,
            time_ms=ids,
            seen=none.astype(np.uint32),
            logits={"rank": logits[at]},
            label=label[at].astype(np.float32),
        )
    )


def test_a_rule_that_begins_anew_is_about_the_examples_that_come(tmp_path: Path) -> None:
    """Both runs are alike until example 200, where the second one becomes worse."""
    a, _, label = scores(400, noise=0)
    b = np.where(np.arange(400) < 200, a, -a).astype(np.float32)
    logs = tmp_path / "old", tmp_path / "new"
    compared = Comparison(*logs, Rule.parse("examples >= 100 and auc > -0.2"))
    with PredictionLog(logs[0]) as old, PredictionLog(logs[1]) as new:
        for until, asked, outcome in (
            (199, True, Outcome.PROMOTE),
            (200, False, Outcome.PROMOTE),
            (250, False, Outcome.WAIT),
            (310, True, Outcome.REFUSE),
        ):
            at = slice(compared.paired.count, until)
            learn(old, a, label, at)
            learn(new, b, label, at)
            compared.paired.look()
            assert (compared.judge(over=False), compared.verdict.outcome) == (asked, outcome), until
            if until == 200:
                compared.begin()
        assert compared.verdict.reason.startswith("after 100 examples") and compared.seen is not None
        assert compared.seen.examples == 50


def test_a_rule_says_if_a_run_may_take_the_place_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once of what there is, and with --watch of runs that go on; the last line begins with the answer."""
    a, b, label = scores(500, noise=0.1)
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder in folders:
        folder.mkdir()
    with PredictionLog(folders[0] / "predictions") as old, PredictionLog(folders[1] / "predictions") as new:
        learn(old, a, label, slice(0, 500))
        learn(new, b, label, slice(0, 150))
        flags = ["experiment", "compare", *map(str, folders)]
        for rule, code, says in (
            (
                "examples >= 100 and auc > -0.5",
                0,
                "promote: after 150 examples, in the newer half of them AUC",
            ),
            ("examples >= 100 and auc > 0.5", 1, "refuse: after 150 examples, in the newer half of them AUC"),
            ("examples >= 200", 1, "refuse: 150 examples are in both, and the rule asks at 200"),
        ):
            assert main([*flags, "--rule", rule]) == code
            assert capsys.readouterr().out.splitlines()[-1].startswith(says)
        assert main([*flags, "--rule", "better"]) == 2
        assert main([*flags, "--rule", "examples >= 1", "--json"]) == 2

        watch = [sys.executable, "-m", "livectr", *flags, "--watch", "10ms"]
        late = "examples >= 100 and hours >= 0.00005"  # 180 of the examples, which are 1 ms apart
        with subprocess.Popen([*watch, "--rule", late], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("wait: after 100 examples")
            learn(new, b, label, slice(150, 500))
            assert process.stdout.read().splitlines()[-1].startswith("promote: after")
            assert process.wait(left_s()) == 0


def test_runs_that_go_on_are_compared_by_their_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the checkpoint folders alone, and again and again with --watch; a bounded log is followed, too."""
    a, b, label = scores(500, noise=0.5)
    folders = [tmp_path / "old", tmp_path / "new"]
    logs = []
    for folder, keep in zip(folders, (0, 60), strict=True):
        folder.mkdir()
        logs.append(PredictionLog(folder / "predictions", keep=keep))

    paired = PairedRuns(*(folder / "predictions" for folder in folders))
    assert paired.look() == 0 and main(["experiment", "compare", *map(str, folders)]) == 2
    assert "have no example in common" in capsys.readouterr().err
    learn(logs[0], a, label, slice(0, 100))
    assert (paired.look(), paired.alone) == (0, (100, 0))
    learn(logs[1], b, label, slice(10, 60))
    assert (paired.look(), paired.alone) == (50, (50, 0))
    assert main(["experiment", "compare", *map(str, folders), "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert notes[0] == "50 examples are in both prediction logs."
    logs[0].truncate(80)  # its trainer was killed, and is back at its checkpoint
    learn(logs[0], a, label, slice(80, 300))
    learn(logs[1], b, label, slice(60, 200))  # which drops what is before 140
    assert (logs[1].read()["instance"][0], paired.look(), paired.count) == (140, 60, 110)
    learn(logs[1], b, label, slice(200, 230))
    assert paired.look() == 30 and paired.left is not None and paired.right is not None
    ids = paired.left["instance"]
    assert np.array_equal(ids, paired.right["instance"]) and len(np.unique(ids)) == len(ids) == paired.count
    assert (
        paired.left["rank"].tolist() == a[ids].tolist() and paired.right["rank"].tolist() == b[ids].tolist()
    )

    flags = ["experiment", "compare", *map(str, folders), "--watch", "10ms", "--json"]
    watch = [sys.executable, "-m", "livectr", *flags]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["notes"][0].startswith("90 examples are in both")
        learn(logs[1], b, label, slice(230, 240))
        assert json.loads(process.stdout.readline())["notes"][0].startswith("100 examples are in both")
        process.send_signal(signal.SIGINT)
        assert process.wait(left_s()) == 130
    for log in logs:
        log.close()
