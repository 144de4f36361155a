"""Crafted model whose replies tell their versions, for tests of swaps and losses.

It is logistic regression, logit = w_user + w_ad + b. Version v publishes w_user = v, w_ad = -v and
b = v / 1000, so the logit of a reply is v / 1000 if and only if all its parts come from version v; a part of
another version moves it by 1 or more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from livectr.serving.app import App
from tests.serving.publication import F32, I64, Publication
from tests.serving.swap_pipeline import pipeline

Serve = Callable[..., App]
"""Fixture `serve`."""
USERS = np.arange(1, 51, dtype=np.int64)
ADS = np.arange(1000, 1400, dtype=np.int64)
SEGMENTS = (("rank.w", 1),)


def rows(version: int, users: I64 = USERS, ads: I64 = ADS) -> dict[str, tuple[I64, F32]]:
    return {
        "user": (users, np.full((len(users), 1), version, np.float32)),
        "ad": (ads, np.full((len(ads), 1), -version, np.float32)),
    }


def dense(version: int) -> dict[str, torch.Tensor]:
    """Dense weights of `version`: its bias, and the scales of the first order at 1."""
    scales = {f"rank.wide.scale/{field}": torch.ones(()) for field in ("user", "ad")}
    return {"rank.bias": torch.tensor(version / 1000)} | scales


def trainer(url: str, **options: Any) -> Publication:
    return Publication(url, pipeline.fingerprint, SEGMENTS, **options)


def publish(publication: Publication) -> int:
    version = publication.version + 1
    return publication.publish(rows(version), dense(version))


def versions_of(response: object) -> set[int]:
    """Versions that the numbers of a reply come from."""
    pctr = np.array(response.pctr, np.float64)  # type: ignore[attr-defined]
    return set(np.round(np.log(pctr / (1 - pctr)) * 1000).astype(int).tolist())


def served(app: App) -> int:
    now = app.follower.current
    return now.number if now else 0
