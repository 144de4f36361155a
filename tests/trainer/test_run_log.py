"""The run log: measures of windows are those of their examples, whatever batches brought them; a run that is
killed and resumes writes every window once."""

from __future__ import annotations

import functools
import json
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livectr.analysis.compare import differences
from livectr.system.errors import ConfigError
from livectr.trainer.quality import windows as module
from livectr.trainer.quality.metrics import gauc_error, quality
from livectr.trainer.quality.predictions import Records, records
from livectr.trainer.quality.run_log import RunLog
from livectr.trainer.quality.run_record import freshness
from livectr.trainer.quality.seen import is_cold
from livectr.trainer.quality.windows import BIN_WIDTH, FIRST_LOGIT, Windows, auc_error, window_size
from livectr.trainer.run import TrainOptions, train
from tests.trainer.ad_logs import ad_pipeline, write_files
from tests.trainer.kills import kill_group, kill_somewhere, kill_up_to
from tests.trainer.processes import finish, start

ROLES = ("rank", "shadow")
OPTIONS: dict[str, Any] = dict(
    batch_size=64, batch_ramp=0, publish_interval_s=0.15, threads=1, until_end=True
)


def examples(n: int, seed: int = 1) -> Records:
    rng = np.random.default_rng(seed)
    truth = rng.normal(-1, 2, n)
    return records(
        instance=np.arange(n),
        user=rng.integers(0, n // 8, n),
        item=rng.integers(0, 9, n),
        time_ms=1_700_000_000_000 + rng.integers(0, 60_000, n),
        seen=np.full(n, 100, np.uint32),
        logits={role: (truth + rng.normal(0, 1 + i, n)).astype(np.float32) for i, role in enumerate(ROLES)},
        label=(rng.random(n) < 1 / (1 + np.exp(-truth))).astype(np.float32),
    )


def filled(windows: Windows, held: Records, rng: random.Random) -> list[dict[str, Any]]:
    """Windows of the records, which come in batches of any size."""
    found, start_, first = [], 0, windows.before + windows.count
    while start_ < len(held):
        size = rng.randrange(1, 3000)
        for closed_by, window in windows.add(held[start_ : start_ + size]):
            assert start_ + closed_by in (window["examples"] - first, window["examples"] - first - 1)
            found.append(window)
        start_ += size
    return found


def test_a_window_holds_the_measures_of_its_examples() -> None:
    held, windows = examples(40_000), Windows(ROLES)
    found = filled(windows, held, random.Random(1)) + windows.finish()
    assert [w["first_example"] for w in found[1:]] == [w["examples"] for w in found[:-1]]
    assert found[-1]["examples"] == len(held) and len(found) > 40
    sizes = [w["examples"] - w["first_example"] for w in found[:-1]]
    assert sizes == [window_size(w["first_example"]) for w in found[:-1]] and sizes[0] == 500 < sizes[-1]
    for window in found:
        part = held[window["first_example"] : window["examples"]]
        label = part["label"].astype(np.float32)
        assert (window["clicks"], window["measured"]) == (int(label.sum()), len(part))
        assert (window["first_ms"], window["last_ms"]) == (part["time_ms"].min(), part["time_ms"].max())
        for role in ROLES:
            model, want = (
                window["models"][role],
                quality(part["user"], part[role], label, is_cold(part["seen"])),
            )
            for name in ("auc", "gauc", "logloss", "calibration"):
                assert model[name] == pytest.approx(getattr(want, name), rel=1e-6)
            assert model["users_left_out"] == want.skipped_users
            assert model["gauc_error"] == pytest.approx(gauc_error(part["user"], part[role], label))
            z = part[role].astype(np.float64)
            losses = np.logaddexp(0, z) - label * z
            assert model["logloss_error"] == pytest.approx(losses.std() / np.sqrt(len(z)), rel=1e-6)
            place = np.clip((z - FIRST_LOGIT) / BIN_WIDTH, 0, module.BINS - 1).astype(int)
            for b, n, clicks, predicted in model["bins"]:
                own = place == b
                assert (n, clicks) == (own.sum(), label[own].sum())
                assert predicted == pytest.approx((1 / (1 + np.exp(-z[own]))).sum(), rel=1e-5, abs=1e-6)
            assert sum(n for _, n, _, _ in model["bins"]) == len(part)


@pytest.mark.parametrize("before", [0, 100_000])
def test_batches_and_restarts_change_no_window(before: int) -> None:
    """No bit of windows of 500 or of 2,000 examples."""
    held = examples(20_000)
    windows = Windows(ROLES)
    windows.before = before
    unbroken = filled(windows, held, random.Random(1))
    assert unbroken[0]["examples"] - before == max(500, before // 50)
    for seed in (2, 3):
        windows, found = Windows(ROLES), []
        windows.before = before
        for part in np.array_split(held, 7):  # a restart after each
            state = windows.state()
            windows = Windows(ROLES)
            windows.load(state)
            found += filled(windows, part, random.Random(seed))
        assert found == unbroken


def test_areas_of_a_large_window_are_of_its_newest_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEASURED", 200)
    held, windows = examples(500), Windows(("rank", "shadow"))
    (window,) = filled(windows, held, random.Random(4))
    newest = held[300:]
    want = quality(
        newest["user"], newest["rank"], newest["label"].astype(np.float32), is_cold(newest["seen"])
    )
    assert window["measured"] == 200 and window["models"]["rank"]["auc"] == pytest.approx(want.auc)
    assert sum(b[1] for b in window["models"]["rank"]["bins"]) == 500


@pytest.mark.parametrize("seed", [1, 2])
def test_a_window_ends_after_an_hour_of_event_time(seed: int) -> None:
    """Not before it has 500 examples; the first example an hour after the window's first begins the next."""
    held, hour = examples(4000), module.SPAN_MS
    held["time_ms"] = np.arange(4000) * hour // 600  # 600 examples an hour
    held["time_ms"][1000:] += 3 * hour
    windows = Windows(ROLES)
    windows.before = 100_000  # a fiftieth is 2,000
    found = filled(windows, held, random.Random(seed)) + windows.finish()
    ends = [w["examples"] - 100_000 for w in found]
    assert ends == [600, 1100, 1700, 2300, 2900, 3500, 4000]
    assert [w["first_ms"] for w in found[1:]] == held["time_ms"][ends[:-1]].tolist()


def test_a_window_of_one_class_has_no_area() -> None:
    held, windows = examples(500), Windows(ROLES)
    held["label"], held["rank"][3] = 0, np.nan
    ((_, window),) = windows.add(held)
    model = window["models"]["rank"]
    assert (model["auc"], model["auc_error"], model["gauc"], model["calibration"]) == (None,) * 4
    json.dumps(window, allow_nan=False)


def test_the_error_of_an_area_is_near_delongs() -> None:
    """DeLong's error of the difference to a random score is about √2 of Hanley & McNeil's."""
    held = examples(4000)
    label = held["label"].astype(np.float32)
    flat = np.zeros(len(held), np.float32)  # AUC 0.5 without a variance
    by = differences(held["user"], flat, held["rank"], label, is_cold(held["seen"]))["auc"]
    area = quality(held["user"], held["rank"], label, is_cold(held["seen"])).auc
    assert auc_error(area, int(label.sum()), len(label)) == pytest.approx(by.standard_error, rel=0.25)


def test_freshness_is_weighed_by_examples() -> None:
    delays = [(np.array([1.0, 9.0]), np.array([98, 1])), (np.array([4.0]), np.array([1]))]
    assert freshness(delays) == {"examples": 100, "p50_s": 1.0, "p99_s": 4.0}
    assert freshness([]) is None and freshness([(np.empty(0), np.empty(0, np.int64))]) is None


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def of_kind(path: Path, kind: str) -> list[dict[str, Any]]:
    """Lines of a kind without the time by the clock."""
    return [{k: v for k, v in line.items() if k != "at_ms"} for line in lines(path) if line["kind"] == kind]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(tmp_path_factory.mktemp("logs"), 5_000)


def test_killed_and_resumed_it_writes_every_window_once(tmp_path: Path, source: str) -> None:
    options = {**OPTIONS, "source": source}
    whole = tmp_path / "whole.log"
    finish(start(1, {**options, "checkpoint": str(tmp_path / "whole"), "run_log": str(whole)}))
    broken, root = tmp_path / "broken.log", tmp_path / "broken"
    again: dict[str, object] = {**options, "checkpoint": str(root), "run_log": str(broken)}
    kill = functools.partial(kill_somewhere, root=root, rng=random.Random(), sudden=kill_group)
    begun = kill_up_to(2, lambda: start(1, again), kill, lambda: shutil.rmtree(root), broken.unlink)
    finish(start(1, again))
    windows = of_kind(whole, "window")
    assert of_kind(broken, "window") == windows and windows[-1]["examples"] == 5_000
    assert 1 <= len(of_kind(broken, "start")) <= begun + 1 and len(of_kind(broken, "run")) == 1
    steps = [line["step"] for line in lines(broken)]
    assert steps == sorted(steps)
    (end,), (other,) = of_kind(broken, "end"), of_kind(whole, "end")
    for name in ("auc", "gauc", "logloss", "table_rows", "examples_trained", "dead_letters"):
        assert end["report"][name] == other["report"][name]


def test_a_run_without_a_log_so_far_resumes_with_one(tmp_path: Path, source: str) -> None:
    options: dict[str, Any] = {**OPTIONS, "source": source, "checkpoint": str(tmp_path / "c")}
    train(ad_pipeline(), TrainOptions(**options, max_steps=20))
    report = train(ad_pipeline(), TrainOptions(**options, run_log=str(tmp_path / "run.log")))
    plain = train(ad_pipeline(), TrainOptions(**{**OPTIONS, "source": source}))
    assert (plain.auc, plain.logloss, plain.table_rows) == (report.auc, report.logloss, report.table_rows)
    windows = of_kind(tmp_path / "run.log", "window")
    assert windows[0]["first_example"] > 0 and windows[-1]["examples"] == report.examples_trained == 5_000


def test_two_ranks_sum_their_tables(tmp_path: Path, source: str) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    options = {**OPTIONS, "source": source}
    finish(start(1, {**options, "run_log": str(one)}))
    finish(start(2, {**options, "run_log": str(two)}))
    last, other = of_kind(one, "sample")[-1], of_kind(two, "sample")[-1]
    (end,) = of_kind(two, "end")
    rows = {name: table["rows"] for name, table in other["tables"].items()}
    assert rows == end["report"]["table_rows"] == {n: t["rows"] for n, t in last["tables"].items()}
    assert other["dead_letters"] == last["dead_letters"]
    for got, want in zip(of_kind(two, "window"), of_kind(one, "window"), strict=True):
        assert (got["examples"], got["clicks"]) == (want["examples"], want["clicks"])
        assert got["models"]["rank"]["logloss"] == pytest.approx(want["models"]["rank"]["logloss"], rel=1e-3)


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("my notes\n")
    with pytest.raises(ConfigError, match=r"notes\.txt is no run log, and is not written over"):
        RunLog(file, {})
    assert file.read_text() == "my notes\n"


def test_a_log_that_was_changed_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "run.log"
    log = RunLog(file, {})
    log.begin()
    log.write("start", 0, {})
    length = log.sync()
    log.close()
    with closing(RunLog(file, {})) as reopened:
        reopened.resume(length)
    assert file.stat().st_size == length
    file.write_bytes(file.read_bytes()[: length - 9] + b"x" * 20)
    with closing(RunLog(file, {})) as reopened, pytest.raises(ConfigError, match="is not what was written"):
        reopened.resume(length)
    file.unlink()
    with closing(RunLog(file, {})) as reopened:
        reopened.resume(length)
    assert "it begins again" in caplog.text and len(lines(file)) == 1
