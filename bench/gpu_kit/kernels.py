"""Count of the compiled kernels that a process of the kit asks for.

On a GPU each cubin that `CudaDevice` loads is noted: brought along, or compiled here. A dry run loads none,
so `watch` builds a twin of every extractor and table on a GPU of paper, and notes whether its cubins are
there. With LIVECTR_KIT_BUILD it compiles those that are not, into the folder of that name.
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

from bench.gpu_kit import mode
from bench.gpu_kit.events import note
from livectr.ingest.extract.device_extractor import DeviceExtractor
from livectr.kernels.gpu_table.device_store import DeviceStore
from livectr.kernels.runtime import compiler
from livectr.kernels.runtime import device as devices
from livectr.kernels.runtime.compiler import cached_cubin, cubin_key, prebuild_cubin, prebuilt_cubin
from livectr.kernels.runtime.device import CudaDevice

BUILD = "LIVECTR_KIT_BUILD"
"""Variable of the environment: folder for cubins that a dry run lacks."""
ARCH = "sm_90"
"""Architecture of the H100 and the H200."""

ASKING = (compiler, devices)
"""Modules whose calls of `cached_cubin` are noted."""


def watch() -> None:
    """Note all kernels that this process asks for from here on."""
    if not mode.dry():
        for module in ASKING:
            vars(module)["cached_cubin"] = loaded
        return
    for owner in (DeviceExtractor, DeviceStore):
        owner.__init__ = _with_twin(owner.__init__)  # type: ignore[method-assign]


def ask(source: str) -> None:
    """Ask for the kernels of a source, as a `CudaDevice` would; for sources that a twin does not have."""
    if mode.dry():
        looked_for(source, arch=ARCH)


def loaded(source: str, *, arch: str) -> Path:
    """`cached_cubin`, noted."""
    found = "compiled" if prebuilt_cubin(source, arch) is None else "brought"
    start = time.perf_counter()
    path = cached_cubin(source, arch=arch)
    _note(source, arch, found, start)
    return path


def looked_for(source: str, *, arch: str) -> Path:
    """Note whether a cubin is there; build it if the kit is being built."""
    path, start = prebuilt_cubin(source, arch), time.perf_counter()
    found = "missing" if path is None else "brought"
    if path is None and (folder := os.environ.get(BUILD)):
        path = prebuild_cubin(source, arch=arch, folder=Path(folder))
    _note(source, arch, found, start)
    return path or Path("missing.cubin")


def _note(source: str, arch: str, found: str, start: float) -> None:
    note("kernel", key=cubin_key(source, arch), source=found, seconds=time.perf_counter() - start)


def _with_twin(init: Callable[..., None]) -> Callable[..., None]:
    """Constructor that builds the same object on paper, too."""
    parameters = inspect.signature(init)

    @functools.wraps(init)
    def both(*args: Any, **options: Any) -> None:
        init(*args, **options)
        given = parameters.bind(*args, **options)
        if given.arguments.get("target", CudaDevice) is CudaDevice:
            return
        given.arguments |= {"self": object.__new__(type(args[0])), "target": CudaDevice}
        with paper():
            init(*given.args, **given.kwargs)

    return both


@contextmanager
def paper() -> Iterator[None]:
    """Let `CudaDevice` work on a CuPy whose calls do nothing."""
    cupy = MagicMock()
    cupy.cuda.Device.return_value.compute_capability = ARCH.removeprefix("sm_")
    cupy.cuda.runtime.getDeviceProperties.return_value = {"name": b"paper"}
    cupy.cuda.alloc_pinned_memory.side_effect = bytearray
    with ExitStack() as patches:
        patches.enter_context(patch.object(devices, "require_gpu", lambda: cupy))
        for module in ASKING:
            patches.enter_context(patch.object(module, "cached_cubin", looked_for, create=True))
        yield
