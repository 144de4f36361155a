"""Collectives of one rank, and the gradient of ⊕ (several ranks: test_ranks.py)."""

import os
import subprocess
import sys

import numpy as np
import torch

from livectr.trainer import telemetry
from livectr.trainer.comm.collectives import Collectives, _Aggregate
from tests.metrics_page import metric_value

JOIN = """
import sys
from livectr.system.errors import ConfigError
from livectr.trainer.comm.collectives import connect

try:
    with connect():
        pass
except ConfigError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


def test_one_rank_sends_nothing() -> None:
    alone = Collectives()
    x = torch.ones(3, 2, requires_grad=True)
    assert alone.aggregate(x, "sum") is x
    assert alone.all_reduce(x, "sum") is x
    np.testing.assert_array_equal(alone.all_gather(np.arange(3), "sizes"), [[0, 1, 2]])
    words = [np.arange(4, dtype=np.uint8)]
    assert alone.all_to_all_bytes(words, [4], {"keys": 0}) == words
    assert not alone.bytes


def test_backward_of_the_sum_is_the_identity() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    weight = torch.randn(3, 2)
    total = _Aggregate.apply(x, lambda mine: mine.add_(5.0))  # type: ignore[no-untyped-call]
    assert torch.equal(total, x + 5)
    (total * weight).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, weight)


def test_bytes_are_counted_by_collective() -> None:
    one = Collectives()
    before = metric_value(telemetry.COLLECTIVE_BYTES, collective="test")
    one.count("test", 12)
    one.count("test", 30)
    assert one.bytes["test"] == 42
    assert metric_value(telemetry.COLLECTIVE_BYTES, collective="test") == before + 42


def test_a_transport_that_this_pytorch_lacks() -> None:
    """Docs say that its wheels have no TLS. When this fails, they have: make a setting of it.

    PyTorch keeps the name of the transport, so a process of its own asks for it.
    """
    environment = os.environ | {"WORLD_SIZE": "2", "RANK": "0", "GLOO_DEVICE_TRANSPORT": "TCP_TLS"}
    done = subprocess.run([sys.executable, "-c", JOIN], env=environment, text=True, capture_output=True)
    assert done.returncode == 2, done.stderr
    assert "GLOO_DEVICE_TRANSPORT is TCP_TLS" in done.stderr
    assert "makeDeviceForHostname(): unsupported gloo device" in done.stderr
