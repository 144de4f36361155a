"""Batch ramp: global batches that grow with the examples seen.

A step on B examples moves every weight once. On a new model, many weights of an example move the same way at
once, so that a large batch overshoots, and 10,000 examples are three steps of 4,096. Small batches first,
then larger ones, cost as many examples as a decaying rate and fewer steps (Smith et al. 2018, "Don't decay
the learning rate, increase the batch size"):

    B = min(batch_size, max(batch_ramp, seen // SLOPE))

`batch_size` is reached after SLOPE · batch_size examples and about SLOPE · (1 + ln(batch_size / batch_ramp))
steps.

`seen` counts the examples of all batches that were cut, so a batch is a function of the log alone: the same
for any number of ranks, and after a restart.
"""

import sys
from dataclasses import dataclass, field

FIRST = 4
"""Default of `batch_ramp` where compiled calls learn small batches of every model."""
FIRST_BY_TORCH = 64
"""Default of `batch_ramp` where torch learns a model: four examples take it as long as 64."""
SLOPE = 2048
"""Examples seen for each example of a batch.

In a simulation of one pass over MovieLens-100K, AUC was .7647, .7656 and .7668 with slopes of 1024, 2048 and
4096, and .7690 with batches of one example. Each slope has twice the steps of the one before.
"""


@dataclass(frozen=True)
class BatchRamp:
    """Sizes of batches.

    Args:
        most: largest batch, over all ranks (`batch_size`).
        first: size of the first batches (`batch_ramp`); 0: every batch is `most`.
        slope: examples seen for each example of a batch.
    """

    most: int
    first: int = 0
    slope: int = field(default_factory=lambda: SLOPE)

    def size(self, seen: int) -> int:
        """Size of the batch that follows `seen` examples."""
        if not self.first:
            return self.most
        return min(self.most, max(self.first, seen // self.slope))

    def alike(self, seen: int) -> int:
        """Number of batches after `seen` examples that have the same size; a large one where all have."""
        size = self.size(seen)
        if not self.first or size == self.most:
            return sys.maxsize
        return -(-((size + 1) * self.slope - seen) // size)

    @property
    def choose_from(self) -> int:
        """Size of the first batch whose keys repeat much as those of the largest batches do."""
        return max(1, self.most // 4) if self.first else 1
