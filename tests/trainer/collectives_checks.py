"""Checks of every collective, on the backend and device that callers choose: here Gloo, in tests/gpu NCCL."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from livectr.trainer.comm.collectives import Collectives


def every_collective(shared: Collectives, on: str) -> None:
    """Exchange tensors on a device, and arrays, with values that each rank knows of all ranks. Collective."""
    sums(shared, on)
    messages(shared, on)
    gathered(shared, on)
    arrays(shared)


def sums(shared: Collectives, on: str) -> None:
    """All-reduce, waited for at once or later; ⊕ hands its gradient on."""
    total = sum(own_of(rank) for rank in range(shared.world))
    assert isinstance(total, Tensor)
    mine = own_of(shared.rank).to(on)
    waiting = shared.begin_all_reduce(mine.clone(), "sum")
    assert_same(shared.all_reduce(mine.clone(), "sum"), total, on)
    assert_same(waiting(), total, on)
    mine.requires_grad_()
    weight = torch.arange(12.0, device=on).view(3, 4)
    summed = shared.aggregate(mine, "sum")
    assert_same(summed.detach(), total, on)
    (summed * weight).sum().backward()  # type: ignore[no-untyped-call]
    assert mine.grad is not None and torch.equal(mine.grad, weight)


def messages(shared: Collectives, on: str) -> None:
    """All-to-all of uneven messages; backward sends the gradients back."""
    rank, world = shared.rank, shared.world
    outgoing = [message(rank, to).to(on).requires_grad_() for to in range(world)]
    incoming = [len(message(source, rank)) for source in range(world)]
    received = shared.all_to_all(outgoing, incoming, {"vectors": 0})
    for source, got in enumerate(received):
        assert_same(got.detach(), message(source, rank), on)
    loss = sum((got * (1.0 + rank)).sum() for got in received)
    assert isinstance(loss, Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
    for to, sent in enumerate(outgoing):
        assert sent.grad is not None and (sent.grad == 1.0 + to).all()


def gathered(shared: Collectives, on: str) -> None:
    """All-gather of tensors; backward keeps the own share's gradient."""
    sizes = [3 + rank for rank in range(shared.world)]
    own = torch.full((sizes[shared.rank],), float(shared.rank), device=on, requires_grad=True)
    parts = shared.all_gather_tensors(own, sizes, "dense")
    for rank, part in enumerate(parts):
        assert_same(part.detach(), torch.full((sizes[rank],), float(rank)), on)
    loss = sum((part * (2.0 + rank)).sum() for rank, part in enumerate(parts))
    assert isinstance(loss, Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
    assert own.grad is not None and (own.grad == 2.0 + shared.rank).all()


def arrays(shared: Collectives) -> None:
    """Arrays of the host, whatever carries tensors."""
    rank, world = shared.rank, shared.world
    numbers = shared.all_gather(np.array([rank, 7]), "sizes")
    np.testing.assert_array_equal(numbers, [[other, 7] for other in range(world)])
    ragged = shared.all_gather_ragged(np.arange(rank, dtype=np.int32), list(range(world)), "labels")
    for other, part in enumerate(ragged):
        np.testing.assert_array_equal(part, np.arange(other))
    words = [np.full(1 + rank + to, 10 * rank + to, np.uint8) for to in range(world)]
    got = shared.all_to_all_bytes(words, [1 + source + rank for source in range(world)], {"keys": 0})
    for source, part in enumerate(got):
        np.testing.assert_array_equal(part, np.full(1 + source + rank, 10 * source + rank))


def own_of(rank: int) -> Tensor:
    """Numbers of a rank whose sums are exact, f32[3, 4]."""
    return torch.arange(12.0).view(3, 4) * (rank + 1)


def message(source: int, to: int) -> Tensor:
    """Message between two ranks, f32[(source + 1) (to + 2)]."""
    return torch.arange((source + 1.0) * (to + 2)) + 100 * source + 10 * to


def assert_same(got: Tensor, expected: Tensor, on: str) -> None:
    assert got.device == torch.device(on)
    assert torch.equal(got.cpu(), expected)
