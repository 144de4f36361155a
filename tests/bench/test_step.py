"""Parts of a step's time, and its limit."""

from __future__ import annotations

import numpy as np
import pytest

from bench import step
from bench.peers.ours import OURS, trainer
from bench.peers.workloads import P, Workload
from livectr.kernels.table.field_tables import FieldTables
from livectr.trainer.comm.collectives import Collectives

PARTS = {
    step.READ,
    step.LEARN,
    step.KEYS,
    step.FIRST,
    step.PRODUCTS,
    step.ADAM,
    step.ELEMENTWISE,
    step.PYTHON,
}


def test_the_parts_are_the_whole_step() -> None:
    work = Workload("small", (50, 2_000), dense=3, dim=8, hidden=(64, 32), batch=512)
    learn, batches = trainer(work, Collectives(), OURS["fp32"]), work.batches(0, 1, 4)
    forward = FieldTables.forward
    learn(batches[0])
    with step.marks():
        shares = step.parts(learn, batches)
    assert FieldTables.forward is forward, "the marks are gone"
    assert shares.keys() == PARTS and all(share > 0 for share in shares.values())
    assert sum(shares.values()) == pytest.approx(1)
    assert {step._part(f"aten::{name}") for name in ("mm", "addmm", "addmm_", "bmm")} == {step.PRODUCTS}
    assert step._part("aten::addcmul_") == step.ELEMENTWISE


def test_the_limit_counts_products_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "peak", lambda: 1e9)
    monkeypatch.setattr(step, "bandwidth", lambda: 1e9)
    batches = P.batches(0, 1, 1)
    limit = step.limit_of(P, batches)
    inputs = 26 * 16 + 13
    products = 3 * 2 * P.batch * (inputs * 256 + 256 * 128 + 128)
    assert limit.products == pytest.approx(products / 1e9)
    keys = len(batches[0].features.keys)
    unique = sum(len(np.unique(batches[0].features.field(f)[1])) for f in range(26))
    values = 1 + 16  # of the first order, and of the vector
    pooled, layers = 16 * P.batch * 26 * values, 16 * P.batch * (256 + 128)
    least = 8 * keys + 4 * 3 * values * unique + pooled + layers  # without optimisers' states
    most = least + 4 * 2 * 2 * 17 * unique
    assert least < 1e9 * limit.bytes <= most
