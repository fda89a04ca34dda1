"""The figure of an experiment: an SVG file with a line per participant, drawn without a browser."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedsaddle.runs.report.charts import DASHES, PALETTE, colour, dash
from fedsaddle.runs.report.markup import Html, join, tag

WIDTH, HEIGHT = 400, 270
"""Of one panel, in pixels, axes included."""
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 34, 46
MOST_COLUMNS = 3
LEGEND_COLUMN, LEGEND_LINE = 250, 20
INK, FAINT = "#24303a", "#dfe4e8"
FONT = "font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"


@dataclass(frozen=True)
class Point:
    """A mean over seeds, and the smallest and largest of them."""

    x: float
    mean: float
    least: float
    most: float


@dataclass(frozen=True)
class Chart:
    """A panel: its title, and the points of each line by the line's name.

    categories: what stands below x = 0, 1, 2, …, where x is not a number.
    """

    title: str
    x_title: str
    lines: Mapping[str, Sequence[Point]]
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Frame:
    """The ranges of a panel's axes."""

    first: float
    last: float
    low: float
    high: float

    def place(self, x: float, y: float) -> tuple[float, float]:
        """A point in pixels."""
        across = (x - self.first) / (self.last - self.first or 1.0)
        up = (y - self.low) / (self.high - self.low or 1.0)
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + across * width, HEIGHT - BOTTOM - up * height


def draw(charts: Sequence[Chart], names: Sequence[str], title: str) -> str:
    """Panels beside each other, and below them what the lines mean; a name keeps its colour."""
    columns = min(len(charts), MOST_COLUMNS)
    rows = math.ceil(len(charts) / columns)
    width = max(columns * WIDTH, 2 * LEGEND_COLUMN)
    beside = max(1, (width - LEFT) // LEGEND_COLUMN)
    height = rows * HEIGHT + LEGEND_LINE * math.ceil(len(names) / beside) + 16
    inside = [tag("title", title), _box(0, 0, width, height, fill="#ffffff")]
    plot = _box(LEFT, TOP, WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM)
    inside.append(tag("defs", tag("clipPath", plot, id="plot")))
    for k, chart in enumerate(charts):
        corner = f"translate({k % columns * WIDTH} {k // columns * HEIGHT})"
        inside.append(tag("g", _panel(chart, names), transform=corner))
    below = f"translate({LEFT} {rows * HEIGHT + 8})"
    inside.append(tag("g", *_legend(names, beside), transform=below))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" style="{FONT}">{join(inside)}</svg>\n'
    )


def _legend(names: Sequence[str], beside: int) -> Iterable[Html]:
    for k, name in enumerate(names):
        x, y = k % beside * LEGEND_COLUMN, k // beside * LEGEND_LINE + 8
        yield tag("line", x1=x, x2=x + 24, y1=y, y2=y, **_stroke(k))
        yield _text(name, x + 31, y + 4)


def _panel(chart: Chart, names: Sequence[str]) -> Html:
    title = _text(chart.title, LEFT, 20, bold=True)
    points = [point for line in chart.lines.values() for point in line]
    if not points:
        return join([title, _text("no values", LEFT, 60)])
    # The start says nothing about a method and would take up most of the scale.
    trained = [p for line in chart.lines.values() for p in (line[1:] if len(line) > 4 else line)]
    y_ticks = ticks(min(p.least for p in trained), max(p.most for p in trained))
    first, last = min(p.x for p in points), max(p.x for p in points)
    if chart.categories:
        first, last = -0.25, len(chart.categories) - 0.75
    frame = Frame(first, last, y_ticks[0], y_ticks[-1])
    lines = (
        mark
        for name, line in chart.lines.items()
        for mark in _line(line, names.index(name), frame, dots=bool(chart.categories))
    )
    drawn = tag("g", *lines, clip_path="url(#plot)")
    return join([title, *_y_axis(frame, y_ticks), *_x_axis(chart, frame), drawn])


def _y_axis(frame: Frame, values: Sequence[float]) -> Iterable[Html]:
    for value in values:
        _, y = frame.place(frame.first, value)
        yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_f(y), y2=_f(y), stroke=FAINT)
        yield _text(written(value, values), LEFT - 7, y + 4, anchor="end")


def _x_axis(chart: Chart, frame: Frame) -> Iterable[Html]:
    scale, unit = (1.0, "") if chart.categories else _unit(frame.last)
    below: list[tuple[float, str]] = list(enumerate(chart.categories))
    if not below:
        values = ticks(frame.first / scale, frame.last / scale)
        inside = [v for v in values if frame.first <= v * scale <= frame.last]
        below = [(v * scale, written(v, inside)) for v in inside]
    base = HEIGHT - BOTTOM
    yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, stroke=INK)
    for value, word in below:
        x, _ = frame.place(value, frame.low)
        yield tag("line", x1=_f(x), x2=_f(x), y1=base, y2=base + 4, stroke=INK)
        yield _text(word, x, base + 18, anchor="middle")
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield _text(chart.x_title + unit, middle, base + 36, anchor="middle")


def _line(line: Sequence[Point], index: int, frame: Frame, dots: bool) -> Iterable[Html]:
    """The mean, within a band from the smallest to the largest seed."""
    if len(line) > 1:
        top = [frame.place(p.x, p.most) for p in line]
        bottom = [frame.place(p.x, p.least) for p in reversed(line)]
        yield tag("path", d=_path([*top, *bottom]) + "Z", fill=colour(index), fill_opacity=0.1)
    middle = [frame.place(p.x, p.mean) for p in line]
    yield tag("path", d=_path(middle), fill="none", **_stroke(index))
    if dots or len(line) == 1:
        for x, y in middle:
            yield tag("circle", cx=_f(x), cy=_f(y), r=3.2, fill=colour(index))


def _stroke(index: int) -> dict[str, str]:
    kind = DASHES[dash(index // len(PALETTE))]
    return {"stroke": colour(index), "stroke_width": "1.8", "stroke_dasharray": kind}


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_f(x)} {_f(y)}" for x, y in places)


def _text(words: str, x: float, y: float, anchor: str = "start", bold: bool = False) -> Html:
    weight = "600" if bold else ""
    size = 13 if bold else 11.5
    given = {"text_anchor": anchor, "font_weight": weight, "font_size": size, "fill": INK}
    return tag("text", words, x=_f(x), y=_f(y), **given)


def _box(x: float, y: float, width: float, height: float, fill: str = "") -> Html:
    return tag("rect", x=x, y=y, width=width, height=height, fill=fill)


def _f(value: float) -> str:
    return f"{value:.1f}"


def _unit(largest: float) -> tuple[float, str]:
    """Thousands, millions or billions for long axes.

    >>> _unit(2000), _unit(31_000_000)
    ((1, ''), (1000000.0, ', in millions'))
    """
    for size, word in ((1e9, "billions"), (1e6, "millions"), (1e4, "thousands")):
        if largest >= 2 * size:
            return (1e3 if word == "thousands" else size), f", in {word}"
    return 1, ""


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`.

    >>> ticks(0.61, 0.98)
    [0.6, 0.7, 0.8, 0.9, 1.0]
    >>> ticks(3, 3)
    [3.0]
    """
    if high <= low:
        return [float(low)]
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def written(value: float, among: Sequence[float]) -> str:
    """A tick with as many decimals as its neighbours need.

    >>> [written(v, [0.0, 0.25, 0.5]) for v in (0.0, 0.25)], written(20.0, [0.0, 20.0])
    (['0.00', '0.25'], '20')
    """
    decimals = max(len(f"{v:.6f}".rstrip("0").partition(".")[2]) for v in among)
    return f"{value:,.{decimals}f}".replace("-", "−")
