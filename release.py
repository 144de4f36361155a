#!/usr/bin/env python3
"""Build a release: `make release`, in a clean checkout of the release's tag.

The commit of a release has the version in `livectr/__init__.py`, a section of it in CHANGELOG.md, its images
in k8s/, and its wire in `protos/released.binpb`. The tag's name is the version. Steps:

1. Check that all of them agree and that nothing is uncommitted.
2. Build the sdist, and out of it the wheel, with the kernel library for every level of this machine's CPUs.
3. Build the images, and read the bill of materials (CycloneDX) of each; `--no-images` leaves this out.
4. Write SHA256SUMS.

Everything is in dist/VERSION.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent
IMAGES = ("serve", "train")
"""Targets of the Dockerfile that are released. `gpu` needs torch for CUDA, and a check on a GPU."""


class ReleaseError(Exception):
    """Sentence on what keeps this checkout from being a release."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and build; 1 if the checkout is no release."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="step 1 alone")
    parser.add_argument("--no-images", action="store_true", help="leave step 3 out")
    parser.add_argument("--base", help="base image, as of k8s/image/build.py; `debian` needs no registry")
    given = parser.parse_args(arguments)
    try:
        version = read_version(ROOT)
        check(ROOT, version)
        if given.check:
            return 0
        folder = ROOT / "dist" / version
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        build_packages(ROOT, folder)
        if not given.no_images:
            build_images(ROOT, folder, given.base)
        write_sums(folder)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in sorted(folder.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1e6:,.1f} MB")
    return 0


def read_version(root: Path) -> str:
    """Version that `livectr/__init__.py` declares; pyproject.toml takes it from there."""
    found = re.search(
        r'^__version__ = "([^"]+)"$', (root / "livectr" / "__init__.py").read_text(), re.MULTILINE
    )
    if found is None:
        raise ReleaseError("livectr/__init__.py has no line `__version__ = …`.")
    return found[1]


def check(root: Path, version: str) -> None:
    """Step 1.

    Raises:
        ReleaseError: something is uncommitted or does not agree with the version; says what to do.
    """
    changed = _git(root, "status", "--porcelain").splitlines()
    if changed:
        raise ReleaseError(
            f"the checkout has uncommitted changes ({changed[0].strip()}, …): commit or remove them."
        )
    check_changes((root / "CHANGELOG.md").read_text(), version)
    for path, tag in image_tags(root):
        if tag != version:
            raise ReleaseError(f"{path.relative_to(root)} has images of {tag}: write newTag: {version}.")
    wire = subprocess.run(
        [Path(sys.executable).with_name("buf"), "build", "--exclude-source-info", "--output=-"],
        cwd=root / "protos",
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    if wire != (root / "protos" / "released.binpb").read_bytes():
        raise ReleaseError(
            "protos/released.binpb is not the wire of this version: run `buf build --exclude-source-info "
            "--output released.binpb` in protos/ and commit it."
        )
    tags = _git(root, "tag", "--points-at", "HEAD").split()
    if version not in tags:
        raise ReleaseError(f"no tag {version} points at this commit: `git tag --annotate {version}`.")


def image_tags(root: Path) -> Iterator[tuple[Path, str]]:
    """Kustomizations of k8s/, and the tags that they give to LiveCTR's images."""
    for path in sorted((root / "k8s").rglob("kustomization.yaml")):
        for image in yaml.safe_load(path.read_text()).get("images", ()):
            if image["name"].startswith("livectr/") and "newTag" in image:
                yield path, image["newTag"]


def check_changes(changes: str, version: str) -> None:
    """Check that the newest section of the changes is this version's, has a date, and says something.

    Raises:
        ReleaseError: it does not.
    """
    sections = re.split(r"^## ", changes, flags=re.MULTILINE)[1:]
    title, _, text = sections[0].partition("\n") if sections else ("", "", "")
    if not re.fullmatch(re.escape(version) + r" - \d{4}-\d{2}-\d{2}", title):
        raise ReleaseError(f'the first section of CHANGELOG.md is "{title}": write "{version} - YYYY-MM-DD".')
    if not re.search(r"^- ", text, re.MULTILINE):
        raise ReleaseError(f"the section {version} of CHANGELOG.md lists no change.")


def build_packages(root: Path, folder: Path) -> None:
    """Step 2. Files get the commit's time, so that a second build of the commit is the same."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _git(root, "log", "-1", "--format=%ct").strip()}
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(root)], environment)


def build_images(root: Path, folder: Path, base: str | None = None) -> None:
    """Step 3: IMAGE.tar and IMAGE.cdx.json for each image, on another base image if one is given."""
    words = [f"--folder={folder / 'images'}", *IMAGES, *([f"--base={base}"] if base else [])]
    _run([sys.executable, str(root / "k8s" / "image" / "build.py"), *words])
    for image in IMAGES:
        archive = folder / f"{image}.tar"
        shutil.move(folder / "images" / "archives" / f"{image}.tar", archive)
        (folder / f"{image}.cdx.json").write_bytes(bill_of_materials(archive, image))
    shutil.rmtree(folder / "images")


def bill_of_materials(archive: Path, image: str) -> bytes:
    """Read /opt/livectr/IMAGE.cdx.json of an image, the uppermost layer's.

    Args:
        archive: the image, as `docker save` writes it.
        image: name of the image: serve, train or gpu.

    Raises:
        ReleaseError: no layer has the file.
    """
    wanted = f"opt/livectr/{image}.cdx.json"
    with tarfile.open(archive) as outer:
        (manifest,) = json.loads(_read(outer, "manifest.json"))
        for name in reversed(manifest["Layers"]):
            with tarfile.open(fileobj=outer.extractfile(name)) as layer:
                if wanted in layer.getnames():
                    return _read(layer, wanted)
    raise ReleaseError(f"{archive.name} has no bill of materials {wanted}.")


def write_sums(folder: Path) -> None:
    """Step 4, as `sha256sum --check` reads it."""
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / "SHA256SUMS").write_text("".join(lines))


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise ReleaseError(f"{name} is no file.")
    return file.read()


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise ReleaseError(f"`git {words[0]}` failed: {done.stderr.strip()}")
    return done.stdout


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    if subprocess.run(command, env=environment).returncode != 0:
        raise ReleaseError(f"`{' '.join(command[:3])} …` failed; its last lines say why.")


if __name__ == "__main__":
    sys.exit(main())
