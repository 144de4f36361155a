"""Networks of a few units: more threads would only wait for each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.setenv("LIVECTR_THREADS", "1")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
