"""A training run on files: its report, its published version, and what ends it."""

from pathlib import Path

from ad_logs import ad_pipeline, write_files

from trainer.run import TrainOptions, train


def test_a_run_trains_every_example_once(tmp_path: Path) -> None:
    source = write_files(tmp_path / "log", 3_000)
    report = train(
        ad_pipeline(),
        TrainOptions(source, until_end=True, batch_size=128, report=str(tmp_path / "report.json")),
    )
    assert report.examples_trained == 3_000
