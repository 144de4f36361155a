"""Inline content of a request: raw features of images or texts become float16 rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from livectr.serving.errors import RequestError

F16 = npt.NDArray[np.float16]

InlineContent = Mapping[str, Mapping[int, F16]]
"""Content name → id → raw features f16[width]."""


def parse_content(messages: Iterable[Any], widths: Mapping[str, int]) -> dict[str, dict[int, F16]]:
    """Parse the inline content of a request.

    Args:
        messages: ContentFeatures messages.
        widths: content name → width of its raw features.

    Raises:
        RequestError: names the wrong field.
    """
    content: dict[str, dict[int, F16]] = {}
    for message in messages:
        where = f"content.{message.name}"
        if message.name not in widths:
            known = ", ".join(widths) or "none"
            raise RequestError(where, f"is no content of this pipeline; it has {known}")
        if message.name in content:
            raise RequestError(where, "is there twice; put all ids into one")
        ids, width = np.array(message.ids, np.int64), widths[message.name]
        if len(message.features) != 2 * width * len(ids):
            raise RequestError(
                where,
                f"has {len(message.features)} bytes of features for {len(ids)} ids; send {2 * width} bytes, "
                f"{width} float16 numbers, for each",
            )
        rows = np.frombuffer(message.features, "<f2").reshape(len(ids), width)
        if len(bad := np.flatnonzero(~np.isfinite(rows).all(axis=1))):
            raise RequestError(where, f"features of id {ids[bad[0]]} are not finite numbers")
        content[message.name] = dict(zip(ids.tolist(), rows, strict=True))
        if len(content[message.name]) < len(ids):
            values, times = np.unique(ids, return_counts=True)
            raise RequestError(where, f"id {values[np.argmax(times > 1)]} is there twice; send it once")
    return content
