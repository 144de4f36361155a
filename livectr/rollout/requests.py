"""Requests of servers that a rollout gives a canary."""

from __future__ import annotations

from livectr.ingest.pipeline import Pipeline
from livectr.serving.limits import DEFAULT
from livectr.serving.request.accepts import refused_columns, refused_names
from livectr.serving.request.parse import RequestSchema


def refused_requests(old: Pipeline, new: Pipeline) -> list[str]:
    """Sentences on requests to rank that the old pipeline's servers take, and the new one refuses."""
    before, after = (RequestSchema(one, one.plan.roots, DEFAULT).columns for one in (old, new))
    return [*refused_names(old.log.impressions, new.log.impressions), *refused_columns(before, after)]
