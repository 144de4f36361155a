"""Inputs of a network: the features of a rank, and the vectors that models gather."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Part:
    """Share of a model on one rank.

    Args:
        fields: all F sparse fields of the pipeline.
        local: the fields of this rank, F_local of `fields`.
        dense_names: all Dd dense features of the pipeline.
        dense_local: the dense features live on this rank; either all of them do or none.
        seed: seed of the initial values.
    """

    fields: tuple[str, ...]
    local: tuple[str, ...]
    dense_names: tuple[str, ...]
    dense_local: bool
    seed: int

    @property
    def local_dense(self) -> tuple[str, ...]:
        """Dense features that live on this rank."""
        return self.dense_names if self.dense_local else ()


@dataclass(frozen=True)
class Columns:
    """Subset of a rank's features, for a `partial` of some columns only.

    Args:
        fields: indices into the rank's fields, ascending.
        dense: indices into the rank's dense features, ascending.
    """

    fields: tuple[int, ...]
    dense: tuple[int, ...]


@dataclass(frozen=True)
class Gathers:
    """Inputs of `finish` besides ⊕, by feature name.

    Args:
        pooled: fields whose sum-pooled vector is needed.
        sequences: fields whose vector of every key is needed, in list order.
        dense: the dense features are needed.
        content: fields whose keys are content ids (images, texts); every vector of the sub-model is needed
            (`models.embedding`).
    """

    pooled: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()
    dense: bool = False
    content: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pooled or self.sequences or self.dense or self.content)


@dataclass(frozen=True)
class Ragged:
    """Lists of vectors; list b is values[offsets[b] : offsets[b + 1]].

    Args:
        values: f32[nnz, D_model].
        offsets: i64[B + 1].
        same: all lists are known to be equal, as the lists of the user are in a rank request.
        longest: length of the longest list; None: the host waits for it where lists are padded.
    """

    values: Tensor
    offsets: Tensor
    same: bool = False
    longest: int | None = None


@dataclass(frozen=True)
class Gathered:
    """Tensors that `Gathers` names, of B examples.

    Args:
        pooled: f32[B, Fp, D_model], in the order of `Gathers.pooled`.
        sequences: field → lists of f32[nnz, D_model].
        dense: f32[B, Dd], or None if not asked for.
        content: field → lists of f32[nnz, out], the vectors of the sub-model.
    """

    pooled: Tensor
    sequences: Mapping[str, Ragged]
    dense: Tensor | None = None
    content: Mapping[str, Ragged] = field(default_factory=dict)


def require_gathered(gathered: Gathered | None) -> Gathered:
    """Returns `gathered`, without which `finish` cannot run.

    Raises:
        ValueError: it is None.
    """
    if gathered is None:
        raise ValueError("this model's finish needs the vectors that its configuration's gathers() names")
    return gathered
