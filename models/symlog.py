"""Dense features as networks take them: as they are up to 1, and their logarithm beyond.

    s(x) = x for |x| ≤ 1, else sign(x) · (1 + ln |x|)

It is continuous, with its slope; plots know such a scale as `symlog`. A raw count of 1e6 beside vectors of
hundredths would drown them in the first layer's product. A first order takes x itself: it learns alike at
every scale (`trainer.des.dense`).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from livectr.kernels.network import symlog as host

MAP: Final = "symlog"
"""Name of this map in the identity of a pipeline: weights that were learned behind another mean another."""


def symlog(x: Tensor) -> Tensor:
    """Map dense features s(x), of any shape.

    Float32 on the host is mapped by the kernel that servers call (`kernels/network/symlog.hpp`), with equal
    bits on every CPU. Elsewhere torch computes in float64, and the last bit may differ, if rarely.
    """
    if x.device.type == "cpu" and x.dtype == torch.float32 and not x.requires_grad:
        return torch.from_numpy(host.symlog(x.numpy()))
    exact = x.double()
    beyond = exact.abs() > 1  # False for NaN
    log = 1 + torch.where(beyond, exact, 1).abs().log()  # `where` inside: no slope of ln 0
    return torch.where(beyond, log.copysign(exact), exact).to(x.dtype)
