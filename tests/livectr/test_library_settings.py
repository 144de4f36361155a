"""Settings of a pipeline in Python: they are honoured as by the command."""

from __future__ import annotations

from pathlib import Path

import pytest

import livectr
from tests.livectr.library_pipeline import pipeline

ROWS = [{"user": i % 5, "click": i % 2} for i in range(64)]


def test_training_takes_the_pipelines_settings(tmp_path: Path) -> None:
    assert livectr.train(pipeline(batch_size=8), ROWS, checkpoint=tmp_path / "a").report.steps == 8
    assert livectr.train(pipeline(batch_size=16), ROWS, checkpoint=tmp_path / "b").report.steps == 4
    trained = livectr.train(pipeline(batch_size=16), ROWS, checkpoint=tmp_path / "c", batch_size=32)
    assert trained.report.steps == 2


def test_options_take_them_in_the_order_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = pipeline(batch_size=16, publish_interval_s="2m", dead_letter_spool_bytes="3MiB")
    options = livectr.train_options(made, "file:logs")
    assert (options.batch_size, options.publish_interval_s) == (16, 120.0)
    assert options.dead_letter_spool_bytes == 3 << 20 and options.until_end is False
    monkeypatch.setenv("LIVECTR_BATCH_SIZE", "24")
    assert livectr.train_options(made, "file:logs").batch_size == 24
    assert livectr.train_options(made, "file:logs", batch_size=32).batch_size == 32


def test_options_of_a_file_train_a_rank(tmp_path: Path) -> None:
    from livectr.trainer.run import train

    trained = livectr.train(pipeline(batch_size=8), ROWS, checkpoint=tmp_path / "a", logs=tmp_path / "logs")
    file = tmp_path / "p.py"
    file.write_text(
        "from tests.livectr.library_pipeline import pipeline as make\npipeline = make(batch_size=8)\n"
    )
    options = livectr.train_options(file, f"file:{tmp_path / 'logs'}", until_end=True)
    assert train(pipeline(batch_size=8), options).steps == trained.report.steps == 8


def test_mistakes_are_sentences() -> None:
    with pytest.raises(livectr.ConfigError, match="no setting 'batch_sise'; did you mean 'batch_size'"):
        livectr.train_options(pipeline(), "file:logs", batch_sise=3)
    with pytest.raises(livectr.ConfigError, match="batch_size is 'many', but must be a number"):
        livectr.train_options(pipeline(batch_size="many"), "file:logs")
    with pytest.raises(livectr.ConfigError, match=r"source is 'logs', but must begin with kafka:// or file:"):
        livectr.train_options(pipeline(), "logs")
