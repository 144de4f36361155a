"""Levels of CPUs: sets of instructions that many makes of a CPU share.

A kernel compiled for a level runs on every CPU of that level or a higher one, so an image holds kernels for
one or two levels and runs anywhere. The levels of x86-64 are those of its psABI, and one
with AVX512-BF16, which products of bfloat16 use.
"""

from __future__ import annotations

import functools
import platform
from dataclasses import dataclass
from pathlib import Path

from livectr.system.errors import ConfigError


@dataclass(frozen=True)
class Level:
    """Level of CPUs.

    Args:
        name: also the folder of the level's kernels.
        features: names in /proc/cpuinfo that a CPU of the level has.
        flags: flags of the compiler.
    """

    name: str
    features: frozenset[str]
    flags: tuple[str, ...]


def _level(name: str, features: str, below: Level | None = None, flags: tuple[str, ...] = ()) -> Level:
    known = frozenset(features.split()) | (below.features if below is not None else frozenset())
    return Level(name, known, flags or (f"-march={name}",))


_V2 = _level("x86-64-v2", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3")
_V3 = _level("x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave", _V2)
_V4 = _level("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl", _V3)
_BF16 = _level("x86-64-v4-bf16", "avx512_bf16", _V4, ("-march=x86-64-v4", "-mavx512bf16"))

LEVELS = {"x86_64": (_BF16, _V4, _V3, _V2), "aarch64": (_level("armv8-a", "fp asimd"),)}
"""Machine → its levels, the highest first."""

NATIVE = Level("native", frozenset(), ("-march=native",))
"""Level of a CPU whose architecture has no levels here."""


def level(name: str) -> Level:
    """Level of this machine's architecture by its name.

    Raises:
        ConfigError: there is no such level.
    """
    known = LEVELS.get(platform.machine(), ())
    for found in known:
        if found.name == name:
            return found
    names = ", ".join(found.name for found in known) or "none"
    raise ConfigError(f"{name!r} is no level of this machine's CPUs; the levels are {names}.")


@functools.cache
def own_levels() -> tuple[Level, ...]:
    """Levels of this CPU, the highest first; `NATIVE` alone for an unknown architecture."""
    return levels_of(Path("/proc/cpuinfo").read_text(), platform.machine()) or (NATIVE,)


@functools.cache
def maker() -> str:
    """Maker of this CPU by /proc/cpuinfo: "GenuineIntel", "AuthenticAMD"; "" where it has no name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "vendor_id":
            return value.strip()
    return ""


def levels_of(cpuinfo: str, machine: str) -> tuple[Level, ...]:
    """Levels that a text of /proc/cpuinfo shows; a feature counts that the first CPU has."""
    features: set[str] = set()
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            features = set(value.split())
            break
    return tuple(found for found in LEVELS.get(machine, ()) if found.features <= features)
