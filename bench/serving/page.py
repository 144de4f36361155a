"""Tables of docs/serving.md, of bench/results/serving.json and serving-profile.json.

python -m bench.serving.page
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bench.numbers import number
from bench.sections import RESULTS, ROOT, fill, line

PAGE = ROOT / "docs" / "serving.md"
PROFILE, ROWS = RESULTS / "serving-profile.json", RESULTS / "serving.json"

STAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gRPC, client": (
        "{request} bytes there, {reply} back",
        "gRPC echo of these messages, and the client's message",
        ("echo", "pack"),
    ),
    "protobuf": ("the same bytes", "protobuf alone", ("message",)),
    "wait": ("a place among `max_active`", "", ()),
    "parse": ("10 columns and the bids", "ids and bids as NumPy arrays", ("columns",)),
    "enrich": ("the user's look-up row", "a round trip of one row to Redis", ("one row",)),
    "extract": ("keys of 11 fields of the context", "a copy of the keys", ("keys",)),
    "look_up": ("11 rows, 400 partial results of 1.2 kB", "a gather of these in NumPy", ("gather",)),
    "score": ("{flops:.0f} MFLOP", "FLOPs at the core's peak", ("score at hand",)),
    "respond": ("400 scores: probability, sort, lists", "sort and message alone", ("sort",)),
}
"""Stage → its work, its limit, and the limit's probes."""
PROBES = {
    "echo": "gRPC round trip on loopback, messages of the same sizes",
    "one row": "Redis: MGET of one row of 340 bytes",
    "all rows": "Redis: MGET of 401 rows of 340 bytes",
    "pack": "client: make the request's message from Python's lists",
    "message": "protobuf: read the request, write the reply",
    "columns": "NumPy: arrays of 400 ids and 400 bids",
    "keys": "memory: copy of 11 keys",
    "gather": "memory: gather of 400 partial results of 1.2 kB from 20,000",
    "products": "PyTorch: the two large products, one thread, fp32",
    "score at hand": "core: the request's FLOPs at the measured peak",
    "score": "core: the same without the ads' partial results at hand",
    "sort": "NumPy and protobuf: sort 400 scores, make the reply",
}


def tables(profile: Mapping[str, Any], rows: Mapping[str, Any]) -> str:
    """Markdown of all tables."""
    parts = [_stages(profile), _probes(profile), _goals(rows)]
    for table in rows.get("tables", ()):
        header, *lines = table["lines"]
        parts.append([f"#### {table['title']}", "", _origin(rows), "", *_table(header, lines)])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def page(text: str, profile: Mapping[str, Any], rows: Mapping[str, Any]) -> str:
    """The page's text with the tables of the current results."""
    return fill(text, "results", f"\n{tables(profile, rows)}\n")


def _stages(profile: Mapping[str, Any]) -> list[str]:
    measured, limits = profile["stages_us"], profile["probes"]
    whole = sum(measured.values())
    lines, least_us = [], 0.0
    for stage, (work, limit, names) in STAGES.items():
        said = work.format(**profile["bytes"], flops=profile["flops"]["at hand"] / 1e6)
        least = sum(limits[name] for name in names)
        least_us += least
        share = f"{measured[stage] / whole:.0%}"
        lines.append(
            [
                f"`{stage}`",
                f"{measured[stage]:,.0f}",
                share,
                said,
                f"{least:,.0f}" if names else "–",
                limit or "–",
            ]
        )
    lines.append(["all", f"{whole:,.0f}", "100%", "", f"{least_us:,.0f}", "the sum"])
    title = f"#### Time of a request by stage: {profile['workload']}, one client"
    return [
        title,
        "",
        _origin(profile),
        "",
        *_table(["stage", "µs", "share", "work", "limit, µs", "limit"], lines),
    ]


def _probes(profile: Mapping[str, Any]) -> list[str]:
    limits = profile["probes"]
    lines = [[text, f"{limits[name]:,.1f} µs"] for name, text in PROBES.items()]
    lines.append(["core: peak of a product of 1024³, one thread, fp32", f"{limits['peak']:,.0f} GFLOP/s"])
    return [
        "#### Limits of this machine, medians",
        "",
        _origin(profile),
        "",
        *_table(["probe", "measured"], lines),
    ]


def _goals(rows: Mapping[str, Any]) -> list[str]:
    lines = []
    for row in rows["rows"]:
        if row["goal"] is not None:
            ours = f"{number(row['ours'])} {row['unit']}"
            if row["peer"] is not None:
                ours += f", {number(row['peer'])} {row['peer_name']}: ratio {number(row['ratio'])}"
            met = "yes" if row["met"] else "**no**"
            lines.append([row["figure"], row["workload"], ours, number(row["goal"]), met])
    header = ["figure", "workload", "measured", "goal", "met"]
    return ["#### Goals", "", _origin(rows), "", *_table(header, lines)]


def _origin(result: Mapping[str, Any]) -> str:
    machine = result["hardware"]
    quick = ", quick: no figures to quote" if result["settings"]["quick"] else ""
    return f"Commit `{result['commit']}`, {machine['cores']} cores of {machine['processor']}{quick}."


def _table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return [line(header), "|---" * len(header) + "|", *map(line, lines)]


def main() -> None:
    """Write the page again."""
    profile, rows = (json.loads(path.read_text()) for path in (PROFILE, ROWS))
    PAGE.write_text(page(PAGE.read_text(), profile, rows))


if __name__ == "__main__":
    main()
