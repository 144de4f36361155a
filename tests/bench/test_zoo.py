"""The rows of bench.zoo, from made-up scores."""

import numpy as np

from bench.learning.logs import Log
from bench.zoo import Figures, compared, figures, table, zoo
from livectr import models
from livectr.models import ModelConfig

HISTORIES = {"DIN", "DIEN", "DICM"}


def made(rows: int, fields: int = 4) -> Log:
    label = np.tile(np.float32([1, 0]), rows // 2)
    ids = {f"C{f}": np.arange(rows) for f in range(fields)}
    return Log("made", ids, np.empty((rows, 1), np.float32), label)


def test_every_model_is_in_it_but_those_of_histories() -> None:
    exported = {
        name
        for name in models.__all__
        if isinstance(kind := getattr(models, name), type) and issubclass(kind, ModelConfig)
    } - {"ModelConfig"}
    log = made(2)
    assert {type(config).__name__ for config in zoo(log).values()} == exported - HISTORIES
    for config in zoo(log).values():
        config.build(tuple(log.fields), tuple(log.fields), ("I1",), True, 1)


def test_figures_are_of_all_seeds() -> None:
    logs = [made(400), made(400)]
    even = np.zeros(400, np.float32)
    knows = np.where(logs[0].label == 1, 1, -1).astype(np.float32) * 9
    off = even.copy()
    off[200:220] = np.log(3)  # promises 15 clicks, where 10 come
    found = figures(logs, [knows, off])
    assert 0.74 < found.end < 0.76 and found.first == found.end
    assert (round(found.least, 3), round(found.most, 3)) == (1.0, 1.5)


def test_a_model_is_beside_lr_and_must_be_calibrated() -> None:
    found = {
        "LR": Figures(0.7, 0.75, 0.9, 1.1),
        "near": Figures(0.6, 0.746, 0.9, 1.1),
        "behind": Figures(0.7, 0.74, 0.9, 1.1),
        "low": Figures(0.7, 0.76, 0.79, 1.1),
        "high": Figures(0.7, 0.76, 0.9, 1.3),
    }
    rows = compared("made", found)
    assert [row["met"] for row in rows] == [True, True, False, False, False]
    assert all(row["peer"] == 0.75 for row in rows)
    shown = table("made", found)
    assert shown["lines"][1] == ["LR", "0.7000", "0.7500", "0.9000", "1.1000"]  # type: ignore[index]
