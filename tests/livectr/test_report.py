"""The demo's report counts lost, duplicated, unknown and wrongly labelled events exactly."""

from pathlib import Path

import numpy as np
import pytest

from livectr.demo.report import account, last_json_line
from livectr.local.scrape import quantile, total, value
from livectr.simulator.ledger import Ledger
from livectr.simulator.traffic import Shown
from livectr.trainer.quality.metrics import auc
from livectr.trainer.quality.predictions import layout

N = 1000


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """N impressions of 10 users; every third is clicked in time, every fifth too late."""
    rng = np.random.default_rng(1)
    ids = np.arange(1, N + 1)
    shown = Shown(ids, ids % 10, ids % 7, 1000 * ids, rng.uniform(0.01, 0.99, N))
    book = Ledger(tmp_path / "ledger", 500, 1)
    for start in range(0, N, 100):
        part = slice(start, start + 100)
        book.show(Shown(*(column[part] for column in vars(shown).values())))
        for every, delay in ((3, 400), (5, 600)):
            of = ids[part][ids[part] % every == 0]
            book.click({"request_id": of, "ts": 1000 * of + delay}, np.zeros(len(of), np.int32))
        book.settle(int(1000 * ids[part][-1]))
    book.close()
    return tmp_path / "ledger"


def predictions(ids: np.ndarray) -> np.ndarray:
    rows = np.zeros(len(ids), layout(["rank", "prerank", "plain"]))
    rows["instance"], rows["user"], rows["label"] = ids, ids % 10, ids % 3 == 0
    rows["rank"] = np.random.default_rng(2).normal(0, 1, len(ids))
    return rows


def test_a_perfect_run_has_nothing_to_tell(ledger: Path) -> None:
    rows = predictions(np.random.default_rng(3).permutation(np.arange(1, N + 1)))
    found = account(ledger, rows)
    assert [found[f"{what}_events"] for what in ("lost", "duplicated", "unknown")] == [0, 0, 0]
    assert found["wrong_labels"] == 0
    assert found["whole_run"]["examples"] == N
    assert found["last_window"]["examples"] == N // 5
    assert found["last_window"]["auc"] == pytest.approx(auc(rows["rank"][-200:], rows["label"][-200:]))


def test_models_that_are_compared_have_their_quality(ledger: Path) -> None:
    rows = predictions(np.arange(1, N + 1))
    rows["plain"] = np.random.default_rng(4).normal(0, 1, N)
    rows["seen"] = np.where(np.arange(N) % 4, 1000, 3)
    found = account(ledger, rows)
    assert list(found["whole_run"]["shadows"]) == ["plain"]
    plain = found["whole_run"]["shadows"]["plain"]
    assert plain["auc"] == pytest.approx(auc(rows["plain"], rows["label"])) != found["whole_run"]["auc"]
    cold = rows[::4]
    assert plain["cold_examples"] == found["whole_run"]["cold_examples"] == len(cold)
    assert plain["cold_auc"] == pytest.approx(auc(cold["plain"], cold["label"]))
    assert found["last_window"]["shadows"]["plain"]["examples"] == N // 5


def test_every_fault_is_counted(ledger: Path) -> None:
    ids = np.concatenate([np.arange(11, N + 1), [20, 20, 30], [N + 1, -5]])
    rows = predictions(ids)
    rows["label"][:4] ^= 1
    found = account(ledger, rows)
    assert found["lost_events"] == 10
    assert found["duplicated_events"] == 3
    assert found["unknown_events"] == 2
    assert found["wrong_labels"] == 4
    assert found["whole_run"]["examples"] == len(ids) - 2


def test_nothing_learned_is_everything_lost(ledger: Path) -> None:
    found = account(ledger, predictions(np.zeros(0, np.int64)))
    assert found["lost_events"] == N
    assert found["whole_run"]["auc"] is None


def test_the_last_line_that_is_json() -> None:
    assert last_json_line('{"a": 1}\nnoise\n{"a": 2}\nnoise\n{"a": ') == {"a": 2}
    assert last_json_line("noise") == {}


def test_quantiles_of_a_histogram_are_interpolated() -> None:
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
        ("h_bucket", (("le", bound),)): n for bound, n in (("1.0", 50.0), ("2.0", 90.0), ("+Inf", 100.0))
    }
    assert quantile(samples, "h", 0.5) == pytest.approx(1.0)
    assert quantile(samples, "h", 0.7) == pytest.approx(1.5)
    assert quantile(samples, "h", 0.99) == 2.0
    by_code = {
        ("h_bucket", (("code", code), *labels)): n
        for (_, labels), n in samples.items()
        for code in ("OK", "ABORTED")
    }
    assert quantile(by_code, "h", 0.7) == pytest.approx(1.5)
    assert quantile(
        by_code | {("h_bucket", (("code", "OK"), ("le", "1.0"))): 100.0}, "h", 0.7, code="OK"
    ) == (pytest.approx(0.7))
    assert quantile({}, "h", 0.5) is None
    assert quantile(None, "h", 0.5) is None


def test_values_and_sums_of_samples() -> None:
    samples = {("x", (("model", "rank"),)): 1.0, ("x", (("model", "prerank"),)): float("nan"), ("y", ()): 2.0}
    assert value(samples, "x", model="rank") == 1.0
    assert value(samples, "x", model="prerank") is None
    assert value(None, "y") is None
    assert total(samples, "y") == 2.0
