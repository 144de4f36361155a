#!/usr/bin/env python3
"""Build the images and write them as archives, with buildah, Docker or Podman."""

from __future__ import annotations

import argparse
import configparser
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("LIVECTR_CACHE_DIR") or Path.home() / ".cache" / "livectr") / "images"
REGISTRY_BASE = "docker.io/library/python:3.12-slim-bookworm"
DEBIAN_BASE = "localhost/livectr-base:bookworm"
STAGES = ("packages", "build")
"""Stages that no image contains. A name keeps their layers from Builder.clean, for the next build."""
STAND_INS = {
    "kafka": "docker.io/apache/kafka:4.1.1",
    "valkey": "docker.io/valkey/valkey:8.1.4",
    "haproxy": "docker.io/library/haproxy:3.0.11",
    "prometheus": "docker.io/prom/prometheus:v2.53.5",
}
"""Target of k8s/lab/stand_ins/Dockerfile → name in the manifests."""


class BuildError(Exception):
    """Failure with a sentence for the user."""


@dataclass(frozen=True)
class Builder:
    """Program that builds images.

    Args:
        program: buildah, docker or podman.
        folder: archives; for buildah also its storage.
    """

    program: str
    folder: Path

    def build(self, context: Path, name: str, *words: str) -> None:
        """Build an image."""
        command = {"buildah": ["buildah", "build", "--isolation=chroot", "--layers"]}.get(
            self.program, [self.program, "build"]
        )
        self._run([*command, *self._policy(), "--tag", name, *words, str(context)])

    def clean(self) -> None:
        """Remove what builds have left but images with a name: containers and layers of several GB each.

        Docker and Podman have storage of their own, which is not ours to clean.
        """
        if self.program == "buildah":
            self._run(["buildah", "rm", "--all"], quiet=True)
            self._run(["buildah", "rmi", "--prune"], quiet=True)

    def save(self, name: str, archive: Path) -> None:
        """Write an image as an archive, unless it is there. Uncompressed: its reader is on this machine."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        mark, number = archive.with_suffix(".id"), f"{name} {self.number(name)}"
        if archive.exists() and mark.exists() and mark.read_text() == number:
            return
        mark.unlink(missing_ok=True)
        archive.unlink(missing_ok=True)
        if self.program == "buildah":
            self._run(
                ["buildah", "push", "--quiet", *self._policy(), name, f"docker-archive:{archive}:{name}"]
            )
        else:
            self._run([self.program, "save", "--output", str(archive), name])
        mark.write_text(number)

    def number(self, name: str) -> str:
        """Digest of an image's configuration."""
        template = "{{.FromImageID}}" if self.program == "buildah" else "{{.Id}}"
        command = [self.program, "inspect", "--type=image", f"--format={template}", name]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildError(f"{name} was not built: {done.stderr.strip()}")
        return done.stdout.strip()

    def _policy(self) -> list[str]:
        """Flags of buildah, which refuses to work without a policy for signatures."""
        if self.program != "buildah":
            return []
        policy = self.folder / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
        return [f"--signature-policy={policy}"]

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        if self.program == "buildah":
            storage = self.folder / "storage.conf"
            storage.write_text(
                f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/storage"\n'
                f'runroot = "{self.folder}/storage-run"\n'
            )
            environment["CONTAINERS_STORAGE_CONF"] = str(storage)
        elif self.program == "docker":
            environment["DOCKER_BUILDKIT"] = "1"
        return environment

    def _run(self, command: Sequence[str], *, quiet: bool = False) -> None:
        out = subprocess.DEVNULL if quiet else None
        if subprocess.run(command, env=self._environment(), stdout=out).returncode != 0:
            raise BuildError(f"`{' '.join(command[:2])}` failed; its last lines say why.")


def find_builder(wanted: str | None, folder: Path) -> Builder:
    """Builder of that name, or the first that works: Docker's program is often there without its engine.

    Raises:
        BuildError: none works.
    """
    names = [wanted] if wanted else ["docker", "podman", "buildah"]
    installed = [name for name in names if shutil.which(name)]
    for name in installed:
        if wanted or subprocess.run([name, "info"], capture_output=True).returncode == 0:
            folder.mkdir(parents=True, exist_ok=True)
            return Builder(name, folder)
    idle = f"; {', '.join(installed)} is installed, but `{installed[0]} info` fails" if installed else ""
    raise BuildError(
        f"no builder of images works ({', '.join(names)}){idle}: install one, for example buildah."
    )


def debian_base(builder: Builder) -> str:
    """Make the base image out of Debian's packages; its name. Needs mmdebstrap and root."""
    context = builder.folder / "base"
    context.mkdir(parents=True, exist_ok=True)
    if not (context / "rootfs.tar").exists():
        if shutil.which("mmdebstrap") is None:
            raise BuildError(
                "the base of Debian's packages is made by mmdebstrap: install it, or leave --base out."
            )
        packages = "python3,python3-venv,ca-certificates"
        left_out = [
            f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")
        ]
        made = [*left_out, "bookworm", str(context / "new.tar")]
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", *made], check=True
        )
        (context / "new.tar").rename(context / "rootfs.tar")
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    (context / "Dockerfile").write_text(f"FROM scratch\nADD rootfs.tar /\nENV PATH={path}\n")
    builder.build(context, DEBIAN_BASE)
    return DEBIAN_BASE


def secrets(folder: Path) -> list[str]:
    """Flags that lend the build this machine's settings of pip: its index and its certificates, if any."""
    settings = configparser.ConfigParser()
    settings["global"] = {}
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    for line in listed.stdout.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout"):
            settings["global"][key.replace("default-", "")] = value.strip("'\"")
    flags = []
    bundle = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if bundle:
        settings["global"]["cert"] = "/run/secrets/ca"
        flags.append(f"--secret=id=ca,src={bundle}")
    with (folder / "pip.conf").open("w") as file:
        settings.write(file)
    return [*flags, f"--secret=id=pip,src={folder / 'pip.conf'}"]


def version() -> str:
    """Version of the package, the tag of the images."""
    text = (ROOT / "livectr" / "__init__.py").read_text()
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("__version__"))


def revision() -> str:
    """Commit of the checkout."""
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def build_ours(
    builder: Builder, targets: Sequence[str], base: str, arguments: Sequence[str]
) -> dict[str, str]:
    """Build targets of the Dockerfile; target → name."""
    names = {target: f"docker.io/livectr/{target}:{version()}" for target in targets}
    given = {"BASE": base, "VERSION": version(), "REVISION": revision()}
    words = [f"--build-arg={name}={value}" for name, value in given.items()]
    words += [f"--build-arg={argument}" for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        lent = secrets(Path(folder))
        stages = {stage: f"localhost/livectr-stage:{stage}" for stage in STAGES}
        for target, name in (stages | names).items():
            builder.build(ROOT, name, f"--target={target}", *words, *lent)
    return names


def kafka_jars() -> Path:
    """Folder of Kafka's jars. Raises BuildError under a Python without the project's packages."""
    sys.path.insert(0, str(ROOT))
    try:
        from livectr.local.kafka import broker_jars
    except ModuleNotFoundError as error:
        raise BuildError(
            f"the stand-ins need the package {error.name!r}: `make images` has it, .venv/bin/python, too."
        ) from None
    return broker_jars()


def build_stand_ins(builder: Builder, base: str, jars: Path) -> dict[str, str]:
    """Build the stand-ins of the lab; target → name."""
    file = ROOT / "k8s" / "lab" / "stand_ins" / "Dockerfile"
    for target, name in STAND_INS.items():
        # Kafka's jars lie in the context; the others copy nothing.
        words = [f"--file={file}", f"--target={target}", f"--build-arg=BASE={base}"]
        builder.build(jars.parent, name, *words)
    return STAND_INS


def digest(given: argparse.Namespace) -> str:
    """Digest of the checkout and of the command line; empty outside of a checkout."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, capture_output=True, text=True)
    if done.returncode != 0:
        return ""
    found = hashlib.sha256(repr((revision(), sys.version, sorted(vars(given).items()))).encode())
    for name in sorted(filter(None, done.stdout.split("\0"))):
        path = ROOT / name
        if path.is_file():
            found.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def make(builder: Builder, given: argparse.Namespace) -> None:
    """Build, save, and print the sizes. Archives of the same checkout are not built again."""
    mark, now = given.folder / "archives" / "built.json", digest(given)
    if now and mark.exists():
        built = json.loads(mark.read_text())
        if built["digest"] == now and all(Path(archive).exists() for archive in built["archives"].values()):
            for name, archive in built["archives"].items():
                print(f"{name:40} {Path(archive).stat().st_size / 1e6:8,.0f} MB  {archive}")
            return
    mark.unlink(missing_ok=True)
    builder.clean()  # an interrupted build could not
    try:
        archives = build_all(builder, given)
    finally:
        builder.clean()
    mark.write_text(json.dumps({"digest": now, "archives": archives}))


def build_all(builder: Builder, given: argparse.Namespace) -> dict[str, str]:
    """Build, save, and print the sizes; name of an image → its archive."""
    jars = kafka_jars() if given.stand_ins else None
    base = debian_base(builder) if given.base == "debian" else given.base
    names = build_ours(builder, given.targets, base, given.build_arg)
    if jars is not None:
        names |= build_stand_ins(builder, base, jars)
    archives = {}
    for target, name in names.items():
        archive = given.folder / "archives" / f"{target}.tar"
        builder.save(name, archive)
        archives[name] = str(archive)
        print(f"{name:40} {archive.stat().st_size / 1e6:8,.0f} MB  {archive}")
    return archives


def main() -> int:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "targets", nargs="*", default=["serve", "train"], help="serve, train, gpu [serve train]"
    )
    parser.add_argument("--builder", choices=["buildah", "docker", "podman"], help="[the first installed]")
    parser.add_argument(
        "--base", default=REGISTRY_BASE, help=f"base image, or `debian` to make one [{REGISTRY_BASE}]"
    )
    parser.add_argument(
        "--build-arg", action="append", default=[], metavar="NAME=VALUE", help="TORCH=cuda, CPUS=…"
    )
    parser.add_argument(
        "--stand-ins", action="store_true", help="also the images that a lab without a registry needs"
    )
    parser.add_argument("--folder", type=Path, default=HOME, help=f"archives [{HOME}]")
    given = parser.parse_args()
    try:
        builder = find_builder(given.builder, given.folder)
        lock = (given.folder / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)  # builds share layers and archives
        began = time.monotonic()
        make(builder, given)
    except BuildError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    print(f"built in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
