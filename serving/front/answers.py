"""Answers of servers as rows for people: of tables, and of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from livectr.protos import livectr_pb2 as pb

Row = dict[str, Any]
"""Column → value."""


def ranked(answer: pb.RankResponse, candidates: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Candidates, best first: columns, pCTR, revenue, value, and probabilities and values of targets."""
    return [
        {
            **{n: values[i] for n, values in candidates.items()},
            "pctr": pctr,
            "ecpm": ecpm,
            **_value(answer, place),
            **{f"p_{target.name}": target.probability[place] for target in answer.targets},
            **{f"value_{target.name}": target.value[place] for target in answer.targets if target.value},
        }
        for place, (i, pctr, ecpm) in enumerate(zip(answer.index, answer.pctr, answer.ecpm, strict=True))
    ]


def chosen(answer: pb.PreRankResponse) -> list[Row]:
    """Items that pre-rank selected, best first: scores, and values where they are ordered by these."""
    return [
        {"item": item, "score": score, **_value(answer, place)}
        for place, (item, score) in enumerate(zip(_items(answer), answer.score, strict=True))
    ]


def recommended(answer: pb.RecommendResponse) -> list[Row]:
    """Items that are recommended, best first: pCTR, expected revenue, and value."""
    return [
        {"item": item, "pctr": pctr, "ecpm": ecpm, **_value(answer, place)}
        for place, (item, pctr, ecpm) in enumerate(zip(_items(answer), answer.pctr, answer.ecpm, strict=True))
    ]


def exploration(answer: Any) -> Row:
    """Exploration of a reply, JSON-able; empty: the side does not explore, or it is of pre-rank."""
    if isinstance(answer, pb.PreRankResponse) or not answer.HasField("exploration"):
        return {}
    found = answer.exploration
    return {"exploration": {"explored": found.explored, "propensity": list(found.propensity)}}


def explained(answer: Any) -> list[dict[str, Any]]:
    """Explanations of a RankResponse, JSON-able.

    Returns:
        Of each candidate: its index, logit, the position that the model leaves out (if it learns one), heads
        of a hedge with weight and logit, scale and shift if it is calibrated, contributions by feature,
        largest first, the names of missing fields (no key), and of cold fields (no key with a trained row)
        and partly cold fields the number of cold keys and of keys. `cold` is None if Redis could not tell.
    """
    parts = answer.explanations
    names, fields = list(parts.features), list(parts.features)[: parts.fields]
    found = []
    for one in parts.candidates:
        pairs = sorted(zip(names, one.contributions, strict=True), key=lambda pair: -abs(pair[1]))
        counts = list(zip(fields, one.cold_keys, one.keys, strict=False))
        found.append(
            {
                "index": one.index,
                "logit": one.logit,
                **({"position": parts.position} if parts.position else {}),
                **(
                    {
                        "heads": {
                            name: {"weight": weight, "logit": logit}
                            for name, weight, logit in zip(
                                parts.heads, parts.weights, one.head_logits, strict=True
                            )
                        }
                    }
                    if parts.heads
                    else {}
                ),
                **({"scale": one.scale, "shift": one.shift} if one.HasField("scale") else {}),
                "contributions": dict(pairs),
                "missing": [name for name, keys in zip(fields, one.keys, strict=True) if not keys],
                "cold": {n: [cold, keys] for n, cold, keys in counts if cold} if one.cold_keys else None,
            }
        )
    return found


def stages(answer: pb.RecommendResponse) -> list[Row]:
    """Stages of a funnel: items in, items out, microseconds."""
    return [
        {"stage": s.name, "in": s.items_in, "out": s.items_out, "microseconds": s.microseconds}
        for s in answer.stages
    ]


def columns(described: pb.DescribeResponse) -> list[Row]:
    """Columns of a request: name, type, part of the request, and whether it must be there."""
    placements = {value: name.removeprefix("PLACEMENT_").lower() for name, value in pb.Placement.items()}
    return [
        {"column": c.name, "type": c.dtype, "in": placements[c.placement], "required": c.required}
        for c in described.columns
    ]


def versions(described: pb.DescribeResponse) -> list[Row]:
    """Kept versions of a server's namespaces, newest first."""
    names = ("side", "number", "created_ms", "champion", "examples", "rows", "served", "held")
    return [{name: getattr(version, name) for name in names} for version in described.versions]


def sides(described: pb.DescribeResponse) -> list[Row]:
    """Sides of a server, the stable one first."""
    names = ("name", "namespace", "share", "by", "model", "fingerprint", "version", "trouble", "explore")
    return [{name: getattr(side, name) for name in names} for side in described.sides]


def facts(described: pb.DescribeResponse) -> Row:
    """Role, model and version of a server, its sides and kept versions, and the columns of a request."""
    names = ("role", "model", "champion", "fingerprint", "version", "items", "held", "max_candidates")
    of_version = ("trouble", "step", "run_id", "examples", "lookup_ttl_ms", "value", "needs_bids")
    tables = {"sides": sides(described), "versions": versions(described), "columns": columns(described)}
    return {name: getattr(described, name) for name in (*names, *of_version)} | tables


def _value(answer: Any, place: int) -> Row:
    """Value of a candidate; empty where the reply has no values."""
    return {"value": answer.value[place]} if answer.value else {}


def _items(answer: Any) -> Sequence[Any]:
    named = answer.WhichOneof("items") == "names"
    return answer.names.values if named else answer.ids.values  # type: ignore[no-any-return]
