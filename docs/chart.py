"""Draw panels of lines, steps, marks and bars as one SVG, by hand: the same bytes for the same numbers.

The drawing has a background of its own and follows the reader's light or dark scheme. Series differ in dashes too, not
in colour alone. The numbers stand in it as JSON, in `<metadata>`; `numbers_of` reads them back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast
from xml.sax.saxutils import escape

Points: TypeAlias = Sequence[Sequence[float]]
Numbers: TypeAlias = dict[str, Any]

WIDTH: Final = 860
HEIGHT: Final = 230
LEFT, RIGHT, ABOVE, BELOW = 56, 16, 30, 46
HEAD, HEAD_WITH_LEGEND = 36, 62
LIGHT: Final = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#9a6700", "#57606a")
DARK: Final = ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#d29922", "#9ea7b3")
DASHES: Final = ("none", "7 3", "2 2", "9 3 2 3", "14 3", "4 4")


@dataclass(frozen=True)
class Axis:
    """A scale: from the first of `ticks` to the last, which are labelled."""

    label: str
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Return where a value is on it, from 0 to 1."""
        low, at, high = (self._scaled(number) for number in (self.ticks[0], value, self.ticks[-1]))
        return (at - low) / (high - low)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


@dataclass(frozen=True)
class Series:
    """Points, and how they are drawn. `look` chooses colour and dashes; a bar is as wide as `step` on the x axis."""

    points: Points
    look: int
    kind: Literal["line", "steps", "marks", "bars"] = "line"
    step: float = 1.0
    solid: bool = False
    """Without dashes, whatever the look."""


@dataclass(frozen=True)
class Panel:
    """One diagram. `levels` are horizontal lines with a text, `bands` stretches of the x axis that are shaded."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    levels: Sequence[tuple[float, str]] = ()
    bands: Sequence[tuple[float, float, str]] = ()


@dataclass(frozen=True)
class Box:
    """Where a panel is, and how its values become pixels."""

    panel: Panel
    left: float
    top: float
    width: float
    height: float

    def x(self, value: float) -> float:
        """Return the pixel of a value on the x axis."""
        return self.left + self.width * self.panel.x.share(value)

    def y(self, value: float) -> float:
        """Return the pixel of a value on the y axis."""
        return self.top + self.height * (1 - self.panel.y.share(value))


def draw(title: str, panels: Sequence[Panel], *, numbers: Numbers, legend: Sequence[str] = (), columns: int = 1) -> str:
    """Return the SVG of some panels, `columns` in a row. `legend` names the looks 0, 1, 2 ..."""
    head = HEAD_WITH_LEGEND if legend else HEAD
    height = head + math.ceil(len(panels) / columns) * (ABOVE + HEIGHT + BELOW)
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<metadata>{escape(json.dumps(numbers, separators=(',', ':')))}</metadata>",
        f"<style>{_style()}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>',
        _text(16, 26, title, "title"),
        *_legend(legend),
    ]
    for number, panel in enumerate(panels):
        body += _panel(_place(panel, number, columns, head))
    return "\n".join([*body, "</svg>", ""])


def numbers_of(svg: str) -> Numbers:
    """Return the numbers that a drawing was made of."""
    found = re.search(r"<metadata>(.*)</metadata>", svg)
    if found is None:
        raise ValueError("svg must have been made by draw()")
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return cast("Numbers", json.loads(text))


# ------------------------------------------------------------------------------------------------------ styles


def _style() -> str:
    dark = "".join(_colours("#0d1117", "#e6edf3", "#30363d", DARK))
    return "".join([*_shapes(), *_colours("#ffffff", "#1f2328", "#d1d9e0", LIGHT)]) + (
        f"@media(prefers-color-scheme:dark){{{dark}}}"
    )


def _shapes() -> Iterator[str]:
    yield "text{font:12px system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif}"
    yield ".title{font-size:15px;font-weight:600}.head{font-weight:600}.right{text-anchor:end}.mid{text-anchor:middle}"
    yield ".grid{stroke-width:1}.level{stroke-width:1;stroke-dasharray:3 3}.line{fill:none;stroke-width:2}"
    yield ".band{opacity:.08}"
    for look, dashes in enumerate(DASHES):
        yield f".d{look}{{stroke-dasharray:{dashes}}}"


def _colours(page: str, ink: str, grid: str, looks: Sequence[str]) -> Iterator[str]:
    yield f".page{{fill:{page}}}text{{fill:{ink}}}.grid{{stroke:{grid}}}.level{{stroke:{ink}}}.band{{fill:{ink}}}"
    for look, colour in enumerate(looks):
        yield f".s{look}{{stroke:{colour}}}.f{look}{{fill:{colour}}}"


# ------------------------------------------------------------------------------------------------------- parts


def _place(panel: Panel, number: int, columns: int, head: int) -> Box:
    row, column = divmod(number, columns)
    width = WIDTH / columns
    top = head + row * (ABOVE + HEIGHT + BELOW) + ABOVE
    return Box(panel, column * width + LEFT, top, width - LEFT - RIGHT, HEIGHT)


def _legend(names: Sequence[str]) -> Iterator[str]:
    left = 16.0
    for look, name in enumerate(names):
        yield f'<path class="line s{look} d{look}" d="M{_px(left)} 46h26"/>'
        yield _text(left + 32, 50, name)
        left += 50 + 6.8 * len(name)


def _panel(box: Box) -> Iterator[str]:
    panel = box.panel
    yield _text(box.left, box.top - 12, panel.title, "head")
    for start, end, text in panel.bands:
        yield _rect(box.x(start), box.top, box.x(end) - box.x(start), box.height, "band")
        yield _text((box.x(start) + box.x(end)) / 2, box.top + 16, text, "mid")
    yield from _axes(box)
    for series in panel.series:
        yield _series(box, series)
    for value, text in panel.levels:
        yield f'<path class="level" d="M{_px(box.left)} {_px(box.y(value))}h{_px(box.width)}"/>'
        yield _text(box.left + box.width - 4, box.y(value) + 15, text, "right")


def _axes(box: Box) -> Iterator[str]:
    bottom = box.top + box.height
    for tick in box.panel.y.ticks:
        yield f'<path class="grid" d="M{_px(box.left)} {_px(box.y(tick))}h{_px(box.width)}"/>'
        yield _text(box.left - 6, box.y(tick) + 4, f"{tick:,g}", "right")
    for tick in box.panel.x.ticks:
        yield _text(box.x(tick), bottom + 17, f"{tick:,g}", "mid")
    yield _text(box.left + box.width / 2, bottom + 35, box.panel.x.label, "mid")
    yield _text(box.left + box.width, box.top - 12, box.panel.y.label, "right")


def _series(box: Box, series: Series) -> str:
    if series.kind == "bars":
        return "".join(_bars(box, series))
    pixels = _pixels(box, series)
    if series.kind == "marks":
        return "".join(f'<circle class="page s{series.look}" cx="{x}" cy="{y}" r="4"/>' for x, y in pixels)
    dashes = "" if series.solid else f" d{series.look}"
    return f'<path class="line s{series.look}{dashes}" d="{_way(pixels, series.kind == "steps")}"/>'


def _pixels(box: Box, series: Series) -> list[tuple[str, str]]:
    return [(_px(box.x(x)), _px(box.y(y))) for x, y in series.points]


def _way(pixels: list[tuple[str, str]], steps: bool) -> str:
    (x, y), *others = pixels
    return f"M{x} {y}" + "".join(f"H{x}V{y}" if steps else f"L{x} {y}" for x, y in others)


def _bars(box: Box, series: Series) -> Iterator[str]:
    for x, y in series.points:
        if y:
            width = box.x(x + series.step) - box.x(x) - 1
            yield _rect(box.x(x), box.y(y), width, box.y(0) - box.y(y), f"f{series.look}")


def _rect(left: float, top: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{_px(left)}" y="{_px(top)}" width="{_px(width)}" height="{_px(height)}"/>'


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{_px(x)}" y="{_px(y)}">{escape(text)}</text>'


def _px(value: float) -> str:
    return f"{round(value, 1):g}"
