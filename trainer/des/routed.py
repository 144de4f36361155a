"""Parts of a rank's step that depend on the exchange of every field: networks, optimizer, collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from livectr.trainer.comm.collectives import Collectives
from livectr.trainer.content.ams import Ams
from livectr.trainer.des.dense import DenseAdam
from livectr.trainer.des.exchange import Exchange
from livectr.trainer.des.field_parallel import FieldParallel
from livectr.trainer.des.networks import Networks, build_networks
from livectr.trainer.des.partials import OwnerPartials
from livectr.trainer.des.reading import Reading
from livectr.trainer.des.route import Route, gathers_of, route
from livectr.trainer.des.sample_parallel import SampleParallel
from livectr.trainer.des.spec import StepSpec
from livectr.trainer.des.strategy import Strategy
from livectr.trainer.host_copies import HostCopies
from livectr.trainer.placement.exchange_cost import CostModel
from livectr.trainer.step_settings import FieldExchange
from livectr.trainer.tables.rank_tables import RankTables


@dataclass(frozen=True)
class Routed:
    """Networks, optimizer and collectives of a rank for one route.

    Attributes:
        route: exchange of each field.
        networks: of this rank.
        exchange: sends keys.
        reading: reads rows, and lets them learn.
        strategy: aggregation of partial results.
        dense: learns the networks.
        cost: bytes and seconds of a step by field exchange, where all ranks are on one machine.
    """

    route: Route
    networks: Networks
    exchange: Exchange
    reading: Reading
    strategy: Strategy
    dense: DenseAdam
    cost: CostModel

    @staticmethod
    def build(
        spec: StepSpec,
        storage: RankTables,
        ams: Ams | None,
        copies: HostCopies,
        collectives: Collectives,
        ahead: Collectives,
        field_exchange: Sequence[FieldExchange] | None,
    ) -> Routed:
        """Build for this exchange of every field.

        Args:
            spec: of the step.
            storage: tables of this rank, with their tiers.
            ams: content that models read; None where they read none.
            copies: of the networks' device.
            collectives: of this rank.
            ahead: collectives that send keys.
            field_exchange: None: `partial` wherever that is possible.

        Raises:
            ConfigError: the settings do not know this exchange or placement.
            ValueError: a configuration names a feature that does not exist.
        """
        way = route(
            spec.placement,
            spec.fields,
            spec.table_of,
            gathers_of(spec.configs, spec.fields),
            mode=spec.settings.aggregate,
            field_exchange=field_exchange,
            common=spec.common,
        )
        width, dim = len(spec.dense_names), spec.layout.dim
        networks = build_networks(spec, way, collectives.device)
        models, sample_parallel = networks.field_parallel, networks.sample_parallel
        partials = OwnerPartials(way, models, spec.slices, width, collectives)
        strategy: Strategy = FieldParallel(way, partials, collectives)
        if way.scatter:
            strategy = SampleParallel(way, partials, sample_parallel, spec.slices, width, dim, collectives)
        contents = {} if ams is None else ams.contents
        sub_models = {name: (content.config, content.network) for name, content in contents.items()}
        return Routed(
            route=way,
            networks=networks,
            exchange=Exchange(way, width, ahead, resident=storage.resident),
            reading=Reading(storage, spec.fields, way, spec.rank, copies),
            strategy=strategy,
            dense=DenseAdam(models, spec.configs, sample_parallel, sub_models),
            cost=CostModel(
                world=spec.placement.world,
                partial=sum(model.partial_size for model in models.values()),
                dim=dim,
                parameters=networks.parameters,
                width=2 if collectives.wire == "bf16" else 4,
                split=spec.placement.split_fields(spec.table_of),
            ),
        )
