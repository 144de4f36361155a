"""`livectr init --example NAME`: copy an example that is installed with the package."""

import shutil
from pathlib import Path

from livectr.system.errors import ConfigError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example_names() -> list[str]:
    """Names of the examples."""
    return sorted(file.parent.name for file in EXAMPLES.glob("*/pipeline.py"))


def copy_example(name: str, folder: Path) -> list[Path]:
    """Copy the files of an example into `folder` and return their new paths.

    Raises:
        ConfigError: the folder cannot be made, or holds one of the files.
    """
    files = sorted(file for file in (EXAMPLES / name).iterdir() if file.is_file())
    if existing := [file.name for file in files if (folder / file.name).exists()]:
        raise ConfigError(
            f"{folder} holds {', '.join(existing)} and is not written over; name another folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); name another folder.") from None
    return [Path(shutil.copyfile(file, folder / file.name)) for file in files]
