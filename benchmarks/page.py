"""Write the measured parts of docs/speed.md and docs/deployment.md from the newest stored results,
those of every processor that was measured.

Run: make docs.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def newest(kind: str, folder: Path = RESULTS) -> list[Path]:
    """The last stored file of a kind for every processor; their names end in the time."""
    paths = sorted(folder.glob(f"{kind}-*.json"))
    return [*{json.loads(path.read_text())["cpu"]: path for path in paths}.values()]


def header(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    load = " / ".join(f"{load:g}" for load in result["load"])
    return (
        f"{result['date'][:10]}, {result['cpu']}, {result['cores']} cores, load before the run "
        f"{load}; {result['rounds']} rounds each, taken in turns; {versions}."
    )


def markdown(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [columns, ("---",) * len(columns), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def peers(path: Path) -> list[str]:
    """The table of all contestants, and the picture beside it."""
    result = json.loads(path.read_text())
    rows = []
    for row in result["results"]:
        if "reason" in row:
            rows.append((row["network"], row["contestant"], row["reason"], "", "", "", ""))
            continue
        ratio, processor = row["over_best_peer"], row["processor_ms"]
        rows.append(
            (
                row["network"],
                row["contestant"],
                f"{row['median_ms']:.0f} ({row['minimum_ms']:.0f})",
                f"{processor:.0f}" if processor else "",
                f"{ratio:.2f}" if ratio else "",
                f"{row['over_limit']:.1f}",
                ", ".join(f"{name} {number}" for name, number in row["versions"].items()),
            )
        )
    limits = ", ".join(f"{name} {limit:.1f} ms" for name, limit in result["limit_ms"].items())
    times = ("ms a round, median (minimum)", "processor ms")
    columns = ("network", "", *times, "× best peer", "÷ limit", "versions")
    return [
        f"### Against the peers, {result['cpu']}",
        "",
        header(result),
        "",
        *markdown(columns, rows),
        "",
        f"Arithmetic limit at {result['peak_gflops']:.0f} GFLOP/s, measured in the same run: "
        f"{limits}.",
        "",
        f"![Milliseconds a round](../benchmarks/results/{path.with_suffix('.svg').name})",
        "",
    ]


def bench(path: Path) -> list[str]:
    """The table of cases against the plain loop, and the profile."""
    result = json.loads(path.read_text())
    times, profiles = [], []
    for row in result["results"]:
        names = (row["network"], row["method"], row["runner"])
        spent = f"{row['median_ms']:.0f} ({row['minimum_ms']:.0f})"
        times.append((*names, spent, f"{row['ratio']:.2f}"))
        if row["profile"]:
            parts = tuple(row["profile"])
            profiles.append((*names, *(f"{100 * row['profile'][part]:.1f}" for part in parts)))
    columns = ("network", "method", "runner")
    return [
        f"### Against the plain loop, {result['cpu']}",
        "",
        header(result),
        "",
        *markdown((*columns, "ms a round, median (minimum)", "× plain loop"), times),
        "",
        "Where the time goes, per cent:",
        "",
        *markdown((*columns, *parts), profiles),
        "",
    ]


def growth(path: Path) -> list[str]:
    """Milliseconds by the number of clients, memory by the number of rounds, and the start."""
    result = json.loads(path.read_text())
    columns = ("clients", "of whom take part", "ms a round, median (minimum)")
    rows = [
        (
            f"{row['clients']:,}",
            str(row["selected"]),
            f"{row['median_ms']:.1f} ({row['minimum_ms']:.1f})",
        )
        for row in result["crowds"]
    ]
    run, start = result["long_run"], result["start_up_seconds"]
    memory = ", ".join(
        f"{megabytes:.0f} MB after {int(number):,}"
        for number, megabytes in run["megabytes"].items()
    )
    return [
        f"### Growth, {result['cpu']}",
        "",
        header(result),
        "",
        *markdown(columns, rows),
        "",
        f"A run with its folder, in rounds: {memory}; {run['seconds']:.0f} s in all. To import "
        f"torch and fedsaddle takes {start['import']:.1f} s, and a first run of one round, on the "
        f"data that comes with scikit-learn, {start['one_round']:.1f} s after that.",
        "",
    ]


def federation(path: Path) -> list[str]:
    """Seconds per phase on a real federation."""
    result = json.loads(path.read_text())
    ways = tuple(next(iter(result["seconds_per_phase"].values())))
    rows = [
        (model, *(f"{row[way]:.2f} s" for way in ways))
        for model, row in result["seconds_per_phase"].items()
    ]
    load = " / ".join(f"{load:g}" for load in result["load"])
    return [
        f"{result['date'][:10]}, {result['cpu']}, {result['cores']} cores for all parties, load "
        f"before the run {load}; mean of {result['phases'] - 1} phases, three sites:",
        "",
        *markdown(("model", *ways), rows),
        "",
    ]


PARTS: dict[str, dict[str, Callable[[Path], list[str]]]] = {
    "speed.md": {"peers": peers, "bench": bench, "growth": growth},
    "deployment.md": {"federation": federation},
}
"""Which kinds of results are on which page."""


def measured(name: str, folder: Path = RESULTS) -> str:
    """The measured part of a page, from the newest results of every processor."""
    lines = [BEGIN, ""]
    for kind, write in PARTS[name].items():
        for path in newest(kind, folder):
            lines += write(path)
    return "\n".join([*lines, END])


def page(name: str, text: str, folder: Path = RESULTS) -> str:
    """The page with its measured part renewed."""
    before, rest = text.split(BEGIN)
    return before + measured(name, folder) + rest.split(END)[1]


if __name__ == "__main__":
    for name in PARTS:
        (DOCS / name).write_text(page(name, (DOCS / name).read_text()))
