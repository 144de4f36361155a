"""Run a target in Python under atheris: python -m tests.fuzz.python_target TARGET [WORD OF LIBFUZZER …]."""

from __future__ import annotations

import ctypes
import os
import sys

import atheris
import pyarrow as pa

from tests.fuzz.targets import TARGETS

_LEAVE = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(lambda status, _: os._exit(status))


def main() -> None:
    """Import what is measured with its branches counted, and fuzz."""
    target = TARGETS[sys.argv[1]]
    with atheris.instrument_imports(include=list(target.measured), enable_loader_override=False):
        body = target.body()
    # libFuzzer ends by exit(), which waits for threads of Arrow; they wait for the interpreter's lock. The
    # last handler runs first: Arrow makes its pools, which have some, when it is asked for them.
    pa.cpu_count(), pa.io_thread_count()
    ctypes.CDLL(None).on_exit(_LEAVE, None)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], body)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
