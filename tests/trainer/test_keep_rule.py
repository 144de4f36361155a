"""Generations that are kept for rollbacks: by age, none of a bad time, bounded in bytes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from livectr.config.parsing import parse
from livectr.system.errors import ConfigError
from livectr.trainer.checkpoint.manifest import FileEntry, Manifest
from livectr.trainer.keep_rule import AGES, LEAST_BYTES, KeepRule, parse_ages

START_MS = 1_795_000_123_456


def generation(number: int, at_ms: int, *, held: str = "", files: Sequence[tuple[str, int]] = ()) -> Manifest:
    entries = tuple(FileEntry(path, "tables", size, "") for path, size in files)
    return Manifest(
        number, 1, 1, 64, 0, {}, None, entries, (), {}, {}, {}, "",
        began_ms=1, created_ms=at_ms, quality={"held": held},
    )  # fmt: skip


def test_there_is_always_one_of_each_age() -> None:
    ages = parse_ages(AGES)
    assert ages == (60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000)
    rule, kept = KeepRule(ages), list[Manifest]()
    for number, at_ms in enumerate(range(START_MS, START_MS + 3 * ages[-1], 20_000)):
        kept = rule.kept([*kept, generation(number, at_ms)])
        assert kept, "from the first generation on"
        assert len(kept) <= 2 * len(ages)
        held = [at_ms - m.created_ms for m in kept]
        for age_ms in ages:
            if at_ms - START_MS >= 2 * age_ms:
                assert any(age_ms - 20_000 <= age <= 2 * age_ms for age in held), (age_ms, held)


def test_none_is_of_a_bad_time_and_a_hold_keeps_what_there_is() -> None:
    rule, kept = KeepRule(parse_ages("1m,5m")), list[Manifest]()
    for minute in range(60):
        kept = rule.kept([*kept, generation(minute, START_MS + minute * 60_000)])
    before = [m.generation for m in kept]
    for minute in range(60, 200):
        kept = rule.kept([*kept, generation(minute, START_MS + minute * 60_000, held="gate: auc")])
    assert [m.generation for m in kept] == before
    day_later = generation(200, START_MS + 1_640 * 60_000)
    assert before[-1] in {m.generation for m in rule.kept([*kept, day_later])}, "nobody was there meanwhile"
    assert KeepRule().kept([day_later]) == []
    assert rule.kept([replace(day_later, examples=0)]) == [], "nothing is learned"


def test_the_oldest_go_first_where_bytes_are_bounded() -> None:
    """Each has a file of its own of 10 bytes, and one that it shares with the next."""
    older = [
        generation(n, START_MS + n * 60_000, files=[(f"own-{n}", 10), (f"shared-{n // 2}", 100)])
        for n in range(4)
    ]
    newest = [generation(9, START_MS + 300_000, files=[("own-9", 10), ("shared-1", 100)])]

    def of(most: int | None) -> list[int]:
        return [m.generation for m in KeepRule((60_000, 120_000), most).kept(older, newest)]

    assert of(1_000)[-2:] == [2, 3] and len(of(1_000)) == 3
    assert of(20) == [2, 3], "their shared file is the newest's, too"
    assert of(19) == [3] and of(9) == []
    assert of(None) == of(LEAST_BYTES)


def test_ages_that_are_none_are_explained() -> None:
    assert parse_ages("none") == () and parse_ages("1h, 5m,60m") == (300_000, 3_600_000)
    with pytest.raises(ConfigError, match=r"keep_ages is '1h;2h'.*such as \"1m,5m,15m,1h,6h,1d\", or none"):
        parse_ages("1h;2h")
    for former in ("keep_versions", "keep_every_s"):
        with pytest.raises(ConfigError, match=f"{former} is no setting any more; keep_ages names the ages"):
            parse(former, "2", "livectr.toml")
