"""Tables of docs/benchmarks.md: the figures that decide, and the goals that are missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from bench import makes
from bench.makes import Key, Result, Row
from bench.sections import fill, line


class Chosen(NamedTuple):
    """Row of the overview.

    Args:
        says: what the overview calls it.
        figure: of the row.
        workload: part of the row's workload.
        peer: begin of the peer's name; "" for a row without a peer.
    """

    says: str
    figure: str
    workload: str = ""
    peer: str = ""


ADDED = "age, gender, category, added after 61,440 examples of a market, 3 seeds"
"""Parts of the workloads of runs that continue the newest checkpoint, and an older one."""

CHOSEN: Mapping[str, tuple[Chosen, ...]] = MappingProxyType(
    {
        "carry": (
            Chosen("AUC with an added feature", "AUC of examples 1 to 50,000", ADDED, "old run"),
            Chosen("the same, beside relearning", "AUC of examples 40,001 to 50,000", ADDED, "relearned"),
        ),
        "day": (
            Chosen(
                "trainer's memory after a quarter, beside the end",
                "resident memory of the trainer, last tenth of a day",
                peer="the same run after a quarter",
            ),
            Chosen(
                "the same after a half",
                "resident memory of the trainer, last tenth of a day",
                peer="the same run after a half",
            ),
        ),
        "delayed": (
            Chosen("R-AUC of ES-DFM", "R-AUC, es_dfm"),
            Chosen("R-NLL of ES-DFM", "R-NLL, es_dfm"),
        ),
        "des-bytes": (
            Chosen(
                "bytes saved, DNN, beside the paper",
                "bytes saved by ⊕ against mesh",
                "DNN, batch 8192",
                "DES",
            ),
            Chosen(
                "all bytes of a rank, DNN, beside a mesh",
                "all bytes sent by a rank",
                "DNN, batch 8192",
                "mesh",
            ),
        ),
        "featurebox": (
            Chosen(
                "extraction, beside Polars", "extraction: Parquet → 5 look-ups → 200 features", peer="Polars"
            ),
            Chosen("logs to model, beside PySpark", "end to end: logs → trained model", peer="PySpark"),
        ),
        "features": (Chosen("extraction", "feature extraction, rows/s"),),
        "first-rows": (
            Chosen("DeepFM of 10,000 rows, whole process", "seconds to the report", "DeepFM, 10,000 rows"),
            Chosen("examples/s of DeepFM, 10,000 rows", "examples learned a second", "DeepFM, 10,000 rows"),
        ),
        "funnel": (
            Chosen(
                "revenue of the top ten that a cut to a tenth keeps",
                "revenue of the true top ten that is kept, cut by value",
            ),
        ),
        "freshness": (
            Chosen("p99, event to servable", "p99, event to servable"),
            Chosen("largest rate that holds", "largest rate that holds"),
        ),
        "images": (
            Chosen(
                "step with images, beside ids only",
                "training step with images, Embedding&MLP, bf16",
                "1 rank",
                "ID-only",
            ),
            Chosen("rank request, beside ids only", "rank request with images, p50", peer="ID-only"),
        ),
        "ingest": (
            Chosen("Arrow files to features", "source → join → features", "Arrow IPC"),
            Chosen("JSON lines to features", "source → join → features", "JSON lines"),
        ),
        "kafka": (
            Chosen("decode, beside confluent-kafka", "decode, one core", peer="confluent-kafka"),
            Chosen("broker to features", "join and features, all cores"),
        ),
        "large-day": (
            Chosen(
                "longest wait for a checkpoint", "training waits for a checkpoint, longest", "1,000 visits/s"
            ),
            Chosen("restart of 10 million rows", "restart, until the checkpoint is read, of 10 million rows"),
        ),
        "learning": (
            Chosen(
                "AUC of real ratings, beside the best peer", "AUC of all 100,000 rows", "ratings", "Vowpal"
            ),
            Chosen("AUC of real ads, beside the best peer", "AUC of all 60,000 rows", "ads", "Vowpal"),
        ),
        "memory": (
            Chosen(
                "memory after a quarter, beside the end",
                "resident memory of the trainer, last tenth of the run",
                peer="the same run",
            ),
        ),
        "mesh": (
            Chosen("DeepFM on W, beside a mesh in step", "training beside a mesh", "DeepFM", "mesh, sync"),
            Chosen(
                "DeepFM on W, beside a mesh out of step", "training beside a mesh", "DeepFM", "mesh, async"
            ),
        ),
        "network": (
            Chosen(
                "P at 1 Gbit/s, 2 ranks, beside DMP",
                "training at 1 Gbit/s, ours, auto",
                "P, 26+13 fields",
                "TorchRec DMP table-wise",
            ),
            Chosen(
                "W at 1 Gbit/s, 4 ranks, beside DMP",
                "training at 1 Gbit/s, ours, auto",
                "W, 200 fields",
                "TorchRec DMP table-wise",
            ),
        ),
        "peers": (
            Chosen(
                "DeepFM on P, 1 rank, beside FBGEMM TBE",
                "DeepFM training, fp32",
                "P, 26+13 fields",
                "FBGEMM TBE, fused row-wise Adagrad",
            ),
            Chosen(
                "DeepFM on W, 4 ranks, beside TorchRec DMP",
                "DeepFM training, fp32",
                "4 ranks",
                "TorchRec DMP table-wise",
            ),
        ),
        "publish": (
            Chosen(
                "complete version, 1 rank, 1 server",
                "complete version, to the flip",
                "one rank, server",
                "redis-py",
            ),
            Chosen(
                "complete version, 2 ranks, a cluster",
                "complete version into a cluster, to the flip",
            ),
        ),
        "quality": (
            Chosen("AUC of DeepFM, beside TorchRec", "one-pass AUC, DeepFM, fp32", peer="TorchRec"),
            Chosen("AUC of DeepFM, beside a mesh out of step", "one-pass AUC, DeepFM", peer="mesh"),
        ),
        "redis-memory": (Chosen("a row of 17 numbers", "memory of a row in Redis", "D = 17"),),
        "resize": (
            Chosen("1 → 3 ranks, SIGTERM to served", "SIGTERM to served, 1 → 3 ranks"),
            Chosen("requests that failed", "requests that failed or are degraded"),
        ),
        "scaling": (
            Chosen("step of the base point, 1 rank", "partial: step", "N = 1, B = 2048, F = 32, K = 8"),
            Chosen("the same on 2 ranks, with `rows`", "rows: step", "N = 2, B = 2048, F = 32, K = 8"),
        ),
        "serving": (
            Chosen(
                "p99 of rank, 16 features", "p99 latency, one client", "rank 400 of 20,000 ads, 16 fields"
            ),
            Chosen(
                "p50 of rank, 16 ids, beside own lines", "p50 latency, one client", "16 ids", "lines, ad rows"
            ),
        ),
        "start": (
            Chosen("cold trainer to its first step", "first step of a trainer, and its report", "cold"),
            Chosen("cold rank server to its first answer", "first answer of a rank server", "cold"),
        ),
        "step": (Chosen("limit's share of a step of P", "limit, of the step"),),
        "tables": (
            Chosen("look-up, beside a static table", "look-up and gather, K=16", peer="torch.index_select"),
            Chosen(
                "step of 26 fields, beside EmbeddingBag",
                "embedding step (forward, backward, optimiser)",
                peer="torch EmbeddingBag",
            ),
        ),
        "tiers": (
            Chosen(
                "step, ids of Zipf 1.05, beside memory",
                "training step, 10 times the memory, read ahead",
                "Zipf 1.05",
                "all rows",
            ),
            Chosen(
                "step, ids of Zipf 1.3, beside memory",
                "training step, 10 times the memory, read ahead",
                "Zipf 1.3",
                "all rows",
            ),
        ),
        "train": (
            Chosen("DeepFM on P, 1 rank, beside EmbeddingBag", "DeepFM training", "1 rank", "torch"),
            Chosen("DeepFM on P, 2 ranks, beside DDP", "DeepFM training", "2 ranks", "torch"),
        ),
        "whole-run": (
            Chosen("CPU of a whole run", "CPU of a whole run"),
            Chosen("CPU of steps alone", "CPU of steps alone"),
        ),
    }
)
"""Figures of each benchmark that decide; a benchmark with a result needs one or two."""


def page(text: str, found: Mapping[str, Sequence[Result]]) -> str:
    """Text of the overview with the tables of all results."""
    text = fill(text, "figures", "\n".join(["", *figures(found), "", ""]))
    return fill(text, "missed goals", "\n".join(["", *missed(found), "", ""]))


def figures(found: Mapping[str, Sequence[Result]]) -> list[str]:
    """Table of the figures that decide, a column for each make."""
    columns = _columns(found)
    lines = [line(["benchmark", "figure", *columns]), "|---|---" + "|---:" * len(columns) + "|"]
    for name, results in found.items():
        rows = makes.compared(results)
        for chosen in CHOSEN.get(name, ()):
            by_make = rows[_key(name, chosen, rows)]
            lines.append(line([_link(name), chosen.says, *makes.cells(by_make, columns)]))
    return lines


def missed(found: Mapping[str, Sequence[Result]]) -> list[str]:
    """Table of the benchmarks that miss a goal: how many on each make, and the row that is farthest away."""
    columns = _columns(found)
    head = ["benchmark", *columns, "farthest from its goal"]
    lines = [line(head), "|---" + "|---:" * len(columns) + "|---|"]
    for name, results in found.items():
        short = [
            (row, makes.make_of(result))
            for result in results
            for row in result["rows"]
            if row["met"] is False
        ]
        if short:
            counts = dict(zip(map(makes.make_of, results), map(_count, results), strict=True))
            farthest = _sentence(*min(short, key=lambda pair: share(pair[0])))
            lines.append(line([_link(name), *(counts.get(make, "–") for make in columns), farthest]))
    return lines


def share(row: Row) -> float:
    """Share of its goal that a row reaches. A peer without a goal is to be reached."""
    if row["ratio"] is not None:
        return float(row["ratio"] / (row["goal"] or 1.0))
    ours, goal = row["ours"], row["goal"]
    return float(min(ours, goal) / max(ours, goal))


def _sentence(row: Row, make: str) -> str:
    """Row in words, with the begin of its workload."""
    workload, *_ = row["workload"].split(", ")
    beside = f", beside {row['peer_name']}" if row["peer_name"] else ""
    return f"{row['figure']} ({workload}){beside}, on {make}: {makes.cell(row)}"


def _count(result: Result) -> str:
    """Missed goals of all goals."""
    met = [row["met"] for row in result["rows"] if row["met"] is not None]
    return f"{met.count(False)} of {len(met)}"


def _key(name: str, chosen: Chosen, rows: Mapping[Key, object]) -> Key:
    keys = list(_matching(chosen, rows))
    if len(keys) != 1:
        raise ValueError(f"{name}: {chosen.says!r} is {len(keys)} rows of the result, not one")
    return keys[0]


def _matching(chosen: Chosen, rows: Mapping[Key, object]) -> Iterator[Key]:
    for figure, workload, peer in rows:
        beside = peer.startswith(chosen.peer) if chosen.peer else not peer
        if figure == chosen.figure and chosen.workload in workload and beside:
            yield figure, workload, peer


def _columns(found: Mapping[str, Sequence[Result]]) -> list[str]:
    return makes.columns([result for results in found.values() for result in results])


def _link(name: str) -> str:
    return f"[`{name}`](benchmarks/{name}.md)"
