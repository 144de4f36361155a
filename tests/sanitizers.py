"""Tests over kernels that are compiled with sanitizers: `make test-sanitizers [ARGS=KIND]`.

*address* has AddressSanitizer and UndefinedBehaviorSanitizer, over the tests of kernels, ingest and serving.
*thread* has ThreadSanitizer, over the tests of what threads share: tables, joins, stores, the pool.
The first report ends its process, so that its test fails. Reports go to files, are shown at the end and fail
the run: pytest captures stderr, and its capture is lost with the process. The library of kernels is compiled
before the tests, outside of their time limits, and has a name of its own in the cache. Tests marked
`unsanitized` are left out.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORT = re.compile(r"ERROR: \w+Sanitizer|runtime error: |((WARNING|FATAL): |==)ThreadSanitizer")
"""Begin of a report, or of what ThreadSanitizer says when it ends a process. AddressSanitizer's file may
also have a warning of memory that it could not give."""
TO_FILE = """
#include <dlfcn.h>
#include <cstdlib>
__attribute__((constructor)) static void reports_go_to_a_file() {
    void* const library = dlopen("libubsan.so.1", RTLD_NOW | RTLD_NOLOAD);
    void* const found = library ? dlsym(library, "__sanitizer_set_report_path") : nullptr;
    if (found) reinterpret_cast<void (*)(const char*)>(found)(std::getenv("SANITIZER_REPORTS"));
}
"""
"""Library that sets the file of UndefinedBehaviorSanitizer: its own `log_path` sets AddressSanitizer's, whose
function of that name is loaded first."""
COMPILE = "from livectr.kernels.runtime.library import kernel_library; kernel_library()"
COMPILE_FRONT = "from livectr.serving.native.build import main; main()"


@dataclass(frozen=True)
class Kind:
    """Sanitizers that go together.

    Args:
        flags: argument of -fsanitize.
        runtimes: libraries that a process loads before all others.
        options: variables of the runtimes.
        tests: words of pytest.
    """

    flags: str
    runtimes: tuple[str, ...]
    options: dict[str, str]
    tests: tuple[str, ...]


KINDS = {
    "address": Kind(
        "address,undefined",
        ("libasan.so", "libubsan.so"),
        {
            # Java and Python handle SIGSEGV themselves; Python frees nothing at its end; a test asks for too
            # much memory; tests of the compiler load copies of one library.
            "ASAN_OPTIONS": "handle_segv=0:detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        ("tests/kernels", "tests/ingest", "tests/serving"),
    ),
    "thread": Kind(
        "thread",
        ("libtsan.so",),
        {
            # A test starts threads in a fork of a process with threads. A fork takes more locks of Arrow's
            # allocator than the detector of deadlocks can count.
            "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:report_signal_unsafe=0:die_after_fork=0"
            ":detect_deadlocks=0"
        },
        (
            *("tests/kernels/test_table.py", "tests/kernels/test_fields.py", "tests/kernels/test_moves.py"),
            *("tests/kernels/test_join.py", "tests/kernels/test_history.py", "tests/kernels/test_row_log.py"),
            *("tests/kernels/test_unique.py", "tests/kernels/test_gather.py", "tests/kernels/test_usage.py"),
            *(
                "tests/kernels/test_retrieval.py",
                "tests/kernels/test_score.py",
                "tests/kernels/test_select.py",
                "tests/kernels/test_layers.py",
                "tests/kernels/test_small_batch.py",
                "tests/ingest/test_features.py",
                "tests/ingest/test_staging.py",
                "tests/serving/test_request_parser.py",
                "tests/serving/test_request_features.py",
                "tests/serving/test_shared_columns.py",
            ),
        ),
    ),
}


def environment(kind: Kind, folder: Path) -> dict[str, str]:
    """Variables of a process whose kernels have sanitizers, and whose reports go to a folder."""
    compiler = os.environ.get("CXX") or "c++"
    found = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        for name in kind.runtimes
    ]
    libraries = [str(Path(done.stdout.strip()).resolve()) for done in found]
    if "libubsan.so" in kind.runtimes:
        libraries.append(f"{folder}/to_file.so")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", libraries[-1]],
            input=TO_FILE,
            text=True,
            check=True,
        )
    options = {name: f"{words}:log_path={folder}/report" for name, words in kind.options.items()}
    return {
        **os.environ,
        **options,
        "SANITIZER_REPORTS": f"{folder}/undefined",
        "LIVECTR_SANITIZE": kind.flags,
        "LD_PRELOAD": " ".join(libraries),
    }


def run(kind: Kind, words: Sequence[str]) -> int:
    """Run pytest with the sanitizers of a kind, and show every report of its processes.

    Returns:
        0 if all tests passed and there was no report.
    """
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "pytest", *words]
        done = subprocess.run(command, cwd=ROOT, env=environment(kind, Path(name)))
        files = [file for pattern in ("report.*", "undefined.*") for file in sorted(Path(name).glob(pattern))]
        texts = [file.read_text(errors="replace") for file in files]
    reports = [text for text in texts if REPORT.search(text)]
    print(*reports, f"{kind.flags}: {len(reports)} processes with a report", sep="\n", flush=True)
    return done.returncode or min(len(reports), 1)


def compile_library(kind: Kind) -> None:
    """Compile the libraries of kernels and of the front with the sanitizers of a kind, unless they are there.

    The front's needs nghttp2; its tests fail where there is none.
    """
    with tempfile.TemporaryDirectory() as name:
        variables = environment(kind, Path(name))
        subprocess.run([sys.executable, "-c", COMPILE], cwd=ROOT, env=variables, check=True)
        subprocess.run([sys.executable, "-c", COMPILE_FRONT], cwd=ROOT, env=variables)


def main() -> int:
    """Run the tests of each kind; words behind the kinds go to pytest in place of the kind's own."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("words", nargs="*", help=f"kinds ({', '.join(KINDS)}) [all], and words of pytest")
    parser.add_argument("--workers", default="3", help="processes of pytest")
    given, options = parser.parse_known_args()
    words = [*(word for word in given.words if word not in KINDS), *options]
    failed = 0
    for name in [word for word in given.words if word in KINDS] or KINDS:
        kind = KINDS[name]
        print(f"sanitizers: {kind.flags}", flush=True)
        compile_library(kind)
        usual = ("-m", "not unsanitized", f"--numprocesses={given.workers}", "--dist=loadscope")
        failed |= run(kind, (*usual, *(words or kind.tests)))
    return failed


if __name__ == "__main__":
    sys.exit(main())
