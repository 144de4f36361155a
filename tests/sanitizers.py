"""Tests over kernels that are compiled with sanitizers: `make test-sanitizers [ARGS=KIND]`.

*address* has AddressSanitizer and UndefinedBehaviorSanitizer, over the tests of kernels, ingest and serving.
*thread* has ThreadSanitizer, over the tests of what threads share: tables, joins, stores, the pool.
The first report ends its process, so that its test fails. Such kernels have names of their own in the cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


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
        {"TSAN_OPTIONS": "halt_on_error=1:exitcode=66:report_signal_unsafe=0"},
        (
            *("tests/kernels/test_table.py", "tests/kernels/test_fields.py", "tests/kernels/test_moves.py"),
            *("tests/kernels/test_join.py", "tests/kernels/test_history.py", "tests/kernels/test_row_log.py"),
            *("tests/kernels/test_unique.py", "tests/kernels/test_gather.py", "tests/kernels/test_usage.py"),
            *(
                "tests/kernels/test_retrieval.py",
                "tests/kernels/test_layers.py",
                "tests/ingest/test_features.py",
            ),
        ),
    ),
}


def environment(kind: Kind) -> dict[str, str]:
    """Variables of a process whose kernels have the sanitizers of a kind."""
    compiler = os.environ.get("CXX") or "c++"
    found = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        for name in kind.runtimes
    ]
    preload = " ".join(str(Path(done.stdout.strip()).resolve()) for done in found)
    return {**os.environ, **kind.options, "LIVECTR_SANITIZE": kind.flags, "LD_PRELOAD": preload}


def main() -> int:
    """Run the tests of each kind; words after `--` go to pytest in place of the kind's own."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], help="kinds of sanitizers [all]")
    parser.add_argument("--workers", default="3", help="processes of pytest")
    given, words = parser.parse_known_args()
    failed = 0
    for name in given.kinds or KINDS:
        kind = KINDS[name]
        command = [sys.executable, "-m", "pytest", f"--numprocesses={given.workers}", "--dist=loadscope"]
        print(f"sanitizers: {kind.flags}", flush=True)
        failed |= subprocess.run(
            [*command, *(words or kind.tests)], cwd=ROOT, env=environment(kind)
        ).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
