"""These tests need a GPU; where there is none, `make test-gpu` fails rather than skip them.

`tests/conftest.py` is not theirs: the kit runs them on a machine without brokers and servers.
"""

from __future__ import annotations

import pytest

from livectr.kernels.runtime.device import require_gpu
from tests.gpu.here import DRY


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    if not DRY:
        require_gpu()
