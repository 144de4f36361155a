"""`livectr example NAME --to DIR`: copy an example that is installed with the package."""

import argparse
import shutil
from pathlib import Path
from typing import Any

from livectr.commands.flags import command
from livectr.system.errors import ConfigError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def names() -> list[str]:
    """Names of the examples."""
    return sorted(file.parent.name for file in EXAMPLES.glob("*/pipeline.py"))


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "example",
        run,
        "copy an example's pipeline file and its page into a folder, to start from",
        "  livectr example display_ads --to my_ads\n  livectr inspect --pipeline my_ads/pipeline.py",
    )
    parser.add_argument("name", metavar="NAME", choices=names(), help=", ".join(names()))
    parser.add_argument("--to", required=True, metavar="DIR", help="the folder; made if it is not there")


def run(given: argparse.Namespace) -> int:
    """Copy the files, and print their paths."""
    for file in copy_example(given.name, Path(given.to)):
        print(file)
    return 0


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
