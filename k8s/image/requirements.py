"""Print the packages of an image, one a line, out of pyproject.toml in the working folder or in /src.

torch is left out: install_torch.py installs it, and pip would add what that leaves out.
"""

import sys
import tomllib
from pathlib import Path


def packages(project: dict[str, object], image: str) -> list[str]:
    """Requirements of an image.

    Args:
        project: content of pyproject.toml.
        image: "serve", "train" (all that `serve` lacks, and `protobuf`) or "gpu" (all that `train` lacks).

    Raises:
        KeyError: another image.
    """
    groups: dict[str, list[str]] = project["dependency-groups"]  # type: ignore[assignment]
    main: dict[str, list[str]] = project["project"]  # type: ignore[assignment]
    extras: dict[str, list[str]] = main["optional-dependencies"]  # type: ignore[assignment]
    serve = groups["serve"]
    return {
        "serve": [name for name in serve if not name.startswith("torch")],
        "train": [*(name for name in main["dependencies"] if name not in serve), *extras["protobuf"]],
        "gpu": extras["gpu"],
    }[image]


if __name__ == "__main__":
    folder = next(path for path in (Path(), Path("/src")) if (path / "pyproject.toml").exists())
    content = tomllib.loads((folder / "pyproject.toml").read_text())
    print(*packages(content, sys.argv[1]), sep="\n")
