"""A wheel installs one package, `livectr`, with all that it runs; built from the tree and from an sdist."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from livectr.system.cpu import own_levels

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
USE = """
import sys
from pathlib import Path

import pyarrow as pa

import livectr
import livectr.kernels.runtime.library
import livectr.plan.points
from livectr.ingest.extract.extractor import Extractor
from livectr.serving.native.build import front_library

package = Path(livectr.__file__).parent
assert package.parent == Path(sys.argv[1]), package
for module in (*(link.name for link in package.iterdir() if link.is_dir()), "bench", "tests"):
    assert module not in sys.modules, module
assert livectr.plan.points.points()["join"].value > 0
pipeline = livectr.load_pipeline(package / "examples" / "criteo" / "pipeline.py")
columns = {root.name: pa.nulls(2, livectr.ingest.language.dtypes.arrow_type(root.dtype))
           for root in pipeline.plan.roots}
assert Extractor(pipeline.plan)(pa.RecordBatch.from_pydict(columns)).rows == 2
for library in (livectr.kernels.runtime.library.kernel_library(), front_library()):
    assert package in Path(library._name).parents
"""


def checkout(folder: Path) -> Path:
    """The files of the checkout that git would commit, links as links."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, capture_output=True, check=True).stdout.split(b"\0")
    for name in sorted({os.fsdecode(name) for name in names if name}):
        source, target = ROOT / name, folder / name
        if source.exists() or source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target, follow_symlinks=False)
    return folder


def build(kind: str, tree: Path, out: Path) -> Path:
    """The file that setuptools' `build_wheel` or `build_sdist` makes of a tree; no network is needed."""
    out.mkdir()
    variables = {**os.environ, "LIVECTR_BUILD_LEVELS": own_levels()[0].name}
    command = [sys.executable, "-c", BUILD, kind, str(out)]
    done = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(out.iterdir())


@pytest.fixture(scope="module", params=["tree", "sdist"])
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("build")
    tree = checkout(work / "tree")
    if request.param == "sdist":
        with tarfile.open(build("build_sdist", tree, work / "sdist")) as packed:
            # Python 3.11.0 to 3.11.3 have no filters.
            packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
            packed.extractall(work / "unpacked")
        tree = next((work / "unpacked").iterdir())
    return build("build_wheel", tree, work / "wheel")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


def run(installed: Path, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python outside of the checkout, with the unpacked wheel before all other packages."""
    own = {"PYTHONPATH": str(installed), "LIVECTR_CACHE_DIR": str(work / "cache")}
    variables = {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}  # another test lists the wheel's files
    return subprocess.run(
        [sys.executable, *arguments], cwd=work, env=variables, capture_output=True, text=True
    )


def test_one_top_level_package(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"livectr"}
    (top_level,) = installed.glob("*.dist-info/top_level.txt")
    assert top_level.read_text().split() == ["livectr"]


def test_sources_and_data_are_in_it(installed: Path) -> None:
    package = installed / "livectr"
    for folder in (
        "client",
        "ingest",
        "kernels",
        "models",
        "protos",
        "serving",
        "store",
        "system",
        "trainer",
        "examples",
    ):
        kept = (".py", ".pyi", ".cpp", ".cuh", ".hpp", ".html", ".proto", ".md", ".sh")
        ours = {str(p.relative_to(ROOT / folder)) for p in (ROOT / folder).rglob("*") if p.suffix in kept}
        theirs = {str(p.relative_to(package / folder)) for p in (package / folder).rglob("*") if p.is_file()}
        assert ours == {name for name in theirs if not name.startswith("built/")}
    front, library = sorted((package / "kernels" / "built").rglob("*.so"))
    assert front.name.startswith("front-") and library.parent.name == own_levels()[0].name
    assert (package / "py.typed").is_file()
    assert not {"tests", "bench"} & {path.name for path in package.rglob("*")} - {"bench.py"}


@pytest.mark.parametrize("wheel", ["tree", pytest.param("sdist", marks=pytest.mark.full)], indirect=True)
def test_it_runs_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-c", USE, str(installed))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("wheel", ["tree", pytest.param("sdist", marks=pytest.mark.full)], indirect=True)
def test_commands_run_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-m", "livectr", "init", "--example", "display_ads", "--out", "mine")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine" / "pipeline.py").read_text() == (
        ROOT / "examples" / "display_ads" / "pipeline.py"
    ).read_text()
    again = run(installed, tmp_path, "-m", "livectr", "init", "--example", "display_ads", "--out", "mine")
    assert again.returncode == 2 and "mine holds README.md, pipeline.py" in again.stderr
    bench = run(installed, tmp_path, "-m", "livectr", "bench", "ingest")
    assert bench.returncode == 2 and "needs a checkout" in bench.stderr
