"""Checksum of a rank's replicated parameters, by which tests compare ranks."""

import hashlib

from livectr.trainer.comm.replicas import digest
from livectr.trainer.des.dense import DenseAdam


def checksum(dense: DenseAdam) -> str:
    """Digest of the replicated parameters by name."""
    found = [digest(name, tensor) for name, tensor in sorted(dense.replicated().items())]
    assert found
    return hashlib.sha256(repr(found).encode()).hexdigest()
