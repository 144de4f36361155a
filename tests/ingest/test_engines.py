"""Engines of a plan: a plan of calls at once, the fused plan when it is compiled, with the same bits."""

from __future__ import annotations

import itertools
import logging
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from livectr.ingest import operators as op
from livectr.ingest.extract import engines, library_source
from livectr.ingest.extract.engines import _tell_no_compiler
from livectr.ingest.extract.extractor import Extractor
from livectr.ingest.extract.functions import function_of
from livectr.ingest.language.expr import ColumnRef, column
from livectr.ingest.operators import operator
from livectr.ingest.plan.dag import FeaturePlan
from livectr.ingest.plan.features import Features
from livectr.kernels.extract.program import find_function, library
from livectr.kernels.runtime.compiler import KERNELS, compile_host
from livectr.system.errors import ConfigError
from tests.ingest.operator_check import ENGINES, without_users_operators
from tests.ingest.operator_expressions import EXPRESSIONS, ROOTS
from tests.ingest.random_plans import random_batch, random_dag
from tests.ingest.small_plan import AD, BATCH, ITEMS, SMALL
from tests.ingest.statistics_expressions import EXPRESSIONS as STATISTICS
from tests.ingest.string_expressions import EXPRESSIONS as TEXT_EXPRESSIONS
from tests.serving.every_operator import pipeline
from tests.tiers import few
from tests.waiting import until


def same(a: Features, b: Features) -> bool:
    """Equality to the bit."""
    pairs = (a.offsets, b.offsets), (a.keys, b.keys), (a.dense, b.dense), (a.failed, b.failed)
    return all(x.tobytes() == y.tobytes() for x, y in pairs)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Cache without compiled plans; the library is loaded. The compiler starts with the first batch."""
    library()
    monkeypatch.setenv("LIVECTR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(engines, "WORTH_S", 0)
    yield tmp_path


def script(path: Path, *lines: str) -> str:
    """Compiler that runs `lines` when it is to compile something, and tells its version like any other."""
    compiler = shutil.which("c++") or "c++"
    tells = f'case "$*" in *--version*|*-dM*) exec {compiler} "$@";; esac'
    path.write_text("\n".join(["#!/bin/sh", tells, *lines]).replace("COMPILER", compiler))
    path.chmod(0o755)
    return str(path)


def test_a_plan_runs_at_once_and_its_fused_plan_is_swapped_in(empty_cache: Path) -> None:
    extract = Extractor(SMALL, engine="soonest")
    first = Extractor(SMALL, engine="calls")(BATCH)

    def until_fused() -> list[Features]:
        found = [extract(BATCH)]

        def turn() -> None:
            time.sleep(0.01)  # the compiler takes one core, at low priority
            found.append(extract(BATCH))

        until(lambda: extract.engine != "calls", turn=turn)
        return [*found, extract(BATCH)]

    with ThreadPoolExecutor(2) as pool:
        for results in pool.map(lambda _: until_fused(), range(2)):
            assert all(same(result, first) for result in results)
    extract.wait()
    assert extract.engine == "fused"
    again = Extractor(SMALL, engine="soonest")  # in the cache: nothing to wait for
    assert again.engine == "fused" and same(again(BATCH), first)


def test_an_extractor_has_no_thread_before_its_first_batch(empty_cache: Path) -> None:
    """The supervisor of a server's workers makes extractors, and then forks."""
    before = threading.active_count()
    extract = Extractor(SMALL, engine="soonest")
    assert threading.active_count() == before
    extract.wait()
    assert extract.engine == "fused"


def test_a_plan_is_compiled_once_its_calls_have_cost_as_much(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call takes a second by the clock; the sixth is the first that the compiler may run beside."""
    monkeypatch.setattr(engines, "WORTH_S", 5)
    seconds = itertools.count()
    monkeypatch.setattr(engines, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    extract = Extractor(SMALL, engine="soonest")
    for _ in range(5):
        extract(BATCH)
        assert extract.engine == "calls"
        assert "compiler" not in {thread.name for thread in threading.enumerate()}
    extract(BATCH)
    extract.wait()
    assert extract.engine == "fused"


def test_a_plan_is_compiled_once(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("CXX", script(tmp_path / "c++", f"echo compiled >> {log}", 'exec COMPILER "$@"'))
    many = [Extractor(SMALL, engine="soonest") for _ in range(3)]
    for extract in many:
        extract.wait()
    assert [extract.engine for extract in many] == ["fused"] * 3
    assert log.read_text() == "compiled\n"


def test_without_a_compiler_the_calls_stay(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    caplog.set_level(logging.INFO, logger="livectr.ingest.extract.engines")
    _tell_no_compiler.cache_clear()
    for _ in range(2):
        extract = Extractor(SMALL, engine="soonest")
        extract.wait()
        assert extract.engine == "calls" and extract(BATCH).rows == 3
    assert [record.message for record in caplog.records] == [
        "there is no C++ compiler: features are computed by the library's operators, call by call"
    ]


def test_a_users_operator_needs_a_compiler(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    twice = operator("int64 x -> int64", "x * 2", name="twice")
    with pytest.raises(ConfigError, match=r"operator 'twice' is C\+\+.*install the package g\+\+"):
        Extractor(FeaturePlan({"x": twice(AD)}), engine="soonest")


def test_a_broken_compiler_is_told_and_the_calls_stay(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", script(tmp_path / "c++", "echo internal compiler error >&2", "exit 4"))
    extract = Extractor(SMALL, engine="soonest")
    extract.wait()
    assert extract.engine == "calls" and extract(BATCH).rows == 3
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "its plan of calls stays" in record.message and "internal compiler error" in record.message


def test_a_process_that_ends_ends_its_compiler(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    compiler = script(tmp_path / "c++", f"echo $$ > {pid}.new; mv {pid}.new {pid}", "exec sleep 600")
    code = "\n".join(
        [
            "import os, time",
            "from livectr.ingest.extract import engines",
            "from livectr.ingest.extract.extractor import Extractor",
            "from tests.ingest.small_plan import BATCH, SMALL",
            "Extractor(SMALL, engine='calls')",  # the library comes from the usual cache
            "engines.WORTH_S = 0",
            f"os.environ.update(CXX={compiler!r}, LIVECTR_CACHE_DIR={str(tmp_path / 'cache')!r})",
            "Extractor(SMALL, engine='soonest')(BATCH)",
            f"while not os.path.exists({str(pid)!r}): time.sleep(0.01)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=KERNELS.parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not Path("/proc", pid.read_text().strip()).exists()
    left = [path.name for path in (tmp_path / "cache" / "kernels").iterdir()]
    assert left == ["background.lock"]


def test_the_library_has_every_operator_for_every_type() -> None:
    plans = [without_users_operators(pipeline.plan), *_plans_of_types()]
    missing = {name for plan in plans for name in _functions_of(plan) if not find_function(name)}
    assert not missing, f"add a call to _calls of ingest/extract/library_source.py and run it: {missing}"
    assert find_function("no such function") == 0


def _functions_of(plan: FeaturePlan) -> Iterator[str]:
    """Names of the library's functions that a plan calls."""
    for node in plan.nodes:
        if not node.is_root:
            used = function_of(node)
            yield from (f.name for f in (used.in_library(), *filter(None, used.conversions())))


def _plans_of_types() -> Iterator[FeaturePlan]:
    """A plan of the operators' own tests, and of random calls over columns of every type."""
    nodes = random_dag(random.Random(3), 400)
    for expressions in (EXPRESSIONS | TEXT_EXPRESSIONS | STATISTICS).values():
        nodes += expressions
    yield FeaturePlan(
        {f"{i}": node if "float" not in node.dtype else node > 0 for i, node in enumerate(nodes)}
    )


def test_the_librarys_source_is_current() -> None:
    texts = library_source.sources()
    folder = KERNELS / "operators"
    assert {path.name for path in folder.glob("calls*.cpp")} == set(texts)
    old = [name for name, text in texts.items() if (folder / name).read_text() != text]
    assert not old, "run `python -m livectr.ingest.extract.library_source`"


@pytest.mark.parametrize("seed", few(range(2), 0))
def test_random_dags(seed: int) -> None:
    """Blocks of more rows than one, lists of many items, nulls."""
    rng = random.Random(seed)
    nodes = [*ROOTS, *random_dag(rng, 60)]
    plan = FeaturePlan(
        {f"s{i}": node for i, node in enumerate(nodes) if "float" not in node.dtype},
        {f"d{i}": node for i, node in enumerate(nodes) if node.dtype in ("float32", "float64", "bool")},
    )
    calls, fused = (Extractor(plan, engine=engine) for engine in ENGINES)
    for rows in (1, 512, 1300):
        batch = random_batch(rng, rows)
        assert same(calls(batch), fused(batch))


def test_lists_that_are_too_long_fail_alike() -> None:
    long, other = list(range(70_000)), column(ColumnRef("t", "other"), "list<int32>")
    plan = FeaturePlan(
        {
            "alone": ITEMS * 2,
            "beside": ITEMS * AD,
            "words": op.cast(ITEMS, "string"),
            "equal": ITEMS == AD,
            "other": other + AD,
        }
    )
    lists = pa.array([[1, 2], long, [], [3]], pa.list_(pa.int32()))
    scattered = pa.DictionaryArray.from_arrays(
        pa.array([3, 0, 0, 2], pa.int32()),
        pa.array([list(range(700)), [5], [], [7, 8]], pa.list_(pa.int32())),
    )
    batch = pa.record_batch({"t.items": lists, "t.ad": [1, 2, 3, 4], "t.other": scattered})
    calls, fused = (Extractor(plan, engine=engine)(batch) for engine in ENGINES)
    assert same(calls, fused) and calls.failed.tolist() == [False, True, False, False]


def test_columns_begin_at_a_line_of_the_cache() -> None:
    """A list of bools ends anywhere in the pool; numbers that come next are aligned all the same."""
    source = """#include "extract/rowblock.hpp"
        extern "C" int64_t start_of_the_next() {
            livectr::HostPool pool;
            pool.allocate(1);
            pool.at += 3;
            return int64_t(reinterpret_cast<uintptr_t>(pool.allocate(8)) % POOL_ALIGNMENT);
        }"""
    assert compile_host(source, name="pool").start_of_the_next() == 0
