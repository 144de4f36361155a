"""Look at all processes of a run: metrics, the version in Redis, the checkpoint, and what servers say.

Every figure is read where it is kept already: a number of a process is one that Prometheus has, too.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from livectr.analysis.page.reading import RunData, read_run_log
from livectr.client.clients import ClientTls, RankClient
from livectr.local.scrape import Samples, by_label, labelled, quantile, read_metrics, total, value
from livectr.status.figures import (
    Checkpoint,
    Contest,
    Delay,
    Gate,
    PartFigures,
    Published,
    Quality,
    Server,
    Silent,
    Status,
    Topic,
    Trainer,
)
from livectr.store.hold import Hold
from livectr.store.layout import Keyspace, without_password
from livectr.store.manifest import VersionManifest
from livectr.store.redis_client import connected
from livectr.system.errors import ConnectError, LiveCTRError
from livectr.system.object_store import is_object_address
from livectr.trainer.checkpoint.keeping import readable
from livectr.up.folder import Kind, RunFolder, Running
from livectr.up.runs import from_here

T = TypeVar("T")

MOST_RUN_LOG_BYTES = 64 << 20
"""Size of a run log above which the whole run is not summed up."""
_THREADS = 16
_TRAINER, _SERVER = "livectr_pending_joins", "livectr_server_ready"
"""Metrics that tell what a process is."""


@dataclass(frozen=True)
class Places:
    """Places to look at.

    Args:
        folders: of runs of `livectr up`.
        metrics: Prometheus endpoints, HOST:PORT or URLs.
        servers: HOST:PORT of servers.
        redis: URL and namespace of each place of versions.
        checkpoints: folders.
        tls: of endpoints and servers.
        token: of servers that ask for one.
        timeout_s: for each answer.
    """

    folders: tuple[RunFolder, ...] = ()
    metrics: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    redis: tuple[tuple[str, str], ...] = ()
    checkpoints: tuple[str, ...] = ()
    tls: ClientTls | None = None
    token: str | None = None
    timeout_s: float = 2.0


@dataclass(frozen=True)
class _Process:
    """Endpoints of a process or of a trainer's ranks.

    Args:
        address: of its requests; "": unknown.
        run_log, checkpoint: of a trainer; None: unknown.
    """

    name: str
    metrics: tuple[str, ...]
    address: str = ""
    run_log: Path | None = None
    checkpoint: str | None = None


class Gatherer:
    """Looks at places again and again.

    Args:
        places: where.
    """

    def __init__(self, places: Places) -> None:
        self._places = places

    def look(self) -> Status:
        """Figures of this moment; what does not answer is said."""
        places = self._places
        silent: list[Silent] = []
        parts = [part for folder in places.folders for part in _parts(folder)]
        processes = list(self._processes())
        with ThreadPoolExecutor(_THREADS) as pool:
            # First: a trainer that has committed rows has counted them, too.
            checkpoints = self._all(pool, self._checkpoints(), _checkpoint, silent)
            for address in places.checkpoints:  # that of a run comes with its first commit
                if address in checkpoints and checkpoints[address] is None:
                    there = Path(address).is_dir()
                    silent.append(
                        Silent(address, "holds no checkpoint" if there else "there is no such folder")
                    )
            published = self._all(pool, self._redis(), _published, silent)
            endpoints = {address for process in processes for address in process.metrics}
            scraped = self._all(pool, endpoints, self._scrape, silent)
            servers = {process.address for process in processes if process.address} | {*places.servers}
            described = self._all(pool, servers, self._describe, silent)
        found = [one for one in checkpoints.values() if one is not None]
        trainers, seen = [], []
        for process in _joined(processes, scraped):
            samples = [scraped[address] for address in process.metrics if address in scraped]
            if any(_has(one, _TRAINER) for one in samples):
                trainers.append(self._trainer(process, scraped, found))
            elif process.address in described or any(_has(one, _SERVER) for one in samples):
                seen.append(_server(process, samples, described.get(process.address)))
        known = {process.address for process in processes}
        seen += [_server(_Process(a, (), a), [], d) for a, d in described.items() if a not in known]
        return Status(
            time.time_ns() // 1_000_000, parts, trainers, seen, [*published.values()], found, silent
        )

    def _all(
        self,
        pool: ThreadPoolExecutor,
        keys: Iterable[Any],
        read: Callable[[Any], T],
        silent: list[Silent],
    ) -> dict[Any, T]:
        """Answers of all places at the same time."""
        asked = {key: pool.submit(read, key) for key in sorted(keys)}
        found = {}
        for key, future in asked.items():
            try:
                found[key] = future.result()
            except LiveCTRError as error:
                address = key if isinstance(key, str) else without_password(key[0])
                silent.append(Silent(address, str(error)))
        return found

    def _processes(self) -> Iterator[_Process]:
        for folder in self._places.folders:
            state = folder.state()
            for one in state.parts if state is not None else ():
                if one.part.kind in (Kind.TRAINER, Kind.SERVER):
                    checkpoint = one.part.setting("checkpoint")
                    yield _Process(one.name, one.metrics, one.part.address, _run_log(one), checkpoint)
        for address in self._places.metrics:
            yield _Process(address, (address,))

    def _redis(self) -> set[tuple[str, str]]:
        """URLs and namespaces, also of the runs of `livectr up`."""
        found = {*self._places.redis}
        for folder in self._places.folders:
            for part in folder.parts().values() if folder.running else ():
                url = part.setting("publish")
                if part.kind is Kind.TRAINER and url:
                    found.add((url, part.setting("namespace") or Keyspace().namespace))
        return found

    def _checkpoints(self) -> list[str]:
        found = list(self._places.checkpoints)
        for folder in self._places.folders:
            for part in folder.parts().values():
                if part.kind is Kind.TRAINER and (said := part.setting("checkpoint")):
                    found.append(said)
        return list(dict.fromkeys(found))

    def _scrape(self, address: str) -> Samples:
        tls = self._places.tls
        context = None
        if tls is not None:
            context = ssl.create_default_context(cafile=tls.ca)
            if tls.cert is not None:
                context.load_cert_chain(tls.cert, tls.key)
        samples = read_metrics(address, self._places.timeout_s, context)
        if not (_has(samples, _TRAINER) or _has(samples, _SERVER)):
            raise ConnectError(f"{address} answers with the metrics of another program")
        return samples

    def _describe(self, address: str) -> Any:
        places = self._places
        with RankClient(address, places.timeout_s, tls=places.tls, token=places.token) as client:
            return client.describe()

    def _trainer(
        self, process: _Process, scraped: Mapping[str, Samples], checkpoints: list[Checkpoint]
    ) -> Trainer:
        here = [address for address in process.metrics if address in scraped]
        ranks = [scraped[address] for address in here]
        first = next((one for one in ranks if _has(one, "livectr_examples_total")), {})
        published = value(first, "livectr_published_timestamp_seconds")
        checkpoint = value(first, "livectr_checkpoint_timestamp_seconds")
        dead: dict[str, float] = {}
        for one in ranks:
            for reason, count in by_label(one, "livectr_dead_letters_total", "reason").items():
                dead[reason] = dead.get(reason, 0.0) + count
        saved = next((one for one in checkpoints if one.folder == process.checkpoint), None)
        if process.checkpoint is None and len(checkpoints) == 1:
            saved = checkpoints[0]
        return Trainer(
            name=process.name,
            ranks=len(process.metrics),
            examples=value(first, "livectr_examples_total"),
            examples_per_s=value(first, "livectr_examples_per_second"),
            waiting=sum(total(one, "livectr_pending_joins") for one in ranks),
            ready=sum(total(one, "livectr_ready_examples") for one in ranks),
            backlog_rows=value(first, "livectr_backlog_rows"),
            backlog_s=value(first, "livectr_backlog_seconds"),
            watermark_delay_s=max(
                (total(one, "livectr_watermark_delay_seconds") for one in ranks), default=None
            ),
            version=value(first, "livectr_published_version") or None,
            published_ms=published and round(1000 * published),
            checkpoint_ms=checkpoint and round(1000 * checkpoint),
            checkpoint=saved,
            topics=self._topics(here, scraped, saved.events if saved is not None else {}),
            quality=[*_window(first), *_since_start(process.run_log)],
            gate=_gate(first),
            contest=_contest(first),
            dead_letters={reason: count for reason, count in sorted(dead.items()) if count},
            skipped=value(first, "livectr_skipped_batches_total"),
            silent=[address for address in process.metrics if address not in scraped],
        )

    def _topics(
        self, here: list[str], scraped: Mapping[str, Samples], committed: Mapping[str, int]
    ) -> list[Topic]:
        names = {t for a in here for t in by_label(scraped[a], "livectr_events_total", "topic")}
        found = []
        for name in sorted(names):
            lags = {
                labels["partition"]: lag
                for address in here
                for labels, lag in labelled(scraped[address], "livectr_consumer_lag_records", topic=name)
            }
            ages = [
                age for a in here for _, age in labelled(scraped[a], "livectr_event_lag_seconds", topic=name)
            ]
            speeds = [value(scraped[a], "livectr_events_per_second", topic=name) for a in here]
            known = [speed for speed in speeds if speed is not None]
            found.append(
                Topic(
                    name,
                    sum(total(scraped[address], "livectr_events_total", topic=name) for address in here),
                    sum(known) if known else None,
                    sum(lags.values()),
                    dict(sorted(lags.items(), key=lambda pair: int(pair[0]))),
                    max(ages, default=0.0),
                    committed.get(name),
                )
            )
        return found


def _has(samples: Samples, name: str) -> bool:
    return any(sample == name for sample, _ in samples)


def _joined(processes: list[_Process], scraped: Mapping[str, Samples]) -> list[_Process]:
    """Processes, where ranks without metrics of the whole run are of the trainer named before them."""
    found: list[_Process] = []
    for process in processes:
        samples = scraped.get(process.metrics[0]) if len(process.metrics) == 1 else None
        rank = samples is not None and _has(samples, _TRAINER)
        if rank and found and not _has(samples or {}, "livectr_examples_total"):
            before = found[-1]
            if any(_has(scraped.get(address, {}), _TRAINER) for address in before.metrics):
                found[-1] = _Process(before.name, (*before.metrics, *process.metrics))
                continue
        found.append(process)
    return found


def _parts(folder: RunFolder) -> Iterator[PartFigures]:
    """Parts of a run, also of one that is down."""
    state, said = folder.state(), str(from_here(folder.path))
    if state is None:
        for part in folder.parts().values():
            log = str(from_here(folder.log_of(part.name)))
            yield PartFigures(said, part.name, part.address, [], "down", 0, "", log)
        return
    for one in state.parts:
        log = str(from_here(Path(one.log)))
        where = one.part.address, list(one.metrics)
        yield PartFigures(said, one.name, *where, one.phase, one.restarts, one.reason, log)


def _run_log(one: Running) -> Path | None:
    """Run log of a trainer, by its command."""
    said = [word for word in one.part.command if word.startswith("run_log=")]
    return Path(said[-1].partition("=")[2]) if said else None


def _window(samples: Samples) -> Iterator[Quality]:
    examples = value(samples, "livectr_window_examples")
    models = by_label(samples, "livectr_calibration_ratio", "model") or {}
    models |= by_label(samples, "livectr_auc", "model")
    for model in models:
        auc, gauc = (value(samples, f"livectr_{name}", model=model) for name in ("auc", "gauc"))
        logloss = value(samples, "livectr_logloss", model=model)
        ratio = value(samples, "livectr_calibration_ratio", model=model)
        yield Quality(model, "window", examples, auc, gauc, logloss, ratio)


def _since_start(path: Path | None) -> Iterator[Quality]:
    """Measures of the whole run: means over the windows of its run log, as the page of a run has them."""
    try:
        if path is None or path.stat().st_size > MOST_RUN_LOG_BYTES:
            return
        data: RunData = read_run_log(path)
    except (OSError, LiveCTRError):
        return
    for model in data.models if data.windows else ():
        _, clicks, predicted = data.bins(model, data.windows).sum(axis=0).tolist()
        auc, gauc, logloss = (_mean(data, model, measure) for measure in ("auc", "gauc", "logloss"))
        ratio = predicted / clicks if clicks else None
        yield Quality(model, "since start", data.windows[-1]["examples"], auc, gauc, logloss, ratio)


def _mean(data: RunData, model: str, measure: str) -> float | None:
    parts = [(window["models"][model][measure], window["measured"]) for window in data.windows]
    known = [(number, n) for number, n in parts if number is not None]
    examples = sum(n for _, n in known)
    return sum(number * n for number, n in known) / examples if examples else None


def _gate(samples: Samples) -> Gate:
    held = by_label(samples, "livectr_publish_held", "reason")
    return Gate(
        [reason for reason, on in held.items() if on],
        value(samples, "livectr_publish_gate_auc", of="newest"),
        value(samples, "livectr_publish_gate_auc", of="usual"),
        value(samples, "livectr_publish_gate_click_rate", of="newest"),
        value(samples, "livectr_publish_gate_click_rate", of="usual"),
        value(samples, "livectr_publish_gate_calibration_ratio"),
    )


def _contest(samples: Samples) -> list[Contest]:
    """Champion and challengers; [] without challengers."""
    champions = by_label(samples, "livectr_champion", "model")
    if len(champions) < 2:
        return []
    examples = value(samples, "livectr_contest_examples")
    return [
        Contest(model, bool(on), value(samples, "livectr_contest_logloss", model=model), examples)
        for model, on in champions.items()
    ]


def _server(process: _Process, samples: list[Samples], described: Any) -> Server:
    """Server by its metrics (of all workers), and by what it says of itself."""
    first = samples[0] if samples else {}
    role = next(iter(by_label(first, _SERVER, "role")), described.role if described is not None else "")
    versions = {
        side: int(number) for side, number in by_label(first, "livectr_served_version", "side").items()
    }
    if described is not None:
        said = {one.name: one.version for one in described.sides} or {"stable": described.version}
        versions = {side: number for side, number in said.items() if number}
    failed: dict[str, float] = {}
    for one in samples:
        for code, count in by_label(one, "livectr_requests_total", "code").items():
            failed[code] = failed.get(code, 0.0) + count
    answered = failed.pop("OK", 0.0) if samples else None
    merged = _merged(samples)
    p50, p99 = (quantile(merged, "livectr_request_seconds", q, code="OK") for q in (0.5, 0.99))
    champions = by_label(first, "livectr_served_champion", "model")
    model = next((name for name, on in champions.items() if on), "")
    return Server(
        name=process.name,
        role=role,
        ready=all(total(one, _SERVER) > 0 for one in samples) if samples else None,
        versions=versions,
        model=described.model if described is not None else model,
        age_s=value(first, "livectr_served_version_age_seconds", role=role, side="stable"),
        answered=answered,
        failed={code: count for code, count in failed.items() if count},
        p50_ms=p50 and 1000 * p50,
        p99_ms=p99 and 1000 * p99,
        degraded=total(merged, "livectr_degraded_requests_total") if samples else None,
        delay=_delay(merged),
        trouble=described.trouble if described is not None else "",
        held=described.held if described is not None else "",
    )


def _merged(samples: list[Samples]) -> Samples:
    """Sum of the samples of all workers."""
    found: Samples = {}
    for one in samples:
        for key, number in one.items():
            found[key] = found.get(key, 0.0) + number
    return found


def _delay(samples: Samples) -> Delay | None:
    """Freshness of a server; None before anything was measured."""
    event, label = "livectr_freshness_seconds", "livectr_learning_delay_seconds"
    examples = total(samples, f"{event}_count")
    if not examples:
        return None
    quantiles = [quantile(samples, name, q) for name in (event, label) for q in (0.5, 0.99)]
    return Delay(examples, *quantiles)


def _published(place: tuple[str, str]) -> Published:
    """Version of a namespace in Redis."""
    url, namespace = place
    keys = Keyspace(namespace)
    with connected(url) as client:
        text, hold = client.get(keys.manifest), Hold.of(client.get(keys.hold))
    reason = hold.reason if hold is not None else None
    said = without_password(url)
    if text is None:
        return Published(said, namespace, None, None, None, "", None, reason)
    version = VersionManifest.from_json(text)
    return Published(
        *(said, namespace, version.version, version.created_ms, version.examples, version.champion),
        *(sum(version.tables.values()), reason),
    )


def _checkpoint(address: str) -> Checkpoint | None:
    """Newest generation of a checkpoint; None before the first."""
    if is_object_address(address):
        raise ConnectError(f"{address} is in an object store, where status does not look")
    manifests = readable(Path(address))
    if not manifests:
        return None
    newest = manifests[-1]
    return Checkpoint(
        *(address, newest.generation, newest.created_ms, newest.examples, newest.step, len(manifests)),
        {topic: int(count) for topic, count in newest.counts.get("events", {}).items()},
    )
