"""Bandwidth between ranks: measured where there is a link, the same on every rank."""

import json
import math
from pathlib import Path

import pytest

from livectr.trainer.comm.link import _place, rounded
from tests.ranks import run_ranks


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_agree(tmp_path: Path, world: int) -> None:
    run_ranks(world, "tests.trainer.link_worker", str(tmp_path))
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("rank*.json"))]
    assert len(found) == world
    for name in ("here", "apart", "bf16"):
        assert len({one[name] for one in found}) == 1
    assert found[0]["here"] is None
    for name in ("apart", "bf16"):
        assert found[0][name] == rounded(found[0][name]) > 0


@pytest.mark.parametrize(
    ("gbit", "expected"), [(0.94, 1.0), (2.35, 3.16), (9.4, 10.0), (23.5, 31.6), (94.0, 100.0)]
)
def test_usual_links_lie_away_from_the_bounds(gbit: float, expected: float) -> None:
    """A measurement that errs by a fifth is rounded to the same."""
    assert rounded(gbit) == pytest.approx(expected, rel=1e-2)
    assert rounded(gbit * 0.8) == rounded(gbit * 1.2) == rounded(gbit)


def test_a_process_knows_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (_place(0) == _place(1)).all()

    def unknown(self: Path) -> str:
        raise FileNotFoundError(self)

    monkeypatch.setattr(Path, "read_text", unknown)
    assert (_place(0) != _place(1)).any()
    assert math.isfinite(_place(0)[0])
