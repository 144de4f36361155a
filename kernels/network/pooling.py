"""Inputs of a first layer, pooled from lists of vectors: Python interface of `network/pooling.cpp`."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.library import kernel_library

F32 = npt.NDArray[np.float32]


class Pool(IntEnum):
    """Pooling of a list; `Kind` of `pooling.hpp`."""

    MEAN = 0
    SUM = 1
    MAX = 2
    NEWEST = 3
    """The last vectors, last first, zeros behind them."""
    ATTENTION = 4
    """Sum, weighted by an activation unit."""
    MEAN_ATTENTION = 5
    """The same, divided by the length of the list."""


@dataclass(frozen=True)
class VectorList:
    """Vectors of the keys of a field.

    Args:
        field: its name.
        width: numbers of a vector.
        content: content vectors; else vectors of the field's rows.
    """

    field: str
    width: int
    content: bool


@dataclass(frozen=True)
class Unit:
    """Activation unit and its query.

    Args:
        widths: units of the hidden layers.
        numbers: parameters, as of `kernels.network.attention`.
        query: a list, whose mean is the query, or a field, whose vector is.
        project: f32[K, width] of the field's vector; None: the vector itself.
    """

    widths: tuple[int, ...]
    numbers: F32
    query: VectorList | str
    project: F32 | None = None


@dataclass(frozen=True)
class Channel:
    """Pooled list.

    Args:
        pool: kind.
        values: the list.
        length: vectors that NEWEST keeps.
        unit: of an attention.
    """

    pool: Pool
    values: VectorList
    length: int = 1
    unit: Unit | None = None

    @property
    def width(self) -> int:
        """Numbers of the result."""
        return self.values.width * self.length


class Pooling:
    """Channels, packed for the host. Immutable.

    Args:
        channels: in the order of the network's sources.

    Attributes:
        channels: as given.
        lists: that the channels read.
        queries: fields whose vectors are queries.
        depth: numbers of the longest of these vectors.
        handle: for compiled calls.

    Raises:
        ValueError: a unit or a matrix of another size.
        MemoryError: no memory.
    """

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.channels = tuple(channels)
        units = [channel.unit for channel in channels if channel.unit is not None]
        lists = [channel.values for channel in channels]
        lists += [unit.query for unit in units if isinstance(unit.query, VectorList)]
        self.lists = tuple(dict.fromkeys(lists))
        self.queries = tuple(dict.fromkeys(unit.query for unit in units if isinstance(unit.query, str)))
        self.depth = 0
        widths = [each.width for each in self.lists]
        sizes = np.array((len(self.lists), len(self.queries), *widths), np.int64)
        self.handle: int = _library().pooling_new(address(sizes))
        if not self.handle:
            raise MemoryError("no memory for the pooling of lists")
        weakref.finalize(self, _library().pooling_delete, self.handle)
        for channel in channels:
            self._add(channel)

    def _add(self, channel: Channel) -> None:
        unit, width = channel.unit, channel.values.width
        words = [channel.pool, self.lists.index(channel.values), channel.width, channel.length]
        project = np.empty((0, width), np.float32)
        if unit is None:
            words += [-1, -1, 0]
        elif isinstance(unit.query, VectorList):
            if unit.query.width != width:
                raise ValueError(f"a query of {unit.query.width} numbers is none of {width}")
            words += [self.lists.index(unit.query), -1, 0]
        else:
            project = project if unit.project is None else unit.project
            if project.ndim != 2 or project.shape[1] != width:
                raise ValueError(f"a query by {project.shape} is none of {width}")
            self.depth = max(self.depth, len(project) or width)
            words += [-1, self.queries.index(unit.query), len(project)]
        if unit is not None:
            words += unit.widths
        of_unit = np.empty(0, np.float32) if unit is None else unit.numbers
        layers = () if unit is None else unit.widths
        if len(of_unit) != (expected := _unit_numbers(width, layers)):
            raise ValueError(f"{len(of_unit)} parameters were given for {expected} of a unit of {layers}")
        numbers, project = np.array(words, np.int64), np.ascontiguousarray(project, np.float32)
        of_unit = np.ascontiguousarray(of_unit, np.float32)
        if not _library().pooling_add(
            self.handle, address(numbers), len(layers), address(project), address(of_unit)
        ):
            raise MemoryError("no memory for the pooling of lists")


def _unit_numbers(width: int, layers: Sequence[int]) -> int:
    """Parameters of an activation unit; 0 without layers."""
    before, count = 4 * width, 0
    for units in (*layers, 1) if layers else ():
        count, before = count + (before + 1) * units, units
    return count + sum(layers)


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    pointer = ctypes.c_void_p
    library.pooling_new.restype, library.pooling_new.argtypes = pointer, [pointer]
    library.pooling_delete.restype, library.pooling_delete.argtypes = None, [pointer]
    library.pooling_add.restype = ctypes.c_bool
    library.pooling_add.argtypes = [pointer, pointer, ctypes.c_int64, pointer, pointer]
    return library
