"""One of two ranks of test_control.py: a broadcast of rank 0 is sent once."""

from typing import Any

import torch
import torch.distributed as dist

from livectr.trainer.comm.collectives import connect
from livectr.trainer.comm.control import Control

SIZE = 1 << 22

with connect() as collectives:
    control = Control(collectives.rank, collectives.world)
    gathered, gather = [0], dist.all_gather

    def counting(out: list[torch.Tensor], mine: torch.Tensor, **options: Any) -> Any:
        gathered[0] += sum(part.nbytes for part in out)
        return gather(out, mine, **options)

    dist.all_gather = counting  # type: ignore[assignment]
    value = bytes(range(256)) * (SIZE // 256) + b"end"
    assert control.broadcast_bytes(value if collectives.rank == 0 else b"nothing of mine") == value
    assert control.broadcast_bytes(b"") == b""
    assert control.broadcast_json({"rank": collectives.rank}) == {"rank": 0}
    assert gathered[0] < SIZE, f"{gathered[0]} bytes were gathered to tell {SIZE}"
    assert control.gather_json(collectives.rank) == [0, 1] and gathered[0]
