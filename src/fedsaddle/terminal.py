"""What the commands print: tables, numbers, JSON."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from fedsaddle.runs.record import RunRecord

MOST_FINDINGS = 6
"""With more findings a site's line shows their mean only."""
OWN_METRICS = ("robust_loss", "pgd_accuracy", "inception_score", "frechet_distance")
"""What some problems are judged by, besides accuracy and AUC."""


def table(*columns: str, title: str | None = None) -> "Table":
    """An empty table with these columns."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def show(shown: "Table") -> None:
    """Print a table, as wide as the terminal, or 140 columns into a file."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=140)).print(shown)


def number(value: Any) -> str:
    """A number for a table's cell.

    >>> number(0.25), number(3), number(None)
    ('0.2500', '3', '-')
    """
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def say(value: Any, text: str, as_json: bool) -> None:
    """Print the value as one JSON object, or the text."""
    print(json.dumps(value) if as_json else text)


def show_result(record: "RunRecord", out: "Path", best_round: int | None) -> None:
    """The sites' table of a finished run, then what counts in two lines."""
    summary, sites = record.evaluation.get("summary", {}), record.evaluation.get("sites", [])
    if sites and len(sites) <= 64:
        show(_site_table(sites))
    last = record.history[-1]
    megabytes = (last["bytes_up"] + last["bytes_down"]) / 1e6
    if summary.get("test/auc") is not None:
        low, high = (number(summary[f"test/auc_{end}"]) for end in ("low", "high"))
        worst, name = number(summary["test/worst_auc"]), summary["test/worst_site"]
        print(f"pooled test AUC {number(summary['test/auc'])} (95 % interval {low} to {high})")
        print(f"worst site {name} {worst}; {megabytes:.3g} MB sent in {last['round']} rounds")
    elif "test/mean_auc" in summary:
        mean, findings = number(summary["test/mean_auc"]), record.data["classes"]
        each = ", ".join(f"{name} {number(summary[f'test/auc_{name}'])}" for name in findings)
        print(f"pooled test AUC: {each}; mean {mean}")
        print(f"{megabytes:.3g} MB sent in {last['round']} rounds")
    else:
        accuracy = summary.get("test/accuracy")
        shown = "" if accuracy is None else f"test accuracy {number(accuracy)}; "
        print(f"{shown}{megabytes:.3g} MB sent in {last['round']} rounds")
    own = [name for name in OWN_METRICS if summary.get(f"test/{name}") is not None]
    if own:
        values = (f"{name.replace('_', ' ')} {number(summary[f'test/{name}'])}" for name in own)
        print("test " + ", ".join(values))
    if best_round is not None and best_round != last["round"]:
        print(f"best round by validation: {best_round} (model/best.safetensors)")
    print(f"report: {out / 'report.html'}")


def _finding_table(sites: list[dict[str, Any]]) -> "Table":
    """AUC by site and finding with n+/n-, or only their mean where they are many."""
    names = list(sites[0]["findings"])
    names = names if len(names) <= MOST_FINDINGS else []
    listed = table("site", "test rows", "mean AUC", *(f"{name} (n+/n-)" for name in names))
    for site in sites:
        cells = []
        for found in (site["findings"][name] for name in names):
            auc = "undefined" if found["auc"] is None else number(found["auc"])
            cells.append(f"{auc} ({found['n_positive']}/{found['n_negative']})")
        mean = "undefined" if site["mean_auc"] is None else number(site["mean_auc"])
        listed.add_row(site["name"], number(site["rows"]), mean, *cells)
    return listed


def _site_table(sites: list[dict[str, Any]]) -> "Table":
    if sites[0].get("findings"):
        return _finding_table(sites)
    if all(site.get("n_positive") is None for site in sites):
        listed = table("site", "test rows", "accuracy")
        for site in sites:
            listed.add_row(site["name"], number(site["rows"]), number(site.get("accuracy")))
        return listed
    listed = table("site", "test rows", "n+", "n-", "AUC", "95 % interval", "accuracy")
    for site in sites:
        undefined = "undefined (one class)" if site["rows"] else "no test rows"
        auc = undefined if site.get("auc") is None else number(site["auc"])
        interval = ""
        if site.get("auc_low") is not None:
            interval = f"{number(site['auc_low'])} to {number(site['auc_high'])}"
        counts = [number(site.get(key)) for key in ("rows", "n_positive", "n_negative")]
        listed.add_row(site["name"], *counts, auc, interval, number(site.get("accuracy")))
    return listed
