"""Kernel library: found before it is compiled, compiled once by many processes, of fitting units."""

import ctypes
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from livectr.kernels.runtime import compiler, library
from livectr.kernels.runtime.library import build, has_library, kernel_library
from livectr.system.cpu import own_levels
from livectr.system.errors import ConfigError, KernelError

ONE = 'extern "C" int one() { return 1; }\n'
HALF = '// flags: -DHALF=0.5\n#include "shared.hpp"\nextern "C" double half() { return TIMES * HALF; }\n'


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of two small units in place of `kernels/`, and an empty cache."""
    folder = tmp_path / "kernels"
    (folder / "room").mkdir(parents=True)
    (folder / "room" / "one.cpp").write_text(ONE)
    (folder / "half.cpp").write_text(HALF)
    (folder / "shared.hpp").write_text("#define TIMES 1\n")
    for module in (compiler, library):
        monkeypatch.setattr(module, "KERNELS", folder)
    monkeypatch.setattr(library, "BUILT", folder / "built")
    monkeypatch.setenv("LIVECTR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("LIVECTR_KERNELS", raising=False)
    forget()
    yield folder
    monkeypatch.undo()
    forget()


def forget() -> None:
    for cached in (kernel_library, library._units, library._words):
        cached.cache_clear()


def objects(tmp_path: Path) -> set[Path]:
    return set((tmp_path / "cache").rglob("*.o"))


def test_the_first_process_compiles_it_and_says_so(
    units: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = kernel_library()
    loaded.half.restype = ctypes.c_double
    assert (loaded.one(), loaded.half()) == (1, 0.5)
    assert capsys.readouterr().err == "compiling the kernels once for this machine: 2 of 2\n"
    forget()
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert kernel_library()._name == loaded._name
    assert capsys.readouterr().err == ""


def test_a_changed_file_compiles_its_units_alone(units: Path, tmp_path: Path) -> None:
    kernel_library()
    before = objects(tmp_path)
    (units / "shared.hpp").write_text("#define TIMES 3\n")
    forget()
    loaded = kernel_library()
    loaded.half.restype = ctypes.c_double
    assert loaded.half() == 1.5
    assert len(before) == 2 and len(objects(tmp_path) - before) == 1


def test_the_package_comes_before_a_folder_and_that_before_the_cache(
    units: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = own_levels()[-1]
    assert Path(kernel_library()._name).is_relative_to(tmp_path / "cache")
    for folder in (tmp_path / "folder", units / "built"):
        build(level, folder)
        monkeypatch.setenv("LIVECTR_KERNELS", f"{tmp_path / 'nowhere'}:{tmp_path / 'folder'}")
        forget()
        assert Path(kernel_library()._name).parent == folder / level.name
    assert has_library(level)


def test_without_a_compiler_the_user_is_told(
    units: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(ConfigError, match="no C"):
        kernel_library()


def test_a_unit_that_does_not_compile_is_named(units: Path) -> None:
    (units / "room" / "one.cpp").write_text("int one( {")
    with pytest.raises(KernelError, match=r"kernel 'room/one\.cpp' does not compile"):
        kernel_library()
    assert not has_library(own_levels()[0])


def test_processes_that_start_together_compile_once(units: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from livectr.kernels.runtime import compiler, library;"
        "compiler.KERNELS = library.KERNELS = Path(sys.argv[1]); library.BUILT = Path(sys.argv[1], 'built');"
        "print(library.kernel_library().one())"
    )
    command = [sys.executable, "-c", script, str(units)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    said = [process.communicate() for process in started]
    assert [out for out, _ in said] == ["1\n"] * 3
    assert sum("compiling" in err for _, err in said) == 1


def test_units_share_no_code_that_their_flags_could_change() -> None:
    """The linker keeps one copy of an inline function: across flags, units share the thread pool alone."""
    units = library._units()
    level = own_levels()[0]
    folder = compiler.cache_folder() / "objects"
    compiler.make_folder(folder)
    words = compiler.compiler_words()
    flags_of: dict[str, set[tuple[str, ...]]] = {}
    for unit in units:
        path = library._object(unit, level, folder, words)
        listed = subprocess.run(
            ["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True
        )
        for line in listed.stdout.splitlines():
            kind, name = line.split(maxsplit=2)[1:]
            if kind in "WVu" and "livectr::" in name:
                flags_of.setdefault(name, set()).add(unit.flags)
    shared = {name for name, flags in flags_of.items() if len(flags) > 1}
    assert len(flags_of) > 20
    assert not {name for name in shared if not re.search(r"livectr::(Pool|pool\(\)|Job)", name)}
