"""Targets in service: replies have a probability by target, which is what the checkpoint has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import livectr
from livectr.cli import main
from livectr.client.clients import RankClient
from livectr.ingest.pipeline import Pipeline
from livectr.serving.app import App
from livectr.serving.score.rank_scorer import rank_scorer
from livectr.store.targets import after_click, probability
from tests.serving import multi_task_pipeline, targets_pipeline
from tests.serving.display_logs import write_logs
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS
from tests.serving.display_world import World


@pytest.mark.parametrize("file", [targets_pipeline, multi_task_pipeline], ids=["own rows", "shared rows"])
def test_replies_have_the_probabilities_of_the_checkpoints_heads(
    file: ModuleType,
    tmp_path: Path,
    redis_url: str,
    world: World,
    serve: Callable[..., App],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the order of the reply, whatever the bids; the reference scorer computes them by itself."""
    pipeline: Pipeline = file.pipeline
    write_logs(tmp_path / "logs", world, 2_000)
    trained = livectr.train(
        pipeline,
        source=f"file:{tmp_path / 'logs'}",
        checkpoint=tmp_path / "checkpoint",
        publish=redis_url,
        batch_size=64,
        batch_ramp=32,
        threads=1,
    )
    assert trained.report.targets.keys() == {"order", "seen"} and not trained.report.heads
    app = serve("recommend", pipeline)
    request = CONTEXT, {"ad_id": ADS, "position": POSITIONS}
    bids = np.linspace(1, 5, len(ADS)).tolist()
    with RankClient(app.server.address) as client:
        plain, reply = client.rank(*request), client.explain(*request, best=2, bids=bids)
    assert app.follower.current is not None
    assert rank_scorer(app.follower.current).in_one_call is (file is targets_pipeline)
    assert [one.name for one in reply.targets] == ["order", "seen"]
    order, seen = (np.array(one.probability) for one in reply.targets)
    assert (order < np.array(reply.pctr)).all() and (seen > 0).all() and (seen < 1).all()
    assert list(reply.index) != list(plain.index)
    assert trained.report.values.keys() == {"order", "seen"}
    for one in reply.targets:
        assert len(one.value) == len(ADS) and min(one.value) > 0
    for one, bid in zip(plain.targets, reply.targets, strict=True):
        by_candidate = np.empty((2, 2, len(ADS)))
        by_candidate[0][:, list(plain.index)] = one.probability, one.value
        by_candidate[1][:, list(reply.index)] = bid.probability, bid.value
        np.testing.assert_array_equal(*by_candidate)
    words = ["--server", app.server.address, "--redis", redis_url, "--requests", "6", "--json"]
    words += ["--pipeline", str(file.__file__), "--checkpoint", str(tmp_path / "checkpoint")]
    assert main(["query", "verify", *words]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["equal"] == 12 and facts["largest_pctr_difference"] < 1e-5
    monkeypatch.setattr("livectr.library.scoring.after_click", lambda click, own: own.astype(np.float64))
    assert main(["query", "verify", *words]) == 1  # replies of targets are compared
    monkeypatch.undo()
    monkeypatch.setattr("livectr.library.scoring.expected", lambda *heads: heads[0].double().exp())
    assert main(["query", "verify", *words]) == 1  # and values


def test_probabilities_of_extreme_logits() -> None:
    """p q, without a loss near 0 and 1."""
    pairs = np.meshgrid([-800.0, -30.0, -1.0, 0.0, 40.0, 800.0], [-700.0, -20.0, 0.5, 50.0, 700.0])
    z, q = (each.ravel() for each in pairs)
    whole = after_click(z, q)
    assert np.isfinite(whole).all() and (whole <= np.minimum(z, q) + 1e-9).all()
    plain = (np.abs(z) <= 40) & (np.abs(q) <= 50)
    p = 1 / (1 + np.exp(-z[plain])) / (1 + np.exp(-q[plain]))
    np.testing.assert_allclose(1 / (1 + np.exp(-whole[plain])), p, rtol=1e-9)
    logits = np.array([-900.0, 0.0, 900.0], np.float32)
    found = probability(logits, logits, (np.full(3, 2, np.float32), np.zeros(3, np.float32)), after=True)
    np.testing.assert_allclose(found, [0, 0.25, 1], atol=1e-12)
    assert probability(logits, logits, None, after=False)[1] == 0.5
