"""Networks of a rank: of its field-parallel fields, and of the sample-parallel fields of its own examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from livectr.models.base import CTRModel, ModelConfig
from livectr.trainer.des.route import Route
from livectr.trainer.des.spec import StepSpec


@dataclass(frozen=True)
class Networks:
    """Networks by role.

    Attributes:
        field_parallel: own field-parallel fields, and `finish`
        sample_parallel: sample-parallel fields and all dense features, on every rank; parameters that belong
            to no field are those of `field_parallel`. Empty where every rank finishes every example
        parameters: number of parameters that belong to each field of the pipeline; empty with the same rule
    """

    field_parallel: dict[str, CTRModel]
    sample_parallel: dict[str, CTRModel]
    parameters: tuple[int, ...]


def build_networks(spec: StepSpec, route: Route, device: torch.device) -> Networks:
    """Build the networks of a rank for a route.

    Raises:
        ValueError: a configuration names a field or dense feature that does not exist.
    """
    configs, fields, dense_names, seed = spec.configs, spec.fields, spec.dense_names, spec.seed
    own = [fields[f] for f in route.field_parallel(spec.rank)]
    dense_here = not route.scatter and route.placement.dense_owner == spec.rank
    field_parallel = {
        role: config.build(fields, own, dense_names, dense_here, seed).to(device)
        for role, config in configs.items()
    }
    if not route.scatter:
        return Networks(field_parallel, {}, ())
    sizes = tuple(_parameters(configs, fields, dense_names, field) for field in fields)
    everywhere = [fields[f] for f in route.sample_parallel[0] + route.sample_parallel[1]]
    sample_parallel = {
        role: config.build(fields, everywhere, dense_names, True, seed).to(device)
        for role, config in configs.items()
    }
    for role, model in sample_parallel.items():
        _share(model, field_parallel[role])
    return Networks(field_parallel, sample_parallel, sizes)


def _parameters(
    configs: Mapping[str, ModelConfig], fields: Sequence[str], dense_names: Sequence[str], field: str
) -> int:
    """Number of parameters that belong to a field."""
    models = (config.build(fields, [field], dense_names, False, 0) for config in configs.values())
    return sum(tensor.numel() for model in models for tensor in model.local_state().values())


def _share(model: CTRModel, source: CTRModel) -> None:
    """Replace the parameters of `model` that belong to no field by those of `source`."""
    for name, parameter in source.named_parameters():
        if name not in source.local_axes:
            module, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(module), leaf, parameter)
