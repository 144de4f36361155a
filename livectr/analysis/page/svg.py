"""Charts as inline SVG: lines with bands, points with whiskers, bars.

Colours, fonts and the dark form are the page's (template.html): a chart only names classes, `s0` to `s6` for
series. Equal numbers give equal text. A library of charts would put 1 to 4 MB into each page, or pictures
that do not follow a dark page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import count

from livectr.analysis.page.axes import Axis

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 10, 40
SERIES = 7
"""Looks of series in the page's style."""
MOST_POINTS = 240
SHOWN_DOTS = 60
"""Points of a line up to which each has a visible dot."""

Pair = tuple[float, float]


class Chart:
    """Chart that is drawn part after part.

    Args:
        title: accessible name.
        about: accessible description, one sentence.
    """

    def __init__(self, x: Axis, y: Axis, title: str, about: str, *, height: int = HEIGHT) -> None:
        self.x, self.y, self.title, self.about, self.height = x, y, title, about, height
        self._parts: list[str] = []

    def place(self, x: float, y: float) -> Pair:
        """Place of a point in the picture."""
        across, up = WIDTH - LEFT - RIGHT, self.height - TOP - BOTTOM
        return LEFT + across * self.x.share(x), TOP + up * (1 - self.y.share(y))

    def band(self, points: Sequence[tuple[float, float, float]], series: int) -> None:
        """Area between (x, low, high)."""
        upper = [self.place(x, high) for x, _, high in points]
        lower = [self.place(x, low) for x, low, _ in reversed(points)]
        self._parts.append(f'<path class="band s{series % SERIES}" d="{_path([*upper, *lower])}Z"/>')

    def line(self, points: Sequence[Pair], series: int, names: Sequence[str] = ()) -> None:
        """Line through (x, y), with the text of each point for a pointer that rests on it."""
        placed = [self.place(*point) for point in points]
        self._parts.append(f'<path class="line s{series % SERIES}" d="{_path(placed)}"/>')
        hidden = " quiet" if len(points) > SHOWN_DOTS else ""
        for (x, y), name in zip(placed, names, strict=False):
            self.dot((x, y), series, name, extra=hidden)

    def dot(self, placed: Pair, series: int, name: str, *, radius: float = 2.2, extra: str = "") -> None:
        """Dot at a place in the picture."""
        x, y = placed
        self._parts.append(
            f'<circle class="dot s{series % SERIES}{extra}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}">'
            f"<title>{escape(name)}</title></circle>"
        )

    def whisker(self, x: float, low: float, high: float, series: int) -> None:
        """Vertical interval."""
        (at, bottom), (_, top) = self.place(x, low), self.place(x, high)
        self._parts.append(f'<path class="whisker s{series % SERIES}" d="M{at:.1f} {bottom:.1f}V{top:.1f}"/>')

    def count(self, x: float, share: float) -> None:
        """Grey bar on the lower axis, a fifth of the height for a share of 1."""
        at, bottom = self.place(x, self.y.low)
        high = share * (self.height - TOP - BOTTOM) / 5
        self._parts.append(f'<path class="count" d="M{at:.1f} {bottom:.1f}v{-high:.1f}"/>')

    def rule(self, start: Pair, end: Pair) -> None:
        """Dashed line of reference between two points."""
        (x1, y1), (x2, y2) = self.place(*start), self.place(*end)
        self._parts.append(f'<path class="rule" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')

    def steps(
        self, edges: Sequence[float], values: Sequence[float], series: int, names: Sequence[str]
    ) -> None:
        """Histogram: an area of steps; len(edges) is len(values) + 1."""
        outline = [self.place(edges[0], 0.0)]
        for left, right, value in zip(edges, edges[1:], values, strict=False):
            outline += [self.place(left, value), self.place(right, value)]
        outline.append(self.place(edges[-1], 0.0))
        look = f"s{series % SERIES}"
        self._parts.append(f'<path class="band {look}" d="{_path(outline)}Z"/>')
        self._parts.append(f'<path class="line {look}" d="{_path(outline)}"/>')
        for left, right, name in zip(edges, edges[1:], names, strict=False):
            (x1, top), (x2, bottom) = self.place(left, self.y.high), self.place(right, self.y.low)
            self._parts.append(
                f'<rect class="over" x="{x1:.1f}" y="{top:.1f}" width="{x2 - x1:.1f}" '
                f'height="{bottom - top:.1f}"><title>{escape(name)}</title></rect>'
            )

    def _x_tick(self, value: float, label: str) -> str:
        """Label below the axis, kept inside of the picture."""
        x, half = self.place(value, self.y.low)[0], 3.2 * len(label)
        x = min(max(x, half + 2), WIDTH - half - 2)
        return (
            f'<text class="tick" x="{x:.1f}" y="{self.height - BOTTOM + 15}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )

    def render(self) -> str:
        """The SVG element."""
        x_ticks = "".join(self._x_tick(value, label) for value, label in self.x.ticks)
        y_ticks = "".join(
            f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
            f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape(label)}</text>'
            for value, label in self.y.ticks
            for y in (self.place(self.x.low, value)[1],)
        )
        titles = (
            f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{self.height - 6}" '
            f'text-anchor="middle">{escape(self.x.label)}</text>'
        )
        return picture(self.title, self.about, self.height, x_ticks + y_ticks + titles + "".join(self._parts))


def bars(title: str, about: str, rows: Sequence[tuple[str, float, float, str]], *, name_width: int) -> str:
    """Horizontal bars from a common zero, with whiskers.

    Args:
        title: of the picture.
        about: sentence for screen readers.
        rows: name, value, half of the whisker (0: none), text beside the bar.
        name_width: of the column of names, in units of the picture.
    """
    high = max((value + half for _, value, half, _ in rows), default=0.0)
    low = min((min(value - half, 0.0) for _, value, half, _ in rows), default=0.0)
    wide, step = WIDTH - name_width - 92, 19
    scale = wide / max(high - low, 1e-12)
    zero = name_width + 6 - low * scale
    parts = [f'<path class="grid" d="M{zero:.1f} 2V{step * len(rows) + 4}"/>']
    for row, (name, value, half, text) in zip(count(), rows, strict=False):
        y, length = 4 + step * row, value * scale
        left = zero + min(length, 0.0)
        parts.append(
            f'<text class="name" x="{name_width}" y="{y + 12}" text-anchor="end">{escape(_cut(name))}</text>'
            f'<rect class="bar s0" x="{left:.1f}" y="{y + 2}" height="13" '
            f'width="{max(abs(length), 0.5):.1f}">'
            f"<title>{escape(name)}: {escape(text)}</title></rect>"
            f'<text class="tick" x="{zero + max(value + half, 0.0) * scale + 5:.1f}" y="{y + 12}">'
            f"{escape(text)}</text>"
        )
        if half:
            ends = (zero + (value - half) * scale, zero + (value + half) * scale)
            parts.append(f'<path class="whisker" d="M{ends[0]:.1f} {y + 8.5}H{ends[1]:.1f}"/>')
    return picture(title, about, step * len(rows) + 10, "".join(parts))


def picture(title: str, about: str, height: int, content: str) -> str:
    """SVG element with its accessible name and description."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}. {escape(about)}">'
        f"<title>{escape(title)}</title><desc>{escape(about)}</desc>{content}</svg>"
    )


def thinned(rows: Sequence[object], most: int = MOST_POINTS) -> list[int]:
    """Places of at most `most` rows at equal distances, the last one included."""
    every = -(-len(rows) // most) if rows else 1
    return sorted({*range(len(rows) - 1, -1, -every)})


def _path(points: Sequence[Pair]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) if points else ""


def _cut(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
