"""Answer of Model.Describe: model, versions, sides, and the columns of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from livectr.protos import livectr_pb2 as pb
from livectr.serving.canary import on_side
from livectr.serving.explore.orders import Explorer
from livectr.serving.options import ServeOptions
from livectr.serving.request.sentences import ColumnSpec
from livectr.serving.sides import Side, Sides
from livectr.serving.version.content import Contents
from livectr.serving.version.loader import ModelVersion


def described(role: str, sides: Sides, options: ServeOptions) -> Any:
    """DescribeResponse of a server; its plain fields are about the stable side."""
    parts, follower = sides.stable.role, sides.stable.follower
    version, worths = follower.current, parts.pipeline.worths
    return pb.DescribeResponse(
        role=role,
        model=parts.model_of(version),
        champion=version.manifest.champion if version and parts.ranks else "",
        fingerprint=parts.pipeline.fingerprint,
        value=str(parts.pipeline.value or ""),
        needs_bids=worths is not None and worths.needs_bids,
        version=version.number if version else 0,
        created_ms=version.manifest.created_ms if version else 0,
        columns=_columns(parts.columns),
        max_candidates=options.max_candidates,
        items=len(version.items) if version and version.items else 0,
        content=_content(follower.contents, version),
        trouble=follower.health.reason,
        step=version.manifest.step if version else 0,
        run_id=version.manifest.run_id if version else "",
        examples=version.manifest.examples if version else 0,
        lookup_ttl_ms=round(1000 * options.lookup_ttl_s),
        held=follower.held,
        versions=[version for side in sides.all for version in _versions(side)],
        sides=[_side(side, options) for side in sides.all],
    )


def _versions(side: Side) -> Iterator[Any]:
    """VersionInfo of the versions that the side's namespace keeps, newest first."""
    follower, served = side.follower, side.follower.current
    for number, manifest in follower.kept.items():
        is_served = served is not None and served.number == number
        yield pb.VersionInfo(
            side=side.name,
            number=number,
            created_ms=manifest.created_ms if manifest else 0,
            champion=manifest.champion if manifest else "",
            examples=manifest.examples if manifest else 0,
            rows=sum(manifest.tables.values()) if manifest else 0,
            served=is_served,
            held=is_served and bool(follower.held),
        )


def _side(side: Side, options: ServeOptions) -> Any:
    with on_side(side.name):
        explorer = Explorer.of(options.explore_options) if side.role.ranks else None
    version = side.follower.current
    return pb.SideInfo(
        name=side.name,
        namespace=side.namespace,
        share=side.share,
        by=side.by,
        model=side.role.model_of(version),
        fingerprint=side.role.pipeline.fingerprint,
        version=version.number if version else 0,
        trouble=side.follower.trouble,
        explore=str(explorer.options) if explorer is not None else "",
    )


def _columns(columns: Mapping[str, ColumnSpec]) -> list[Any]:
    return [
        pb.ColumnInfo(name=c.name, dtype=c.dtype, placement=c.placement, required=c.required)
        for c in columns.values()
    ]


def _content(contents: Contents, version: ModelVersion | None) -> list[Any]:
    return [
        pb.ContentInfo(
            name=name,
            fields=raw.fields,
            width=raw.model.width,
            vectors=len(version.content[name].published) if version else 0,
        )
        for name, raw in contents.raw.items()
    ]
