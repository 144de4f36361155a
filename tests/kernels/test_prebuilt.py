"""Prebuilt kernels: found by source and level of the CPU, without a compiler."""

import platform
from pathlib import Path

import pytest

from livectr.kernels.runtime import compiler
from livectr.kernels.runtime.compiler import compile_host, noting, prebuild
from livectr.system.cpu import LEVELS, level, levels_of, own_levels
from livectr.system.errors import ConfigError

SOURCE = """extern "C" int wide() {
#ifdef __AVX2__
    return 1;
#else
    return 0;
#endif
}"""
HASWELL = "fpu cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVECTR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "/nowhere/c++")


def test_levels_are_those_of_the_features() -> None:
    names = [found.name for found in levels_of(f"processor\t: 0\nflags\t\t: {HASWELL}\n", "x86_64")]
    assert names == ["x86-64-v3", "x86-64-v2"]
    without = HASWELL.replace(" movbe", "")
    assert [found.name for found in levels_of(f"flags : {without}", "x86_64")] == ["x86-64-v2"]
    assert [found.name for found in levels_of("Features : fp asimd crc32", "aarch64")] == ["armv8-a"]
    assert levels_of("flags : fpu", "riscv64") == ()
    avx512 = "avx512f avx512bw avx512cd avx512dq avx512vl"
    names = [found.name for found in levels_of(f"flags : {HASWELL} {avx512} avx512_bf16", "x86_64")]
    assert names[:2] == ["x86-64-v4-bf16", "x86-64-v4"]


def test_this_cpu_runs_its_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIVECTR_KERNELS", raising=False)
    assert own_levels()
    for found in own_levels():
        with noting(found, tmp_path) as sources:
            assert compile_host(SOURCE, name="wide").wide() == (found.name >= "x86-64-v3")
        assert len(sources) == 1
    assert {path.parent.name for path in tmp_path.rglob("*.so")} == {found.name for found in own_levels()}


def test_a_kernel_is_found_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.delenv("LIVECTR_KERNELS", raising=False)
    lowest, highest = own_levels()[-1], own_levels()[0]
    with noting(lowest, tmp_path / "low") as sources:
        compile_host(SOURCE, name="wide")
    (source,) = sources
    prebuild(source, highest, tmp_path / "high")
    request.getfixturevalue("no_compiler")
    with pytest.raises(
        ConfigError, match="`livectr features compile`, and name their folder in LIVECTR_KERNELS"
    ):
        compile_host(SOURCE, name="wide")
    monkeypatch.setenv("LIVECTR_KERNELS", f"{tmp_path / 'nowhere'}:{tmp_path / 'low'}:{tmp_path / 'high'}")
    compile_host(SOURCE, name="wide")
    assert tmp_path / "low" / lowest.name in {path.parent for path in compiler._loaded}
    assert prebuild(source, highest, tmp_path / "none").parent == tmp_path / "high" / highest.name
    with pytest.raises(ConfigError, match="no C"):
        compile_host(SOURCE + "\n", name="another source")


def test_a_level_that_the_cpu_lacks_is_compiled_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_compiler: None
) -> None:
    highest, *lower = own_levels()
    monkeypatch.delenv("CXX")
    with noting(highest, tmp_path) as sources:
        compile_host(SOURCE, name="wide")
    (source,) = sources
    monkeypatch.setenv("CXX", "/nowhere/c++")
    monkeypatch.setenv("LIVECTR_KERNELS", str(tmp_path))
    monkeypatch.setattr(compiler, "own_levels", lambda: tuple(lower))
    with pytest.raises(ConfigError, match="no C"):
        compile_host(SOURCE, name="wide")
    assert source.path(tmp_path, highest).exists()


def test_an_unknown_level_names_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert level("x86-64-v3") == LEVELS["x86_64"][2]
    with pytest.raises(
        ConfigError, match=r"'v3' is no level .*: |are x86-64-v4-bf16, x86-64-v4, x86-64-v3, x86-64-v2\."
    ):
        level("v3")
