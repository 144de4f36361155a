"""Engines of a feature plan: the plan of calls at once, the fused plan when it is compiled.

Both give the same bits.

    plan ─► plan of calls (ingest/extract/program.py) ─────────────► batches, from the first
       └──► generated C++ (ingest/extract/host_code.py) ─► compiler in the background ─► batches from then on

The fused plan comes first where it is prebuilt or in the cache. Else the compiler starts once the calls have
taken as long as it takes: a short run never pays for it. Without a compiler the plan of calls stays. A user's
operator is C++: its plan is compiled before the first batch.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from livectr.ingest.extract.background import build_in_turn
from livectr.ingest.extract.host_code import host_source
from livectr.ingest.extract.program import Program
from livectr.ingest.operators.user import located
from livectr.kernels.extract import program
from livectr.kernels.runtime.arrays import address
from livectr.kernels.runtime.compiler import compile_host, find_host
from livectr.system.errors import ConfigError, KernelError, LiveCTRError, NoCompilerError

if TYPE_CHECKING:
    from livectr.ingest.plan.dag import FeaturePlan

Wanted = Literal["calls", "fused", "soonest"]
"""Engine of a plan: always the same, or what runs soonest, with the fused plan as soon as it is compiled."""

_log = logging.getLogger(__name__)
_NAME: Final = "features"
default: Wanted = "soonest"
"""Engine of an extractor that asks for none; tests, whose plans see few batches, set another."""
WORTH_S = 5.0
"""Seconds in calls after which a fused plan is compiled: about what compiling takes of a core."""


class Engine:
    """C functions that run a plan, and native memory of their calls.

    Args:
        library: has the functions.
        prefix: of their names.
        words: argument of `create`; it lives as long as the engine.
        kept: what the words point to.
    """

    def __init__(
        self, library: ctypes.CDLL, prefix: str, words: npt.NDArray[np.int64], kept: object = None
    ) -> None:
        pointer = ctypes.c_void_p
        self._create = self._function(library, f"{prefix}create", [pointer], pointer)
        self._destroy = self._function(library, f"{prefix}destroy", [pointer])
        self.extract = self._function(library, f"{prefix}extract", [pointer] * 8, ctypes.c_int64)
        self.gather = self._function(library, f"{prefix}gather", [pointer] * 5)
        names = ("extract", "gather", "gather_shared")
        #: of these functions, for compiled calls
        self.addresses = tuple(ctypes.cast(library[f"{prefix}{name}"], pointer).value for name in names)
        #: of the functions that make and free memory of calls, and of their argument
        self.context_calls = (
            *(ctypes.cast(library[f"{prefix}{name}"], pointer).value or 0 for name in ("create", "destroy")),
            address(words),
        )
        #: "calls" or "fused"
        self.name: Literal["calls", "fused"] = "calls" if prefix else "fused"
        #: seconds of all calls; where threads add at once, some may be missing
        self.spent_s = 0.0
        self._words, self._kept = words, kept
        #: memory that no call has
        self.contexts: list[Context] = []

    @staticmethod
    def _function(library: ctypes.CDLL, name: str, arguments: list[Any], result: Any = None) -> Any:
        function = library[name]  # of its own: no other engine changes its types
        function.argtypes, function.restype = arguments, result
        return function


class Context:
    """Native memory of one call at a time."""

    def __init__(self, engine: Engine) -> None:
        self._destroy = engine._destroy
        self._engine_data = engine._words, engine._kept
        self.handle = engine._create(address(engine._words))

    def __del__(self) -> None:
        self._destroy(self.handle)


class Call:
    """Call of an engine, with memory that no other call has.

    Args:
        engine: the engine.
    """

    __slots__ = ("_began", "context", "engine")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        try:
            self.context = engine.contexts.pop()  # of several threads one gets the last
        except IndexError:
            self.context = Context(engine)
        self._began = time.perf_counter()

    def done(self) -> None:
        """Keep the memory for the next call. A call that raises does not come here: its memory goes away."""
        self.engine.spent_s += time.perf_counter() - self._began
        self.engine.contexts.append(self.context)


class Engines:
    """Engines of a plan.

    Args:
        plan: the plan.
        wanted: its engine; None: the default.

    Raises:
        ConfigError: a user's operator does not compile, or there is no compiler for it.
        NoCompilerError: the fused plan is wanted, and there is no compiler.
    """

    def __init__(self, plan: FeaturePlan, wanted: Wanted | None) -> None:
        wanted = wanted or default
        self._thread: threading.Thread | None = None
        self._started = threading.Lock()
        user = next((node.device.user for node in plan.nodes if node.device and node.device.user), "")
        found = None
        if wanted == "fused" or user:
            found = _compiled(plan, user)
        elif wanted == "soonest":
            try:
                found = find_host(host_source(plan), name=_NAME)
            except NoCompilerError:
                _tell_no_compiler()
                wanted = "calls"
        if found is not None:
            self._now = _fused(plan, found)
            return
        self._now = _calls(plan)
        if wanted == "soonest":
            self._thread = threading.Thread(target=self._compile, args=(plan,), name="compiler", daemon=True)

    @property
    def name(self) -> Literal["calls", "fused"]:
        """Name of the engine of the next batch."""
        return self._now.name

    def now(self) -> Engine:
        """Engine of the next batch. Starts the compiler when it is worth it, never before the first batch.

        So a process that forks before has no thread.
        """
        engine, thread = self._now, self._thread
        if thread is not None and engine.spent_s >= WORTH_S:
            self._start(thread)
        return engine

    def wait(self) -> None:
        """Wait until the fused plan is compiled, if it is on its way."""
        thread = self._thread
        if thread is not None:
            self._start(thread)
            thread.join()

    def _start(self, thread: threading.Thread) -> None:
        with self._started:
            if thread.ident is None:
                thread.start()

    def _compile(self, plan: FeaturePlan) -> None:
        """Compile the fused plan and take it from the next batch on."""
        source = host_source(plan)
        try:
            library = find_host(source, name=_NAME) if build_in_turn(source, name=_NAME) else None
        except (LiveCTRError, OSError) as error:
            _log.warning("the fused feature plan cannot be compiled; its plan of calls stays: %s", error)
        else:
            if library is not None:
                self._now = _fused(plan, library)  # a call has the old engine or the new one
        self._thread = None


@functools.cache
def _tell_no_compiler() -> None:
    """Say once that plans stay as they are."""
    _log.info("there is no C++ compiler: features are computed by the library's operators, call by call")


def _compiled(plan: FeaturePlan, user: str) -> ctypes.CDLL:
    """Fused plan, compiled if need be. user: name of a user's operator in it."""
    try:
        return compile_host(host_source(plan), name=_NAME)
    except NoCompilerError as error:
        if not user:
            raise
        raise ConfigError(f"operator {user!r} is C++, which has to be compiled: {error}") from None
    except KernelError as error:
        raise explained(error) from None


def _fused(plan: FeaturePlan, library: ctypes.CDLL) -> Engine:
    words = plan.resource_words(
        [[address(array) for array in resource.arrays] for resource in plan.resources]
    )
    return Engine(library, "", words, plan.resources)


def _calls(plan: FeaturePlan) -> Engine:
    described = Program(plan)
    return Engine(program.library(), "program_", described.words, described)


def explained(error: KernelError) -> ConfigError | KernelError:
    """ConfigError with places in the user's file where a user's operator is at fault, else `error`."""
    name, text = located(str(error).partition("\n")[2])
    if not name:
        return error
    return ConfigError(f"operator {name!r} does not compile; correct its expression:\n{text}")
