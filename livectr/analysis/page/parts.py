"""Parts of the page as HTML: sections, figures with the tables behind them, cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape


@dataclass(frozen=True)
class Table:
    """Table behind a chart: column names and rows of texts; the first column names the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def html(self, caption: str) -> str:
        """The table, folded away."""
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        body = "".join(
            f'<tr><th scope="row">{escape(row[0])}</th>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        return (
            f"<details><summary>{escape(caption)} ({len(self.rows)} rows)</summary>"
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
            f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div></details>"
        )


@dataclass(frozen=True)
class Figure:
    """Chart with its title, legend and the table behind it.

    Attributes:
        svg: the picture; "" where there is nothing to draw yet, and the note says why.
        legend: names of series, in the order of their looks.
        axis: "examples" or "time": shown while the page's switch is there; "": always.
    """

    title: str
    svg: str
    note: str = ""
    legend: Sequence[str] = ()
    table: Table | None = None
    axis: str = ""

    def html(self) -> str:
        """The figure element."""
        marks = "".join(
            f'<li><svg class="key" viewBox="0 0 22 8" aria-hidden="true"><path class="line s{i % 7}" '
            f'd="M0 4H22"/></svg>{escape(name)}</li>'
            for i, name in enumerate(self.legend)
        )
        legend = f'<ul class="legend">{marks}</ul>' if len(self.legend) > 1 else ""
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        table = self.table.html(self.title) if self.table is not None else ""
        kind = f' class="by-{self.axis}"' if self.axis else ""
        title = f"<figcaption>{escape(self.title)}</figcaption>"
        return f"<figure{kind}>{title}{legend}{self.svg}{note}{table}</figure>"


@dataclass(frozen=True)
class Section:
    """Section of the page.

    Attributes:
        key: id of its element.
        about: sentences that say what the figures show.
    """

    key: str
    title: str
    about: str
    figures: Sequence[Figure] = ()

    def html(self) -> str:
        """The section element."""
        figures = "".join(figure.html() for figure in self.figures)
        return (
            f'<section id="{self.key}" aria-labelledby="{self.key}-title">'
            f'<h2 id="{self.key}-title">{escape(self.title)}</h2><p>{escape(self.about)}</p>'
            f'<div class="figures">{figures}</div></section>'
        )


def cards(figures: Iterable[tuple[str, str, str]]) -> str:
    """Figures at the top of the page: name, value, remark."""
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd><dd class=remark>{escape(remark)}</dd></div>"
        for name, value, remark in figures
    )
    return f'<dl class="cards">{items}</dl>'


def number(value: float | None, digits: int = 4) -> str:
    """Number for a table; –: not known."""
    return "–" if value is None or value != value else f"{value:,.{digits}f}"


def bytes_text(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def moment(epoch_ms: int) -> str:
    """Time of ms since 1970, in UTC."""
    return f"{datetime.fromtimestamp(epoch_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
