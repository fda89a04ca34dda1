"""What the runs of an experiment came to: a metric's values by entrant and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedsaddle.runs.compare import Comparison, Summary
from fedsaddle.runs.compare.statistics import summarise

Row = dict[str, Any]
When = Literal["end", "best"]


def number(value: float) -> str:
    """A value as the results show it: three decimals, more where it is small.

    >>> number(0.98765), number(0.00123), number(312.0)
    ('0.988', '0.00123', '312')
    """
    if value and abs(value) < 0.01:
        return f"{value:.3g}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"


def said(summary: Summary) -> str:
    """A mean with its interval where there is one.

    >>> said(summarise([0.90, 0.92])), said(summarise([0.5])), said(summarise([]))
    ('0.910 (0.783 to 1.037)', '0.500', 'no value')
    """
    if summary.mean is None:
        return "no value"
    if summary.low is None or summary.high is None:
        return number(summary.mean)
    return f"{number(summary.mean)} ({number(summary.low)} to {number(summary.high)})"


@dataclass(frozen=True)
class Outcomes:
    """The evaluated rounds of every run.

    rows: by label and seed, one row of metrics per evaluated round.
    stopped: by label, the seeds whose run diverged and was stopped.
    """

    rows: Mapping[str, Mapping[int, Sequence[Row]]]
    stopped: Mapping[str, frozenset[int]]

    @classmethod
    def of(cls, comparison: Comparison) -> "Outcomes":
        """Those of finished runs."""
        labels, seeds = comparison.labels, comparison.seeds
        return cls(
            {label: {seed: comparison.rows(label, seed) for seed in seeds} for label in labels},
            {label: frozenset(comparison.stopped(label)) for label in labels},
        )

    def curve(self, label: str, seed: int, metric: str) -> list[tuple[int, float]]:
        """Rounds and values of a run where the metric was measured."""
        known = ((row["round"], row.get(metric)) for row in self.rows[label][seed])
        return [(at, float(value)) for at, value in known if value is not None]

    def values(
        self, label: str, metric: str, when: When = "end", lower: bool = False
    ) -> dict[int, float]:
        """By seed the metric at the end of a run, or its best; diverged runs are left out."""
        found = {}
        for seed in self.rows[label]:
            points = [value for _, value in self.curve(label, seed, metric)]
            if points and seed not in self.stopped.get(label, ()):
                best = min(points) if lower else max(points)
                found[seed] = points[-1] if when == "end" else best
        return found

    def summary(self, label: str, metric: str, when: When = "end", lower: bool = False) -> Summary:
        """Mean and interval over the seeds."""
        return summarise(list(self.values(label, metric, when, lower).values()))
