"""Write the CycloneDX bill of materials of this Python's packages.

The generator gets an environment of its own, which is removed again: it must not be in the bill or the image.
"""

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path


def main() -> None:
    """Install the generator and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="file to write (JSON)")
    parser.add_argument("--constraint", type=Path, required=True, help="constraints of pip")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        install = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "--constraint", given.constraint, "cyclonedx-bom"], check=True)
        write = [f"{folder}/bin/cyclonedx-py", "environment", "--output-file", given.out, sys.executable]
        subprocess.run(write, check=True)


if __name__ == "__main__":
    main()
