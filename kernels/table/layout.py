"""Layout of a table row: segments of values, each with its optimiser. Declarations only.

A row is float32: the values of all segments first, then their optimiser states in the same order. Values may
be stored in 2 bytes each (row/payload.cuh); reads and exports are float32 all the same.
"""

import functools
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, get_args

Values = Literal["fp32", "fp16", "bf16"]
"""Storage type of a row's values: IEEE binary32, binary16 or bfloat16."""
_TYPES: dict[Values, str] = {"fp32": "float", "fp16": "Half", "bf16": "BFloat"}


@dataclass(frozen=True)
class Optimiser:
    """Optimiser of a segment; the arithmetic is in row/optimisers.cuh, under the same class name."""

    NUMBER: ClassVar[int]
    """Number in row/layout.hpp, RowLayout::with_optimiser."""

    def state_floats(self, dim: int) -> int:
        """Number of state floats beside `dim` values."""
        raise NotImplementedError

    @property
    def number(self) -> int:
        """Number in RowLayout.description."""
        return self.NUMBER

    def source(self) -> str:
        """C++ class of row/optimisers.cuh."""
        return type(self).__name__

    def describe(self, dim: int) -> str:
        """Words of RowLayout.describe for `dim` values."""
        return f"{type(self).__name__}<{dim}>"

    def hyper(self, factor: float = 1.0) -> tuple[float, ...]:
        """Hyper-parameters in the order of row/optimisers.cuh.

        The first, the rate, is multiplied by `factor`.
        """
        rate, *others = (float(getattr(self, field.name)) for field in fields(self))
        return (rate * factor, *others)


@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent: w -= lr g."""

    NUMBER = 0

    lr: float = 0.01

    def state_floats(self, dim: int) -> int:
        """0: no state."""
        return 0


@dataclass(frozen=True)
class AdaGrad(Optimiser):
    """AdaGrad (Duchi, Hazan, Singer 2011); state: the sum of squared gradients, from `initial`."""

    NUMBER = 1

    lr: float = 0.05
    eps: float = 1e-10
    initial: float = 0.1

    def state_floats(self, dim: int) -> int:
        """`dim`: the sum of squared gradients of each value."""
        return dim


@dataclass(frozen=True)
class RowAdaGrad(AdaGrad):
    """Row-wise AdaGrad: a single sum for a segment, of the means of its squared gradients, from `initial`.

    As FBGEMM's "exact" row-wise Adagrad: a row costs 4 bytes of state instead of 4 per value. Values whose
    gradients differ much in size learn slower than with AdaGrad.
    """

    NUMBER = 2

    def state_floats(self, dim: int) -> int:
        """1: the sum of the means of squared gradients."""
        return 1


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam (Kingma, Ba 2015, Algorithm 1), with a step count of its own for each row.

    Deviation: a row whose key is not in the batch stays unchanged (its moments do not decay).
    """

    NUMBER = 3

    lr: float = 1e-3
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999

    def state_floats(self, dim: int) -> int:
        """2 `dim` + 2: two moments of each value, and both bias corrections of the row."""
        return 2 * dim + 2

    def hyper(self, factor: float = 1.0) -> tuple[float, ...]:
        """Hyper-parameters of `Optimiser`, then 1 - beta1 and 1 - beta2."""
        # 1 - beta is computed in double precision: in single, 1 - 0.999 errs by 5e-5
        return (*super().hyper(factor), 1 - self.beta1, 1 - self.beta2)


@dataclass(frozen=True)
class FTRL(Optimiser):
    """FTRL-proximal (McMahan et al. 2013, Algorithm 1): a weight is exactly 0 while |z| <= l1.

    alpha must be above 0. A row stores the alpha of its last update, so that a schedule may change it.
    """

    NUMBER = 4

    alpha: float = 0.05
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def state_floats(self, dim: int) -> int:
        """2 `dim` + 1: z and n of each value, and the alpha of the last update."""
        return 2 * dim + 1


@dataclass(frozen=True)
class Adaptive(Optimiser):
    """Adaptive regularisation of another optimiser's weights: rare keys shrink more than frequent keys.

    Zhou et al. 2017 (DIN, arXiv 1706.06978v1): w <- w - lr (g + l2 w / n), for keys in the batch alone. The
    sum in brackets is the gradient of `base`, also in its sums of squares and moments.

    Deviations: n is the number of batches that the key has occurred in so far, including this batch (it stops
    at 2^24), where DIN takes the samples of the whole training set. A stream has no end, and every rank
    counts the same batches, in whatever order gradients were summed. Both are equal for a key that occurs at
    most once in a batch, and l2 is for such rare keys. With g the *sum* over a batch, as the trainer has it,
    l2 is DIN's lambda times the batch size.

    Args:
        base: SGD, AdaGrad or Adam.
        l2: regularisation, at least 0.
    """

    NUMBER = 16  # added to the base's
    HYPERS: ClassVar[int] = 6  # maximum of a base; l2 comes after them

    base: Optimiser
    l2: float

    def __post_init__(self) -> None:
        if not isinstance(self.base, SGD | AdaGrad | Adam):
            raise ValueError(f"{type(self.base).__name__} has no adaptive regularisation")

    def state_floats(self, dim: int) -> int:
        """State of `base`, and 1: the number of batches of the key."""
        return self.base.state_floats(dim) + 1

    @property
    def number(self) -> int:
        """Number in RowLayout.description, of the base, too."""
        return self.NUMBER + self.base.number

    def source(self) -> str:
        """C++ class of row/optimisers.cuh, of a base."""
        return f"Adaptive<{self.base.source()}>"

    def describe(self, dim: int) -> str:
        """Words of RowLayout.describe, with the class of the base."""
        return f"Adaptive<{type(self.base).__name__}, {dim}>"

    def hyper(self, factor: float = 1.0) -> tuple[float, ...]:
        """Hyper-parameters of `base`, padded with 0 to HYPERS, then l2."""
        used = self.base.hyper(factor)
        return (*used, *[0.0] * (self.HYPERS - len(used)), self.l2)


_OPTIMISERS: dict[str, type[Optimiser]] = {
    kind.__name__: kind for kind in (SGD, AdaGrad, RowAdaGrad, Adam, FTRL)
}


@dataclass(frozen=True)
class Segment:
    """Segment of a row: values with one optimiser.

    Values start uniform in [-init_scale, init_scale]: a pure function of seed, table name, key and place in
    the row, not of the order of arrival.

    Args:
        name: name, distinct in the row.
        dim: number of values.
        optimiser: their optimiser.
        init_scale: bound of the initial values.
        place: place of the first value in the whole row, in a row that lacks some segments; None: here.
    """

    name: str
    dim: int
    optimiser: Optimiser
    init_scale: float = 0.0
    place: int | None = None

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ValueError(f"segment {self.name!r}: dim must be at least 1, not {self.dim}")


@dataclass(frozen=True)
class RowLayout:
    """Segments of a row, and the storage type of their values.

    Values of 2 bytes keep 8 (bf16) or 11 (fp16) significant bits; a value above their type's range becomes
    the largest number. Optimisers compute in float32 on float32 state. New values are rounded stochastically
    without bias (row/payload.cuh says how, and why equal runs give equal bits). The last float of the state
    of a 2-byte row is its number of updates, modulo 2^24.

    Args:
        segments: segments with distinct names.
        values: storage type.

    Attributes:
        dim: D, number of values.
        stride: D + state floats.
    """

    HYPERS: ClassVar[int] = 8  # hyper-parameters of a segment, padded; the first is its init_scale

    segments: tuple[Segment, ...]
    values: Values = "fp32"

    def __post_init__(self) -> None:
        if self.values not in _TYPES:
            raise ValueError(f"values of a row are {', '.join(get_args(Values))}, not {self.values!r}")
        names = [segment.name for segment in self.segments]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a row needs segments with distinct names, not {names}")

    @functools.cached_property
    def dim(self) -> int:
        """D: values of all segments."""
        return sum(segment.dim for segment in self.segments)

    @functools.cached_property
    def stride(self) -> int:
        """Floats of a row: values, states, and one more where values have 2 bytes."""
        states = sum(segment.optimiser.state_floats(segment.dim) for segment in self.segments)
        return self.dim + states + (self.values != "fp32")

    @property
    def stored_bytes(self) -> int:
        """Bytes of a stored row (row/row_values.cuh), without header and padding."""
        size = 4 if self.values == "fp32" else 2
        return -(-size * self.dim // 4) * 4 + 4 * (self.stride - self.dim)

    @functools.cached_property
    def places(self) -> dict[str, tuple[int, int, int, int]]:
        """Segment → place of its first value, number of values, place of its state, its floats."""
        found, at, state = {}, 0, 0
        for segment in self.segments:
            floats = segment.optimiser.state_floats(segment.dim)
            found[segment.name] = at, segment.dim, state, floats
            at, state = at + segment.dim, state + floats
        return found

    def slice(self, name: str) -> slice:
        """Slice of the values of segment `name` in [0, D). Raises KeyError."""
        first = 0
        for segment in self.segments:
            if segment.name == name:
                return slice(first, first + segment.dim)
            first += segment.dim
        raise KeyError(name)

    def describe(self) -> tuple[str, ...]:
        """Words that are equal for rows that two tables can exchange."""
        return (self.values, *(f"{s.name} {s.optimiser.describe(s.dim)}" for s in self.segments))

    @staticmethod
    def described(words: Sequence[str]) -> "RowLayout":
        """Layout of the words of `describe`; hyper-parameters are defaults. Raises ValueError for others."""
        values, *segments = words
        stored = next((each for each in get_args(Values) if each == values), None)
        if stored is None:
            raise ValueError(f"{values!r} is no storage type of a row")
        made = []
        for text in segments:
            name, _, rule = text.partition(" ")
            found = re.fullmatch(r"(?:(Adaptive)<)?(\w+)(?:<|, )(\d+)>", rule)
            kind = None if found is None else _OPTIMISERS.get(found[2])
            if found is None or kind is None:
                raise ValueError(f"{text!r} describes no segment of a row")
            base = kind()
            made.append(Segment(name, int(found[3]), Adaptive(base, 1.0) if found[1] else base))
        return RowLayout(tuple(made), stored)

    def hyper(
        self, factors: Mapping[str, float] | None = None, from_zero: Container[str] = ()
    ) -> list[float]:
        """Hyper-parameters of all segments: HYPERS floats each.

        Args:
            factors: segment → factor of its rate; else 1.
            from_zero: segments whose new values are 0, whatever their `init_scale`.
        """
        padded: list[float] = []
        for segment in self.segments:
            scale = 0.0 if segment.name in from_zero else segment.init_scale
            used = (scale, *segment.optimiser.hyper((factors or {}).get(segment.name, 1.0)))
            padded += [*used, *[0.0] * (self.HYPERS - len(used))]
        return padded

    @functools.cached_property
    def description(self) -> tuple[int, ...]:
        """Numbers that a host's table is made with (row/layout.hpp).

        They are the type of the values, then optimiser, dim and place of each segment. Hyper-parameters are
        not among them.
        """
        described, at = [get_args(Values).index(self.values)], 0
        for segment in self.segments:
            place = at if segment.place is None else segment.place
            described += [segment.optimiser.number, segment.dim, place]
            at += segment.dim
        return tuple(described)

    def source(self) -> str:
        """C++ `struct Layout` of the GPU's table (gpu_table/device_table.cuh).

        Dims and optimisers are compile-time, hyper-parameters are not.
        """
        values, states, updates = [], [], []
        at, state = 0, self.dim
        for number, segment in enumerate(self.segments):
            kind, h = segment.optimiser.source(), f"h + {number * self.HYPERS}"
            place = at if segment.place is None else segment.place
            n, w, s = segment.dim, f"row + {at}", f"row + {state}"
            values.append(f"initial_values({n}, {w}, {place}, stream, {h});")
            states.append(f"{kind}::init({n}, {w}, {s}, {h} + 1);")
            updates.append(f"{kind}::update({n}, {w}, {s}, gradient + {at}, {h} + 1);")
            at += segment.dim
            state += segment.optimiser.state_floats(segment.dim)
        if self.values != "fp32":
            values.append(f"round_initial<Value>({self.dim}, row);")
            states.append(f"row[{self.stride - 1}] = 0.0f;")
        indent = "\n        "
        return f"""
#include "row/optimisers.cuh"
#include "row/payload.cuh"
struct Layout {{
    using Value = {_TYPES[self.values]};
    static constexpr int D = {self.dim}, STRIDE = {self.stride};
    static __device__ __forceinline__ void values(float* row, uint64_t stream, const float* h) {{
        {indent.join(values)}
    }}
    static __device__ __forceinline__ void state(float* row, const float* h) {{
        {indent.join(states)}
    }}
    static __device__ __forceinline__ void update(float* row, const float* gradient, const float* h) {{
        {indent.join(updates)}
    }}
}};
"""
