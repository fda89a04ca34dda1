"""What goes into a run beside its problem, data and method, and what comes out."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedsaddle.engines import EngineOptions
from fedsaddle.federation import FederationOptions
from fedsaddle.layout import Named
from fedsaddle.metrics import (
    ScoreCounts,
    SiteEvaluation,
    reliability,
    roc_curve,
    summarise,
    thin_curve,
)
from fedsaddle.models import ModelOptions
from fedsaddle.runs.options import EvaluationOptions, RunOptions
from fedsaddle.runs.record import RunRecord

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Everything about a run but its problem, data and method."""

    federation: FederationOptions
    engine: EngineOptions
    evaluation: EvaluationOptions
    run: RunOptions
    sections: dict[str, dict[str, Any]]
    """The resolved configuration, as it is written down."""
    model: ModelOptions | None = None
    """How to build the network again; None when it was given as an object."""


@dataclass(frozen=True)
class Result:
    """What a run gives back."""

    model: nn.Module | None
    """The trained network (None for a problem without one)."""
    x: Named
    y: Named
    record: RunRecord
    best_round: int | None
    folder: Path | None
    stopped: str | None = None
    """Why the run ended before its last round; None when it did not."""

    @property
    def history(self) -> list[Row]:
        """One row of metrics per evaluated round."""
        return self.record.history

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """Every numeric metric as an array over the evaluated rounds (NaN where undefined)."""
        names = dict.fromkeys(name for row in self.history for name in row)
        columns = {name: [row.get(name) for row in self.history] for name in names}
        return {
            name: np.array([math.nan if value is None else value for value in column], dtype=float)
            for name, column in columns.items()
            if not any(isinstance(value, str) for value in column)
        }

    @property
    def evaluation(self) -> dict[str, Any]:
        """The returned model on the test rows: summary, sites, ROC, reliability."""
        return self.record.evaluation

    def report(self, path: str | Path) -> Path:
        """Write the HTML report."""
        from fedsaddle.runs.report import write_report

        return write_report([self.record], Path(path))


def _site_findings(summary: Row, site: SiteEvaluation) -> Row:
    prefix = f"site/{site.name}"
    names = ("mean_auc", "mean_auc_low", "mean_auc_high")
    of_one = ("n_positive_{}", "n_negative_{}", "auc_{}", "auc_{}_low", "auc_{}_high")
    return {name: summary[f"{prefix}/{name}"] for name in names} | {
        "findings": {
            finding: {
                name.replace("_{}", ""): summary[f"{prefix}/{name.format(finding)}"]
                for name in of_one
            }
            for finding in site.findings or ()
        }
    }


def evaluation_of(sites: list[SiteEvaluation]) -> Row:
    """The returned model on the test rows, in counts, curves and a table."""
    summary = summarise("test", sites, list_sites=True)
    names = ("rows", "n_positive", "n_negative", "auc", "auc_low", "auc_high", "accuracy")
    table: list[Row] = [
        {"name": site.name} | {name: summary.get(f"site/{site.name}/{name}") for name in names}
        for site in sites[:1000]
    ]
    for row, site in zip(table, sites, strict=False):
        if site.findings:
            row |= _site_findings(summary, site)
    pooled_names = {key: value for key, value in summary.items() if key.startswith("test/")}
    evaluation: Row = {"summary": pooled_names, "sites": table}
    counts = [site.counts for site in sites if site.counts is not None]
    if counts:
        pooled = ScoreCounts.pool(counts)
        if pooled.both_classes:
            fpr, tpr = thin_curve(*roc_curve(pooled), max_points=200)
            evaluation["roc"] = {"fpr": fpr.tolist(), "tpr": tpr.tolist()}
        curve = vars(reliability(pooled))
        evaluation["reliability"] = {name: np.asarray(v).tolist() for name, v in curve.items()}
    return evaluation
