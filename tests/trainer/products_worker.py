"""Rank of test_products.py on a CPU of its own make: writes OUT/RANK, the library that the ranks agree on."""

from pathlib import Path
from unittest.mock import patch

from livectr.trainer.checkpoint import arithmetic
from livectr.trainer.comm.collectives import connect
from livectr.trainer.comm.control import Control
from livectr.trainer.options import TrainOptions


def main(folder: str) -> None:
    """Let the packed kernel suit rank 0 alone."""
    with (
        connect() as shared,
        patch.object(arithmetic, "suited", lambda: "torch" if shared.rank else "packed"),
    ):
        settings = arithmetic.settled(TrainOptions("file:log"), Control(shared.rank, shared.world), None)
        (Path(folder) / str(shared.rank)).write_text(settings.library)
