"""Two tiers of the tests: `make test` has every behavior once or twice, `make test-full` has whole products.

A product, such as every model with every exchange, has a few members in the first tier: at least one for each
way through the code. The others are marked `full`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

TRIED = 40
"""Most examples of a property in the first tier."""


def few(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of a test, of which the first tier has `kept` alone.

    Args:
        values: of `pytest.mark.parametrize`: all of them, in their order.
        kept: some of them, one at least.
    """
    every = list(values)
    assert kept and all(value in every for value in kept), f"{kept} are not all among {every}"
    return [value if value in kept else _full(value) for value in every]


def examples(count: int, tried: int = TRIED, **more: Any) -> settings:
    """Settings of Hypothesis for a property.

    Args:
        count: examples in the second tier.
        tried: most examples in the first.
        more: further settings.
    """
    searching = settings.get_current_profile_name() == "search"
    return settings(max_examples=count if searching else min(count, tried), **more)


def _full(value: Any) -> Any:
    words = value if isinstance(value, tuple) else (value,)
    return pytest.param(*words, marks=pytest.mark.full)


class Worlds(dict[int, Path]):
    """World size → folder with its ranks' results, which are made when they are first asked for.

    Args:
        make: makes the folder of a world size.
    """

    def __init__(self, make: Callable[[int], Path]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, world: int) -> Path:
        return self.setdefault(world, self._make(world))
