"""What each site reports of a model, and what the federation makes of it."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsaddle.errors import UserError, nearest
from fedsaddle.metrics.calibration import expected_calibration_error
from fedsaddle.metrics.ranking import ScoreCounts, auc, average_precision, delong_interval

Task = Literal["binary", "multiclass", "multilabel", "none"]
Value = float | int | str | None

MEAN = "mean_auc"


@dataclass(frozen=True)
class SiteEvaluation:
    """What one site reports: counts and sums, never a row.

    Args:
        name: the site.
        rows: number of rows it evaluated.
        loss: mean loss over these rows; nan when there is none.
        counts: its scores, for a binary task.
        correct: number of right predictions; None for a problem without predictions.
        findings: its scores for every finding, for a multi-label task; unknown labels left out.
    """

    name: str
    rows: int
    loss: float
    counts: ScoreCounts | None = None
    correct: int | None = None
    findings: Mapping[str, ScoreCounts] | None = None

    @property
    def task(self) -> Task:
        """Which metrics this report allows."""
        if self.findings is not None:
            return "multilabel"
        if self.counts is not None:
            return "binary"
        return "none" if self.correct is None else "multiclass"

    @property
    def accuracy(self) -> float:
        """Fraction of right predictions; nan without rows or predictions."""
        return self.correct / self.rows if self.rows and self.correct is not None else math.nan


def evaluate_site(
    name: str,
    outputs: ArrayLike | None,
    labels: ArrayLike,
    loss: float,
    *,
    binned: bool = False,
    findings: Sequence[str] = (),
) -> SiteEvaluation:
    """Reduce a site's predictions to the counts it reports.

    A binary prediction is positive when its logit is above 0; a multi-class one is the class of the
    largest output.

    Args:
        name: the site, named in every error.
        outputs: logits of shape (n,) for a binary task, (n, k) for k classes or findings, None for
            a problem that predicts nothing.
        labels: one per row: 0 or 1, or the class number; (n, k) for findings, -1 where unknown.
        loss: mean loss over the rows.
        binned: report public score bins instead of the exact scores.
        findings: their names, for a multi-label task.

    >>> site = evaluate_site("Ulm", [-1.0, 2.0, 0.5], [0, 1, 0], loss=0.3)
    >>> site.rows, site.correct, site.counts.n_positive
    (3, 2, 1)
    """
    truth = np.asarray(labels)
    if outputs is None:
        return SiteEvaluation(name, len(truth), float(loss))
    scores = np.asarray(outputs)
    count = ScoreCounts.binned if binned else ScoreCounts.exact
    try:
        if findings:
            known = truth >= 0
            found = {
                finding: count(scores[known[:, k], k], truth[known[:, k], k])
                for k, finding in enumerate(findings)
            }
            return SiteEvaluation(name, len(truth), float(loss), findings=found)
        if scores.ndim == 1:
            counts = count(scores, truth)
            correct = int(np.count_nonzero((scores > 0) == (truth == 1)))
            return SiteEvaluation(name, len(truth), float(loss), counts, correct)
        correct = _correct_classes(scores, truth)
        return SiteEvaluation(name, len(truth), float(loss), correct=correct)
    except ValueError as error:
        raise ValueError(f"site '{name}': {error}") from error


def summarise(
    split: str, sites: Sequence[SiteEvaluation], *, list_sites: bool = True
) -> dict[str, Value]:
    """The federation's metrics, flat and ready for JSON (undefined values are None).

    Loss and accuracy weigh every row alike; AUC, its interval, average precision and calibration
    error come from the pooled counts; `worst_…` is over sites. A site with one class has an
    undefined AUC: it is listed with None and counted in `undefined_sites`. `best10_accuracy` and
    `worst10_accuracy` are means over the best and worst tenth of the sites with rows (rounded down,
    at least one site); `std_accuracy` is the population standard deviation over these sites.

    For findings there are `auc_<finding>` with its interval and `mean_auc`, the mean over those
    that have both classes. Its interval is the mean of theirs: wide enough however much the
    findings depend on each other, for a mean deviates no more than its terms do in the mean.

    Args:
        split: "train", "test", ...; the prefix of every name.
        sites: the reports, one per site, all for the same task.
        list_sites: also give each site's own metrics, as `site/<name>/…` for the split "test" and
            `<split>/site/<name>/…` for others.

    >>> bonn = evaluate_site("Bonn", [-1.0, 2.0, 0.5], [0, 1, 1], loss=0.3)
    >>> ulm = evaluate_site("Ulm", [-1.0], [0], loss=0.1)
    >>> metrics = summarise("test", [bonn, ulm])
    >>> metrics["test/auc"], metrics["test/worst_site"], metrics["test/undefined_sites"]
    (1.0, 'Bonn', 1)
    >>> print(metrics["site/Ulm/auc"])
    None

    Reference: T. Li et al. (2020), Fair resource allocation in federated learning, ICLR (the
    spread, best and worst tenth of the sites).
    """
    federation = _Federation(sites)
    summary = {
        f"{split}/{metric.name}": _json_safe(metric.value(federation))
        for metric in _SUMMARY
        if federation.task in metric.tasks
    }
    pooled = _finding_metrics(federation.findings)
    summary |= {f"{split}/{name}": _json_safe(value) for name, value in pooled.items()}
    if list_sites:
        _refuse_repeated_names(sites)
        prefix = "site" if split == "test" else f"{split}/site"
        for site in sites:
            for key, value in _site_metrics(site, federation).items():
                summary[f"{prefix}/{site.name}/{key}"] = _json_safe(value)
    return summary


def metric_names(task: Task, split: str, findings: Sequence[str] = ()) -> tuple[str, ...]:
    """The names that `summarise` gives for a task, without the per-site ones.

    Args:
        task: "binary", "multiclass", "multilabel" or "none" (a problem without predictions).
        split: the prefix of every name.
        findings: their names, for the task "multilabel".

    >>> metric_names("none", "test")
    ('test/rows', 'test/loss')
    """
    if task not in _ALL:
        raise ValueError(f"task must be one of {', '.join(_ALL)}, not '{task}'")
    names = [metric.name for metric in _SUMMARY if task in metric.tasks]
    if task == "multilabel":
        names += _finding_metrics(dict.fromkeys(findings, ScoreCounts.pool([])))
    return tuple(f"{split}/{name}" for name in names)


def higher_is_better(name: str) -> bool:
    """Whether a larger value of this metric means a better model.

    Args:
        name: a name that `summarise` gives, per-site names included.

    >>> higher_is_better("test/auc"), higher_is_better("test/loss")
    (True, False)
    """
    better = {metric.name: metric.higher for metric in _SUMMARY if metric.higher is not None}
    last = name.rsplit("/", 1)[-1]
    if last.startswith(MEAN) or "/auc_" in name:
        return True
    if last not in better:
        raise UserError(
            f"'{name}' does not say which of two models is better; {nearest(last, list(better))}"
        )
    return better[last]


class _Federation:
    """All sites' reports, with what several metrics share computed once."""

    def __init__(self, sites: Sequence[SiteEvaluation]):
        self.sites = sites
        self.filled = [site for site in sites if site.rows]
        # A site without rows may not know the task; it does not decide it when others do.
        tasks: set[Task] = {site.task for site in self.filled or sites} or {"none"}
        if len(tasks) > 1:
            raise ValueError(f"sites report different tasks: {', '.join(sorted(tasks))}")
        self.task = tasks.pop()

    @property
    def rows(self) -> int:
        return sum(site.rows for site in self.filled)

    @property
    def loss(self) -> float:
        return _ratio(math.fsum(site.rows * site.loss for site in self.filled), self.rows)

    @property
    def accuracy(self) -> float:
        return _ratio(sum(site.correct or 0 for site in self.filled), self.rows)

    @cached_property
    def counts(self) -> ScoreCounts:
        return ScoreCounts.pool(site.counts for site in self.filled if site.counts is not None)

    @cached_property
    def findings(self) -> dict[str, ScoreCounts]:
        """Every finding's counts over all sites; none for another task."""
        reports = [site.findings for site in self.sites if site.findings is not None]
        names = dict.fromkeys(name for found in reports for name in found)
        return {n: ScoreCounts.pool(found[n] for found in reports if n in found) for n in names}

    @cached_property
    def interval(self) -> tuple[float, float]:
        return delong_interval(self.counts)

    @cached_property
    def defined_aucs(self) -> list[tuple[float, str]]:
        return [
            (auc(site.counts), site.name)
            for site in self.filled
            if site.counts is not None and site.counts.both_classes
        ]

    @cached_property
    def worst(self) -> tuple[float, str | None]:
        return min(self.defined_aucs, key=lambda pair: pair[0], default=(math.nan, None))

    @cached_property
    def accuracies(self) -> NDArray[np.float64]:
        return np.sort([site.accuracy for site in self.filled])

    @property
    def tenth(self) -> int:
        return max(1, len(self.filled) // 10)


@dataclass(frozen=True)
class _Metric:
    """One line of the summary; `higher` is None when it does not rank models."""

    name: str
    tasks: tuple[Task, ...]
    higher: bool | None
    value: Callable[[_Federation], Value]


_BINARY: tuple[Task, ...] = ("binary",)
_PREDICTS: tuple[Task, ...] = ("binary", "multiclass")
_ALL: tuple[Task, ...] = ("binary", "multiclass", "multilabel", "none")

# The one table behind summarise, metric_names and higher_is_better.
_SUMMARY = (
    _Metric("rows", _ALL, None, lambda f: f.rows),
    _Metric("loss", _ALL, False, lambda f: f.loss),
    _Metric("auc", _BINARY, True, lambda f: auc(f.counts)),
    _Metric("auc_low", _BINARY, True, lambda f: f.interval[0]),
    _Metric("auc_high", _BINARY, True, lambda f: f.interval[1]),
    _Metric("worst_auc", _BINARY, True, lambda f: f.worst[0]),
    _Metric("worst_site", _BINARY, None, lambda f: f.worst[1]),
    _Metric("undefined_sites", _BINARY, None, lambda f: len(f.filled) - len(f.defined_aucs)),
    _Metric("average_precision", _BINARY, True, lambda f: average_precision(f.counts)),
    _Metric("ece", _BINARY, False, lambda f: expected_calibration_error(f.counts)),
    _Metric("accuracy", _PREDICTS, True, lambda f: f.accuracy),
    _Metric("worst_accuracy", _PREDICTS, True, lambda f: _mean(f.accuracies[:1])),
    _Metric("std_accuracy", _PREDICTS, False, lambda f: _std(f.accuracies)),
    _Metric("best10_accuracy", _PREDICTS, True, lambda f: _mean(f.accuracies[-f.tenth :])),
    _Metric("worst10_accuracy", _PREDICTS, True, lambda f: _mean(f.accuracies[: f.tenth])),
)


def _finding_metrics(findings: Mapping[str, ScoreCounts]) -> dict[str, Value]:
    """`mean_auc` and each `auc_<finding>`, with intervals; nothing without findings."""
    if not findings:
        return {}
    metrics: dict[str, Value] = {}
    defined = []
    for name, counts in findings.items():
        value, (low, high) = auc(counts), delong_interval(counts)
        metrics |= {f"auc_{name}": value, f"auc_{name}_low": low, f"auc_{name}_high": high}
        if counts.both_classes:  # with a single positive there is an AUC, and no bound to it
            defined.append((value, 0.0, 1.0) if math.isnan(low) else (value, low, high))
    mean, low, high = np.mean(defined, axis=0) if defined else [math.nan] * 3
    return {MEAN: float(mean), f"{MEAN}_low": float(low), f"{MEAN}_high": float(high), **metrics}


def _site_metrics(site: SiteEvaluation, federation: _Federation) -> dict[str, Value]:
    task = federation.task
    metrics: dict[str, Value] = {}
    if task == "multilabel":
        found = site.findings or dict.fromkeys(federation.findings, ScoreCounts.pool([]))
        metrics.update(_finding_metrics(found))
        for name, counts in found.items():
            metrics[f"n_positive_{name}"] = counts.n_positive
            metrics[f"n_negative_{name}"] = counts.n_negative
    if task == "binary":
        metrics.update(dict.fromkeys(("auc", "auc_low", "auc_high", "n_positive", "n_negative")))
        if site.rows and site.counts is not None:
            low, high = delong_interval(site.counts)
            metrics.update(
                auc=auc(site.counts),
                auc_low=low,
                auc_high=high,
                n_positive=site.counts.n_positive,
                n_negative=site.counts.n_negative,
            )
    if task in _PREDICTS:
        metrics["accuracy"] = site.accuracy
    metrics["rows"] = site.rows
    return metrics


def _correct_classes(scores: NDArray[Any], truth: NDArray[Any]) -> int:
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ValueError(
            f"outputs of shape {scores.shape}; give (n,) for a binary task, (n, k) for k classes"
        )
    rows, classes = scores.shape
    if truth.shape != (rows,):
        raise ValueError(f"labels have shape {truth.shape}, but there are {rows} rows of outputs")
    if not np.all(np.isfinite(scores)):
        raise ValueError("some outputs are not finite; the largest of them is then undefined")
    if not np.all((truth >= 0) & (truth < classes)):
        raise ValueError(f"labels must be class numbers from 0 to {classes - 1}")
    return int(np.count_nonzero(scores.argmax(axis=1) == truth))


def _refuse_repeated_names(sites: Sequence[SiteEvaluation]) -> None:
    repeated = [name for name, times in Counter(site.name for site in sites).items() if times > 1]
    if repeated:
        raise ValueError(f"two sites are named '{repeated[0]}'; one would hide the other")


def _ratio(total: float, rows: int) -> float:
    return total / rows if rows else math.nan


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else math.nan


def _std(values: NDArray[np.float64]) -> float:
    return float(values.std()) if values.size else math.nan


def _json_safe(value: Value) -> Value:
    return None if isinstance(value, float) and not math.isfinite(value) else value
