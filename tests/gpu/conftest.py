"""These tests need a GPU; where there is none, `make test-gpu` fails rather than skip them."""

from __future__ import annotations

import pytest

from livectr.kernels.runtime.device import require_gpu


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    require_gpu()
