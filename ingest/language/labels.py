"""Labels beside the click: their names, and words of the labels of a row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from livectr.system.errors import ConfigError

I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

CLICK = "click"
EARLY_LABEL, LATE_LABEL = 6, 7
"""Labels of a row that comes again for one label beside the click: what is known after its wait; it was
late. That of a row with a final label is `kernels.stream.join.FINAL_NEGATIVE`."""
LABEL_BITS = 32
"""Bits of a word of labels: bit t says that target t came, bit LABEL_BITS + t that its label is known."""


def check_name(name: object, what: str) -> None:
    """Check the name of a label or a target. Raises ConfigError."""
    if not isinstance(name, str) or not name.isidentifier() or name in (CLICK, "label"):
        raise ConfigError(
            f"{what}: the name is {name!r}; take another word such as 'order' (the log's own label is "
            "'click')"
        )


def word(came: Bools, bit: int) -> I64:
    """Words int64[n] of the labels bool[n] of one target.

    Args:
        came: labels.
        bit: number of the target.
    """
    known, one = np.int64(1) << np.int64(LABEL_BITS + bit), np.int64(1) << np.int64(bit)
    return np.where(came, known | one, known)


def labels_of(words: I64, count: int) -> F32:
    """Labels f32[n, T] of words int64[n]; NaN where a label is not known."""
    bits = np.arange(count)
    came, known = (words[:, None] >> at & 1 for at in (bits, LABEL_BITS + bits))
    return np.where(known, came, np.nan).astype(np.float32)
