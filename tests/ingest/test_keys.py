"""Keys outside a plan equal keys inside it; filters."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.filters import RowFilter
from livectr.ingest.language.expr import ColumnRef, column
from livectr.ingest.language.keys import hash_strings, key_of
from livectr.ingest.language.streams import Stream
from livectr.ingest.operators import key
from livectr.ingest.plan.dag import FeaturePlan
from livectr.system.errors import ConfigError


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int64", [1, None, -(2**63), 2**63 - 1]),
        ("int64", [7, -1, 3]),
        ("int32", [5, None, -(2**31)]),
        ("bool", [True, None, False]),
        ("string", ["", "a", None, "жあ😀", "x" * 100]),
        ("binary", [b"", b"\xff\x00", None]),
    ],
)
def test_key_of_equals_the_operator(dtype: str, values: list[object]) -> None:
    node = key(column(ColumnRef("t", "x"), dtype))
    array = pa.array(values, {"bool": pa.bool_()}.get(dtype, dtype))
    batch = pa.RecordBatch.from_arrays([array], names=["t.x"])
    want = Extractor(FeaturePlan({"k": node}))(batch).keys
    np.testing.assert_array_equal(key_of(array), want)
    np.testing.assert_array_equal(key_of(array.slice(1)), want[1:])
    np.testing.assert_array_equal(key_of(pa.chunked_array([array, array])), np.tile(want, 2))


def test_strings_of_every_arrow_kind_have_one_key() -> None:
    plain = hash_strings(["a", None, "ß"])
    for kind in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        np.testing.assert_array_equal(hash_strings(pa.array(["a", None, "ß"], kind)), plain)
    np.testing.assert_array_equal(key_of(pa.array([b"a", b"", "ß".encode()], pa.large_binary())), plain)
    assert len(hash_strings([])) == len(key_of(pa.array([], pa.int64()))) == 0


def test_integers_of_every_width() -> None:
    for kind in (pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.uint64()):
        np.testing.assert_array_equal(key_of(pa.array([3, None], kind)), [3, 0])
    with pytest.raises(ConfigError, match="does not fit 64 bits"):
        key_of(pa.array([2**63], pa.uint64()))
    with pytest.raises(ConfigError, match="values of type double have no key"):
        key_of(pa.array([1.0]))


def test_row_filter() -> None:
    log = Stream(
        "log",
        key="user",
        columns=dict(user="int64", spam="bool", country="string"),
        where=lambda s: ~s.spam & (s.country != "xx"),
    )
    assert log.filter is not None
    batch = pa.record_batch(
        {"country": ["de", "xx", None, "fr"], "user": [1, 2, 3, 4], "spam": [None, False, True, False]}
    )
    assert RowFilter(log.filter)(batch).tolist() == [True, False, False, True]
