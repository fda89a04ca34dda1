"""The report of one or several runs: one HTML file that opens without a network.

Everything shown comes from `RunRecord`s. A section is a function from the runs to markup, and says
in a sentence where its data are missing. `tag` escapes all text; report.js draws the charts from
the JSON that `chart` puts beside them.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from fedsaddle.errors import UserError
from fedsaddle.runs.folder import atomic
from fedsaddle.runs.record import RunRecord

Row = dict[str, Any]
Runs = Mapping[str, RunRecord]

# Okabe and Ito's colours, which colour-blind readers tell apart; the palest come last.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7f6bb3", "#8a8a8a", "#e69f00", "#56b4e9")
DASHES = {"solid": "none", "dot": "2 4", "dash": "8 4"}
NOT_SELECTED, ANSWERED, SILENT, REFUSED = range(4)
STATUS = {
    "not selected": "rgba(128,140,150,0.16)",
    "answered": "#5aa9d6",
    "selected, no answer": "#e69f00",
    "refused": "#a3241a",
}
COUNTS = {
    "n+": "n_positive",
    "n−": "n_negative",
    "Test rows": "rows",
    "Training rows": "train_rows",
}
MISSING = "–"
MOST_CLIENTS, MOST_ROUNDS, MOST_ROWS = 64, 2000, 200


def write_report(records: Sequence[RunRecord], path: Path) -> Path:
    """Write the report of `records` to `path`, whole or not at all."""
    text = render_report(records)
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def render_report(records: Sequence[RunRecord]) -> str:
    """The report of `records` as one self-contained HTML document."""
    from plotly.offline import get_plotlyjs

    if not records:
        raise UserError("a report needs at least one run; none was given.")
    runs = dict(zip(distinct(record.name for record in records), records, strict=True))
    parts = {
        "Comparison": comparison(runs) if len(runs) > 1 else None,
        "Learning curves": curves(runs),
        "Sites": site_table(runs),
        "Discrimination and calibration": discrimination(runs),
        "Communication": communication(runs),
        "Participation": participation(runs),
        "Configuration": configuration(runs),
    }
    sections = {title: content for title, content in parts.items() if content}
    own = files("fedsaddle.runs")
    # The policy makes the promise binding: the browser refuses to fetch anything.
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data: blob:; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{tag("title", "fedsaddle: " + ", ".join(runs))}
<link rel="icon" href="data:,">
<style>{own.joinpath("report.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
{opening(runs, list(sections))}
{join(tag("section", tag("h2", t), part, id=anchor(t)) for t, part in sections.items())}
</main>
<noscript>The charts need JavaScript; the tables do not.</noscript>
<script>{get_plotlyjs()}</script>
<script>{own.joinpath("report.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


# Markup


class Html(str):
    """Markup. Any other string is text, and is escaped when it is put into markup."""


def join(parts: Iterable[Any]) -> Html:
    """Parts one after the other: markup as it is, all else escaped, None left out."""
    given = (part for part in parts if part is not None)
    return Html("".join(p if isinstance(p, Html) else escape(str(p)) for p in given))


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """An element; the attribute `class_` is written class, `aria_label` aria-label.

    >>> tag("p", "1 < 2", class_="note")
    '<p class="note">1 &lt; 2</p>'
    """
    written = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    given = "".join(
        f' {key}="{escape(str(value))}"' for key, value in written.items() if value != ""
    )
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def note(text: str) -> Html:
    return tag("p", text, class_="note")


def table(
    caption: str, header: Sequence[Any], rows: Iterable[Sequence[Any]], text: int = 0
) -> Html:
    """A table that scrolls by itself when it is wide; `text` columns after the first hold words."""

    def cells(name: str, scope: str, row: Sequence[Any]) -> Html:
        given = {"scope": scope} if name == "th" else {}
        rest = (tag(name, c, class_="text" * (i < text), **given) for i, c in enumerate(row[1:]))
        return tag("tr", tag("th", row[0], scope=scope), *rest)

    inside = tag(
        "table",
        tag("caption", caption),
        tag("thead", cells("th", "col", header)),
        tag("tbody", *(cells("td", "row", row) for row in rows)),
    )
    return tag("div", inside, class_="scroll", tabindex=0, role="region", aria_label=caption)


def chart(
    title: str,
    traces: list[Row],
    x_title: str = "Round",
    y_title: str = "",
    legend: bool = False,
    height: int = 320,
    diagonal: bool = False,
) -> Html:
    """A titled chart: an empty box, and beside it the JSON from which report.js draws it."""
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


def run_key(runs: Runs) -> Html | None:
    """Which colour is which run, when there are several."""
    traces = ({"name": name, "colour": colour(i)} for i, name in enumerate(runs))
    return key(traces) if len(runs) > 1 else None


# Numbers and names


def finite(value: Any) -> float | None:
    """The number, or None for what is missing, no number, or not finite."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def column(rows: Iterable[Row], name: str) -> list[float | None]:
    return [finite(row.get(name)) for row in rows]


def number(value: Any, form: str = ".3f") -> str:
    known = finite(value)
    return MISSING if known is None else format(known, form).replace("-", "−")


def plural(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}" + "s" * (amount != 1)


def bounds(row: Row, metric: str = "auc") -> str:
    low, high = finite(row.get(f"{metric}_low")), finite(row.get(f"{metric}_high"))
    return "" if low is None or high is None else f"{low:.3f}–{high:.3f}"


def interval(row: Row, metric: str = "auc") -> str:
    """A value with its 95 % interval where there is one: 0.912 (0.881–0.940)."""
    between = bounds(row, metric)
    return number(row.get(metric)) + (f" ({between})" if between else "")


def megabytes(amount: float | None) -> str:
    """Bytes, written in megabytes of 10^6 bytes.

    >>> megabytes(3_210_000), megabytes(12_345_678_900), megabytes(4_200)
    ('3.21 MB', '12,346 MB', '0.0042 MB')
    """
    size = None if amount is None else amount / 1e6
    form = ".2g" if size and size < 0.1 else ",.2f" if size and size < 100 else ",.0f"
    return MISSING if size is None else f"{size:{form}} MB"


def duration(seconds: float | None) -> str:
    """
    >>> duration(4.26), duration(200), duration(7500)
    ('4.3 s', '3 min 20 s', '2 h 5 min')
    """
    if seconds is None or seconds < 60:
        return MISSING if seconds is None else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def distinct(names: Iterable[str]) -> list[str]:
    """Names that can be told apart.

    >>> distinct(["run", "run", "other"])
    ['run', 'run (2)', 'other']
    """
    seen: dict[str, None] = {}
    for name in names:
        tries = (name if i == 1 else f"{name} ({i})" for i in range(1, len(seen) + 2))
        seen[next(label for label in tries if label not in seen)] = None
    return list(seen)


def shown(name: str) -> str:
    """A name inside a chart: short, and safe from the little markup that plotly's text knows."""
    return escape(name if len(name) <= 24 else name[:23] + "…", quote=False)


def anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


# What a record says


def setting(record: RunRecord, section: str, name: str) -> Any:
    values = record.config.get(section)
    return values.get(name) if isinstance(values, dict) else None


def named(record: RunRecord, section: str) -> str:
    """The method or the problem: a short name is an acronym, an import path stays as it is."""
    name = str(setting(record, section, "name") or MISSING)
    return name if set(name) & set(".:/") else name.upper()


def summary(record: RunRecord) -> Row:
    """The test metrics of the returned model, or else of the last round that has any."""
    tested = [row for row in record.history if any(name.startswith("test/") for name in row)]
    found = record.evaluation.get("summary") or (tested[-1] if tested else {})
    return {name.removeprefix("test/"): value for name, value in found.items()}


def worst(found: Row) -> str:
    """The worst site and its AUC, or nothing."""
    known = finite(found.get("worst_auc")) is not None
    return f"{found.get('worst_site') or ''} {number(found['worst_auc'])}".strip() if known else ""


def rounds_done(record: RunRecord) -> int:
    return max((row["round"] for row in (*record.history, *record.ledger)), default=0)


def rounds_planned(record: RunRecord) -> float | None:
    return finite(setting(record, "run", "rounds"))


def last(record: RunRecord, name: str) -> float | None:
    """The last known value in the history."""
    return next((v for v in reversed(column(record.history, name)) if v is not None), None)


def total(record: RunRecord, *names: str) -> float | None:
    """What was sent in all, by the ledger, or else by the history's running totals."""
    if record.ledger:
        return float(sum(entry.get(name, 0) for entry in record.ledger for name in names))
    found = [last(record, name) for name in names]
    return None if None in found else sum(value or 0 for value in found)


def sent(record: RunRecord) -> float | None:
    return total(record, "bytes_up", "bytes_down")


def clients(record: RunRecord) -> list[Row]:
    return list(record.data.get("clients") or [])


def client_name(record: RunRecord, client: int) -> str:
    known = clients(record)
    return str(known[client]["name"]) if client < len(known) else f"client {client}"


def sites(record: RunRecord) -> dict[str, Row]:
    """Per site what the data say and what the evaluation found."""
    merged = {str(row["name"]): {"rows": row.get("test_rows")} | row for row in clients(record)}
    for site in record.evaluation.get("sites") or []:
        merged.setdefault(str(site["name"]), {}).update(site)
    return merged


def one_class(site: Row) -> bool:
    return bool(site.get("rows")) and 0 in (site.get("n_positive"), site.get("n_negative"))


# Sections


def opening(runs: Runs, titles: Sequence[str]) -> Html:
    """The title, what happened in plain words, and the numbers to remember."""
    several, (name, first) = len(runs) > 1, next(iter(runs.items()))
    every = runs.values()
    facts = {
        "Data": [run.data.get("source") or "" for run in every],
        "Classes": [", ".join(map(str, run.data.get("classes") or [])) for run in every],
        "Started": [str(run.environment.get("started") or "")[:10] for run in every],
    }
    known = {fact: "; ".join(dict.fromkeys(filter(None, found))) for fact, found in facts.items()}
    lines = [tag("li", tag("strong", label), ": ", sentence(run)) for label, run in runs.items()]
    gloss = note(
        "AUC is the chance that a positive case is ranked above a negative one: 1 is perfect, 0.5 "
        "is guessing. Intervals are 95 % confidence intervals."
    )
    return tag(
        "header",
        tag("p", "Federated training report", class_="kicker"),
        tag("h1", f"{len(runs)} runs compared" if several else name),
        tag("p", " · ".join(f"{k}: {v}" for k, v in known.items() if v), class_="facts"),
        tag("ul", *lines, class_="lead") if several else tag("p", sentence(first), class_="lead"),
        None if several else cards(first),
        gloss if any("auc" in summary(run) for run in every) else None,
        tag("nav", *(tag("a", t, href=f"#{anchor(t)}") for t in titles), aria_label="Sections"),
    )


def sentence(record: RunRecord) -> str:
    """What happened, in one sentence."""
    found, done, planned = summary(record), rounds_done(record), rounds_planned(record)
    answered = {client for entry in record.ledger for client in entry["answered"]}
    taking_part = len(clients(record)) or len(answered)
    who = plural(taking_part, "site") if taking_part else "The sites"
    method = f" with {named(record, 'algorithm')}" if setting(record, "algorithm", "name") else ""
    parts = [f"{who} trained one model for {plural(done, 'round')}{method}"]
    if planned and done < planned:
        parts[0] += f" so far ({planned:g} are planned)"
    if finite(found.get("auc")) is not None:
        between = f" (95 % interval {bounds(found)})" if bounds(found) else ""
        parts.append(f"pooled test AUC {number(found['auc'])}{between}")
    elif finite(found.get("accuracy")) is not None:
        parts.append(f"test accuracy {number(found['accuracy'])}")
    if worst(found):
        parts.append(f"worst site {worst(found)}")
    undefined = sum(map(one_class, sites(record).values()))
    if undefined:
        have, their = ("has", "its") if undefined == 1 else ("have", "their")
        parts.append(
            f"{plural(undefined, 'site')} {have} one class only and {their} AUC is undefined"
        )
    if sent(record) is not None:
        parts.append(f"{megabytes(sent(record))} were sent")
    return "; ".join(parts) + "."


def cards(record: RunRecord) -> Html:
    found = summary(record)
    between = f"95 % interval {bounds(found)}" if bounds(found) else ""
    calibration = f"ECE {number(found['ece'])}" if finite(found.get("ece")) is not None else ""
    at = record.evaluation.get("round")
    down, up = (megabytes(total(record, name)) for name in ("bytes_down", "bytes_up"))
    entries = [
        ("Pooled test AUC", number(found.get("auc")), between),
        ("Worst site’s AUC", number(found.get("worst_auc")), found.get("worst_site") or ""),
        ("Test accuracy", number(found.get("accuracy")), calibration),
        ("Sent", megabytes(sent(record)), f"{down} to the sites, {up} back"),
        ("Rounds", f"{rounds_done(record):,}", f"test numbers of round {at}" if at else ""),
        ("Time", duration(last(record, "seconds")), ""),
    ]
    boxes = (
        tag("div", tag("dt", label), tag("dd", value), tag("dd", remark, class_="remark"))
        for label, value, remark in entries
        if value != MISSING
    )
    return tag("dl", *boxes, class_="cards")


def comparison(runs: Runs) -> Html:
    """One row per run, without the columns of which no run knows anything."""
    found = {name: summary(run) for name, run in runs.items()}
    swatches = (
        tag("i", class_="swatch", style=f"background:{colour(i)}") for i in range(len(runs))
    )
    metrics = {"AUPRC": "average_precision", "Accuracy": "accuracy", "ECE": "ece"}
    columns: dict[str, list[str]] = {
        "Run": [join(pair) for pair in zip(swatches, runs, strict=True)],
        "Method": [named(run, "algorithm") for run in runs.values()],
        "Problem": [named(run, "problem") for run in runs.values()],
        "Pooled AUC (95 % interval)": [interval(row) for row in found.values()],
        "Worst site’s AUC": [worst(row) or MISSING for row in found.values()],
        **{head: [number(row.get(m)) for row in found.values()] for head, m in metrics.items()},
        "Sent": [megabytes(sent(run)) for run in runs.values()],
        "Rounds": [f"{rounds_done(run):,}" for run in runs.values()],
    }
    told = {head: cells for head, cells in columns.items() if set(cells) != {MISSING}}
    return table("The runs on the test rows", [*told], zip(*told.values(), strict=True), text=2)


def curves(runs: Runs) -> Html:
    """Metrics by round or by megabytes: all lines of one run, or one line for each of several."""
    first = next(iter(runs.values()))
    rows = (row for run in runs.values() for row in run.history)
    known = {name for row in rows for name, value in row.items() if finite(value) is not None}
    tested = {name.partition("/")[2] for name in known if name.startswith(("test/", "validation/"))}
    ends = ("_low", "_high")
    plain = sorted(m for m in tested if not m.startswith("worst_") and not m.endswith(ends))
    panels: dict[str, list[Row]] = {}
    for metric in ["auc"] if "auc" in tested else plain:
        title = "AUC" if metric == "auc" else metric.replace("_", " ").capitalize()
        words = {f"test/{metric}": "test", f"validation/{metric}": "validation"}
        words[f"test/worst_{metric}"] = "worst site"
        for i, (name, word) in enumerate(words.items()):
            if name in known and len(runs) == 1:
                style = {"name": word.capitalize(), "colour": colour(i), "dash": [*DASHES][i]}
                line = curve(first, name) | style | {"band": True}
                panels.setdefault(title, []).append(line)
            elif name in known:
                panels[f"{title}, {word}"] = curve_per_run(runs, name)
    if "train/objective" in known:
        panels["Training objective"] = curve_per_run(runs, "train/objective")
    if not panels:
        return note("No metrics have been recorded yet.")
    figures = (
        chart(title, traces, legend=len(runs) == 1 < len(traces))
        for title, traces in panels.items()
    )
    buttons = (
        tag("button", text, type="button", data_axis=axis, aria_pressed=pressed)
        for axis, text, pressed in (("x", "By round", "true"), ("sent", "By megabytes", "false"))
    )
    toggle = tag("div", *buttons, class_="toggle", role="group", aria_label="Horizontal axis")
    head = [toggle if "bytes_up" in known else None, run_key(runs)]
    return join([*head, tag("div", *figures, class_="grid")])


def curve_per_run(runs: Runs, name: str) -> list[Row]:
    styles = ({"name": label, "colour": colour(i)} for i, label in enumerate(runs))
    return [curve(run, name) | style for run, style in zip(runs.values(), styles, strict=True)]


def curve(record: RunRecord, name: str) -> Row:
    """A metric's values by round and by megabytes sent."""
    rows = [row for row in record.history if finite(row.get(name)) is not None]
    both = zip(column(rows, "bytes_up"), column(rows, "bytes_down"), strict=True)
    return {
        "x": column(rows, "round"),
        "sent": [None if up is None or down is None else (up + down) / 1e6 for up, down in both],
        "y": column(rows, name),
        "low": column(rows, f"{name}_low"),
        "high": column(rows, f"{name}_high"),
        "label": f"{name} ends at {number(rows[-1][name])}" if rows else f"{name} has no values",
    }


def site_table(runs: Runs) -> Html:
    """Every site's test result with its interval drawn beside it, the worst first."""
    found = [sites(run) for run in runs.values()]
    names = dict.fromkeys(name for per_run in found for name in per_run)
    rows = {name: [per_run.get(name, {}) for per_run in found] for name in names}
    known = [site for row in rows.values() for site in row]
    if not rows:
        return note("The record has no list of sites.")
    metric = next((m for m in ("auc", "accuracy") if any(m in site for site in known)), "")
    values = {name: [v for v in column(row, metric) if v is not None] for name, row in rows.items()}
    order = sorted(rows, key=lambda name: min(values[name], default=math.inf))[:MOST_ROWS]
    ends = [v for v in column(known, f"{metric}_low") + column(known, metric) if v is not None]
    start = math.floor(10 * min(ends, default=0.5)) / 10
    columns: list[tuple[Any, list[Any]]] = [("Site", order)]
    if metric:
        title = "AUC" if metric == "auc" else "Accuracy"
        for i, run in enumerate(runs):
            heading = f"{title} (95 % interval)" if len(runs) == 1 else run
            columns.append((heading, [site_value(rows[name][i], metric) for name in order]))
        scale = tag("span", tag("span", f"{start:g}"), tag("span", "1"), class_="scale")
        columns.append((scale, [forest(rows[name], metric, start) for name in order]))
    if metric == "auc" and len(runs) == 1:
        shares = [number(rows[name][0].get("accuracy")) for name in order]
        columns.append(("Accuracy", shares))
    for heading, count in COUNTS.items():
        if any(finite(site.get(count)) is not None for site in known):
            columns.append((heading, [shared(rows[name], count) for name in order]))
    caption = f"Test {title} by site, worst first" if metric else "The sites and their rows"
    hidden = plural(len(rows) - len(order), "further site")
    heads, cells = zip(*columns, strict=True)
    return join(
        [
            run_key(runs)
            if metric
            else note("The model has not been evaluated on the test rows yet."),
            table(caption, heads, zip(*cells, strict=True), text=len(runs) + 1 if metric else 0),
            note(f"{hidden} with higher or undefined values.") if len(rows) > len(order) else None,
        ]
    )


def shared(row: Sequence[Row], name: str) -> str:
    """A count on which the runs agree."""
    found = {site[name] for site in row if site.get(name) is not None}
    return "differs" if len(found) > 1 else number(next(iter(found), None), ",.0f")


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
        style = {"name": name, "colour": colour(i)}
        if found := run.evaluation.get("roc"):
            label = f"{name}: AUC {number(summary(run).get('auc'))}"
            rates = {"x": [*map(finite, found["fpr"])], "y": [*map(finite, found["tpr"])]}
            roc.append(rates | style | {"label": label, "lines": True})
        if found := run.evaluation.get("reliability"):
            label = f"{name}: expected calibration error {number(summary(run).get('ece'))}"
            names = {
                "x": "predicted",
                "y": "observed",
                "low": "low",
                "high": "high",
                "rows": "rows",
            }
            bins = zip(*(map(finite, found[part]) for part in names.values()), strict=True)
            filled = zip(*(b for b in bins if None not in b), strict=True)
            points = dict.fromkeys(names, ()) | dict(zip(names, filled, strict=False))
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


def communication(runs: Runs) -> Html:
    """What was sent, phase by phase; and replies that were refused, phases that were repeated."""
    rows, traces, events = [], [], []
    for i, (name, run) in enumerate(runs.items()):
        prefix = f"{name}: " if len(runs) > 1 else ""
        phases = dict.fromkeys(entry["phase"] for entry in run.ledger)
        parts = {p: [entry for entry in run.ledger if entry["phase"] == p] for p in phases}
        rows += [bill(f"{prefix}{phase}", entries) for phase, entries in parts.items()]
        rows += [bill(f"{prefix}total", run.ledger)] if run.ledger else []
        traces += sent_by_round(run, name, i, len(runs) > 1) if run.ledger else []
        events += [[prefix + event[0], *event[1:]] for event in incidents(run)]
    if not rows:
        return note("No messages have been recorded.")
    header = ["Phase", "Requests", "Floats to sites", "Floats back", "To sites", "Back", "Both"]
    hidden = plural(len(events) - MOST_ROWS, "further incident")
    what = ["Round", "Phase", "What", "Site", "Reason"]
    return join(
        [
            table("What was sent, by phase", header, rows),
            chart("Megabytes sent, cumulative", traces, legend=True),
            table("Refused replies and repeated phases", what, events[:MOST_ROWS], text=4)
            if events
            else note("No reply was refused and no phase had to be repeated."),
            note(f"{hidden} not listed.") if len(events) > MOST_ROWS else None,
        ]
    )


def bill(label: str, entries: Sequence[Row]) -> list[str]:
    names = ("floats_down", "floats_up", "bytes_down", "bytes_up")
    floats_down, floats_up, down, up = (sum(e.get(name, 0) for e in entries) for name in names)
    counts = (sum(len(e["selected"]) for e in entries), floats_down, floats_up)
    return [label, *(f"{c:,}" for c in counts), *map(megabytes, (down, up, down + up))]


def sent_by_round(record: RunRecord, name: str, index: int, several: bool) -> list[Row]:
    """Cumulative megabytes: of one run in both directions, of several the sum."""
    rounds = {r: list(e) for r, e in groupby(record.ledger, lambda entry: entry["round"])}
    ways = {"To the sites": ("bytes_down",), "Back": ("bytes_up",)}
    chosen = {name: ("bytes_down", "bytes_up")} if several else ways
    traces = []
    for i, (way, names) in enumerate(chosen.items()):
        steps = (sum(e.get(n, 0) for e in entries for n in names) for entries in rounds.values())
        y = [amount / 1e6 for amount in accumulate(steps)]
        label = f"{way}: {y[-1]:.3g} MB at the end"
        style = {"colour": colour(index + i), "dash": [*DASHES][i], "lines": True}
        traces.append({"name": way, "x": [*rounds], "y": y, "label": label} | style)
    return traces


def incidents(record: RunRecord) -> list[list[str]]:
    """Refusals and repetitions in order: round, phase, what, site, reason."""
    events: list[list[str]] = []
    before: Row = {}
    for entry in record.ledger:
        where = [str(entry["round"]), entry["phase"]]
        if entry["attempt"]:
            good = len(before["answered"]) - len(before["refused"])
            reason = f"only {good} of {len(before['selected'])} replies were usable before"
            events.append([*where, f"repeated, attempt {entry['attempt'] + 1}", "all", reason])
        for client, reason in entry["refused"].items():
            events.append([*where, "reply refused", client_name(record, int(client)), reason])
        before = entry
    return events


def statuses(record: RunRecord) -> Iterator[tuple[int, dict[int, int]]]:
    """Round by round, the worst that happened to each client that was selected."""
    for at, entries in groupby(record.ledger, lambda entry: entry["round"]):
        status: dict[int, int] = {}
        for entry in entries:
            answered, refused = set(entry["answered"]), {int(client) for client in entry["refused"]}
            for client in entry["selected"]:
                now = REFUSED if client in refused else ANSWERED if client in answered else SILENT
                status[client] = max(now, status.get(client, NOT_SELECTED))
        yield at, status


def participation(runs: Runs) -> Html:
    """Who took part when: every client in every round, or in numbers when these are too many."""
    parts: list[Html] = []
    for name, run in runs.items():
        parts += [tag("h3", name)] if len(runs) > 1 else []
        n_clients = max((c + 1 for entry in run.ledger for c in entry["selected"]), default=0)
        n_clients = max(n_clients, len(clients(run)))
        if not run.ledger:
            parts.append(note("No round has been recorded."))
        elif n_clients <= MOST_CLIENTS and run.ledger[-1]["round"] <= MOST_ROUNDS:
            parts.append(heat_map(run, n_clients))
        else:
            parts.append(frequencies(run))
    return join(parts)


def heat_map(record: RunRecord, n_clients: int) -> Html:
    rounds = dict(statuses(record))
    names = distinct(shown(client_name(record, client)) for client in range(n_clients))
    grid = [[rounds[r].get(client, NOT_SELECTED) for r in rounds] for client in range(n_clients)]
    part = sum(status == ANSWERED for row in grid for status in row) / (n_clients * len(rounds))
    trace = {"kind": "heatmap", "x": [*rounds], "y": names, "z": grid, "words": [*STATUS]}
    trace |= {"colours": [*STATUS.values()], "label": f"answered: {part:.0%} of all cells"}
    swatches = (
        tag("li", tag("i", class_="swatch", style=f"background:{ink}"), word)
        for word, ink in STATUS.items()
    )
    height = 90 + max(20 * n_clients, 80)
    return join(
        [
            tag("ul", *swatches, class_="key"),
            chart("Sites by round", [trace], height=height),
            note("A cell shows the worst that happened to a site in any phase of the round."),
        ]
    )


def frequencies(record: RunRecord) -> Html:
    """How many clients answered in each round, and how often each client did."""
    per_round: dict[int, int] = {}
    often = Counter(dict.fromkeys(range(len(clients(record))), 0))
    for at, status in statuses(record):
        answered = [client for client, what in status.items() if what == ANSWERED]
        per_round[at] = len(answered)
        often.update(answered)
    times = sorted(Counter(often.values()).items())
    middle = sum(per_round.values()) / len(per_round)
    style = {"colour": colour(0)}
    traces = (
        style | {"x": [*per_round], "y": [*per_round.values()], "label": f"mean {middle:.1f}"},
        style | {"x": [t for t, _ in times], "y": [n for _, n in times], "kind": "bar"},
    )
    figures = (
        chart("Sites that answered, by round", [traces[0]]),
        chart("How often a site answered", [traces[1]], "Rounds", y_title="Sites"),
    )
    return tag("div", *figures, class_="grid")


def configuration(runs: Runs) -> Html:
    """Every setting and version; where runs differ, the row is marked."""
    every = [run.config | {"environment": run.environment} for run in runs.values()]
    tables = []
    for section in dict.fromkeys(name for config in every for name in config):
        columns = [dict(flat(config.get(section))) for config in every]
        names = dict.fromkeys(name for values in columns for name in values)
        rows = [
            [join([name, mark(values)]), *values]
            for name in names
            for values in [[column.get(name, MISSING) for column in columns]]
        ]
        head = ["Setting", *(["Value"] if len(runs) == 1 else runs)]
        if rows:
            tables.append(table(section.capitalize(), head, rows, text=len(runs)))
    return tag("div", *tables, class_="settings" if len(runs) == 1 else "")


def mark(values: Sequence[str]) -> Html | None:
    return tag("em", " differs", class_="differs") if len(set(values)) > 1 else None


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names with their values as text."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flat(inner, f"{path}.{name}" if path else str(name))
    elif value is not None:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        yield path or "value", text
