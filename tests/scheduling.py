"""Order in which workers of pytest-xdist get tests: each takes the next one, or the next that stay together.

A worker that crashes fails the test that it ran, and only that: another worker takes what it had left.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

KAFKA = "kafka"
"""Scope of all files that ask for the broker."""
_TOGETHER = {"kafka_url": KAFKA, "k8s_static.rendering": "manifests"}
"""Text of files that stay together → their scope: a process makes for all of them what takes seconds."""


class TestByTest(LoadScopeScheduling):
    """Each worker takes the next test; the tests of a file with a fixture of its own stay in one worker.

    Another worker would make the fixture again. All files that ask for the broker stay together, too, where
    two more would take 45 CPU seconds each, and those that render manifests. (xdist's `loadgroup` does not
    work with pytest 9.2.)
    """

    __test__ = False

    def _split_scope(self, nodeid: str) -> str:
        return scope(self.config, nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give back what a worker has not run; returns the test in which it crashed, which has failed.

        xdist's own would let the next worker run that test again, and crash.
        """
        units = self.assigned_work.pop(node)
        left = {
            name: {test: False for test, done in unit.items() if not done} for name, unit in units.items()
        }
        running = next((test for unit in left.values() for test in unit), None)
        if running is None:
            return None
        for name, unit in reversed(left.items()):
            unit.pop(running, None)
            if unit:
                self.workqueue[name] = unit
                self.workqueue.move_to_end(name, last=False)
        for other in self.nodes:
            self._reschedule(other)
        return running

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker three tests if there are so many; tell it to end after the last ones.

        A worker begins a test once it has the next. xdist's own gives one scope, which may be one test: a
        worker that replaces another would wait for more, and xdist for it.
        """
        while not node.shutting_down:
            if not self.workqueue:
                node.shutdown()
            elif self._pending_of(self.assigned_work[node]) > 2:
                return
            else:
                self._assign_work_unit(node)


def scope(config: pytest.Config, nodeid: str) -> str:
    """Name of what stays in one worker with a test: its own, its file's, or that of several files."""
    return _together(config.rootpath / nodeid.split("::")[0]) or nodeid


@functools.cache
def _together(file: Path) -> str:
    """Name of what the tests of a file share; empty: nothing."""
    text = file.read_text()
    for word, name in _TOGETHER.items():
        if word in text:
            return name
    return str(file) if 'scope="module"' in text else ""
