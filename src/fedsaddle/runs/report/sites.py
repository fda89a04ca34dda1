"""Every site's test result; and how well the pooled scores rank and how far they can be trusted."""

import math
from collections.abc import Sequence
from typing import Any

from fedsaddle.runs.report.charts import chart, colour, run_key
from fedsaddle.runs.report.markup import Html, join, note, table, tag
from fedsaddle.runs.report.reading import Runs, one_class, sites, summary
from fedsaddle.runs.report.words import (
    Row,
    agreed,
    bounds,
    column,
    finite,
    metric_name,
    number,
    plural,
)

MOST_ROWS = 200
COUNTS = {
    "n+": "n_positive",
    "n−": "n_negative",
    "Test rows": "rows",
    "Training rows": "train_rows",
}
BINS = {"x": "predicted", "y": "observed", "low": "low", "high": "high", "rows": "rows"}


def site_table(runs: Runs) -> Html:
    """Every site's test result with its interval drawn beside it, the worst first."""
    found = [sites(run) for run in runs.values()]
    names = dict.fromkeys(name for per_run in found for name in per_run)
    rows = {name: [per_run.get(name, {}) for per_run in found] for name in names}
    if not rows:
        return note("The record has no list of sites.")
    known = [site for row in rows.values() for site in row]
    metric = judged_by(known)
    values = {name: [v for v in column(row, metric) if v is not None] for name, row in rows.items()}
    order = sorted(rows, key=lambda name: min(values[name], default=math.inf))[:MOST_ROWS]
    columns: list[tuple[Any, list[Any]]] = [("Site", order)]
    if metric:
        columns += result_columns(list(runs), [rows[name] for name in order], metric, known)
    for heading, count in COUNTS.items():
        if any(finite(site.get(count)) is not None for site in known):
            columns.append((heading, [agreed(rows[name], count) for name in order]))
    heads, cells = zip(*columns, strict=True)
    caption = "The sites and their rows"
    if metric:
        caption = f"Test {metric_name(metric)} by site, worst first"
    above = run_key(runs) if metric else note("The model has not been evaluated on test rows yet.")
    below = f"{plural(len(rows) - len(order), 'further site')} with higher or undefined values."
    return join(
        [
            above,
            table(caption, heads, zip(*cells, strict=True), text=len(runs) + 1 if metric else 0),
            note(below) if len(rows) > len(order) else None,
        ]
    )


def judged_by(known: Sequence[Row]) -> str:
    """auc where the test rows are of two classes, even if no site has both; or else accuracy."""
    signs = {"auc": ("auc", "n_positive"), "mean_auc": ("mean_auc",), "accuracy": ("accuracy",)}
    for metric, names in signs.items():
        if any(finite(site.get(name)) is not None for site in known for name in names):
            return metric
    return ""


def result_columns(
    runs: Sequence[str], rows: Sequence[Sequence[Row]], metric: str, known: Sequence[Row]
) -> list[tuple[Any, list[Any]]]:
    """Headings and cells: the value in each run, all of them drawn, and one run's accuracy."""
    title = metric_name(metric)
    around = any(bounds(site, metric) for site in known)
    alone = title + " (95 % interval)" * around
    columns: list[tuple[Any, list[Any]]] = [
        (run if len(runs) > 1 else alone, [site_value(row[i], metric) for row in rows])
        for i, run in enumerate(runs)
    ]
    ends = [v for v in column(known, f"{metric}_low") + column(known, metric) if v is not None]
    start = math.floor(10 * min(ends, default=0.5)) / 10
    scale = tag("span", tag("span", f"{start:g}"), tag("span", "1"), class_="scale")
    columns.append((scale, [forest(row, metric, start) for row in rows]))
    if metric == "auc" and len(runs) == 1:
        columns.append(("Accuracy", [number(row[0].get("accuracy")) for row in rows]))
    return columns


def site_value(site: Row, metric: str) -> Html:
    """A site's value, or in words why there is none."""
    if finite(site.get(metric)) is not None:
        between = bounds(site, metric)
        tail = [" ", tag("span", f"({between})", class_="quiet bounds")] if between else []
        return join([number(site[metric]), *tail])
    reason = "not evaluated" if site else "not in this run"
    if site.get("rows") == 0:
        reason = "no test rows"
    elif metric == "auc" and one_class(site):
        reason = "undefined (one class)"
    return tag("span", reason, class_="quiet")


def forest(row: Sequence[Row], metric: str, start: float) -> Html:
    """The values of one site, one line per run, on a scale from `start` to 1."""

    def place(value: float) -> str:
        return f"{3 + 94 * (value - start) / (1 - start or 1):.2f}%"

    marks = [
        tag("line", x1=place(x), x2=place(x), y1=0, y2="100%", class_="tick") for x in (start, 1)
    ]
    for i, site in enumerate(row):
        y = 10 + 14 * i
        value, low, high = (finite(site.get(metric + end)) for end in ("", "_low", "_high"))
        if low is not None and high is not None:
            marks.append(tag("line", x1=place(low), x2=place(high), y1=y, y2=y, stroke=colour(i)))
        if value is not None:
            marks.append(tag("circle", cx=place(value), cy=y, r=4, fill=colour(i)))
    return tag("svg", *marks, class_="forest", height=6 + 14 * len(row), aria_hidden="true")


def discrimination(runs: Runs) -> Html:
    """The pooled ROC curve, and how often a predicted risk came true."""
    roc, calibration = [], []
    for i, (name, run) in enumerate(runs.items()):
        style, found = {"name": name, "colour": colour(i)}, summary(run)
        if rates := run.evaluation.get("roc"):
            label = f"{name}: AUC {number(found.get('auc'))}"
            line = {"x": [*map(finite, rates["fpr"])], "y": [*map(finite, rates["tpr"])]}
            roc.append(line | style | {"label": label, "lines": True})
        if shares := run.evaluation.get("reliability"):
            label = f"{name}: expected calibration error {number(found.get('ece'))}"
            bins = zip(*(map(finite, shares[part]) for part in BINS.values()), strict=True)
            filled = [values for values in bins if None not in values]
            points = {part: [values[k] for values in filled] for k, part in enumerate(BINS)}
            calibration.append(points | style | {"label": label, "whiskers": True})
    if not roc and not calibration:
        return note("ROC and calibration need a final evaluation of two classes; there is none.")
    panels = (
        ("ROC curve, all test rows pooled", roc, "False positive rate", "True positive rate"),
        ("Calibration, 95 % intervals", calibration, "Predicted probability", "Observed share"),
    )
    figures = (
        chart(title, traces, x_title, y_title, height=400, diagonal=True)
        for title, traces, x_title, y_title in panels
        if traces
    )
    return join([run_key(runs), tag("div", *figures, class_="grid")])
