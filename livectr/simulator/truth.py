"""Planted truth: click probability of a user for an ad.

    logit P(click) = base + appeal[user] + quality[ad] + <taste[user], style[ad]> + <eye[user], look[image]>
                     + match[segment, category] + relevance(query, title) + device + position + hour

A user's taste, and the taste in images ("eye"), are mostly shared by the segment (age and gender). They drift
as an Ornstein-Uhlenbeck walk around the user's own mean. Ads are born in cohorts and die. A cohort is a pure
function of (seed, cohort number), so any process can compute the ads that are alive. The rest is a function
of the seed and of the calls in their order.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

AGE_BOUNDS = (25, 35, 45, 60)
GENDERS = ("female", "male", "other")
CITIES = (
    "Amsterdam",
    "Bogotá",
    "Cairo",
    "Delhi",
    "Edinburgh",
    "Fukuoka",
    "Genève",
    "Hà Nội",
    "Istanbul",
    "Jakarta",
)
CATEGORIES = (
    "books", "cars", "cosmetics", "electronics", "fashion", "finance",
    "food", "games", "garden", "sports", "toys", "travel",
)  # fmt: skip
WORDS = (
    "new", "best", "sale", "free", "green", "fast", "smart", "soft", "classic", "summer",
    "winter", "mini", "mega", "home", "pro", "light", "blue", "red", "gold", "easy",
)  # fmt: skip
PAGES = ("home", "search", "video", "news")
SEARCH = PAGES.index("search")  # the page whose visitors type a query
DEVICES = ("android", "ios", "desktop")
APPS = ("4.1", "4.2", "5.0")
ADVERTISERS = 40
TASTE = LOOK = 4  # dimensions of style and look
POSITIONS = 4
OWN_TASTE = 0.15  # how far a user's taste is from the segment's, and drifts around its mean

DEVICE_EFFECT = np.array([0.15, 0.05, -0.25])
POSITION_EFFECT = np.array([0.35, 0.1, -0.15, -0.3])
RELEVANCE = 0.8  # of a query whose words are all in the ad's title


@dataclass(frozen=True)
class World:
    """Sizes and rates of the simulated market.

    Args:
        users: number of users.
        ads: number of ads that are alive at a time.
        ad_interval_s: event time between cohorts of new ads.
        ad_life: intervals that an ad lives.
        drift_s: time constant of tastes.
        image_effect: spreads (common, segment, own) of the taste in pictures: of the taste that all users
            share, of segments around it, of users around their segment; the last drifts around its mean.
            Looks have a spread of 0.45 in 4 dimensions, so images add to the logit with a spread of
            0.9 √(common² + segment² + own²).
        base: log odds of a click, without any effect.
        seed: of everything that is random.
    """

    users: int = 2000
    ads: int = 200
    ad_interval_s: float = 3600.0
    ad_life: int = 24
    drift_s: float = 7 * 86_400.0
    image_effect: tuple[float, float, float] = (0.0, 0.35, 0.1)
    base: float = -2.1
    seed: int = 1

    @property
    def cohort(self) -> int:
        """Ads born per interval."""
        return max(1, round(self.ads / self.ad_life))

    def live_ads(self, elapsed_s: float) -> I64:
        """Ids of the ads that are alive at a time after the start: the last `ad_life` cohorts."""
        newest = int(elapsed_s // self.ad_interval_s) + self.ad_life - 1
        return (
            np.arange((newest - self.ad_life + 1) * self.cohort, (newest + 1) * self.cohort, dtype=np.int64)
            + 1
        )

    def cohorts_born(self, elapsed_s: float) -> int:
        """Number of cohorts that were born until a time after the start."""
        return int(elapsed_s // self.ad_interval_s) + self.ad_life


@dataclass(frozen=True)
class Ads:
    """Ads with consecutive ids; A rows. The latent style and look are not written to any log."""

    ad_id: I64  # [A]
    category: I64  # [A] index in CATEGORIES
    advertiser: I64  # [A]
    price: F64  # [A]
    image_id: I64  # [A]
    words: I64  # [A, 3] indices in WORDS
    budget: F64  # [A] how often it is shown, relative
    quality: F64  # [A]
    style: F64  # [A, TASTE]
    look: F64  # [A, LOOK] appearance of its image


class Truth:
    """Users, ads and click probabilities of a World."""

    def __init__(self, world: World) -> None:
        self.world = world
        rng = np.random.default_rng([world.seed, 0])
        n, segments = world.users, (len(AGE_BOUNDS) + 1) * len(GENDERS)
        self.user_id: I64 = np.arange(1, n + 1, dtype=np.int64)
        self.age: I64 = np.clip(rng.gamma(9, 4.2, n), 14, 90).astype(np.int64)
        self.gender: I64 = rng.choice(len(GENDERS), n, p=[0.49, 0.48, 0.03])
        self.city: I64 = rng.integers(len(CITIES), size=n)
        self.activity: F64 = rng.lognormal(0, 0.7, n)
        self._segment = np.searchsorted(AGE_BOUNDS, self.age, side="right") * len(GENDERS) + self.gender
        self._match = rng.normal(0, 0.7, (segments, len(CATEGORIES)))
        self._category_style = rng.normal(0, 0.5, (len(CATEGORIES), TASTE))
        self._appeal = rng.normal(0, 0.25, n)
        self._home = self._around_segment(rng, segments, 0.5, OWN_TASTE, TASTE)
        common, shared, self._own_eye = world.image_effect
        liked = np.random.default_rng([world.seed, 5]).normal(size=LOOK)
        liked *= common * np.sqrt(LOOK) / np.linalg.norm(liked)  # as strong with any seed
        self._eye_home = liked + self._around_segment(rng, segments, shared, self._own_eye, LOOK)
        self._taste, self._eye = self._home.copy(), self._eye_home.copy()
        self._drift = np.random.default_rng([world.seed, 1])
        self._advertiser_quality = rng.normal(0, 0.5, ADVERTISERS)
        self._ads: Ads | None = None

    def _around_segment(
        self, rng: np.random.Generator, segments: int, shared: float, own: float, k: int
    ) -> F64:
        means: F64 = rng.normal(0, shared, (segments, k))
        own_part: F64 = rng.normal(0, own, (len(self._segment), k))
        return np.asarray(means[self._segment] + own_part)

    def cohort(self, number: int) -> Ads:
        """Ads of a cohort."""
        rng = np.random.default_rng([self.world.seed, 2, number])
        a = self.world.cohort
        category = rng.integers(len(CATEGORIES), size=a)
        advertiser = rng.integers(ADVERTISERS, size=a)
        words = rng.integers(len(WORDS), size=(a, 3))
        ids = number * a + np.arange(1, a + 1, dtype=np.int64)
        return Ads(
            ad_id=ids,
            category=category,
            advertiser=advertiser,
            price=np.round(rng.lognormal(3, 1, a), 2),
            image_id=ids + 1_000_000,
            words=words,
            budget=rng.lognormal(0, 0.4, a),
            quality=self._advertiser_quality[advertiser] + rng.normal(0, 0.3, a),
            style=self._category_style[category] + rng.normal(0, 0.2, (a, TASTE)),
            look=rng.normal(0, 0.45, (a, LOOK)),
        )

    def live(self, elapsed_s: float) -> Ads:
        """The ads alive at that time."""
        ids = self.world.live_ads(elapsed_s)
        if self._ads is None or self._ads.ad_id[0] != ids[0]:
            first = (int(ids[0]) - 1) // self.world.cohort
            cohorts = [self.cohort(first + i) for i in range(self.world.ad_life)]
            self._ads = Ads(
                *(np.concatenate([getattr(c, f) for c in cohorts]) for f in Ads.__dataclass_fields__)
            )
        return self._ads

    def drift(self, step_s: float) -> None:
        """Let `step_s` seconds pass over the users' tastes; the spread around a user's mean stays."""
        keep = np.exp(-step_s / self.world.drift_s)
        for value, home, spread in (
            (self._taste, self._home, OWN_TASTE),
            (self._eye, self._eye_home, self._own_eye),
        ):
            noise = self._drift.standard_normal(value.shape) * spread * np.sqrt(1 - keep**2)
            value += (home - value) * (1 - keep) + noise

    def probability(
        self, user: I64, ads: Ads, ad: I64, device: I64, position: I64, hour: I64, query: I64
    ) -> F64:
        """P(click) of n impressions, f64[n].

        Args:
            user: i64[n], row numbers of users.
            ads: among which `ad` counts.
            ad: i64[n], row numbers of `ads`.
            device: i64[n], as in the event.
            position: i64[n], as in the event.
            hour: i64[n], as in the event.
            query: i64[n, 2], indices in WORDS or -1 (no word).
        """
        logit = (
            self.world.base
            + self._appeal[user]
            + ads.quality[ad]
            + np.einsum("nk,nk->n", self._taste[user], ads.style[ad])
            + np.einsum("nk,nk->n", self._eye[user], ads.look[ad])
            + self._match[self._segment[user], ads.category[ad]]
            + RELEVANCE * relevance(query, ads.words[ad])
            + DEVICE_EFFECT[device]
            + POSITION_EFFECT[position]
            + 0.2 * np.sin(2 * np.pi * hour / 24)
        )
        return np.asarray(1 / (1 + np.exp(-logit)))


def relevance(query: I64, title: I64) -> F64:
    """The share of each query's words that its title has: 0 for a query without words.

    Args:
        query: i64[n, 2], indices in WORDS or -1 (no word).
        title: i64[n, 3].
    """
    typed = query >= 0
    matches = typed & (query[:, :, None] == title[:, None, :]).any(2)
    return np.asarray(matches.sum(1) / np.maximum(typed.sum(1), 1))
