"""Weights of a network, from the tensors of a checkpoint or a version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor

from livectr.models.base import CTRModel
from livectr.models.embedding import SubNetwork
from livectr.system.errors import MismatchError

Network = TypeVar("Network", bound=CTRModel | SubNetwork)


def loaded(network: Network, tensors: Mapping[str, Tensor], prefix: str, about: str) -> Network:
    """Give a network its weights. They are no longer learned.

    Args:
        network: changed in place, and returned.
        tensors: by name; other networks' are left out.
        prefix: begin of the names of the network's tensors.
        about: the network, as an error names it.

    Raises:
        MismatchError: a tensor is missing, or has another shape.
    """
    own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    try:
        network.load(own)
    except (KeyError, ValueError) as error:
        raise MismatchError(f"{about} belongs to another pipeline: {error}") from error
    network.eval()
    network.requires_grad_(False)
    return network
