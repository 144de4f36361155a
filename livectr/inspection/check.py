"""Check of all settings, as `livectr train` and `livectr serve` make it at their start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from livectr.config.settings import options_of
from livectr.config.supervision import check_supervision, gang_of

if TYPE_CHECKING:
    from livectr.config.settings import Settings


def check_settings(settings: Settings) -> None:
    """Make the options of every process, without touching a file or an address that they name.

    Raises:
        ConfigError: settings do not go together, or an address has another form.
    """
    from livectr.ingest.addresses import check_kafka, log_folder
    from livectr.serving.options import ServeOptions
    from livectr.trainer.options import TrainOptions

    options_of(TrainOptions, settings, source=settings.source or "file:.")
    check_supervision(settings)
    gang_of(settings, None)
    if settings.source:
        check = check_kafka if settings.source.startswith("kafka:") else log_folder
        check(settings.source)
    options_of(ServeOptions, settings)
