"""Field exchange of a run: forced by the settings, read from a checkpoint, or chosen by a batch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from livectr.ingest.common_features import AnyFeatures
from livectr.kernels.keys.unique import unique_segments
from livectr.system.errors import ConfigError
from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.comm.key_codec import encode
from livectr.trainer.comm.link import link_gbit
from livectr.trainer.des.exchange import Exchange
from livectr.trainer.des.route import Route
from livectr.trainer.des.routed import Routed
from livectr.trainer.des.spec import StepSpec
from livectr.trainer.placement.exchange_cost import CostModel, Measured
from livectr.trainer.step_settings import FIELD_EXCHANGES, FieldExchange

LOG = logging.getLogger(__name__)
FIELD_EXCHANGE_KEY = "des.field_exchange"
"""Checkpoint key: int16[1 + F], number of ranks and exchange of every field (index in FIELD_EXCHANGES)."""


def forced_exchange(
    setting: FieldExchange | Mapping[str, FieldExchange], fields: Sequence[str]
) -> list[FieldExchange]:
    """Exchange of every field by the setting: one for all, or by field name (others: `partial`).

    Raises:
        ConfigError: the setting names a field that does not exist.
    """
    if isinstance(setting, str):
        return [setting] * len(fields)
    if unknown := sorted(set(setting) - set(fields)):
        raise ConfigError(
            f"field_exchange names {unknown[0]!r}, which is no field; fields: {', '.join(fields)}"
        )
    return [setting.get(name, "partial") for name in fields]


def saved_exchange(
    state: Mapping[str, Tensor], collectives: Collectives, used: Sequence[FieldExchange] | None
) -> list[FieldExchange] | None:
    """Exchange in a checkpoint that a run resumes with; None if there is none to use.

    That is so if none was saved, another number of ranks saved it, or the settings force the exchange. Rank 0
    warns if the forced exchange differs from the saved exchange.

    Args:
        state: tensors of the checkpoint by name.
        collectives: of this rank.
        used: exchange that the settings force; None: automatic.
    """
    saved = state[FIELD_EXCHANGE_KEY].tolist() if FIELD_EXCHANGE_KEY in state else []
    if not saved or saved[0] != collectives.world:
        return None
    before = [FIELD_EXCHANGES[number] for number in saved[1:]]
    if used is None:
        return before
    if before != list(used) and collectives.rank == 0:
        LOG.warning(
            "field_exchange differs from that of the checkpoint's steps: the model differs in its last bits "
            "from that of an unbroken run"
        )
    return None


def named_exchange(names: Sequence[str] | None, fields: Sequence[str]) -> list[FieldExchange] | None:
    """Exchange of every field by names; None where another program has written them, or of other fields."""
    if names is None or len(names) != len(fields) or not set(names) <= set(FIELD_EXCHANGES):
        return None
    return [FIELD_EXCHANGES[FIELD_EXCHANGES.index(name)] for name in names]


def exchange_state(field_exchange: Sequence[FieldExchange], world: int) -> dict[str, Tensor]:
    """Entry of a checkpoint that `saved_exchange` reads."""
    saved = [world, *(FIELD_EXCHANGES.index(exchange) for exchange in field_exchange)]
    return {FIELD_EXCHANGE_KEY: torch.tensor(saved, dtype=torch.int16)}


def gather_state(collectives: Collectives, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge the tensors of all ranks by name; every rank gets all of them. Collective."""
    import safetensors.torch  # steps alone, as a benchmark has them, need it not

    packed = safetensors.torch.save(dict(state))
    sizes = collectives.all_gather(np.array([len(packed)], np.int64), "state")[:, 0].tolist()
    words = [-(-size // 4) for size in sizes]
    own = np.frombuffer(packed.ljust(4 * words[collectives.rank], b"\0"), np.int32)
    shares = collectives.all_gather_ragged(own, words, "state")
    merged: dict[str, Tensor] = {}
    for share, size in zip(shares, sizes, strict=True):
        merged |= safetensors.torch.load(share.tobytes()[:size])
    return merged


def measure_batch(exchange: Exchange, features: AnyFeatures) -> Measured:
    """Measure the batch that all ranks' examples make. Collective."""
    own = exchange.read(features)
    sizes = np.array([len(keys) for keys in own.keys], np.int64)
    keys = np.concatenate([*own.keys, np.empty(0, np.int64)])
    unique = np.diff(unique_segments(keys, np.r_[0, np.cumsum(sizes)]).bounds)
    encoded = np.diff(encode(own.segments).bounds)
    found = np.concatenate([[features.rows], encoded, unique, sizes])
    total = exchange.collectives.all_gather(found, "sizes").sum(axis=0).astype(np.float64)
    return Measured(int(total[0]), *np.split(total[1:], 3))


class ExchangeChoice:
    """Choice of every field's exchange: by the settings, by a checkpoint, or once by a batch.

    Attributes:
        undecided: a batch will choose, in `DesStep.prepare`.
        prescribed: exchange of every field that this batch shall choose, as another run has
            (trainer.stream.order_log); None: the fastest.
    """

    def __init__(self, spec: StepSpec, world: int) -> None:
        setting, scatter = spec.settings.field_exchange, spec.settings.aggregate == "reducescatter"
        self.undecided = setting == "auto" and scatter and world > 1
        self.prescribed: Sequence[FieldExchange] | None = None
        self._spec = spec
        self._new: Sequence[FieldExchange] | None = None

    def first(self) -> list[FieldExchange] | None:
        """Exchange of every field to begin with; None: `partial` wherever that is possible.

        Raises:
            ConfigError: the setting names a field that does not exist.
        """
        setting = self._spec.settings.field_exchange
        return None if setting == "auto" else forced_exchange(setting, self._spec.fields)

    def begun(self, route: Route) -> None:
        """Note the route of `first`, which is news if the settings have chosen it."""
        if self._spec.settings.field_exchange != "auto" and route.scatter:
            self._new = route.field_exchange

    def by_batch(self, routed: Routed, features: AnyFeatures) -> list[FieldExchange] | None:
        """Exchange that a batch chooses; None: it is too small. Collective.

        Args:
            routed: current route, whose exchange measures the batch.
            features: own examples of the batch.
        """
        spec, route = self._spec, routed.route
        gathered = *route.pooled, *route.sequences, *spec.placement.split_fields(spec.table_of)
        least = spec.settings.choose_from
        return _choose(routed.exchange, features, routed.cost, gathered, least, self.prescribed)

    def decided(self, chosen: Sequence[FieldExchange]) -> None:
        """Note the exchange that a batch has chosen."""
        self.undecided, self._new = False, chosen

    def restored(self, route: Route, saved: Sequence[FieldExchange]) -> None:
        """Note the route that was built for a saved exchange.

        It does not fit where a table is split by key now, and then a batch chooses.
        """
        self.undecided = route.field_exchange != tuple(saved)

    def take(self) -> Sequence[FieldExchange] | None:
        """Return the exchange of every field if settings or a batch have chosen it since the last call."""
        chosen, self._new = self._new, None
        return chosen


def _choose(
    exchange: Exchange,
    features: AnyFeatures,
    cost: CostModel,
    never_partial: Collection[int],
    least: int,
    prescribed: Sequence[FieldExchange] | None = None,
) -> list[FieldExchange] | None:
    """Fastest exchange of every field, by the sizes of a batch and the link between ranks. Collective.

    Args:
        exchange: key all-to-all that measures the batch.
        features: own examples of the batch.
        cost: model of the run, without the link.
        never_partial: fields that cannot be partial.
        least: examples of a batch that may choose; None of a smaller batch.
        prescribed: exchange that such a batch takes, in place of the fastest.
    """
    measured = measure_batch(exchange, features)
    if measured.samples < least:
        return None
    if prescribed is not None:
        return list(prescribed)
    linked = replace(cost, gbit=link_gbit(exchange.collectives))
    chosen = linked.fastest(measured, never_partial)
    if exchange.collectives.rank == 0:
        LOG.info(
            "field exchange: %s; predicted for %d examples: %.2f ms of a step (%s)%s",
            ", ".join(f"{number} fields {way}" for way, number in sorted(Counter(chosen).items())),
            measured.samples,
            1e3 * linked.seconds(measured, chosen),
            ", ".join(
                f"all {way} {1e3 * linked.seconds(measured, [way] * len(chosen)):.2f}"
                for way in FIELD_EXCHANGES
            ),
            "" if linked.gbit is None else f" over a link of about {linked.gbit:.3g} Gbit/s",
        )
    return chosen
