"""Learning curves, and the weights of methods that weigh the sites."""

import re

from fedsaddle.runs.record import RunRecord
from fedsaddle.runs.report.charts import chart, colour, dash, run_key
from fedsaddle.runs.report.markup import Html, join, note, tag
from fedsaddle.runs.report.reading import Runs, last, measured, setting
from fedsaddle.runs.report.words import UNITS, Row, column, finite, metric_name, number, unit_of

WEIGHT = "lambda/"
MOST_WEIGHTS = 20
DETAILS = re.compile(r"(worst|std|best10|worst10)_.*|.*_(low|high)|rows|undefined_sites")
"""Metrics that are drawn with another one, or not at all."""


def curves(runs: Runs, bands: bool = False) -> Html:
    """Metrics by round, megabytes or time: all lines of one run, or a line each of several.

    With `bands` the intervals of several are drawn, too.
    """
    known = measured(runs)
    tested = {name.partition("/")[2] for name in known if name.startswith(("test/", "validation/"))}
    ends = [last(run, "simulated_seconds") or 0.0 for run in runs.values()]
    unit = unit_of(max(ends)) if "simulated_seconds" in known else ""
    panels: dict[str, list[Row]] = {}
    for metric in ["auc"] if "auc" in tested else sorted(tested):
        if not DETAILS.fullmatch(metric):
            panels |= metric_panels(runs, metric, known, unit, bands)
    if "train/objective" in known:
        panels["Training objective"] = curve_per_run(runs, "train/objective", unit, bands)
    if not panels:
        return note("No metrics have been recorded yet.")
    figures = (
        chart(title, traces, legend=len(runs) == 1 < len(traces))
        for title, traces in panels.items()
    )
    grid = tag("div", *figures, class_="grid")
    return join([toggle("bytes_up" in known, unit), run_key(runs), grid])


def metric_panels(
    runs: Runs, metric: str, known: set[str], unit: str, bands: bool
) -> dict[str, list[Row]]:
    """One panel with up to three lines for one run; up to three panels for several."""
    title = metric_name(metric)
    words = {f"test/{metric}": "test", f"validation/{metric}": "validation"}
    words |= {f"test/worst_{metric}": "worst site"}
    found = [(i, name, word) for i, (name, word) in enumerate(words.items()) if name in known]
    if len(runs) > 1:
        return {
            f"{title}, {word}": curve_per_run(runs, name, unit, bands) for _, name, word in found
        }
    (run,) = runs.values()
    return {
        title: [
            curve(run, name, unit)
            | {"name": word.capitalize(), "colour": colour(i), "dash": dash(i), "band": True}
            for i, name, word in found
        ]
    }


def curve_per_run(runs: Runs, name: str, unit: str, bands: bool) -> list[Row]:
    return [
        curve(run, name, unit) | {"name": label, "colour": colour(i), "band": bands}
        for i, (label, run) in enumerate(runs.items())
    ]


def curve(record: RunRecord, name: str, unit: str = "") -> Row:
    """A metric's values by round, by megabytes sent and, in a `unit`, by simulated time."""
    rows = [row for row in record.history if finite(row.get(name)) is not None]
    both = zip(column(rows, "bytes_up"), column(rows, "bytes_down"), strict=True)
    trace: Row = {
        "x": column(rows, "round"),
        "sent": [None if up is None or down is None else (up + down) / 1e6 for up, down in both],
        "y": column(rows, name),
        "low": column(rows, f"{name}_low"),
        "high": column(rows, f"{name}_high"),
        "label": f"{name} ends at {number(rows[-1][name])}" if rows else f"{name} has no values",
    }
    if unit:
        seconds = column(rows, "simulated_seconds")
        trace["time"] = [None if at is None else at / UNITS[unit] for at in seconds]
    return trace


def toggle(has_bytes: bool, unit: str) -> Html | None:
    """Buttons for the horizontal axes that there are."""
    axes = [("x", "By round", "Round")]
    axes += [("sent", "By megabytes", "Megabytes sent")] if has_bytes else []
    axes += [("time", "By simulated time", f"Simulated {unit}")] if unit else []
    buttons = (
        tag(
            "button",
            text,
            type="button",
            data_axis=axis,
            data_title=title,
            aria_pressed="true" if axis == "x" else "false",
        )
        for axis, text, title in axes
    )
    group = tag("div", *buttons, class_="toggle", role="group", aria_label="Horizontal axis")
    return group if len(axes) > 1 else None


def weights(runs: Runs) -> Html | None:
    """How much the server lets each site, or group of sites, count; None where no method does."""
    parts: list[Html] = []
    for label, run in runs.items():
        names = [name for name in measured({label: run}) if name.startswith(WEIGHT)]
        order = sorted(names, key=lambda name: (-(last(run, name) or 0.0), name))
        if not order:
            continue
        who = "Groups" if setting(run, "federation", "groups") else "Sites"
        traces = [
            line(run, name) | {"colour": colour(i), "dash": dash(i // 8)}
            for i, name in enumerate(order[:MOST_WEIGHTS])
        ]
        title = f"{who} by weight" + (f": {label}" if len(runs) > 1 else "")
        parts.append(chart(title, traces, legend=True, height=360))
        if len(order) > MOST_WEIGHTS:
            of = f"{len(order)} {who.lower()}"
            parts.append(note(f"Shown are the {MOST_WEIGHTS} largest weights at the end, of {of}."))
    meaning = note(
        "The server raises the weight of a site, or group of sites, on which the model’s loss is "
        "high, and training then attends to it more. The weights add up to one."
    )
    return join([meaning, *parts]) if parts else None


def line(record: RunRecord, name: str) -> Row:
    """One weight by round, without the other axes: the toggle belongs to the learning curves."""
    trace, site = curve(record, name), name.removeprefix(WEIGHT)
    label = f"{site} ends at {number(trace['y'][-1])}"
    return {"x": trace["x"], "y": trace["y"], "name": site, "label": label}
