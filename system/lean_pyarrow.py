"""PyArrow without pandas."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

import pyarrow as pa


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=name)


def keep_pandas_out() -> None:
    """Keep PyArrow from importing pandas at the first `pa.array`, which costs a process 30 MiB and 0.4 s.

    PyArrow looks for pandas once, to tell its series from lists, and finds nothing here. Conversions from and
    to pandas look again, and find it; until then `pa.array(series)` takes a pandas Series as a list. Nothing
    happens in a process that has imported pandas.
    """
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
