"""Plugin of pytest for the kit: notes each test's end when it has ended, and the kernels that tests ask for.

It also has what these tests take from tests/conftest.py, which needs packages that the machine lacks.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from bench.gpu_kit.events import note
from bench.gpu_kit.kernels import watch
from livectr.ingest.extract import engines

settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile("same")
engines.default = "calls"  # a test's plan sees few batches
watch()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Know the markers of tests/, whose settings this run does not read."""
    config.addinivalue_line("markers", "full: of `make test-full` alone")


class Notes:
    """Notes of the process that hears of all tests: workers of pytest-xdist report to it."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that has passed, or a part of it that has not."""
        if report.passed and report.when != "call":
            return
        status = "passed" if report.passed else "not run" if report.skipped else "failed"
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else _last_line(report.longreprtext)
        note("test", name=report.nodeid, status=status, seconds=report.duration, why=why)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note tests in the first process alone."""
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Notes())


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""
