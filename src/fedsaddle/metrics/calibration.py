"""Whether a predicted probability means what it says: reliability and calibration error."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsaddle.metrics.intervals import wilson_interval
from fedsaddle.metrics.ranking import Counts, Floats, ScoreCounts

Strategy = Literal["uniform", "quantile"]


@dataclass(frozen=True, eq=False)
class Reliability:
    """A reliability diagram: one entry per non-empty bin, in order of probability.

    Args:
        predicted: mean predicted probability in the bin.
        observed: fraction of positives in the bin.
        rows: number of rows in the bin.
        low: lower end of Wilson's interval of `observed`.
        high: its upper end.
    """

    predicted: Floats
    observed: Floats
    rows: Counts
    low: Floats
    high: Floats


def reliability(
    counts: ScoreCounts, bins: int = 10, *, strategy: Strategy = "uniform", level: float = 0.95
) -> Reliability:
    """Predicted probabilities beside observed fractions, bin by bin.

    The probability of a row is the sigmoid of its logit. In bin b, `predicted = mean p` and
    `observed = n⁺_b / n_b`.

    Args:
        counts: the scores, as logits.
        bins: number of bins; empty ones are left out.
        strategy: "uniform" cuts [0, 1] into equal widths, open on the left; "quantile" gives bins
            about equal rows (equal scores stay together), which shows more where positives are rare
            and every probability is small.
        level: coverage of the intervals.

    >>> diagram = reliability(ScoreCounts.exact([-2.0, -2.0, 1.0, 1.0], [0, 0, 0, 1]), bins=2)
    >>> diagram.predicted.round(3), diagram.observed, diagram.rows
    (array([0.119, 0.731]), array([0. , 0.5]), array([2, 2]))

    Reference: A. Niculescu-Mizil and R. Caruana (2005), Predicting good probabilities with
    supervised learning, ICML.
    """
    if bins < 1:
        raise ValueError(f"a reliability diagram needs at least 1 bin, not {bins}")
    at_value = counts.positives + counts.negatives
    where = _bin_of_value(counts, at_value, bins, strategy)
    rows = np.bincount(where, weights=at_value, minlength=bins)
    filled = rows > 0
    predicted, positives = (
        np.bincount(where, weights=weights, minlength=bins)[filled]
        for weights in (counts.probabilities * at_value, counts.positives)
    )
    rows = rows[filled]
    observed = positives / rows
    low, high = wilson_interval(observed, rows, level)
    return Reliability(predicted / rows, observed, rows.astype(np.int64), low, high)


def expected_calibration_error(
    counts: ScoreCounts, bins: int = 10, *, strategy: Strategy = "uniform"
) -> float:
    """Mean gap between predicted probability and observed fraction; nan without rows.

    `ECE = Σ_b (n_b / n) |observed_b − predicted_b|`.

    Args:
        counts: the scores, as logits.
        bins: number of bins.
        strategy: how bins are cut, see `reliability`.

    >>> round(expected_calibration_error(ScoreCounts.exact([0.0, 0.0, 0.0, 0.0], [0, 1, 1, 1])), 3)
    0.25

    Reference: M. P. Naeini, G. Cooper and M. Hauskrecht (2015), Obtaining well calibrated
    probabilities using Bayesian binning, AAAI; C. Guo et al. (2017), On calibration of modern
    neural networks, ICML.
    """
    if counts.rows == 0:
        return math.nan
    diagram = reliability(counts, bins, strategy=strategy)
    gaps = np.abs(diagram.observed - diagram.predicted)
    return float(np.average(gaps, weights=diagram.rows))


def _bin_of_value(counts: ScoreCounts, at_value: Counts, bins: int, strategy: Strategy) -> Counts:
    if strategy == "uniform":
        inner_edges = np.linspace(0, 1, bins + 1)[1:-1]
        return np.searchsorted(inner_edges, counts.probabilities)
    if strategy == "quantile":
        mid_rank = np.cumsum(at_value) - at_value / 2
        return (mid_rank * bins / max(counts.rows, 1)).astype(np.int64)
    raise ValueError(f"strategy must be 'uniform' or 'quantile', not '{strategy}'")
