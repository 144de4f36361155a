"""Device and transport of ranks, chosen before a process group is made."""

from __future__ import annotations

import logging

import pytest

from livectr.system.errors import ConfigError
from livectr.trainer.comm.backend import Seat, Transport, choose
from livectr.trainer.comm.collectives import connect
from tests.ranks import run_ranks
from tests.trainer.backend_worker import Doubles


def seats(*gpus: tuple[str, ...]) -> list[Seat]:
    return [Seat("gpu", "m", local_rank, seen) for local_rank, seen in enumerate(gpus)]


@pytest.mark.parametrize("case", ["one GPU", "cpu", "one sees none", "none sees any", "settings differ"])
def test_two_ranks_on_a_machine(case: str) -> None:
    """With a GPU or none they exchange tensors, or end with a sentence: nobody waits for a time-out."""
    run_ranks(2, "tests.trainer.backend_worker", case)


def test_ranks_with_a_gpu_each_use_nccl() -> None:
    both = seats(("a", "b"), ("a", "b"))
    assert [choose(both, rank) for rank in (0, 1)] == [Transport(rank, True, (rank,)) for rank in (0, 1)]
    assert choose(both, 1).backend == "cpu:gloo,cuda:nccl" and choose(both, 1).device == "cuda:1"


def test_containers_of_a_machine_may_show_one_gpu_each() -> None:
    """Each is number 0 to its rank."""
    apart = seats(("a",), ("b",))
    assert [choose(apart, rank) for rank in (0, 1)] == [Transport(0, True, (rank,)) for rank in (0, 1)]


def test_more_ranks_than_gpus_share_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    three = seats(*[("a", "b")] * 3)
    assert [choose(three, rank) for rank in range(3)] == [
        Transport(0, False, (0, 2)),
        Transport(1, False, (1,)),
        Transport(0, False, (0, 2)),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "3 ranks share 2 GPUs: Gloo exchanges their tensors, through host memory"
    ]


def test_ranks_without_numbers_of_their_own_share_the_first_gpu() -> None:
    """Launched by hand, without LOCAL_RANK: an NCCL group would hang."""
    assert choose([Seat("gpu", "m", 0, ("a", "b"))] * 2, 1) == Transport(0, False, (0, 1))


def test_auto_takes_gpus_where_every_rank_has_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    auto = [Seat("auto", "m", n, ("a", "b")) for n in range(2)]
    assert [choose(auto, rank) for rank in (0, 1)] == [Transport(rank, True, (rank,)) for rank in (0, 1)]
    auto[1] = Seat("auto", "n", 0, ())
    assert [choose(auto, rank) for rank in (0, 1)] == [Transport(None, nccl=False)] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "device is auto, and rank 1 has no GPU: the CPU computes everything"
    ]
    with connect(device="auto", gpus=Doubles()) as alone:
        assert str(alone.device) == "cpu"


def test_a_single_rank() -> None:
    with connect(device="gpu", gpus=Doubles("a")) as alone:
        assert str(alone.device) == "cuda:0"
    with (
        pytest.raises(ConfigError, match="device is gpu, but this process sees no GPU"),
        connect(device="gpu", gpus=Doubles()),
    ):
        pass
