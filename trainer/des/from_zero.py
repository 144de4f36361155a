"""Tables whose new rows begin at zero (kernels.table.from_zero), in the state of a step."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from livectr.kernels.table.from_zero import FromZero

FROM_ZERO_KEY = "des.from_zero."
"""Begin of a checkpoint key; "ROLE.TABLE" follows."""


def from_zero_state(pairs: Collection[FromZero]) -> dict[str, Tensor]:
    """State that names the pairs."""
    return {f"{FROM_ZERO_KEY}{role}.{table}": torch.tensor(1) for role, table in sorted(pairs)}


def saved_from_zero(state: Mapping[str, Tensor]) -> frozenset[FromZero]:
    """Pairs that a state names."""
    named = [name.removeprefix(FROM_ZERO_KEY) for name in state if name.startswith(FROM_ZERO_KEY)]
    return frozenset((role, table) for role, _, table in (name.partition(".") for name in named))
