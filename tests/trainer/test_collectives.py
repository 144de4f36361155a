"""Collectives of one rank, and the gradient of ⊕ (several ranks: test_ranks.py)."""

import numpy as np
import torch

from livectr.trainer import telemetry
from livectr.trainer.comm.collectives import Collectives, _Aggregate


def test_one_rank_sends_nothing() -> None:
    alone = Collectives()
    x = torch.ones(3, 2, requires_grad=True)
    assert alone.aggregate(x, "sum") is x
    assert alone.all_reduce(x, "sum") is x
    np.testing.assert_array_equal(alone.all_gather(np.arange(3), "sizes"), [[0, 1, 2]])
    words = [np.arange(4)]
    assert alone.all_to_all_bytes(words, [4], {"keys": 0}) == words
    assert not alone.bytes


def test_backward_of_the_sum_is_the_identity() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    weight = torch.randn(3, 2)
    total = _Aggregate.apply(x, lambda mine: mine.add_(5.0))
    assert torch.equal(total, x + 5)
    (total * weight).sum().backward()
    assert torch.equal(x.grad, weight)


def test_bytes_are_counted_by_collective() -> None:
    one = Collectives()
    before = telemetry.COLLECTIVE_BYTES.labels("test")._value.get()
    one.count("test", 12)
    one.count("test", 30)
    assert one.bytes["test"] == 42
    assert telemetry.COLLECTIVE_BYTES.labels("test")._value.get() == before + 42
