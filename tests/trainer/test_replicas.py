"""A rank whose network differs by a bit ends the run before anything of it is kept or published."""

from pathlib import Path

from livectr.trainer.checkpoint.manifest import newest_manifest
from tests.ranks import run_ranks
from tests.trainer.ad_logs import write_files
from tests.trainer.flipped_worker import PARAMETER

IMPRESSIONS, FLIPPED_AT = 1500, 7


def test_a_flipped_bit_ends_every_rank_and_is_not_kept(tmp_path: Path) -> None:
    source = write_files(tmp_path / "logs", IMPRESSIONS)
    worker = ("tests.trainer.flipped_worker", source, str(tmp_path))
    run_ranks(2, *worker, str(FLIPPED_AT))
    said = [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)]
    assert said[0] == said[1]
    assert f"rank 1 from rank 0 in {PARAMETER}. Nothing of this is kept; start the trainer again" in said[0]
    manifest = newest_manifest(tmp_path / "checkpoint")
    assert manifest is not None and manifest.step < FLIPPED_AT

    for rank in range(2):
        (tmp_path / f"rank-{rank}").unlink()
    run_ranks(2, *worker, "0")
    manifest = newest_manifest(tmp_path / "checkpoint")
    assert manifest is not None and manifest.examples == IMPRESSIONS
    assert not list(tmp_path.glob("rank-*"))
