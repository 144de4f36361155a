"""Checks of model settings; each raises ValueError with a sentence that says what to change.

A setting has one meaning in all models and is checked by its name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

NUMBERS = (
    *("dim", "out", "layers", "heads", "state", "width", "image_dim", "concat_length"),
    *("experts", "shared_experts", "levels"),
)
WIDTHS = ("hidden", "cin", "attention", "deep", "tower")
RATES = ("dense_lr", "init_scale", "lr", "auxiliary")
OPTIONAL = ("deep", "tower")
"""Widths that may be empty."""


def check_settings(config: object) -> None:
    """Checks that counts are integers above 0, widths are positive, and rates are at least 0."""
    kind = type(config).__name__
    for name in NUMBERS:
        value = getattr(config, name, 1)
        if not _is_width(value):
            raise ValueError(f"{kind}: {name} is {value!r}, but must be a whole number above 0")
    for name in WIDTHS:
        widths = getattr(config, name, (1,))
        enough = isinstance(widths, tuple) and (widths or name in OPTIONAL)
        if not enough or not all(map(_is_width, widths)):
            raise ValueError(
                f"{kind}: {name} is {widths!r}, but must be "
                f"{'some' if name in OPTIONAL else 'one or more'} widths, as in (64, 32)"
            )
    for name in RATES:
        value = getattr(config, name, 0.0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ValueError(f"{kind}: {name} is {value!r}, but must be a number of at least 0")


def check_names(config: object, *settings: str, optional: bool = False) -> None:
    """Checks settings that are names of features; `optional`: they may be empty."""
    for setting in settings:
        names = getattr(config, setting)
        enough = isinstance(names, tuple) and (names or optional)
        if not enough or not all(isinstance(name, str) for name in names):
            raise ValueError(
                f"{type(config).__name__}: {setting} is {names!r}, but must be "
                f'{"some" if optional else "one or more"} names of features, as in ("ad",)'
            )


def check_name(config: object, setting: str) -> None:
    """Checks a setting that is the name of a feature."""
    name = getattr(config, setting)
    if not isinstance(name, str) or not name:
        raise ValueError(f'{type(config).__name__}: {setting} is {name!r}, but must be a feature, as "ad"')


def check_choice(config: object, setting: str, choices: Iterable[str]) -> None:
    """Checks a setting that has a fixed set of values."""
    value = getattr(config, setting)
    if value not in (known := tuple(choices)):
        raise ValueError(
            f"{type(config).__name__}: {setting} is {value!r}, but must be one of {', '.join(known)}"
        )


def check_fields(config: object, names: Iterable[str], known: Iterable[str]) -> None:
    """Checks that all names are known."""
    there = sorted(set(known))
    for name in names:
        if name not in there:
            raise ValueError(f"{type(config).__name__} names {name!r}, the pipeline has {', '.join(there)}")


def _is_width(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
