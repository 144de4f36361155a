"""The rows of bench.learning, from made-up scores, and the peers' side of it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import bench.sections
from bench.learning import page
from bench.learning.compare import calibrated, compared, slices, table
from bench.learning.contestants import PROGRAMS, Kept, Program, interpreters
from bench.learning.logs import Log, market, numbers, planted
from bench.learning.neural import given, one_pass
from livectr.trainer.quality.metrics import auc

CURVES = {
    "DeepFM": [[0.60, 0.72], [0.62, 0.74]],
    "LR": [[0.9, 0.9], [0.9, 0.9]],
    "LightGBM, refit": [[0.9, 0.9], [0.9, 0.9]],
    "Vowpal Wabbit": [[0.61, 0.70], [0.612, 0.70]],
    "river, FTRL": [[0.5, 0.73], [0.5, 0.728]],
    "Bayes": [[1.0, 1.0], [1.0, 1.0]],
}


def made(logits: np.ndarray, label: np.ndarray) -> Log:
    return Log("made", {}, np.empty((len(label), 0), np.float32), label.astype(np.float32))


def test_ours_stands_beside_the_peer_that_is_best_at_each_point() -> None:
    first, end = compared("made", [100, 200], CURVES)
    assert (first["peer_name"], end["peer_name"]) == ("Vowpal Wabbit", "river, FTRL")
    assert first["peer"] == pytest.approx(0.611) and first["ours"] == pytest.approx(0.61)
    assert first["met"] is True and end["met"] is True  # behind by less than the tolerance; ahead at the end
    behind = {**CURVES, "DeepFM": [[0.6, 0.729], [0.6, 0.728]]}
    first, end = compared("made", [100, 200], behind)
    assert (first["met"], end["met"]) == (False, False)


def test_calibration_is_of_the_worst_twentieth_after_the_first() -> None:
    label = np.tile([1.0, 0.0], 400)
    logits = np.zeros(800, np.float32)
    logits[:40] = 9  # the first twentieth does not count
    logits[400:440] = np.log(3)
    log = made(logits, label)
    assert len(slices(log, logits)) == 19
    least, most = calibrated([log], [{"DeepFM": logits}])
    assert (least["ours"], least["met"]) == (pytest.approx(1.0), True)
    assert (most["ours"], most["met"]) == (pytest.approx(1.5), False)


def test_a_peer_of_fewer_seeds_stands_beside_ours_on_them() -> None:
    """The network is the best on its seeds, where ours is worse than in the mean of all."""
    ours, linear = [[0.6], [0.62], [0.9]], [[0.61], [0.61], [0.88]]
    curves = {"DeepFM": ours, "Vowpal Wabbit": linear, "Net": [[0.7], [0.7]], "LightGBM, refit": [[0.95]] * 2}
    (end,) = compared("made", [100], curves)
    assert end["peer_name"] == "Net" and "2 seeds, -0.0900" in str(end["workload"])
    assert (end["ours"], end["peer"]) == (pytest.approx(0.61), pytest.approx(0.7))
    assert end["met"] is False
    assert table("made", [100], curves)["note"] == (
        "Means of 3 seeds. Means of the first 2 seeds: Net; LightGBM, refit. "
        "LightGBM, refit learns in batches: a reference, no peer."
    )


def test_all_learners_are_in_the_table() -> None:
    shown = table("made", [100, 200], CURVES)
    assert shown["lines"][0] == ["learner", "100", "200"]  # type: ignore[index]
    assert shown["lines"][1] == ["DeepFM", "0.6100", "0.7300"]  # type: ignore[index]
    assert len(shown["lines"]) == 7  # type: ignore[arg-type]


def test_a_log_of_few_clicks_has_no_calibration() -> None:
    log = made(np.zeros(100, np.float32), np.zeros(100))
    assert calibrated([log], [{"DeepFM": np.zeros(100, np.float32)}]) == []


def test_the_market_is_the_simulators() -> None:
    """A seed's log; crosses are of their columns, and the truth ranks the clicks."""
    log, longer = market(1, 4_000), market(1, 5_000)
    assert len(log) == 4_000 and len(log.fields) == 23
    assert all(np.array_equal(column, market(1, 4_000).fields[name]) for name, column in log.fields.items())
    assert np.array_equal(longer.fields["user"][:4_000], log.fields["user"])
    crossed = {(g, c) for g, c in zip(log.fields["gender"], log.fields["category"], strict=True)}
    assert len(np.unique(log.fields["gender_x_category"])) == len(crossed)
    assert log.bayes is not None
    assert auc(log.bayes.astype(np.float32), log.label) > 0.7
    assert not np.array_equal(market(2, 4_000).label, log.label)


def test_numbers_come_twice_and_tell_of_clicks() -> None:
    """A seed's log: a dense feature is 0 where its bin is that of nulls, and bins alone rank clicks."""
    log = numbers(1, 5_000)
    assert len(log.fields) == 39 and log.dense.shape == (5_000, 13)
    for d in range(13):
        null = log.fields[f"I{d + 1}_bin"] == -1
        assert not log.dense[null, d].any()
    assert np.median(log.dense[:, 4]) < 1e-5 and np.median(log.dense[:, 6]) > 19
    assert log.bayes is not None and auc(log.bayes.astype(np.float32), log.label) > 0.75
    assert not np.array_equal(numbers(2, 5_000).label, log.label)


COUNTING = """
import sys
import numpy as np
log = np.load(sys.argv[1])
with open(__file__ + ".runs", "a") as runs:
    runs.write(sys.argv[3] + "\\n")
np.savez(sys.argv[2], **{NAME: log["label"] + int(sys.argv[3])})
"""


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[tuple[Program, Program]]:
    """A program that needs no seed, and one of two seeds that draws."""
    paths = [tmp_path / "steady.py", tmp_path / "drawing.py"]
    for path in paths:
        path.write_text(f"NAME = {path.stem!r}\n{COUNTING}")
    (packages := tmp_path / "packages.txt").touch()
    yield Program(paths[0], packages), Program(paths[1], packages, seeds=2, draws=True)


def test_a_program_runs_once_for_each_log_that_it_would_score_differently(
    counting: tuple[Program, Program], tmp_path: Path
) -> None:
    kept = Kept(dict.fromkeys(counting, Path(sys.executable)), tmp_path)
    same = [made(np.zeros(3), np.array([0.0, 1.0, 0.0])) for _ in range(3)]
    logs = [Log("made", {"f": np.arange(3)}, log.dense, log.label) for log in same]
    found = [kept.scores(log, seed) for seed, log in enumerate(logs, 1)]
    assert [set(of) for of in found] == [{"steady", "drawing"}, {"steady", "drawing"}, {"steady"}]
    assert all(np.array_equal(of["steady"], logs[0].label + 1) for of in found)
    assert np.array_equal(found[1]["drawing"], logs[0].label + 2)
    other = Log("made", {"f": np.arange(1, 4)}, logs[0].dense, logs[0].label)
    assert np.array_equal(kept.scores(other, 2)["steady"], other.label + 2)
    runs = [(Path(f"{program.path}.runs")).read_text().split() for program in counting]
    assert runs == [["1", "2"], ["1", "2", "2"]]


def test_a_network_scores_a_batch_before_it_learns_it(tmp_path: Path) -> None:
    log = planted(1, 50)
    ids = np.stack([*log.fields.values()], axis=1)
    np.savez(tmp_path / "log.npz", ids=ids, dense=log.dense, label=log.label)
    numbered = given(tmp_path / "log.npz")
    assert numbered.codes.amax(0).tolist() == [size - 1 for size in numbered.sizes]
    assert len(np.unique(ids[:, 0])) == numbered.sizes[0]
    seen = [0]

    def learn(codes: Tensor, dense: Tensor, label: Tensor) -> Tensor:
        p = torch.full((len(label),), (1 + seen[-1]) / 100)
        seen.append(seen[-1] + len(codes))
        return p

    logits = one_pass(numbered, learn, 16)
    assert seen == [0, 16, 32, 48, 50]
    assert 1 / (1 + np.exp(-logits)) == pytest.approx(np.repeat([0.01, 0.17, 0.33, 0.49], [16, 16, 16, 2]))


@pytest.mark.full
def test_every_peer_scores_a_log(tmp_path: Path) -> None:
    """The real peers, which are installed at the first run. All but the reference learn something."""
    log = planted(1, 20_000)
    found = Kept(interpreters(), tmp_path).scores(log, 1)
    assert {"Vowpal Wabbit", "river, FTRL", "LightGBM, refit"} < set(found)
    assert {"TorchRec, row-wise AdaGrad", "FuxiCTR, DeepFM"} < set(found)
    assert all(scores.shape == (20_000,) and np.isfinite(scores).all() for scores in found.values())
    assert all(auc(scores[10_000:], log.label[10_000:]) > 0.51 for scores in found.values())
    assert {program.seeds for program in PROGRAMS if program.draws} == {2}


def test_the_page_has_the_best_of_vowpal_wabbits_settings() -> None:
    lines = [["DeepFM", "0.6", "0.7"], ["Vowpal Wabbit", "0.5", "0.8"], ["river, FTRL", "0.4", "0.4"]]
    lines.append(["Vowpal Wabbit, ftrl", "0.7", "0.6"])
    best = ["Vowpal Wabbit, best of 2", "0.7", "0.8"]
    assert page.shortened(lines) == [lines[0], best, lines[2]]
    assert page.shortened(lines[:1]) == lines[:1]


def test_pages_show_notes_and_old_results_without(tmp_path: Path) -> None:
    machine = {"cores": 2, "processor": "P", "torch": "2", "gpu": None}
    shown = table("made", [100, 200], CURVES)
    result = {"name": "learning", "commit": "c", "hardware": machine, "rows": [], "tables": [shown]}
    old = {**result, "tables": [{key: shown[key] for key in ("title", "lines")}]}
    for text in (page.text, bench.sections.section):
        assert "LightGBM, refit learns in batches: a reference, no peer." in text(result)
        assert "no peer" not in text(old) and "| LightGBM, refit | 0.9000" in text(old)
    (drawn,) = page.draw(tmp_path, result)
    assert drawn.stat().st_size
