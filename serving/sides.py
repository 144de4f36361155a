"""Sides of a server: the stable side, and a canary that answers a share of the requests.

    request ─► names a side? ─► pins a version? ─► drawn for the canary? ─► is it ready? ─► canary
                 └► that side      └► the side that serves it  └► no: stable   └► no: stable, counted

Each side is a role's parts over its own namespace: follower, near-cache, models. A side knows nothing of the
other. The canary's health never is the server's.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from livectr.ingest.pipeline import Pipeline, load_pipeline
from livectr.serving import metrics
from livectr.serving.calls import RequestCall
from livectr.serving.canary import CANARY, REQUEST, SIDE, STABLE, CanaryOptions, on_side
from livectr.serving.errors import RequestError, SideError
from livectr.serving.options import ServeOptions
from livectr.serving.reply import Reply
from livectr.serving.request.accepts import (
    refused_bids,
    refused_columns,
    refused_content,
    refused_items,
    refused_names,
)
from livectr.serving.request.parse import Request
from livectr.serving.roles import ROLES, Role
from livectr.serving.server import Method
from livectr.serving.version.follower import VersionFollower
from livectr.system.errors import ConfigError

log = logging.getLogger(__name__)

NO_VERSION, UNHEALTHY, NO_KEY = "no_version", "unhealthy", "no_key"
"""Reasons for which the stable side answers in the canary's place; values of the metric's label."""
_ANOTHER = {STABLE: CANARY, CANARY: STABLE}


@dataclass(frozen=True)
class Side:
    """Side of a server.

    Args:
        name: STABLE or CANARY.
        share: of the requests, as it is followed in Redis (`store.live_share`).
        by: what a request is drawn by; empty: the server has no canary.
    """

    name: str
    namespace: str
    role: Role
    share: float
    by: str

    @property
    def follower(self) -> VersionFollower:
        """Follower of the side's namespace."""
        return self.role.follower

    def close(self) -> None:
        """Write the rest of the served log, then stop to follow."""
        self.role.close()
        self.follower.close()


class Sides:
    """Picks the side that answers a request.

    Args:
        role: "rank", "prerank" or "recommend".
        pipeline: of the stable side, and of a canary that names no file.

    Attributes:
        stable: the side that the server's health is about.
        canary: None: the server has none.

    Raises:
        ConfigError: the role cannot serve a pipeline, or the canary's does not take the same requests.
    """

    def __init__(self, role: str, pipeline: Pipeline, options: ServeOptions) -> None:
        self._drawn = drawn = options.canary_options
        self._key = pipeline.log.impressions.key
        self._said = ""
        self._set_share = 0.0 if drawn is None else drawn.share
        share, by = (1.0, "") if drawn is None else (1 - drawn.share, drawn.by)
        self.stable = Side(STABLE, options.namespace, ROLES[role](pipeline, options), share, by)
        self.canary: Side | None = None
        if drawn is not None:
            canary = _canary_role(role, self.stable.role, drawn, options)
            self.canary = Side(CANARY, drawn.ns, canary, drawn.share, drawn.by)
        for side in self.all:
            with on_side(side.name):
                metrics.begin_side(role)
                for method in side.role.methods:
                    metrics.begin_requests(method.role)
        if self.canary is not None:
            self.stable.follower.on_look(self._follow_share)
            for method, reason in itertools.product(
                self.canary.role.methods, (NO_VERSION, UNHEALTHY, NO_KEY)
            ):
                metrics.CANARY_FALLBACKS.labels(method.role, reason)

    @property
    def all(self) -> list[Side]:
        """The stable side, then the canary if there is one."""
        return [side for side in (self.stable, self.canary) if side is not None]

    @property
    def methods(self) -> list[Method[Any]]:
        """Methods of the role, each answered by the side that is picked for its request."""
        pairs = zip(*(side.role.methods for side in self.all), strict=True)
        plain = (
            {} if self.canary is None else {"plain": None}
        )  # with a canary, a side is drawn for each request
        return [
            replace(of_sides[0], handle=functools.partial(self._answer, of_sides), **plain)
            for of_sides in pairs
        ]

    def follow(self) -> None:
        """Begin to follow the canary's versions; no error of its namespace reaches the server."""
        if self.canary is not None:
            self.canary.follower.follow()

    def close(self) -> None:
        """Write the rest of the served logs, and stop to follow. Sides close at once: each may wait."""
        with ThreadPoolExecutor() as pool:
            for closed in [pool.submit(side.close) for side in self.all]:
                closed.result()

    def pick(self, role: str, request: Request) -> str:
        """Name of the side that answers a request.

        Args:
            role: of the method.
            request: as the stable side reads it.

        Raises:
            RequestError: the request names a side that there is not.
            SideError: the side that the request names cannot answer.
        """
        if request.side:
            return self._named(request.side)
        options = self._drawn  # one share for a request
        if options is None:
            return STABLE
        key = request.request_id if options.by == REQUEST else request.key(self._key)
        some = 0 < options.share < 1  # all and none need no key
        drawn = CANARY if (options.draws(key) if some and key else options.share == 1) else STABLE
        if request.version:
            return self._serving(request.version, drawn)
        reason = NO_KEY if some and not key else self._ready() if drawn == CANARY else ""
        if reason:
            metrics.CANARY_FALLBACKS.labels(role, reason).inc()
            return STABLE
        return drawn

    def _answer(self, of_sides: Sequence[Method[Any]], request: Request, call: RequestCall) -> Reply:
        """Answer a request, which the stable side has read, by a method of the side that is picked."""
        picked, method = STABLE, of_sides[0]
        if self._drawn is not None or request.side:
            picked = self.pick(method.role, request)
        if picked == CANARY:
            method = of_sides[1]
            request = method.read(request.raw)
        SIDE.set(picked)
        reply = method.handle(request, call)
        reply.message.side = picked
        return reply

    def _follow_share(self) -> None:
        """Take the share that the stable namespace has for this canary, else that of the setting."""
        live, canary, set_share = self.stable.follower.reader.live_share(), self.canary, self._set_share
        assert canary is not None and self._drawn is not None
        share = set_share if live is None or live.ns != canary.namespace else live.share
        if share == canary.share:
            return
        log.info("the canary's share of the requests is %.4g (before: %.4g)", share, canary.share)
        self._drawn = replace(self._drawn, share=share)
        self.canary = replace(canary, share=share)
        self.stable = replace(self.stable, share=1 - share)

    def _named(self, side: str) -> str:
        if side not in _ANOTHER:
            raise RequestError("side", f"is {side!r}, but must be {STABLE}, {CANARY} or empty")
        if side == CANARY and self.canary is None:
            raise SideError(side, "but this server has none; start it with a canary, or leave side out")
        if side == CANARY and self.canary is not None and self.canary.follower.current is None:
            raise SideError(side, f"which cannot answer: {self.canary.follower.trouble}")
        return side

    def _serving(self, version: int, drawn: str) -> str:
        """Side that serves a pinned version: the drawn one of two that do, the stable one if neither does."""
        current = {side.name: side.follower.current for side in self.all}
        for name in (drawn, _ANOTHER[drawn]):
            served = current[name]
            if served is not None and served.number == version:
                return name
        return STABLE

    def _ready(self) -> str:
        """Reason why the canary does not answer its share; empty: it does. The log has each change."""
        assert self.canary is not None
        follower = self.canary.follower
        reason = NO_VERSION if follower.current is None else UNHEALTHY if follower.health.reason else ""
        if reason != self._said:
            self._said = reason
            if reason:
                log.warning("the stable side answers the share of the canary: %s", follower.trouble)
            else:
                log.warning("the canary answers its share")
        return reason


def _canary_role(role: str, stable: Role, drawn: CanaryOptions, options: ServeOptions) -> Role:
    """Parts of the canary. Raises ConfigError."""
    try:
        pipeline = stable.pipeline if drawn.pipeline is None else load_pipeline(drawn.pipeline)
        with on_side(CANARY):
            canary = ROLES[role](pipeline, replace(options, namespace=drawn.ns, canary=None))
    except ConfigError as error:
        raise ConfigError(f"canary: {error}") from error
    if problems := list(dict.fromkeys(_refused(role, stable, canary))):
        raise ConfigError(
            f"canary: {drawn.pipeline} does not take the requests of the server's pipeline: "
            f"{'; '.join(problems)}"
        )
    return canary


def _refused(role: str, stable: Role, canary: Role) -> Iterator[str]:
    """Sentences on requests that the stable side takes and the canary refuses."""
    first, other = stable.pipeline, canary.pipeline
    yield from refused_names(first.log.impressions, other.log.impressions)
    for before, after in zip(stable.methods, canary.methods, strict=True):
        yield from refused_columns(before.columns, after.columns)
    yield from refused_content(stable.follower.contents.widths, canary.follower.contents.widths)
    if role != "rank" and first.items is not None and other.items is not None:
        yield from refused_items(first.items, other.items)
        if role == "recommend":
            yield from refused_bids(first.items, other.items)
