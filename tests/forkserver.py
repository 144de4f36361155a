"""Imports of the process from which `tests/ranks.py` forks."""

from livectr.kernels.process.heap import loading

with loading(lean=True):
    import livectr.trainer.run
    import tests.trainer.ad_logs
    import tests.trainer.planted_log

__all__ = ["livectr", "tests"]
