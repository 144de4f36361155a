"""Check that replicated parameters are equal on all ranks, bit by bit.

Every rank updates its copy by itself, from gradients that are all-reduced. A copy that differs, by a memory
fault or another version of a library, would stay unnoticed: rank 0's copy is what is kept and published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from livectr.system.errors import InternalError
from livectr.trainer import telemetry
from livectr.trainer.comm.control import Control

NAMED = 4
"""Most parameters that a message names."""


def digest(name: str, tensor: Tensor) -> int:
    """64-bit digest of a parameter and its name."""
    found = hashlib.sha256(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return int.from_bytes(found.digest()[:8], "little", signed=True)


def check_replicas(control: Control, parameters: Mapping[str, Tensor]) -> None:
    """Compare parameters with those of rank 0. Collective; nothing to do with one rank.

    Args:
        control: gathers the digests of all ranks.
        parameters: by name; the same names on every rank.

    Raises:
        InternalError: on every rank, names the ranks and parameters that differ.
    """
    if control.world == 1 or not parameters:
        return
    names = sorted(parameters)
    digests = control.gather(np.array([digest(name, parameters[name]) for name in names], np.int64))
    telemetry.REPLICA_CHECKS.inc()
    differs = digests != digests[0]
    if not differs.any():
        return
    ranks = ", ".join(str(rank) for rank in np.flatnonzero(differs.any(axis=1)))
    differing = [names[index] for index in np.flatnonzero(differs.any(axis=0))]
    more = f" and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
    raise InternalError(
        f"copies of the network differ: rank {ranks} from rank 0 in {', '.join(differing[:NAMED])}{more}. "
        "Nothing of this is kept; start the trainer again: it resumes from the last checkpoint. "
        "If it happens again, test the memory of these machines and compare their library versions"
    )
