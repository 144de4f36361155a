"""Compiled steps of small batches have the same bits on every level of CPUs."""

import ctypes
import itertools
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from livectr.kernels.network import small_batch
from livectr.kernels.network.small_batch import (
    Cross,
    DeepLayers,
    Learned,
    Parameters,
    Rates,
    SmallBatchNetwork,
)
from livectr.kernels.runtime.compiler import KERNELS, compiler_words, host_flags, run_compiler
from livectr.system.cpu import own_levels
from tests.waiting import left_s

ROWS, FIELDS, DENSE = 5, 3, 2
RATES = Rates(adam=1e-3, epsilon=1e-8, samples=ROWS, bias=0.5, curvature=0.1, scale=0.1, number=0.2)


def learned(rng: np.random.Generator, *shape: int) -> Learned:
    value, zeros = rng.normal(size=shape).astype(np.float32), np.zeros(shape, np.float32)
    return Learned(np.ascontiguousarray(value), zeros, zeros.copy())


def layered(dim: int, hidden: Sequence[int]) -> bytes:
    """Bits of LR, with dim 0, or of DeepFM."""
    rng = np.random.default_rng(0)
    parameters = Parameters(
        bias=learned(rng, 1),
        scale=learned(rng, FIELDS),
        of_dense=learned(rng, DENSE),
        fields=learned(rng, FIELDS, dim, hidden[0]) if dim else None,
        dense=learned(rng, DENSE, hidden[0]) if dim else None,
        first_bias=learned(rng, hidden[0]) if dim else None,
        layers=[(learned(rng, i, o), learned(rng, o)) for i, o in itertools.pairwise(hidden)],
    )
    network = SmallBatchNetwork.layered(
        fields=FIELDS, dim=dim, dense=DENSE, pairs=dim > 0, parameters=parameters, most=ROWS
    )
    return steps(rng, network, 1 + dim, parameters)


def deep(rng: np.random.Generator, fields: int, dense: int, dim: int, sizes: Sequence[int]) -> DeepLayers:
    return DeepLayers(
        learned(rng, fields, dim, sizes[0]),
        learned(rng, dense, sizes[0]) if dense else None,
        learned(rng, sizes[0]),
        [(learned(rng, i, o), learned(rng, o)) for i, o in itertools.pairwise(sizes)],
    )


def crossed(dim: int, sizes: Sequence[int], layers: int) -> bytes:
    rng = np.random.default_rng(0)
    bias, layers_ = learned(rng, 1), deep(rng, FIELDS, DENSE, dim, sizes)
    fields, dense = (
        Cross(learned(rng, n, k, layers + 1), learned(rng, n, k, layers))
        for n, k in ((FIELDS, dim), (DENSE, 1))
    )
    network = SmallBatchNetwork.crossed(bias=bias, deep=layers_, fields=fields, dense=dense, most=ROWS)
    crosses = (fields.weight, fields.bias, dense.weight, dense.bias)
    return steps(rng, network, dim, (bias, *layers_, *crosses))


def products(dim: int, sizes: Sequence[int], *, outer: bool) -> bytes:
    rng = np.random.default_rng(0)
    bias, layers = learned(rng, 1), deep(rng, FIELDS, DENSE, dim, sizes)
    weight = learned(rng, dim, dim * sizes[0]) if outer else learned(rng, FIELDS, sizes[0])
    network = SmallBatchNetwork.products(bias=bias, deep=layers, weight=weight, outer=outer, most=ROWS)
    return steps(rng, network, dim, (bias, *layers, weight))


def steps(
    rng: np.random.Generator, network: SmallBatchNetwork, width: int, parameters: Iterable[Learned | None]
) -> bytes:
    """Bits of logits, gradients and parameters of some steps."""
    found = []
    for _ in range(3):
        values = rng.normal(size=(ROWS, FIELDS, width)).astype(np.float32)
        dense = (5 * rng.normal(size=(ROWS, DENSE))).astype(np.float32)
        sums, gradient = np.empty((ROWS, network.partial_size), np.float32), np.empty_like(values)
        network.partial(values, 0, dense, sums, 0)
        logits, label = network.finish(sums, 0), np.ones(ROWS, np.float32)
        network.backward(logits, 0.1, label, None, gradient, 0, first_learned=False, pairs_learned=False)
        network.update(RATES)
        found += [logits.tobytes(), gradient.tobytes()]
    for each in filter(None, parameters):
        found += [each.value.tobytes(), each.mean.tobytes(), each.square.tobytes()]
    return b"".join(found)


def models() -> bytes:
    found = layered(18, (70, 33, 1)), layered(0, ()), crossed(9, (33, 1), 3)
    return b"".join([*found, *(products(5, (33, 1), outer=outer) for outer in (False, True))])


def test_bits_do_not_depend_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = models()
    assert np.isfinite(np.frombuffer(expected, np.float32)).all()
    units = ("small_batch.cpp", "symlog.cpp")
    source = "\n".join((KERNELS / "network" / unit).read_text() for unit in units)
    built = tmp_path / "unit.so"
    run_compiler([*compiler_words(), *host_flags(own_levels()[-1])], built, "small_batch", source=source)
    library = ctypes.PyDLL(str(built))
    monkeypatch.setattr(small_batch, "quick_library", lambda: library)
    loaded = small_batch._library.__wrapped__()
    monkeypatch.setattr(small_batch, "_library", lambda *, released=False: loaded)
    assert models() == expected


@pytest.mark.parametrize(("hidden", "leaves"), [((1024, 512, 1), True), ((8, 1), False)])
def test_long_calls_leave_the_lock_to_other_threads(hidden: Sequence[int], leaves: bool) -> None:
    """A thread that no switch interval ever lets in gets on while a large network is learned."""
    rng = np.random.default_rng(0)
    parameters = Parameters(
        bias=learned(rng, 1),
        fields=learned(rng, FIELDS, 16, hidden[0]),
        first_bias=learned(rng, hidden[0]),
        layers=[(learned(rng, i, o), learned(rng, o)) for i, o in itertools.pairwise(hidden)],
    )
    network = SmallBatchNetwork.layered(
        fields=FIELDS, dim=16, dense=0, pairs=False, parameters=parameters, most=ROWS
    )
    values = rng.normal(size=(ROWS, FIELDS, 16)).astype(np.float32)
    sums, turns, ended = np.empty((ROWS, network.partial_size), np.float32), [0], threading.Event()

    def turn() -> None:
        while not ended.is_set():
            turns[0] += 1
            time.sleep(0)

    other, interval = threading.Thread(target=turn), sys.getswitchinterval()
    sys.setswitchinterval(left_s())
    try:
        other.start()
        before = turns[0]
        for _ in (
            range(10) if not leaves else itertools.takewhile(lambda _: turns[0] == before, itertools.count())
        ):
            network.partial(values, 0, None, sums, 0)
            network.finish(sums, 0)
        assert (turns[0] > before) is leaves
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        other.join()
