"""After all faults: what was learned is what an undisturbed trainer learns from the same log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s.demo import Cluster
from tests.k8s.probes import end, start, trainer_probe
from tests.k8s.report import fact, note

COMPARE = (Path(__file__).parent / "compare.py").read_text()
POD = "probe-unbroken"
TRAIN = ("livectr", "train", "--pipeline=/etc/livectr/pipeline.py", "--source=kafka://kafka:9092",
         "--checkpoint=/scratch/run", "--set", 'predictions=/scratch/predictions', 'checkpoint_interval_s=1m',
         'order_of=/checkpoint/run', 'batch_interval_ms=1s')  # fmt: skip


@pytest.fixture(scope="module")
def beside(deployed: Cluster) -> Iterator[Cluster]:
    """A pod beside the trainer that sees its checkpoint and the log; no trainer runs meanwhile."""
    deployed.kubectl("scale", "statefulset/trainer", "--replicas=0")
    selector = "--selector=app.kubernetes.io/name=trainer"
    deployed.kubectl("wait", "--for=delete", "pod", selector, "--timeout=300s")
    start(deployed, trainer_probe(deployed, POD, {"checkpoint": "/checkpoint", "scratch": "/scratch"}))
    yield deployed
    end(deployed, POD)
    deployed.kubectl("scale", "statefulset/trainer", "--replicas=2")


def test_nothing_is_lost_or_learned_twice(beside: Cluster, sizes: list[tuple[int, int]]) -> None:
    """The checkpoint against that of undisturbed trainers of the same sizes that read the log from its begin.

    The clock has cut some batches of the trainer before they were full, and it continued without a silent
    partition. Its order log holds these decisions, so that the undisturbed run has the same batches. The ids
    of impressions show that none is lost, and none is learned twice.

    The sizes must be the same: sums over two ranks and over three are rounded in another order, and Adam and
    ReLU carry a last bit on until, after some hundred steps, logits are 0.05 apart. With the same sizes every
    bit is the same. Only models with pictures may differ: live pictures come when they are encoded
    (trainer.content.encoding).
    """

    def program(*words: str) -> str:
        return beside.kubectl("exec", "--stdin", POD, "--", "python3", "-", *words, text=COMPARE)

    steps = int(program("step", "/checkpoint"))
    assert steps > 0
    began = time.monotonic()
    ends = [step for step, _ in sizes[1:]] + [steps]
    assert ends == sorted(ends)
    for (first, ranks), last in zip(sizes, ends, strict=True):
        if first < last:
            beside.kubectl("exec", POD, "--", *TRAIN, f"--ranks={ranks}", "--set", f"max_steps={last}")
    note("an undisturbed run of the same log", time.monotonic() - began)
    found: dict[str, Any] = json.loads(program("compare", "/checkpoint", "/scratch"))
    apart = found["predictions_apart"]
    fact(
        f"- after all faults: {found['steps'][0]} steps and {found['examples'][0]} examples; of the ids of "
        f"{found['compared']} impressions {found['lost']} lost, {found['twice']} learned twice and "
        f"{found['strange']} unknown to an undisturbed run; {found['differences']} are in another place; "
        f"logits {apart['without_images']:.1e} apart without pictures, {apart['rank']:.1e} with them; "
        "without, by tenths of the run: " + ", ".join(f"{d:.1e}" for d in found["tenths"]["without_images"])
    )
    ids = {name: found[name] for name in ("lost", "twice", "strange")}
    assert ids == {"lost": 0, "twice": 0, "strange": 0}
    assert found["steps"] == [steps, steps] and found["examples"][0] == found["examples"][1]
    assert found["differences"] == 0, found
    assert found["statistics_equal"]
    assert all(table["others"] == 0 for table in found["tables"].values()), found["tables"]
    assert apart["without_images"] == 0
