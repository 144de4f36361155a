"""Hedge over models, the heads (Sahoo et al., IJCAI 2018; Freund & Schapire 1997).

    p = Σ_h α_h σ(z_h),   α_h ∝ e^{−L_h},   L_h ← γ L_h + loss of head h on an example with its final label

Each head has rows, network and loss of its own, as if it were trained alone; the mixture is what is served.
Log loss is mixable, so that without forgetting (γ = 1) the mixture's loss is at most ln H nats above the best
head's, over all examples together. γ lets the best head change.

Deviations from Sahoo et al.: there heads are classifiers on the layers of one network, which learn from each
other by weighted gradients. Heads of their own keep LR's speed in the first rows, and a bad network cannot
spoil it. Probabilities are mixed, not logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from livectr.models.base import ModelConfig
from livectr.models.deepfm import DeepFM
from livectr.models.inputs import Gathers
from livectr.models.lr import LR


@dataclass(frozen=True)
class Hedge:
    """Mixture of models by their discounted log losses (Sahoo et al., IJCAI 2018): p = Σ_h α_h σ(z_h).

    Use it where a simple model is better at first, or where clicks are few, and a deeper one later: it
    follows the better head. Do not use it where one head is known to be best: it costs the sum of its heads.

    Args:
        heads: models without attention, at least two; a row of a table holds the values of all.
        window: examples after which a loss counts for 1/e.

    Example:
        >>> from livectr.models import FM, LR, Hedge
        >>> Hedge(heads=(LR(), FM(dim=8))).names
        ('LR', 'FM')
    """

    heads: tuple[ModelConfig, ...] = (LR(), DeepFM())
    window: int = 10_000

    def __post_init__(self) -> None:
        heads = self.heads
        if (
            not isinstance(heads, tuple)
            or len(heads) < 2
            or not all(isinstance(h, ModelConfig) for h in heads)
        ):
            raise ValueError(
                f"Hedge: heads are {heads!r}, but must be two models or more, such as (LR(), FM())"
            )
        if isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1:
            raise ValueError(
                f"Hedge: window is {self.window!r}, but must be a number of examples, at least 1"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each head: its class, with a number from the second of a class on."""
        names: list[str] = []
        for head in self.heads:
            name = type(head).__name__
            before = sum(type(other).__name__ == name for other in self.heads[: len(names)])
            names.append(f"{name}{before + 1}" if before else name)
        return tuple(names)

    @property
    def map_of_dense(self) -> str:
        """Map of dense features into the heads' networks; as `ModelConfig.map_of_dense`."""
        return max(head.map_of_dense for head in self.heads)

    def check(self, fields: Sequence[str], dense_names: Sequence[str]) -> None:
        """Check that no head wants more than pooled rows.

        Args:
            fields: all sparse fields of the pipeline.
            dense_names: all dense features of the pipeline.

        Raises:
            ValueError: a head does, or names a feature that does not exist.
        """
        for name, head in zip(self.names, self.heads, strict=True):
            head.check(fields, dense_names)
            if head.gathers(fields):
                raise ValueError(f"Hedge: {name} looks at the vectors of single keys, which no head may do")

    def gathers(self, fields: Sequence[str]) -> Gathers:
        """Nothing; as `ModelConfig.gathers`."""
        return Gathers()
