"""Charts: an empty box with the JSON from which report.js draws it, and the key to its lines.

A trace is a dictionary of numbers and of style: `x` and `y`, `name`, `colour`, `dash`; `low` and
`high` are drawn as a `band` or as `whiskers`; `kind` is "bar", "heatmap" or, without it, lines.
"""

import json
from collections.abc import Iterable, Sequence
from html import escape

from fedsaddle.runs.report.markup import Html, tag
from fedsaddle.runs.report.words import Row

# Okabe and Ito's colours, which colour-blind readers tell apart; the palest come last.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f6bb3", "#8a8a8a", "#e69f00", "#56b4e9")
DASHES = {"solid": "none", "dot": "2 4", "dash": "8 4"}


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def dash(index: int) -> str:
    return [*DASHES][index % len(DASHES)]


def shown(name: str) -> str:
    """A name inside a chart: short, and safe from the little markup that plotly's text knows."""
    return escape(name if len(name) <= 24 else name[:23] + "…", quote=False)


def chart(
    title: str,
    traces: Sequence[Row],
    x_title: str = "Round",
    y_title: str = "",
    legend: bool = False,
    height: int = 320,
    diagonal: bool = False,
) -> Html:
    """A titled chart."""
    label = f"Chart: {title}. " + "; ".join(t["label"] for t in traces if "label" in t)
    figure = {
        "traces": [trace | {"name": shown(trace.get("name", ""))} for trace in traces],
        "x_title": x_title,
        "y_title": y_title,
        "diagonal": diagonal,
    }
    text = json.dumps(figure, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":  # no text can close the script element or open another
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return tag(
        "figure",
        tag("figcaption", title),
        key(traces) if legend else None,
        tag("div", class_="chart", role="img", aria_label=label, style=f"height:{height}px"),
        tag("script", Html(text), type="application/json"),
    )


def key(traces: Iterable[Row]) -> Html:
    """What the lines of a chart mean."""

    def sample(ink: str, dash: str = "solid") -> Html:
        line = tag("line", x1=1, x2=27, y1=6, y2=6, stroke=ink, stroke_dasharray=DASHES[dash])
        return tag("svg", line, width=28, height=12, aria_hidden="true")

    lines = ((sample(t["colour"], t.get("dash", "solid")), t["name"]) for t in traces)
    return tag("ul", *(tag("li", *line) for line in lines), class_="key")


def run_key(names: Iterable[str]) -> Html | None:
    """Which colour is which run, when there are several."""
    traces = [{"name": name, "colour": colour(i)} for i, name in enumerate(names)]
    return key(traces) if len(traces) > 1 else None
