"""Reports of sanitizers are shown although pytest captures stderr, and though a test expects a failure."""

from pathlib import Path

import pytest

from tests.sanitizers import KINDS, run
from tests.tiers import few

ERRORS = {
    "heap-buffer-overflow": "char* p = new char[4]; memset(p, 1, at + 1); at = *p; delete[] p; return at;",
    "signed integer overflow": "return 2147483647 + at;",
}
TEST = '''
import subprocess, sys
from livectr.kernels.runtime.compiler import compile_host

CALL = """
from livectr.kernels.runtime.compiler import compile_host
compile_host(SOURCE, name="wrong").wrong(4)
"""
SOURCE = '#include <cstring>\\nextern "C" int wrong(int at) { BODY }'

def test_here():
    compile_host(SOURCE, name="wrong").wrong(4)

def test_in_another_process():
    done = subprocess.run([sys.executable, "-c", f"SOURCE = {SOURCE!r}\\n{CALL}"], capture_output=True)
    assert done.returncode != 0
'''


@pytest.mark.parametrize("error", few(ERRORS, next(iter(ERRORS))))
@pytest.mark.parametrize("test", ["test_here", "test_in_another_process"])
def test_every_report_is_shown_and_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str, test: str
) -> None:
    (tmp_path / "test_wrong.py").write_text(TEST.replace("BODY", ERRORS[error]))
    assert run(KINDS["address"], ("--numprocesses=0", f"{tmp_path}/test_wrong.py::{test}")) == 1
    said = capsys.readouterr().out
    assert error in said and "1 processes with a report" in said


def test_a_run_without_a_report_passes(tmp_path: Path) -> None:
    (tmp_path / "test_right.py").write_text(TEST.replace("BODY", "return at;").replace("!= 0", "== 0"))
    assert run(KINDS["address"], ("--numprocesses=0", f"{tmp_path}/test_right.py")) == 0
