"""Calibration: the declaration that predicted click rates are mapped to observed ones, by segment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.system.errors import ConfigError

LEAST_CLICKS = 50
"""Clicks of the shortest window: a map of fewer says nothing but noise."""


@dataclass(frozen=True)
class Calibration:
    """Map of the ranking model's logits, learned on final labels and served with the model.

    Each segment has a map of its own, logit → scale · logit + shift with a positive scale: the order of a
    segment's examples, and so its AUC, stay. A map counts the examples of its segment's newest clicks; a
    segment with few clicks, and a new one, has the map of all examples. See store.calibration.

    Args:
        by: sparse field with one key for each example, such as the placement: its values are the segments.
            None: all examples have one map.
        window_clicks: clicks of a segment after which an example counts for 1/e of what it did: fewer follow
            a drift sooner, and 2,000 measure a click rate to 1.6 %.

    Raises:
        ConfigError: a value out of range.

    Example:
        >>> Calibration(by="placement", window_clicks=5_000)
        Calibration(by='placement', window_clicks=5000)
    """

    by: str | None = None
    window_clicks: int = 2_000

    def __post_init__(self) -> None:
        if self.by is not None and not isinstance(self.by, str):
            raise ConfigError(
                f"Calibration: by is {self.by!r}; write the name of a sparse field such as 'placement'"
            )
        clicks = self.window_clicks
        if isinstance(clicks, bool) or not isinstance(clicks, int) or clicks < LEAST_CLICKS:
            raise ConfigError(
                f"Calibration: window_clicks is {clicks!r}; it is a number of clicks, at least {LEAST_CLICKS}"
            )


def check_calibration(calibration: object, sparse: Mapping[str, Expr]) -> None:
    """Check that a pipeline's segments are a field of one key for each example.

    Args:
        calibration: of the pipeline, or None.
        sparse: name → expression, of the sparse fields.

    Raises:
        ConfigError: they are not.
    """
    if calibration is None:
        return
    if not isinstance(calibration, Calibration):
        raise ConfigError(
            f"Pipeline: calibration is {calibration!r}; write calibration=Calibration(by='placement')"
        )
    by = calibration.by
    if by is None:
        return
    if by not in sparse:
        fields = ", ".join(sparse) or "none"
        raise ConfigError(f"Calibration: by names {by!r}, which is no sparse field; take one of {fields}")
    if dtypes.is_list(sparse[by].dtype):
        raise ConfigError(
            f"Calibration: field {by!r} has many keys for an example ({sparse[by].dtype}); take a field with "
            "one"
        )
