"""A rank's networks: of the fields that it sums for everyone, and of the near fields of its own samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from livectr.models.base import CTRModel, ModelConfig
from livectr.trainer.des.route import Route


@dataclass(frozen=True)
class Networks:
    """Role → network.

    far: the own fields that travel as partial results, and `finish`. near: the near fields and all dense
    features, on every rank; what it shares with `far` (all that is not of a field) is `far`'s own. There is
    none where every rank finishes every sample. parameters: how many belong to each field of the
    pipeline, where that is asked for.
    """

    far: dict[str, CTRModel]
    near: dict[str, CTRModel]
    parameters: tuple[int, ...]


def build_networks(
    configs: Mapping[str, ModelConfig],
    route: Route,
    rank: int,
    fields: Sequence[str],
    dense_names: Sequence[str],
    seed: int,
    device: torch.device,
) -> Networks:
    """The networks of a rank. Raises ValueError when a configuration names what does not exist."""
    summed = [fields[f] for f in route.summed(rank)]
    here = not route.scatter and route.placement.dense_owner == rank
    far = {
        role: config.build(fields, summed, dense_names, here, seed).to(device)
        for role, config in configs.items()
    }
    if not route.scatter:
        return Networks(far, {}, ())
    sizes = tuple(_parameters(configs, fields, dense_names, field) for field in fields)
    local = [fields[f] for f in route.near[0] + route.near[1]]
    near = {
        role: config.build(fields, local, dense_names, True, seed).to(device)
        for role, config in configs.items()
    }
    for role, model in near.items():
        _share(model, far[role])
    return Networks(far, near, sizes)


def _parameters(
    configs: Mapping[str, ModelConfig], fields: Sequence[str], dense_names: Sequence[str], field: str
) -> int:
    """Parameters that belong to one field."""
    models = (config.build(fields, [field], dense_names, False, 0) for config in configs.values())
    return sum(tensor.numel() for model in models for tensor in model.local_state().values())


def _share(model: CTRModel, with_: CTRModel) -> None:
    """Makes the parameters of `model` that belong to no field those of another network."""
    for name, parameter in with_.named_parameters():
        if name not in with_.local_axes:
            module, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(module), leaf, parameter)
