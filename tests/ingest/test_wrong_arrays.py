"""Arrays that Arrow itself would reject are refused before they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.language.expr import ColumnRef, column
from livectr.ingest.operators import key
from livectr.ingest.plan.dag import FeaturePlan
from livectr.system.errors import InternalError

WORDS = column(ColumnRef("log", "words"), "string")
TAGS = column(ColumnRef("log", "tags"), "list<int64>")


def wrong(name: str, kind: Any, offsets: list[int], size: int) -> pa.RecordBatch:
    """Batch of an array with offsets that Arrow itself would reject."""
    placed = np.zeros(len(offsets), np.int32)
    buffers, rows = [None, pa.py_buffer(placed)], len(offsets) - 1
    if pa.types.is_list(kind):
        items = pa.array(np.zeros(size, np.int64))
        made = pa.Array.from_buffers(kind, rows, buffers, children=[items])
    else:
        made = pa.Array.from_buffers(kind, rows, [*buffers, pa.py_buffer(bytes(size))])
    batch = pa.RecordBatch.from_arrays([made], names=[name])
    placed[:] = offsets
    return batch


@pytest.mark.parametrize("offsets", [[0, 5, 2], [-5, 0, 5], [0, -(2**31), 5], [5, 2**31 - 1, -2]])
@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.int64())], ids=["string", "list"])
def test_offsets_that_have_wrapped_are_refused(kind: Any, offsets: list[int]) -> None:
    is_list = pa.types.is_list(kind)
    plan = FeaturePlan({"x": TAGS if is_list else key(WORDS)})
    batch = wrong("log.tags" if is_list else "log.words", kind, offsets, 16)
    with pytest.raises(InternalError, match="offsets that fall"):
        Extractor(plan)(batch)


def test_a_list_beyond_its_items_and_an_index_beyond_its_dictionary_are_refused() -> None:
    extract = Extractor(FeaturePlan({"x": TAGS}))
    with pytest.raises(InternalError, match="offsets that fall"):
        extract(wrong("log.tags", pa.list_(pa.int64()), [0, 2, 17], 16))
    for index in (3, -1):
        words = pa.DictionaryArray.from_arrays(
            pa.array([0, index], pa.int32()), pa.array(["a", "b", "c"]), safe=False
        )
        with pytest.raises(InternalError, match="beyond its dictionary"):
            Extractor(FeaturePlan({"x": key(WORDS)}))(
                pa.RecordBatch.from_arrays([words], names=["log.words"])
            )
