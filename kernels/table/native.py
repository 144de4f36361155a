"""Compiled tables of all row layouts and the moves of their rows, and their C functions."""

import ctypes
import functools
from typing import Any

from livectr.kernels.runtime.library import kernel_library
from livectr.system.errors import InternalError

_POINTER, _INT, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_MARK, _SEED = ctypes.c_uint32, ctypes.c_uint64
_SIGNATURES: dict[str, tuple[Any, ...]] = {  # result, then arguments
    "table_new": (_POINTER, _POINTER, _INT, _SEED, _POINTER),
    "table_delete": (None, _POINTER),
    "table_size": (_INT, _POINTER),
    "table_bytes": (_INT, _POINTER),
    "table_listed": (_INT, _POINTER),
    "table_hyper": (None, _POINTER, _POINTER),
    "table_mark": (_INT, _POINTER),
    "table_forget": (None, _POINTER, _MARK),
    "table_compact": (_INT, _POINTER),
    "table_clear": (_INT, _POINTER),
    "table_find": (_INT, _POINTER, _POINTER, _INT, _POINTER),
    "table_insert": (_INT, _POINTER, _POINTER, _INT, _POINTER),
    "table_lookup": (_INT, _POINTER, _POINTER, _INT, _FLAG, _POINTER),
    "table_update": (_INT, _POINTER, _POINTER, _INT, _POINTER),
    "table_assign": (_INT, _POINTER, _POINTER, _INT, _POINTER),
    "table_restore": (_INT, _POINTER, _POINTER, _INT, _POINTER),
    "table_erase": (_INT, _POINTER, _POINTER, _INT, _FLAG),
    "table_most_changed": (_INT, _POINTER, _MARK),
    "table_changed": (_INT, _POINTER, _MARK, _POINTER),
    "table_changed_keys": (_INT, _POINTER, _MARK, _POINTER),
    "table_end": (_MARK, _POINTER),
    "table_in_use": (_INT, _POINTER, _MARK, _MARK, _POINTER),
    "table_generations": (_INT, _POINTER, _POINTER, _INT, _POINTER),
    "table_row_bytes": (_INT, _POINTER),
    "table_admit": (_INT, _POINTER, _MARK, _INT),
    "table_admission": (None, _POINTER, _POINTER),
    "table_sketch": (None, _POINTER, _POINTER),
    "table_set_sketch": (None, _POINTER, _POINTER, _INT),
    "table_track": (None, _POINTER, _MARK),
    "table_now": (None, _POINTER, _MARK),
    "table_oldest": (_INT, _POINTER, _INT, _POINTER),
    "table_rarest": (_INT, _POINTER, _INT, _POINTER),
    "table_older_than": (_INT, _POINTER, _MARK, _POINTER),
    "table_usage": (_INT, _POINTER, _POINTER, _INT, _POINTER, _POINTER),
    "table_set_usage": (_INT, _POINTER, _POINTER, _INT, _POINTER, _POINTER),
    "table_erased": (_INT, _POINTER, _MARK, _POINTER),
    "table_read": (_INT, _POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER),
    "fields_new": (_POINTER, _POINTER, _INT, _POINTER, _INT),
    "fields_delete": (None, _POINTER),
    "fields_forward": (_INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER, _INT, _POINTER, _POINTER),
    "fields_backward": (_INT, _POINTER, _POINTER),
    "fields_read_segment": (None, _POINTER, _POINTER, _POINTER, _INT, _INT, _INT, _INT, _POINTER, _POINTER),
    "fields_write_segment": (None, _POINTER, _POINTER, _POINTER, _INT, _INT, _INT, _INT, _POINTER),
    "fields_infer": (_INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER, _INT, _POINTER, _FLAG, _POINTER),
    "fields_census": (_INT, _POINTER, _POINTER, _INT, _POINTER, _POINTER),
    "moves_find": (_INT, _POINTER, _INT, _POINTER, _POINTER, _POINTER),
    "moves_promote": (_INT, _POINTER, _INT, _POINTER, _POINTER, _POINTER),
    "moves_hide": (_INT, _POINTER, _INT, _POINTER, _POINTER, _POINTER),
    "moves_show": (_INT, _POINTER, _INT, _POINTER, _POINTER, _POINTER),
    "moves_coldest": (_INT, _POINTER, _INT, _INT, _POINTER, _POINTER),
    "moves_evict": (_INT, _POINTER, _INT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
    "moves_is_one_of": (_INT, _POINTER, _INT, _POINTER, _INT, _POINTER),
}


def table_library() -> ctypes.CDLL:
    """Library of tables (table/table_api.hpp) and moves of rows (tiers/moves.hpp), for every row layout."""
    return _library()


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernel_library()
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def checked(result: int) -> int:
    """Count that a call returned.

    Raises:
        MemoryError, ValueError, InternalError: the meaning of a negative result (table/table_api.hpp).
    """
    if result >= 0:
        return result
    if result == -1:
        raise MemoryError("out of memory in a table; its content is undefined from here on")
    if result == -2:
        raise ValueError("the changes since that mark are forgotten: export everything (since=0)")
    if result == -3:
        raise ValueError("offsets must start at 0, never fall and end at the number of keys")
    raise InternalError(f"unknown result {result} of a table call")
