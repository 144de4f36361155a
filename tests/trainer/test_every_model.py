"""The step trains every model as a few plain lines do: `tests.models.one_rank`, without a trainer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.planted import pipeline
from livectr.models.base import prior_log_odds
from livectr.trainer.des.step import DesStep
from tests.models.examples import DENSE, EXAMPLES, FIELDS, SHARED
from tests.models.one_rank import OneRank, batch

SEED = 5


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_step_is_the_plain_one(name: str) -> None:
    config, _ = EXAMPLES[name]
    built = pipeline(config, fields=len(FIELDS), dense=len(DENSE), shared=SHARED)
    step = DesStep(built, seed=SEED)
    plain, rng = OneRank(config, seed=SEED), np.random.default_rng(1)
    for number in range(5):
        rows = (37, 20, 1, 64, 5)[number]
        features, label = batch(rng, rows), (rng.random(rows) < 0.4).astype(np.float32)
        shift = 0.0
        if not number:  # the step moves the bias to the first batch's rate once that is scored
            shift = prior_log_odds(label.sum(), rows - label.sum()) - prior_log_odds()
            with torch.no_grad():
                plain.model.bias.add_(shift)
        scored = step.step(features, label).logits["rank"]
        np.testing.assert_allclose(scored + shift, plain.step(features, label), rtol=1e-4, atol=1e-5)
    assert step.tables.keys() == plain.tables.keys()
    for table, rows_of in plain.tables.items():
        keys, wanted = rows_of.export()
        assert len(step.tables[table]) == len(keys)
        np.testing.assert_array_equal(np.sort(step.tables[table].export()[0]), np.sort(keys))
        got_keys, got = step.tables[table].export()
        np.testing.assert_allclose(got[np.argsort(got_keys)], wanted[np.argsort(keys)], rtol=1e-3, atol=1e-5)
    state = step.models["rank"].local_state() | step.models["rank"].shared_state()
    for parameter, tensor in (plain.model.local_state() | plain.model.shared_state()).items():
        torch.testing.assert_close(state[parameter], tensor, rtol=1e-3, atol=1e-5, msg=parameter)
