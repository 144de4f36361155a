"""Specifications of how a model learns: optimisers of its table rows, schedules of its learning rates."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class OptimiserSpec:
    """Table optimiser by name.

    Args:
        name: a key of `OPTIMISERS`.
        params: (parameter, value) pairs that differ from the optimiser's defaults.

    Raises:
        ValueError: an unknown parameter, or a value that is no number of at least 0.
    """

    name: str
    params: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        known = OPTIMISERS[self.name]
        for name, value in self.params:
            if name not in known:
                raise ValueError(f"{self.name} has no parameter {name!r}; it has {', '.join(known)}")
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"{self.name}: {name} is {value!r}, but must be a number of at least 0")
            if name == "alpha" and not value:
                raise ValueError(f"{self.name}: alpha is 0, but it divides: it must be above 0")

    def for_features(self, features: int) -> OptimiserSpec:
        """Specification with a rate: the rate that was named, else the default for so many features.

        A row's first step has the size of its rate, whatever the gradient, and an example moves a row of
        every field, and the weight of every dense feature. They move the same way, so that the logit moves by
        about F rates. So the default is c / F, of three features at least.
        """
        if self.name not in FIRST_STEP or FIRST_STEP[self.name][0] in dict(self.params):
            return self
        rate, step = FIRST_STEP[self.name]
        return OptimiserSpec(self.name, ((rate, step / max(FEWEST, features)), *self.params))


OPTIMISERS = {
    "SGD": ("lr", "adaptive_l2"),
    "AdaGrad": ("lr", "eps", "initial", "adaptive_l2"),
    "RowAdaGrad": ("lr", "eps", "initial", "adaptive_l2"),
    "Adam": ("lr", "beta1", "beta2", "eps", "adaptive_l2"),
    "FTRL": ("alpha", "beta", "l1", "l2"),
}
"""Optimiser of `kernels.table.layout` → its parameters. `adaptive_l2` is the `l2` of `Adaptive`; 0 is off."""
FIRST_STEP = {"FTRL": ("alpha", 3.2), "AdaGrad": ("lr", 0.5), "RowAdaGrad": ("lr", 0.5)}
"""Optimiser → its rate, and c: the first step of F features together (`OptimiserSpec.for_features`)."""
FEWEST = 3
"""Number of features below which a default rate does not rise."""


def sgd(**params: float) -> OptimiserSpec:
    """Stochastic gradient descent.

    Args:
        params: `lr`, `adaptive_l2`.
    """
    return OptimiserSpec("SGD", tuple(params.items()))


def adagrad(**params: float) -> OptimiserSpec:
    """AdaGrad (Duchi et al. 2011).

    Args:
        params: `lr`, `eps`, `initial`, `adaptive_l2`.
    """
    return OptimiserSpec("AdaGrad", tuple(params.items()))


def rowwise_adagrad(**params: float) -> OptimiserSpec:
    """Row-wise AdaGrad (FBGEMM): one sum of mean squared gradients for a row and segment.

    Args:
        params: `lr`, `eps`, `initial`, `adaptive_l2`.
    """
    return OptimiserSpec("RowAdaGrad", tuple(params.items()))


def adam(**params: float) -> OptimiserSpec:
    """Adam (Kingma & Ba 2014).

    Args:
        params: `lr`, `beta1`, `beta2`, `eps`, `adaptive_l2`.
    """
    return OptimiserSpec("Adam", tuple(params.items()))


def ftrl(**params: float) -> OptimiserSpec:
    """FTRL-proximal (McMahan et al. 2013).

    Args:
        params: `alpha`, `beta`, `l1`, `l2`.
    """
    return OptimiserSpec("FTRL", tuple(params.items()))


@dataclass(frozen=True)
class Schedule:
    """Exponential decay of all learning rates of a model, of table rows and network.

    The factor after `step` batches is decay^(step // every): a pure function of the step, so that a resumed
    run equals an unbroken run.

    Args:
        decay: factor for every `every` batches, in (0, 1]; 1 is constant.
        every: number of batches; 0 is constant.
    """

    decay: float = 1.0
    every: int = 0

    def __post_init__(self) -> None:
        decay, every = self.decay, self.every
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0 < decay <= 1:
            raise ValueError(f"Schedule: the factor is {decay!r}, but must be above 0 and at most 1")
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise ValueError(f"Schedule: every is {every!r}, but must be a whole number of batches")

    def __str__(self) -> str:
        return f"times {self.decay:g} every {self.every:,} batches" if self.every else "constant"

    def factor(self, step: int) -> float:
        """Factor of the rates in the update that follows `step` updates; at least 1e-6, never 0."""
        return max(self.decay ** (step // self.every), 1e-6) if self.every else 1.0


def decay(factor: float = 0.9, every: int = 24_000) -> Schedule:
    """Schedule that multiplies the rates by `factor` after every `every` batches.

    The defaults are those of DICM (Ge et al. 2018).

    Example:
        >>> from livectr.models import LR, decay
        >>> LR(schedule=decay(0.5, every=1000)).schedule.factor(2500)
        0.25
    """
    if not every:
        raise ValueError("decay: every is 0, but must be at least one batch")
    return Schedule(factor, every)
