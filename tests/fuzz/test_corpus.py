"""Inputs of the fuzzers that are kept, as tests: what was mended stays mended."""

from __future__ import annotations

import pytest

from tests.fuzz import native_programs as native
from tests.fuzz.targets import CORPUS, TARGETS, inputs

MOST_INPUTS, MOST_BYTES = 30, 4000


def test_every_target_has_a_few_small_inputs() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*TARGETS}
    for target in TARGETS.values():
        kept = inputs(target)
        assert 0 < len(kept) <= MOST_INPUTS, target.name
        for path in kept:
            assert path.stat().st_size <= min(target.most_bytes, MOST_BYTES), path


def test_inputs_of_targets_in_python() -> None:
    failed: list[str] = []
    for target in TARGETS.values():
        if target.native:
            continue
        body = target.body()
        for path in inputs(target):
            try:
                body(path.read_bytes())
            except Exception as error:  # any error is a finding: name its input, and continue with the others
                failed.append(f"{target.name}/{path.name}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)


@pytest.mark.full
def test_inputs_of_targets_in_cpp() -> None:
    """In one process, with AddressSanitizer and UndefinedBehaviorSanitizer."""
    names = [target.name for target in TARGETS.values() if target.native]
    program = native.replayer(names)
    kept = [(name, path) for name in names for path in inputs(TARGETS[name])]
    assert not (report := native.replay(program, kept)), report
