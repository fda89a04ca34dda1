"""Run an experiment, judge its claims, and write down what came out."""

import csv
import io
import json
import os
import platform
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedsaddle.errors import UserError
from fedsaddle.runs.compare import Comparison, Watcher, compare
from fedsaddle.runs.compare.comparison import PLAN
from fedsaddle.runs.compare.statistics import summarise
from fedsaddle.runs.folder import disk_errors, write_json, write_text
from fedsaddle.runs.reproduce.figure import Chart, Point, draw
from fedsaddle.runs.reproduce.outcomes import Outcomes
from fedsaddle.runs.reproduce.page import render
from fedsaddle.runs.reproduce.planning import Plan

Row = dict[str, Any]

STORED = ("result.json", "curves.csv", "figure.svg")
"""What is kept of a reproduction where others can see it: small files, no data, no models."""
AXES = {
    "round": "communication rounds",
    "iterations": "local steps of a client",
    "floats_up": "floats received by the server",
}


def reproduce(
    plan: Plan,
    out: Path,
    *,
    resume: bool = False,
    jobs: int = 0,
    observer: Watcher | None = None,
) -> Row:
    """Run every entrant with every seed; write result.json, curves.csv, figure.svg, report.html.

    The runs are those of `compare`, in `OUT/runs/LABEL/SEED`; with `resume`, finished ones stay and
    half-finished ones go on. Returns what result.json holds.
    """
    if (out / PLAN).exists() and not resume:
        raise UserError(
            f"{out}: a reproduction is here already; continue it with --resume or choose another "
            "folder."
        )
    started = time.perf_counter()
    done = compare(plan.base, plan.entrants, plan.seeds, out, jobs=jobs, observer=observer)
    outcomes = Outcomes.of(done)
    seconds = time.perf_counter() - started
    result = described(plan, done, outcomes, seconds)
    figure = draw(charts(plan, outcomes), shown(plan), plan.experiment.title)
    with disk_errors(str(out)):
        write_text(out / "curves.csv", curves(plan, outcomes))
        write_text(out / "figure.svg", figure)
        write_text(out / "report.html", render(result, figure))
        write_json(out / "result.json", result)
    return result


def store(out: Path, folder: Path) -> Path:
    """Copy the small files of a finished reproduction to `folder/NAME-SCALE`."""
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    place = folder / f"{result['name']}-{result['scale']}"
    with disk_errors(str(place)):
        for name in STORED:
            write_text(place / name, (out / name).read_text(encoding="utf-8"))
    return place


def described(plan: Plan, done: Comparison, outcomes: Outcomes, seconds: float) -> Row:
    """All that result.json says."""
    experiment = plan.experiment
    first = done.records[done.labels[0]][done.seeds[0]]
    ends = [done.rows(label, seed)[-1]["seconds"] for label in done.labels for seed in done.seeds]
    return {
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "notes": " ".join(experiment.notes.split()),
        "scale": plan.scale,
        "reduced": plan.reduced,
        "command": f"fedsaddle reproduce {experiment.name} --scale {plan.scale}",
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(seconds),
        "seconds_of_runs": round(sum(ends)),
        "seeds": list(done.seeds),
        "machine": machine(),
        "data": _data(first.data),
        "panels": [panel.model_dump() for panel in experiment.figure.panels],
        "entrants": [_entrant(plan, done, outcomes, label) for label in done.labels],
        "claims": [
            {"text": claim.text, "paper": claim.paper, "verdict": found.word, "ours": found.ours}
            for claim in plan.claims
            for found in [claim.judge(outcomes, plan.scale)]
        ],
    }


def machine() -> Row:
    """Where it was run: processor, cores, versions."""
    packages = ("fedsaddle", "torch", "numpy")
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def _cpu() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _data(facts: Row) -> Row:
    clients = facts.get("clients", [])
    return {
        "source": facts.get("source"),
        "training_rows": sum(client["train_rows"] for client in clients),
        "test_rows": sum(client["test_rows"] for client in clients),
        "clients": sum(client["train_rows"] > 0 for client in clients),
    }


def _entrant(plan: Plan, done: Comparison, outcomes: Outcomes, label: str) -> Row:
    last = [done.rows(label, seed)[-1] for seed in done.seeds]
    claimed = [c for c in plan.claims if c.metric]
    lower = {claim.metric: claim.lower for claim in claimed}
    measured: Row = {}
    for metric in _metrics(plan):
        measured[metric] = {}
        for when in ("end", "best"):
            by_seed = outcomes.values(label, metric, when, lower.get(metric, False))
            found = summarise(list(by_seed.values()))
            measured[metric][when] = {
                "mean": found.mean,
                "low": found.low,
                "high": found.high,
                "seeds": {str(seed): value for seed, value in by_seed.items()},
            }
    return {
        "label": label,
        "rounds": done.rounds(label),
        "floats_up": round(sum(row["floats_up"] for row in last) / len(last)),
        "diverged": sorted(outcomes.stopped[label]),
        "algorithm": done.records[label][done.seeds[0]].config["algorithm"],
        "metrics": measured,
    }


def _metrics(plan: Plan) -> list[str]:
    drawn = [panel.metric for panel in plan.experiment.figure.panels]
    return list(dict.fromkeys([*drawn, *(claim.metric for claim in plan.claims if claim.metric)]))


def curves(plan: Plan, outcomes: Outcomes) -> str:
    """Every drawn metric by entrant and round, over seeds, as CSV."""
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n")
    write.writerow(
        ["metric", "entrant", "round", "floats_up", "n", "mean", "low", "high", "least", "most"]
    )
    for panel in plan.experiment.figure.panels:
        for label in outcomes.rows:
            for number, rows in _by_round(outcomes, label).items():
                values = [row[panel.metric] for row in rows if row.get(panel.metric) is not None]
                if not values:
                    continue
                found = summarise(values)
                numbers = (found.mean, found.low, found.high, min(values), max(values))
                floats = round(sum(row["floats_up"] for row in rows) / len(rows))
                cells = ("" if value is None else f"{value:.6g}" for value in numbers)
                write.writerow([panel.metric, label, number, floats, found.n, *cells])
    return text.getvalue()


def _by_round(outcomes: Outcomes, label: str) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for rows in outcomes.rows[label].values():
        for row in rows:
            found.setdefault(row["round"], []).append(row)
    return dict(sorted(found.items()))


def shown(plan: Plan) -> list[str]:
    """The names of the figure's lines: participants, without the values of [vary]."""
    only = plan.experiment.scale[plan.scale].only
    return [p.label for p in plan.experiment.entrants if not only or p.label in only]


def charts(plan: Plan, outcomes: Outcomes) -> list[Chart]:
    """A panel per metric, or per metric and value of [vary]."""
    figure, vary = plan.experiment.figure, plan.experiment.vary
    if figure.x == "vary" and vary is not None:
        return [
            _against_values(plan, outcomes, panel.metric, panel.title) for panel in figure.panels
        ]
    made = []
    for panel in figure.panels:
        for value in plan.values or (None,):
            title = panel.title if vary is None else f"{panel.title}, {vary.symbol} = {value}"
            lines = {
                name: _curve(plan, outcomes, plan.label(name, value), panel.metric)
                for name in shown(plan)
            }
            made.append(Chart(title, AXES[figure.x], lines))
    return made


def _against_values(plan: Plan, outcomes: Outcomes, metric: str, title: str) -> Chart:
    lines: dict[str, Sequence[Point]] = {}
    for name in shown(plan):
        points = []
        for place, value in enumerate(plan.values):
            ends = list(outcomes.values(plan.label(name, value), metric).values())
            if ends:
                points.append(Point(place, sum(ends) / len(ends), min(ends), max(ends)))
        lines[name] = points
    vary = plan.experiment.vary
    assert vary is not None
    return Chart(title, vary.symbol, lines, tuple(f"{value:g}" for value in plan.values))


def _curve(plan: Plan, outcomes: Outcomes, label: str, metric: str) -> list[Point]:
    entrant = next(entrant for entrant in plan.entrants if entrant.label == label)
    steps = entrant.overrides.get("algorithm", {}).get("local_steps", 1)
    points = []
    for number, rows in _by_round(outcomes, label).items():
        values = [row[metric] for row in rows if row.get(metric) is not None]
        if values:
            floats = sum(row["floats_up"] for row in rows) / len(rows)
            across = {"round": number, "iterations": number * steps, "floats_up": floats}
            x = across[plan.experiment.figure.x]
            points.append(Point(x, sum(values) / len(values), min(values), max(values)))
    return points
