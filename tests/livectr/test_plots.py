"""Plots are files that are the same for the same numbers, whatever the process did before."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image

from livectr.analysis.plots import COLOURS, _ends, bars, curve
from livectr.system.errors import ConfigError

TIMES = np.datetime64("2026-11-21T10:00", "ms") + 60_000 * np.arange(30)
SERIES = {
    "rank": (TIMES, 0.62 + 0.01 * np.sin(np.arange(30))),
    "prerank": (TIMES, np.where(np.arange(30) % 7 == 0, np.nan, 0.6)),
}
LABELS, MEANS, SPREADS = ["concat", "sum", "none"], [0.61, 0.62, float("nan")], [0.01, float("nan"), 0.1]


def draw(path: Path, kind: str) -> bytes:
    if kind == "curve":
        curve(path, "GAUC over event time", SERIES, "event time (UTC)", "GAUC")
    else:
        bars(path, "Aggregators", LABELS, MEANS, SPREADS, "GAUC")
    return path.read_bytes()


@pytest.mark.parametrize("suffix", ["svg", "png"])
@pytest.mark.parametrize("kind", ["curve", "bars"])
def test_equal_numbers_give_equal_files(kind: str, suffix: str, tmp_path: Path) -> None:
    one = draw(tmp_path / "a" / f"one.{suffix}", kind)
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.hashsalt": "other"}):
        assert draw(tmp_path / f"two.{suffix}", kind) == one, "nor do a user's own settings change it"
        assert matplotlib.rcParams["font.size"] == 30, "which stay what they were"
    assert matplotlib.rcParams["svg.hashsalt"] != "livectr"


def test_a_png_is_a_picture_on_white(tmp_path: Path) -> None:
    draw(tmp_path / "p.png", "curve")
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.size == (1036, 576)
        pixels = picture.convert("RGBA")
        assert pixels.getpixel((0, 0)) == (255, 255, 255, 255), "legible on a dark page too"
        colours = {colour[:3] for _, colour in pixels.getcolors(1 << 20) or () if isinstance(colour, tuple)}
    assert {tuple(bytes.fromhex(colour[1:])) for colour in COLOURS[:2]} <= colours


def test_an_svg_has_a_line_for_every_series_with_its_gaps(tmp_path: Path) -> None:
    draw(tmp_path / "p.svg", "curve")
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    paths = [path for path in root.iter("{http://www.w3.org/2000/svg}path") if "d" in path.attrib]

    def longest(colour: str) -> str:
        drawn = [path.attrib["d"] for path in paths if colour.lower() in path.attrib.get("style", "")]
        return max(drawn, key=len)

    assert longest(COLOURS[0]).count("M") == 1
    assert longest(COLOURS[1]).count("M") == 5
    assert "<dc:date>" not in (tmp_path / "p.svg").read_text()


def test_bars_that_hardly_differ_begin_above_zero() -> None:
    none = np.zeros(2)
    assert _ends(np.array([0.60, 0.63]), none)[0] == pytest.approx(0.58)
    assert _ends(np.array([0.2, 0.63]), none)[0] == 0
    assert _ends(np.array([-0.01, 0.02]), none)[0] == 0
    assert 0 < _ends(np.array([0.6, 0.6]), none)[0] < 0.6
    bottom, top = _ends(np.array([0.60, np.nan]), np.array([0.05, 0.0]))
    assert bottom < 0.55 and top > 0.65, "error bars are inside"
    assert _ends(np.array([np.nan]), np.zeros(1)) == (0, 0)


@pytest.mark.parametrize("labels", [[], ["a"]])
def test_nothing_to_draw_is_an_empty_plot(labels: list[str], tmp_path: Path) -> None:
    bars(tmp_path / "b.svg", "t", labels, [float("nan")] * len(labels), None, "GAUC")
    curve(tmp_path / "c.svg", "t", {}, "x", "y")
    assert (tmp_path / "b.svg").stat().st_size and (tmp_path / "c.svg").stat().st_size


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plot\.pdf; name a file that ends in \.png or \.svg"):
        curve(tmp_path / "plot.pdf", "t", {}, "x", "y")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        curve(tmp_path / "file" / "p.svg", "t", {}, "x", "y")
    with pytest.raises(ValueError, match="2 labels, 1 means"):
        bars(tmp_path / "p.svg", "t", ["a", "b"], [1.0], None, "y")
