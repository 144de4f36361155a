"""Random calls over columns of every type, and random batches of these columns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa

from livectr.ingest import operators as op
from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.system.errors import ConfigError
from tests.ingest.operator_expressions import ROOTS


def random_batch(rng: random.Random, rows: int) -> pa.RecordBatch:
    """All roots of the operator tests, with nulls."""
    draw: dict[str, Callable[[], object]] = {
        "int64": lambda: rng.choice([rng.randint(-3, 70), rng.randint(-(2**63), 2**63 - 1)]),
        "int32": lambda: rng.choice([rng.randint(-3, 70), rng.randint(-(2**31), 2**31 - 1)]),
        "float32": lambda: rng.uniform(-5, 70),
        "float64": lambda: rng.uniform(-5, 70),
        "bool": lambda: rng.random() < 0.5,
        "string": lambda: "".join(rng.choices("aB zÄß,Σж😀", k=rng.randint(0, 12))),
        "binary": lambda: rng.randbytes(rng.randint(0, 9)),
    }

    def value(dtype: str) -> object:
        if rng.random() < 0.2:
            return None
        if dtypes.is_list(dtype):
            return [value(dtypes.element(dtype)) for _ in range(rng.randint(0, 5))]
        return draw[dtype]()

    arrays = [
        pa.array(
            [value(root.dtype) if root.name != "t.ts" else rng.randint(0, 10**13) for _ in range(rows)],
            dtypes.arrow_type(root.dtype),
        )
        for root in ROOTS
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[root.name for root in ROOTS])


def random_dag(rng: random.Random, calls: int) -> list[Expr]:
    """Random calls on earlier nodes of fitting type, with shared sub-expressions."""
    nodes: list[Expr] = list(ROOTS)
    makers: list[Callable[[Callable[[], Expr]], Expr]] = [
        lambda n: n() + n(),
        lambda n: n() - 3,
        lambda n: n() * n(),
        lambda n: n() % n(),
        lambda n: n() // n(),
        lambda n: n() > n(),
        lambda n: ~n(),
        lambda n: op.where(n(), n(), n()),
        lambda n: op.key(n()),
        lambda n: op.cross(n(), n()),
        lambda n: op.bucketize(n(), [-1, 2.5, 40]),
        lambda n: op.clip(n(), 0, 50),
        lambda n: op.log1p(op.clip(n(), 0, None)),
        lambda n: op.normalise(n(), 3, 2),
        lambda n: op.length(n()),
        lambda n: op.lower(n()),
        lambda n: op.split(n(), " "),
        lambda n: op.ngrams(n(), 2),
        lambda n: op.trim(n()),
        lambda n: op.substring(n(), 1, 3),
        lambda n: op.concat(n(), n()),
        lambda n: op.cast(n(), "int32"),
        lambda n: op.head(n(), 2),
        lambda n: op.tail(n(), 2),
        lambda n: op.unique(n()),
        lambda n: op.total(n()),
        lambda n: op.item(n(), 1),
        lambda n: op.count_of(n(), n()),
        lambda n: op.token_overlap(n(), n()),
        lambda n: op.keywords(n(), ["a", "zÄ"]),
    ]
    built = 0
    while built < calls:
        try:
            node = rng.choice(makers)(lambda: rng.choice(nodes))
        except ConfigError:
            continue  # the types did not fit
        if node.layer <= 6:
            nodes.append(node)
            built += 1
    return nodes[len(ROOTS) :]
