"""The promotion rule: against a plain sum over all losses, and in hand-made contests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from livectr.ingest.language.promotion import PANES, Promotion
from livectr.system.errors import ConfigError
from livectr.trainer.quality.champion import ChampionPolicy, champion_of
from tests.tiers import examples

ROLES = ("rank", "deep", "wide")
WINDOW = 40


def contest(margin: float = 0.1, window: int = WINDOW, roles: tuple[str, ...] = ROLES[:2]) -> ChampionPolicy:
    return ChampionPolicy(roles, Promotion(margin=margin, window=window))


def feed(policy: ChampionPolicy, examples: int, *losses: float) -> list[tuple[str, int]]:
    """Examples of equal losses; returns (new champion, examples counted at its promotion)."""
    changes = policy.add(np.tile(np.array(losses)[:, None], examples))
    return [(change.champion, change.counted) for change in changes]


def test_a_challenger_is_promoted_at_the_end_of_the_first_full_window() -> None:
    policy = contest()
    assert feed(policy, WINDOW - 1, 1.0, 0.5) == []
    assert policy.champion == "rank" and policy.window == (39, {"rank": 1.0, "deep": 0.5})
    assert feed(policy, 1, 1.0, 0.5) == [("deep", WINDOW)]
    assert (policy.champion, policy.changes) == ("deep", 1)
    assert policy.window[0] == 0, "the next window begins with the next example"


@pytest.mark.parametrize(("loss", "promoted"), [(0.89, True), (0.91, False), (0.9, False), (1.0, False)])
def test_the_margin_has_to_be_beaten(loss: float, promoted: bool) -> None:
    policy = contest(margin=0.1)
    assert bool(feed(policy, 10 * WINDOW, 1.0, loss)) is promoted


def test_without_a_margin_ties_change_nothing() -> None:
    policy = contest(margin=0.0)
    assert feed(policy, 10 * WINDOW, 0.5, 0.5) == []
    assert feed(policy, 10 * WINDOW, 0.5, 0.5 - 1e-9) == [("deep", 10 * WINDOW + WINDOW // PANES)]


def test_of_equal_challengers_the_first_named_is_promoted_and_of_others_the_best() -> None:
    assert feed(contest(roles=ROLES), WINDOW, 1.0, 0.5, 0.5) == [("deep", WINDOW)]
    assert feed(contest(roles=ROLES), WINDOW, 1.0, 0.5, 0.4) == [("wide", WINDOW)]


def test_a_change_is_followed_by_a_whole_window_without_change_and_a_return_needs_the_margin() -> None:
    policy = contest()
    feed(policy, WINDOW, 1.0, 0.5)
    assert feed(policy, WINDOW - 1, 0.1, 1.0) == [], "at once far worse, but the window is not full"
    assert feed(policy, 1, 0.1, 1.0) == [("rank", 2 * WINDOW)]
    assert feed(policy, 10 * WINDOW, 1.0, 0.95) == []


def test_losses_before_the_window_are_forgotten() -> None:
    policy = contest()
    feed(policy, 100 * WINDOW, 1.0, 5.0)
    assert feed(policy, WINDOW, 1.0, 0.5)[0][0] == "deep"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_diverges_loses(bad: float) -> None:
    assert feed(contest(), WINDOW, bad, 9.0) == [("deep", WINDOW)]
    assert feed(contest(), WINDOW, 9.0, bad) == []
    assert feed(contest(), WINDOW, bad, bad) == []


@examples(60)
@given(
    seed=st.integers(0, 2**32 - 1),
    window=st.integers(PANES, 3 * PANES + 7),
    margin=st.sampled_from([0.0, 0.02, 0.2]),
    cuts=st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=30),
)
def test_any_batches_and_resumes_decide_as_a_plain_sum(
    seed: int, window: int, margin: float, cuts: list[tuple[int, bool]]
) -> None:
    rng = np.random.default_rng(seed)
    losses = np.repeat(rng.uniform(0.1, 1, (3, 6)), 100, axis=1) * rng.uniform(0.8, 1.2, (3, 600))
    policy, start, got = contest(margin, window, ROLES), 0, []
    for size, resumes in [*cuts, (600, False)]:
        part = losses[:, start : start + size]
        got += [(change.champion, change.counted) for change in policy.add(part)]
        start += part.shape[1]
        if resumes:
            state = policy.state()
            policy = contest(margin, window, ROLES)
            policy.load(state)
            assert policy.state().keys() == state.keys()
            assert all((policy.state()[name] == values).all() for name, values in state.items())
    assert got == plain(losses, window, margin)
    assert policy.changes == len(got) and policy.counted == 600
    assert policy.champion == (got[-1][0] if got else "rank") == champion_of(policy.state())


def plain(losses: np.ndarray, window: int, margin: float) -> list[tuple[str, int]]:
    """The rule in words: at every twentieth of a window, means over the last `window` examples."""
    champion, since, changes = 0, 0, []
    for end in range(1, losses.shape[1] + 1):
        asked = any((end - since) == k * window // PANES for k in range(1, losses.shape[1]))
        if not asked or end - since < window:
            continue
        mean = losses[:, end - window : end].mean(axis=1)
        if mean.min() < (1 - margin) * mean[champion]:
            champion, since = int(mean.argmin()), end
            changes.append((ROLES[champion], end))
    return changes


def test_another_window_keeps_the_champion_and_begins_again() -> None:
    policy, other = contest(), contest(window=2 * WINDOW)
    feed(policy, WINDOW, 1.0, 0.5)
    feed(policy, WINDOW - 1, 0.1, 1.0)
    other.load(policy.state())
    assert (other.champion, other.changes, other.counted) == ("deep", 1, 2 * WINDOW - 1)
    assert feed(other, 2 * WINDOW - 1, 0.1, 1.0) == []
    assert feed(other, 1, 0.1, 1.0) == [("rank", 4 * WINDOW - 1)]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (dict(window=0), "window is 0; it is a number of examples, at least 20"),
        (dict(window=19), "window is 19; it is a number of examples, at least 20"),
        (dict(window="1h"), "window is '1h'; it is a number of examples"),
        (dict(margin=-0.1), "margin is -0.1; it is a share of the champion's log loss"),
        (dict(margin=1.0), "margin is 1.0; it is a share"),
        (dict(margin=float("nan")), "margin is nan; it is a share"),
        (dict(margin="5%"), "margin is '5%'; write a share such as 0.005"),
    ],
)
def test_bad_rules_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")):
        Promotion(**settings)  # type: ignore[arg-type]
