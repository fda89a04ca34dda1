"""What a comparison found, as rows; and these rows as CSV, Markdown, LaTeX and JSON."""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedsaddle.runs.compare.comparison import Comparison
from fedsaddle.runs.compare.statistics import Difference, Summary, summarise, too_few
from fedsaddle.runs.report.words import duration

DASH = "–"


@dataclass(frozen=True)
class Line:
    """One entrant in the table."""

    label: str
    method: str
    problem: str
    rounds: int
    megabytes: float
    simulated_seconds: float | None
    """None where the runs have no simulated clock."""
    result: Summary
    values: list[float | None]
    worst: Summary
    """The worst site's value of the metric."""
    p: float | None
    """Corrected p-value of the paired t-test against the best; None for the best itself."""
    best: bool
    stopped: dict[int, str]


@dataclass(frozen=True)
class Findings:
    """All that is said of a comparison."""

    metric: str
    higher: bool
    seeds: tuple[int, ...]
    budget_mb: float | None
    lines: list[Line]
    differences: list[Difference]
    notes: list[str]


def findings(comparison: Comparison, metric: str, higher: bool) -> Findings:
    """The table's lines in the order of the entrants, and every pair's difference."""
    values, pairs = comparison.final(metric), comparison.differences(metric)
    results = {label: summarise(found) for label, found in values.items()}
    split, _, name = metric.partition("/")
    worst = comparison.summary(f"{split}/worst_{name}")
    clock = comparison.summary("simulated_seconds")
    known = {label: result.mean for label, result in results.items() if result.mean is not None}
    best = (max if higher else min)(known, key=lambda label: known[label]) if known else None
    lines = [
        Line(
            label,
            comparison.setting(label, "algorithm"),
            comparison.setting(label, "problem"),
            comparison.rounds(label),
            comparison.megabytes(label),
            clock[label].mean,
            results[label],
            values[label],
            worst[label],
            _against(pairs, label, best),
            label == best,
            comparison.stopped(label),
        )
        for label in comparison.labels
    ]
    notes = [note for note in (too_few(pairs), *_stopped(lines)) if note]
    return Findings(metric, higher, comparison.seeds, comparison.budget_mb, lines, pairs, notes)


def _against(pairs: Sequence[Difference], label: str, best: str | None) -> float | None:
    return next((p.t_holm for p in pairs if {p.first, p.second} == {label, best}), None)


def _stopped(lines: Sequence[Line]) -> list[str]:
    return [
        f"{line.label}, seed {seed}: {reason}"
        for line in lines
        for seed, reason in line.stopped.items()
    ]


def number(value: float | None, form: str = ".4f") -> str:
    return DASH if value is None else format(value, form)


def between(found: Summary | Difference, form: str = ".4f") -> str:
    """An interval in words, or a dash."""
    if found.low is None or found.high is None:
        return DASH
    return f"{found.low:{form}} to {found.high:{form}}"


def p_value(p: float | None) -> str:
    return DASH if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


def columns(found: Findings) -> dict[str, list[str]]:
    """The table for people, by head; columns of which nothing is known are left out."""
    lines = found.lines
    table = {
        "method": [line.label for line in lines],
        "problem": [line.problem for line in lines],
        "rounds": [str(line.rounds) for line in lines],
        "MB sent": [f"{line.megabytes:.4g}" for line in lines],
        "simulated time": [
            DASH if line.simulated_seconds is None else duration(line.simulated_seconds)
            for line in lines
        ],
        found.metric: [number(line.result.mean) for line in lines],
        "95 % interval": [between(line.result) for line in lines],
        "seeds": [str(line.result.n) for line in lines],
        "worst site": [number(line.worst.mean) for line in lines],
        "p against the best": ["best" if line.best else p_value(line.p) for line in lines],
    }
    return {head: cells for head, cells in table.items() if set(cells) != {DASH}}


def difference_columns(found: Findings) -> dict[str, list[str]]:
    """Every pair for people, by head."""
    pairs = found.differences
    return {
        "pair": [f"{p.first} − {p.second}" for p in pairs],
        "difference": [number(p.mean, "+.4f") for p in pairs],
        "95 % interval": [between(p, "+.4f") for p in pairs],
        "t-test": [p_value(p.t) for p in pairs],
        "t-test (Holm)": [p_value(p.t_holm) for p in pairs],
        "signed rank": [p_value(p.wilcoxon) for p in pairs],
        "signed rank (Holm)": [p_value(p.wilcoxon_holm) for p in pairs],
        "significant": ["yes" if p.significant else "no" for p in pairs],
    }


def caption(found: Findings) -> str:
    """What the table shows, in one sentence."""
    budget = f", at most {found.budget_mb:g} MB each" if found.budget_mb else ""
    better = "larger" if found.higher else "smaller"
    return (
        f"Mean of {found.metric} over {len(found.seeds)} seed{'s' * (len(found.seeds) > 1)}"
        f"{budget}; {better} is better; p-values of paired t-tests, corrected by Holm."
    )


def as_csv(found: Findings) -> str:
    """One row per entrant, in full precision."""
    text = io.StringIO()
    heads = ["label", "method", "problem", "rounds", "megabytes", "simulated_seconds"]
    heads += ["metric", "mean", "low", "high", "deviation", "n", "worst_site", "p_holm", "best"]
    heads += [f"seed_{seed}" for seed in found.seeds]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heads)
    for line in found.lines:
        over = line.result
        row = [line.label, line.method, line.problem, line.rounds, line.megabytes]
        row += [line.simulated_seconds, found.metric, over.mean, over.low, over.high]
        row += [over.deviation, over.n, line.worst.mean, line.p, line.best, *line.values]
        writer.writerow(row)
    return text.getvalue()


def _markdown(table: dict[str, list[str]]) -> str:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"

    body = "".join(row(cells) for cells in zip(*table.values(), strict=True))
    return row([*table]) + "|" + "---|" * len(table) + "\n" + body


def as_markdown(found: Findings) -> str:
    """The table, every pair, and what has to be said besides."""
    parts = [caption(found) + "\n", _markdown(columns(found))]
    if found.differences:
        parts += ["Differences, paired by seed:\n", _markdown(difference_columns(found))]
    parts += [f"{note}\n" for note in found.notes]
    return "\n".join(parts)


LATEX = {sign: "\\" + sign for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "−": "$-$",
    "<": "$<$",
    "±": r"$\pm$",
}


def latex(text: str) -> str:
    """Text as LaTeX takes it.

    >>> latex("test/worst_auc, 95 %")
    'test/worst\\\\_auc, 95 \\\\%'
    """
    return "".join(LATEX.get(sign, sign) for sign in text)


def as_latex(found: Findings) -> str:
    """A table for booktabs, the best in bold."""
    table = columns(found)
    head = " & ".join(latex(name) for name in table)
    rows = []
    for line, cells in zip(found.lines, zip(*table.values(), strict=True), strict=True):
        written = dict(zip(table, map(latex, cells), strict=True))
        if line.best:
            written[found.metric] = rf"\textbf{{{written[found.metric]}}}"
        rows.append(" & ".join(written.values()) + r" \\")
    lines = [
        f"% {caption(found)}",
        rf"\begin{{tabular}}{{ll{'r' * (len(table) - 2)}}}",
        r"\toprule",
        head + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def as_json(found: Findings) -> dict[str, Any]:
    """Everything, for machines."""
    told = asdict(found)
    for line in told["lines"]:
        line["settings"] = f"best/{line['label']}.toml"
        line["values"] = dict(zip(map(str, found.seeds), line["values"], strict=True))
        line["stopped"] = {str(seed): reason for seed, reason in line["stopped"].items()}
    for pair, plain in zip(found.differences, told["differences"], strict=True):
        plain["significant"] = pair.significant
    return told | {"best": next((line.label for line in found.lines if line.best), None)}
