"""Imports of the process from which `tests/ranks.py` and `tests/commands.py` fork.

None of them starts gRPC, or a thread of Python: a fork has the thread alone that forks.
"""

import weakref

from livectr.system.heap import loading

with loading(lean=True):
    import livectr.analysis.evaluate
    import livectr.analysis.score_log
    import livectr.cli
    import livectr.serving.app
    import livectr.trainer.run
    import tests.commands
    import tests.trainer.ad_logs
    import tests.trainer.planted_log
    from livectr.ingest.extract import engines

# As in tests/conftest.py. A process that a forked process starts compiles in the background.
engines.default = "calls"

# PyTorch's finalizers take each of its operators back, for 50 ms at the end of a command.
for finalizer in tuple(weakref.finalize._registry):  # type: ignore[attr-defined]
    finalizer.atexit = False

__all__ = ["livectr", "tests"]
