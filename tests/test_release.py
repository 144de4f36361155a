"""A checkout that is no release is refused with what to do; a bill of materials is taken out of an image."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import release

ROOT = Path(__file__).parents[1]
CHANGES = (
    "# Changes\n\n## 1.2.3 - 2026-11-29\n\n### Added\n\n- A thing.\n\n## 1.2.2 - 2026-11-01\n\n- Older.\n"
)


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Checkout of release 1.2.3."""
    (tmp_path / "livectr").mkdir()
    (tmp_path / "livectr" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "k8s" / "base").mkdir(parents=True)
    (tmp_path / "k8s" / "base" / "kustomization.yaml").write_text(
        "images:\n  - name: livectr/serve\n    newTag: 1.2.3\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    (tmp_path / "protos").mkdir()
    for name in ("livectr.proto", "buf.yaml"):
        shutil.copy(ROOT / "protos" / name, tmp_path / "protos")
    buf = [
        str(Path(sys.executable).with_name("buf")),
        "build",
        "--exclude-source-info",
        "--output=released.binpb",
    ]
    subprocess.run(buf, cwd=tmp_path / "protos", check=True)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=Release 1.2.3")
    git(tmp_path, "tag", "1.2.3")
    return tmp_path


def test_a_release_is_accepted(checkout: Path) -> None:
    version = release.read_version(checkout)
    assert version == "1.2.3"
    release.check(checkout, version)


@pytest.mark.parametrize(
    ("file", "before", "after", "sentence"),
    [
        ("CHANGELOG.md", "2026-11-29", "unreleased", r'write "1\.2\.3 - YYYY-MM-DD"'),
        ("CHANGELOG.md", "1.2.3", "1.2.4", r'the first section of CHANGELOG\.md is "1\.2\.4 - 2026-11-29"'),
        ("CHANGELOG.md", "- A thing.\n", "", "lists no change"),
        ("CHANGELOG.md", "## ", "", 'the first section of CHANGELOG.md is ""'),
        (
            "k8s/base/kustomization.yaml",
            "1.2.3",
            "1.2.2",
            r"k8s/base/kustomization\.yaml has images of 1\.2\.2",
        ),
        (
            "protos/livectr.proto",
            "message DescribeRequest {}",
            "message DescribeRequest { bool brief = 1; }",
            "wire",
        ),
        ("livectr/__init__.py", "1.2.3", "1.2.4", "the first section"),
    ],
    ids=["no date", "other section", "empty section", "no section", "images", "wire", "version"],
)
def test_what_does_not_agree_is_refused(
    file: str, before: str, after: str, sentence: str, checkout: Path
) -> None:
    text = (checkout / file).read_text()
    assert before in text
    (checkout / file).write_text(text.replace(before, after))
    git(checkout, "commit", "--quiet", "--all", "--message=Change")
    git(checkout, "tag", "--force", "1.2.3")
    with pytest.raises(release.ReleaseError, match=sentence):
        release.check(checkout, release.read_version(checkout))


def test_uncommitted_files_are_refused(checkout: Path) -> None:
    (checkout / "new.py").write_text("")
    with pytest.raises(release.ReleaseError, match=r"uncommitted changes \(\?\? new\.py"):
        release.check(checkout, "1.2.3")


def test_a_tag_of_another_commit_is_refused(checkout: Path) -> None:
    git(checkout, "commit", "--quiet", "--allow-empty", "--message=Another")
    with pytest.raises(release.ReleaseError, match=r"no tag 1\.2\.3 points at this commit"):
        release.check(checkout, "1.2.3")


def test_the_uppermost_bill_of_materials_is_read(tmp_path: Path) -> None:
    def packed(files: dict[str, bytes]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return out.getvalue()

    layers = {
        "a/layer.tar": packed({"opt/livectr/serve.cdx.json": b"lower"}),
        "b/layer.tar": packed({"opt/livectr/serve.cdx.json": b"upper"}),
        "c/layer.tar": packed({"opt/livectr/app": b""}),
    }
    manifest = json.dumps([{"Layers": list(layers)}]).encode()
    (tmp_path / "serve.tar").write_bytes(packed({"manifest.json": manifest, **layers}))
    assert release.bill_of_materials(tmp_path / "serve.tar", "serve") == b"upper"
    with pytest.raises(release.ReleaseError, match=r"serve\.tar has no bill of materials"):
        release.bill_of_materials(tmp_path / "serve.tar", "train")


def test_sums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "b.tar.gz").write_bytes(b"sdist")
    release.write_sums(tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True)
    assert len((tmp_path / "SHA256SUMS").read_text().splitlines()) == 2


def test_this_checkouts_images_and_pages_have_its_version() -> None:
    version = release.read_version(ROOT)
    tags = [
        *release.image_tags(ROOT),
        *(
            (path, tag)
            for path in sorted((ROOT / "docs").glob("*.md"))
            for tag in re.findall(r"\blivectr/(?:serve|train|gpu):(\d\S*)", path.read_text())
        ),
    ]
    assert len(tags) >= 10 and {tag for _, tag in tags} == {version}, tags
