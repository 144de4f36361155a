"""A hedge in service: replies are the mixture of the heads that the checkpoint has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import livectr
from livectr.cli import main
from livectr.client.clients import RankClient
from livectr.serving.app import App
from livectr.serving.score.head_scorers import HedgeScorer
from livectr.store.hedge import WEIGHTS
from livectr.system.errors import MismatchError
from livectr.trainer.des.step import DesStep
from tests.serving import hedge_pipeline
from tests.serving.display_logs import write_logs
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS
from tests.serving.display_world import World
from tests.serving.hedge_pipeline import pipeline


def test_replies_are_the_mixture_of_the_checkpoints_heads(
    tmp_path: Path,
    redis_url: str,
    world: World,
    serve: Callable[..., App],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The reference scorer of `query verify` mixes and calibrates by itself; explain takes replies apart."""
    write_logs(tmp_path / "logs", world, 2_000)
    trained = livectr.train(
        pipeline,
        source=f"file:{tmp_path / 'logs'}",
        checkpoint=tmp_path / "checkpoint",
        publish=redis_url,
        batch_size=64,
        threads=1,
    )
    weights = trained.report.hedge
    assert weights.keys() == {"rank.LR", "rank.DeepFM"} == trained.report.heads.keys()
    app = serve("recommend", pipeline)
    with RankClient(app.server.address) as client:
        alone = client.rank(CONTEXT, {"ad_id": ADS, "position": POSITIONS})
        reply = client.explain(CONTEXT, {"ad_id": ADS, "position": POSITIONS}, best=8)
    assert reply.model.startswith("Hedge/")
    np.testing.assert_allclose(alone.pctr, reply.pctr, atol=1e-6)  # in one call and in stages
    parts = reply.explanations
    assert list(parts.heads) == ["LR", "DeepFM"]
    np.testing.assert_allclose(parts.weights, list(weights.values()), atol=1e-5)
    for place, one in enumerate(parts.candidates):
        mixture = np.dot(parts.weights, 1 / (1 + np.exp(-np.array(one.head_logits))))
        logit = np.log(mixture / (1 - mixture))
        assert one.logit == pytest.approx(logit, abs=1e-4) and len(set(one.head_logits)) == 2
        pctr = 1 / (1 + np.exp(-(one.scale * logit + one.shift)))
        assert reply.pctr[place] == pytest.approx(pctr, abs=1e-5)
    words = ["--server", app.server.address, "--redis", redis_url, "--requests", "6", "--json"]
    words += ["--pipeline", str(hedge_pipeline.__file__), "--checkpoint", str(tmp_path / "checkpoint")]
    assert main(["query", "verify", *words]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["equal"] == 12 and facts["largest_pctr_difference"] < 1e-5


def test_weights_of_other_heads_are_refused() -> None:
    tensors = DesStep(pipeline, seed=1).weights()
    roles = "rank.LR", "rank.DeepFM"
    for weights in ({}, {WEIGHTS: torch.full((3,), 1 / 3, dtype=torch.float64)}):
        with pytest.raises(MismatchError, match="no weights of 2 heads"):
            HedgeScorer(pipeline, {**tensors, **weights}, roles)
